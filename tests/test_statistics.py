"""Statistics: intervals cover what they promise, and words of comparison wait for them."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pflpipe.report import comparison, statistics
from pflpipe.report.comparison import Group
from pflpipe.report.statistics import Difference, Model, against, contest, paired, rank_intervals


def series(*values: float, seeds: Sequence[int] | None = None) -> pd.Series:
    return pd.Series(values, index=seeds or range(len(values)), dtype=float)


def frame(**lines: Sequence[float]) -> pd.DataFrame:
    return pd.DataFrame({name: series(*values) for name, values in lines.items()})


# ---------------------------------------------------------------- one difference


def test_two_lines_alone_have_the_interval_of_the_paired_t_test():
    """Golden numbers: differences 1, 2, 4, 3, 5 have mean 3 and standard error sqrt(2.5 / 5); the
    0.975 quantile of t with four degrees of freedom is 2.7764451 in every printed table."""
    ours, theirs = series(11, 22, 34, 43, 55), series(10, 20, 30, 40, 50)
    found = paired(ours, theirs)
    error = math.sqrt(2.5 / 5)
    assert (found.mean, found.seeds, found.sign) == (3.0, 5, 1)
    assert found.low == pytest.approx(3 - 2.7764451052 * error)
    assert found.high == pytest.approx(3 + 2.7764451052 * error)


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
    assert (found.low, found.high, found.sign) == (-math.inf, math.inf, 0)
    assert found.seeds == len(values)
    assert math.isnan(found.mean) == (not values)


def test_equal_differences_are_a_point_and_a_rounding_error_is_none():
    ours = series(0.1 + 0.2, 0.7, 0.8)
    assert paired(ours, series(0.3, 0.7, 0.8)) == Difference(0.0, 0.0, 0.0, 3)
    assert paired(ours + 1, series(0.3, 0.7, 0.8)) == Difference(1.0, 1.0, 1.0, 3)


@pytest.mark.parametrize("apart", [4.0, 2.0, 1.0, 0.7])
def test_about_as_many_seeds_are_named_as_make_the_interval_leave_the_value_out(apart):
    """With mean and spread as they are, at a level of 1 - alpha / 10 for one of a family."""

    def half(seeds: int) -> float:
        return 2.0 * float(stats.t.ppf(0.9975, seeds + 1)) / math.sqrt(seeds)

    for mean, value in ((10 + apart, 10.0), (10 - apart, 10.0)):
        known = Difference(mean, mean - half(3), mean + half(3), 3)
        named = known.seeds_beside(value)
        assert named is not None
        assert half(named) < apart <= half(named - 1) or named == 4
    assert known.seeds_beside(mean) is None, "no number of seeds"
    assert known.seeds_beside(mean + 1e-3) is None, "more than anybody is told to run"


# ---------------------------------------------------------------- the model of many lines


def plainly(values: np.ndarray, ours: int, theirs: int, people: float) -> list[float]:
    """Mean and ends as the module's text says, of complete values, with the least squares of a
    design matrix and scipy's distribution."""
    seeds, lines = values.shape
    of_lines = np.tile(np.eye(lines), (seeds, 1))[:, 1:]
    design = np.hstack([np.repeat(np.eye(seeds), lines, axis=0), of_lines])
    fit = np.linalg.lstsq(design, values.ravel(), rcond=None)[0]
    residuals = (values.ravel() - design @ fit).reshape(values.shape)
    degrees = (seeds - 1) * (lines - 1)
    assert design.shape[0] - np.linalg.matrix_rank(design) == degrees
    pool, prior = 2 * (residuals**2).sum() / degrees, min(2, degrees / 12)
    apart = values[:, ours] - values[:, theirs]
    own, known = apart.var(ddof=1), seeds - 1
    luck = max(own, (prior * pool + known * own) / (prior + known)) / seeds
    level = 1 - (1 - 0.95 ** (1 / lines)) / 2
    mean = float(apart.mean())
    luck *= stats.t.ppf(level, prior + known) ** 2
    reach = math.sqrt(luck + stats.norm.ppf(level) ** 2 * people)
    return [mean, mean - reach, mean + reach]


@pytest.mark.parametrize(("seeds", "lines"), [(3, 3), (3, 12), (5, 6), (10, 4)])
def test_intervals_are_those_of_a_plain_program(seeds, lines):
    rng = np.random.default_rng(seeds)
    own = rng.normal(size=(seeds, lines)) * rng.uniform(0.3, 3, size=lines)
    values = own + rng.normal(size=(seeds, 1))
    model = Model(pd.DataFrame(values), lambda ours, theirs: 0.1 * abs(ours - theirs))
    for ours, theirs in itertools.combinations(range(lines), 2):
        found = model.difference(ours, theirs, lines)
        expected = plainly(values, ours, theirs, 0.1 * abs(ours - theirs))
        assert [found.mean, found.low, found.high] == pytest.approx(expected)
        turned = model.difference(theirs, ours, lines)
        assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low))


def test_people_of_a_pool_are_counted_once_whatever_the_number_of_seeds():
    """By simulation: seeds draw 30 of 40 people, who differ. Three seeds know the luck of the draw
    and not that of the 40."""
    rng = np.random.default_rng(6)
    errors, said = [], []
    for _ in range(400):
        effects = rng.normal(scale=10, size=40)
        drawn = [effects[rng.permutation(40)[:30]] for _ in range(3)]
        values = pd.DataFrame({"a": [one.mean() for one in drawn], "b": 0.0})
        errors.append(values["a"].mean())
        variance = np.mean([one.var(ddof=1) for one in drawn])
        found = Model(values, lambda *_, v=variance: v / 40).difference("a", "b")
        luck = values["a"].var() / 3
        said.append(luck + variance / 40)
        assert found.high - found.mean > 1.96 * math.sqrt(variance / 40)
    assert np.mean(said) == pytest.approx(np.var(errors), rel=0.15)


def test_a_seed_that_lines_lack_biases_nothing():
    """Seed 2 is easy; the line that lacks it is not worse for that."""
    values = frame(a=(1, 2, 30, 4), b=(0, 1, 29, 3), c=(2, 3, 31, 5))
    values.loc[2, "a"] = math.nan
    found = against(values[["a", "c"]], values["b"])
    assert [one.mean for one in found.values()] == pytest.approx([1, 2])


def test_one_line_is_not_adjusted_and_none_is_no_error():
    values = frame(a=(3, 4, 6))
    assert against(values, series(0, 0, 0)) == {"a": paired(values["a"], series(0, 0, 0))}
    assert against(values[[]], series(0, 0, 0)) == {}


# ---------------------------------------------------------------- collapsed runs


@pytest.mark.parametrize(
    ("drop", "scale", "fell"), [(4.9, 0.1, 0), (5.1, 0.1, 1), (9.0, 1.0, 0), (30.0, 1.0, 1)]
)
def test_a_run_collapses_by_a_drop_of_points_and_of_deviations(drop, scale, fell):
    steady = scale * np.array([-1, 1, 0, 1, -1])  # of deviation 1
    values = frame(a=(70, 70, 70, 70, 70 - drop), b=60 + steady, c=50 + steady)
    assert statistics.collapsed(values).sum().to_dict() == {"a": fell, "b": 0, "c": 0}


def test_the_share_of_runs_that_collapse_has_the_exact_interval_of_a_proportion():
    assert statistics.share(0, 5) == pytest.approx((0, 100 * (1 - 0.025**0.2)))
    low, high = statistics.share(2, 5)
    assert stats.binom.sf(1, 5, low / 100) == pytest.approx(0.025)
    assert stats.binom.cdf(2, 5, high / 100) == pytest.approx(0.025)


# ---------------------------------------------------------------- the best


def test_who_is_not_distinguishable_from_the_largest_mean_is_kept():
    three = {"low": (10, 20, 30, 40, 50), "top": (15, 25, 36, 45, 54), "near": (12, 29, 33, 47, 50)}
    values = frame(**three, one=(99,))
    found = contest(values)
    assert found.leader == "top"
    assert found.kept == found.bold == {"top", "near"}
    assert not found.decided
    level = contest(values[["top", "near"]])
    assert (level.kept, level.bold) == ({"top", "near"}, frozenset())
    assert set(found.behind) == {"low", "near"}, "a line with one seed does not compete"
    assert contest(values[["low", "top"]]).decided


def test_a_leader_leads_on_the_seeds_that_all_have():
    """The extra seeds of one line are easy ones, which is no merit of it."""
    few = {"a": series(10, 20, 30), "b": series(11, 21, 31)}
    many = {**few, "a": series(10, 20, 30, 90, 90)}
    for lines in (few, many):
        found = contest(pd.DataFrame(lines))
        assert (found.leader, found.kept) == ("b", {"b"})


def test_there_is_no_contest_without_two_lines_and_three_common_seeds():
    apart = frame(a=(1, 2, 3, math.nan, math.nan), b=(math.nan, math.nan, 1, 2, 3))
    for values in (frame(a=(1, 2), b=(3, 4)), frame(a=(1, 2, 3)), apart, pd.DataFrame()):
        assert contest(values) is None


@pytest.mark.slow
def test_the_truly_best_line_is_kept_in_95_of_100_studies():
    """The hardest case: ten lines that are equally good, so that the data choose a leader."""
    rng, studies = np.random.default_rng(2), 120
    found = [contest(pd.DataFrame(rng.normal(size=(5, 10)))) for _ in range(studies)]
    # 0.95 less two standard errors
    assert sum(0 in one.kept for one in found) / studies >= 0.91


def test_ranks_are_intervals_over_resampled_seeds():
    values = frame(a=(9, 9, 9, 9), b=(2, 1, 2, 1), c=(1, 2, 1, 2), d=(0, 0, 0, 0), e=(99,))
    assert rank_intervals(values, "x") == {"a": (1, 1), "b": (2, 3), "c": (2, 3), "d": (4, 4)}
    assert rank_intervals(values.iloc[:2], "x") == {}
    tied = frame(a=(1, 2, 3), b=(1, 2, 3), c=(0, 0, 0))
    assert rank_intervals(tied, "x") == {"a": (1, 2), "b": (1, 2), "c": (3, 3)}


def test_ranks_are_the_same_every_time_and_in_any_order_of_rows():
    values = pd.DataFrame(np.random.default_rng(3).normal(size=(5, 60)))
    assert rank_intervals(values, "x") == rank_intervals(values.copy(), "x")
    assert len(set(rank_intervals(values, "x").values())) > 1


def test_groups_of_a_tidy_table_become_columns_by_seed():
    rows = pd.DataFrame({"seed": [1, 0, 2], "x": [1.0, None, math.inf]}, dtype=object)
    groups = [Group("a", "", rows), Group("b", "", rows[:1])]
    found = comparison.table(groups, "x")
    assert list(found.index) == [0, 1, 2]
    assert found.loc[1].to_list() == [1.0, 1.0]
    assert found[groups[0]].isna().to_list() == [True, False, True]
    assert statistics.comparable(found).empty
