"""Statistics: intervals cover what they promise, and words of comparison wait for them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pflpipe.report import comparison
from pflpipe.report.comparison import Group
from pflpipe.report.statistics import (
    Difference,
    against,
    comparable,
    contest,
    paired,
    rank_intervals,
)

SEEDS = range(5)


def series(*values: float, seeds: Sequence[int] | None = None) -> pd.Series:
    return pd.Series(values, index=seeds or range(len(values)), dtype=float)


def frame(**lines: Sequence[float]) -> pd.DataFrame:
    return pd.DataFrame({name: series(*values) for name, values in lines.items()})


# ---------------------------------------------------------------- one difference


def test_an_interval_is_students_over_the_seeds_means():
    """Golden numbers: differences 1, 2, 4, 3, 5 have mean 3 and standard error sqrt(2.5 / 5); the
    0.975 quantile of t with four degrees of freedom is 2.7764451 in every printed table, and
    P(|T| > 4.2426407) follows from its closed distribution function for four degrees."""
    ours, theirs = series(11, 22, 34, 43, 55), series(10, 20, 30, 40, 50)
    found = paired(ours, theirs)
    error = math.sqrt(2.5 / 5)
    assert (found.mean, found.seeds, found.sign) == (3.0, 5, 1)
    assert found.low == pytest.approx(3 - 2.7764451052 * error)
    assert found.high == pytest.approx(3 + 2.7764451052 * error)
    t = 3 / error
    sine = t / math.sqrt(4 + t**2)
    assert found.p == pytest.approx(1 - sine * (1 + (1 - sine**2) / 2))


def test_pairs_are_those_of_the_seeds_that_both_have_in_any_order():
    ten = series(*range(100, 110), seeds=range(10))
    five = series(103, 102, 100, 101, math.nan, seeds=[4, 2, 0, 1, 99])
    assert paired(ten, five) == paired(series(100, 101, 102, 104), series(100, 101, 102, 103))
    assert paired(ten, five).seeds == 4


@pytest.mark.parametrize("missing", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_takes_its_seed_out(missing):
    assert paired(series(1, 2, 4, missing), series(0, 0, 0, 0)).seeds == 3


@pytest.mark.parametrize("values", [[], [5.0], [5.0, 5.1]])
def test_fewer_than_three_seeds_tell_nothing(values):
    found = paired(series(*values), series(*[0.0] * len(values)))
    assert (found.low, found.high, found.p, found.sign) == (-math.inf, math.inf, 1.0, 0)
    assert found.seeds == len(values)
    assert math.isnan(found.mean) == (not values)


def test_equal_differences_are_a_point_and_a_rounding_error_is_none():
    ours = series(0.1 + 0.2, 0.7, 0.8)
    assert paired(ours, series(0.3, 0.7, 0.8)) == Difference(0.0, 0.0, 0.0, 1.0, 3)
    assert paired(ours + 1, series(0.3, 0.7, 0.8)) == Difference(1.0, 1.0, 1.0, 0.0, 3)


@given(
    st.lists(st.floats(-100, 100), min_size=3, max_size=8),
    st.floats(-50, 50),
    st.floats(0.001, 0.2),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_an_interval_holds_its_mean_turns_with_its_sides_and_excludes_0_where_p_says_so(
    values, shift, alpha
):
    ours, theirs = series(*values), series(*[shift] * len(values))
    found, turned = paired(ours, theirs, alpha), paired(theirs, ours, alpha)
    assert found.low <= found.mean <= found.high
    assert (turned.low, turned.high, turned.p) == pytest.approx((-found.high, -found.low, found.p))
    if abs(found.p - alpha) > 1e-9:
        assert (found.sign != 0) == (found.p < alpha)


@pytest.mark.slow
def test_95_of_100_intervals_cover_the_truth_although_clients_of_a_run_share_its_noise():
    """Runs of two lines: a seed's luck common to both, noise common to a run's clients, and fifty
    clients. An interval over clients would cover it in a fraction of the studies."""
    rng = np.random.default_rng(0)
    studies, covered, naive = 800, 0, 0
    for _ in range(studies):
        luck = rng.normal(scale=5, size=(5, 1, 1))
        noise = rng.normal(scale=2, size=(5, 2, 1))
        clients = luck + noise + rng.normal(scale=8, size=(5, 2, 50)) + [[[1.5], [0.0]]]
        ours, theirs = (series(*clients[:, line].mean(axis=1)) for line in (0, 1))
        found = paired(ours, theirs)
        covered += found.low <= 1.5 <= found.high
        each = (clients[:, 0] - clients[:, 1]).ravel()
        naive += abs(each.mean() - 1.5) <= 1.96 * each.std(ddof=1) / math.sqrt(len(each))
    assert 0.93 <= covered / studies <= 0.97  # 2.6 standard errors of 0.0077
    assert naive / studies < 0.7


# ---------------------------------------------------------------- many lines


def rejected_by_holm(p: np.ndarray, alpha: float = 0.05) -> np.ndarray:
    """Holm (1979): compare the smallest p with alpha / m, the next with alpha / (m - 1) ... and
    stop at the first that is larger."""
    out = np.zeros(len(p), bool)
    for step, index in enumerate(np.argsort(p, kind="stable")):
        if p[index] > alpha / (len(p) - step):
            break
        out[index] = True
    return out


def test_adjusted_intervals_exclude_0_where_holm_rejects_and_nowhere_else():
    rng = np.random.default_rng(1)
    seen = set()
    for _ in range(12):
        values = pd.DataFrame(rng.normal(size=(5, 6)) + rng.choice([0, 2, 3, 9], size=6))
        baseline = series(*rng.normal(size=5))
        plain = {line: paired(values[line], baseline) for line in values}
        expected = rejected_by_holm(np.array([own.p for own in plain.values()]))
        found = against(values, baseline)
        assert [found[line].sign != 0 for line in values] == list(expected)
        assert [found[line].p <= 0.05 for line in values] == list(expected)
        for line, own in plain.items():
            assert found[line].low <= own.low
            assert found[line].high >= own.high
        seen |= set(expected)
    assert seen == {True, False}


def test_after_the_first_line_that_is_not_rejected_none_is():
    """Twice the same p of 0.03: at the second line's own level of 0.05 it would be rejected."""
    t = 3.2976297  # of four degrees of freedom, two-sided p = 0.03
    line = np.array([-2, -1, 1, 0, 2]) + t * math.sqrt(2.5 / 5)
    found = against(frame(a=line, b=line), series(0, 0, 0, 0, 0))
    assert [(one.sign, one.p) for one in found.values()] == [(0, pytest.approx(0.06))] * 2


def test_one_line_is_not_adjusted_and_none_is_no_error():
    values = frame(a=(3, 4, 6))
    assert against(values, series(0, 0, 0)) == {"a": paired(values["a"], series(0, 0, 0))}
    assert against(values[[]], series(0, 0, 0)) == {}


def test_who_is_not_distinguishable_from_the_largest_mean_is_kept():
    values = frame(
        low=(10, 20, 30, 40, 50), top=(15, 25, 36, 45, 54), near=(12, 29, 33, 47, 50), one=(99,)
    )
    found = contest(values)
    assert found is not None
    assert found.leader == "top"
    assert found.kept == found.bold == {"top", "near"}
    assert not found.decided
    level = contest(values[["top", "near"]])
    assert level is not None
    assert (level.kept, level.bold) == ({"top", "near"}, frozenset())
    assert set(found.behind) == {"low", "near"}, "a line with one seed does not compete"
    alone = contest(values[["low", "top"]])
    assert alone is not None
    assert alone.decided


def test_a_leader_leads_on_the_seeds_that_all_have():
    """The extra seeds of one line are easy ones, which is no merit of it."""
    few = {"a": series(10, 20, 30), "b": series(11, 21, 31)}
    many = {**few, "a": series(10, 20, 30, 90, 90)}
    for lines in (few, many):
        found = contest(pd.DataFrame(lines))
        assert found is not None
        assert found.leader == "b"
        assert found.kept == {"b"}


@pytest.mark.parametrize(
    "values",
    [
        frame(a=(1, 2), b=(3, 4)),
        frame(a=(1, 2, 3)),
        frame(a=(1, 2, 3, math.nan, math.nan), b=(math.nan, math.nan, 1, 2, 3)),
        pd.DataFrame(),
    ],
)
def test_there_is_no_contest_without_two_lines_and_three_common_seeds(values):
    assert contest(values) is None


@pytest.mark.slow
def test_the_truly_best_line_is_kept_in_95_of_100_studies():
    """The hardest case: ten lines that are equally good, so that the data choose a leader."""
    rng = np.random.default_rng(2)
    studies = 120
    kept = sum(
        0 in found.kept
        for _ in range(studies)
        if (found := contest(pd.DataFrame(rng.normal(size=(5, 10)))))
    )
    assert kept / studies >= 0.91  # 0.95 less two standard errors


def test_ranks_are_intervals_over_resampled_seeds():
    values = frame(a=(9, 9, 9, 9), b=(2, 1, 2, 1), c=(1, 2, 1, 2), d=(0, 0, 0, 0), e=(99,))
    assert rank_intervals(values, "x") == {"a": (1, 1), "b": (2, 3), "c": (2, 3), "d": (4, 4)}
    assert rank_intervals(values.iloc[:2], "x") == {}
    tied = frame(a=(1, 2, 3), b=(1, 2, 3), c=(0, 0, 0))
    assert rank_intervals(tied, "x") == {"a": (1, 2), "b": (1, 2), "c": (3, 3)}


def test_ranks_are_the_same_every_time_and_in_any_order_of_rows():
    rng = np.random.default_rng(3)
    values = pd.DataFrame(rng.normal(size=(5, 60)))
    assert rank_intervals(values, "x") == rank_intervals(values.copy(), "x")
    assert len(set(rank_intervals(values, "x").values())) > 1


def test_groups_of_a_tidy_table_become_columns_by_seed():
    rows = pd.DataFrame({"seed": [1, 0, 2], "x": [1.0, None, math.inf]}, dtype=object)
    groups = [Group("a", "", rows), Group("b", "", rows[:1])]
    found = comparison.table(groups, "x")
    assert list(found.index) == [0, 1, 2]
    assert found.loc[1].to_list() == [1.0, 1.0]
    assert found[groups[0]].isna().to_list() == [True, False, True]
    assert comparable(found).empty
