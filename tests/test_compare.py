"""``pflpipe compare``: differences are paired by seed, and no epsilon is shown that does not
hold."""

import dataclasses
import math
from pathlib import Path

import pandas as pd
import pytest

import fake_results
from pflpipe.errors import ConfigError, DataError
from pflpipe.report import compare, tidy

METHODS = ("fedavg", "dp_fedavg", "feddpa!")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of two studies that differ in alpha; the second has a seed less and a budget less."""
    folder = tmp_path_factory.mktemp("compare")
    partition = dataclasses.replace(fake_results.BASE.partition, alpha=5.0)
    other = dataclasses.replace(fake_results.BASE, partition=partition)
    one = fake_results.study("one", methods=METHODS)
    two = fake_results.study("two", (0, 1), (8.0,), METHODS, other)
    for study, shift in ((one, 0.0), (two, 10.0)):
        frame = tidy.tidy(study, fake_results.write(study, folder))
        seeds = frame["seed"].astype(float)
        frame["personal_own"] = 50.0 + seeds**2 + shift * (1 + seeds)
        tidy.write(frame, folder / "results/tables" / f"{study.name}.csv")
    return folder / "results"


@pytest.mark.slow
def test_the_difference_is_that_of_seeds_that_both_have_and_rows_of_one_side_are_counted(results):
    found = list(compare.lines("one", "two", results))
    assert {"  alpha: 0.3 | 5.0", "  and 2 of A alone"} <= {*found}
    (line,) = [line for line in found if line.startswith("  dp_fedavg")]
    # seed by seed: (60 - 50, 71 - 51) = (10, 20): mean 15, standard error sqrt(50) / sqrt(2) = 5
    assert line.endswith(f"| +15.0 ± {math.sqrt(50) / math.sqrt(2):.1f} (2 seeds)")
    assert "51.7 ± 2.1, certified, ε 8 |" in line  # 50, 51, 54


def test_a_nominal_epsilon_never_stands_alone(results):
    nominal = [line for line in compare.lines("one", "two", results) if "feddpa" in line]
    assert nominal
    assert all(line.count("nominal; honest") == 2 for line in nominal)


def test_a_method_without_privacy_stands_beside_every_budget(results):
    found = list(compare.lines("one:fedavg", "one:dp_fedavg", results))
    assert "  method: fedavg | dp_fedavg" in found
    budgets = [line.split(":")[0] for line in found if " | +" in line]
    assert budgets == ["  epsilon_target 2", "  epsilon_target 8"]


def test_a_table_may_lie_anywhere(results):
    found = list(compare.lines(str(results / "tables/one.csv"), "one", Path(results)))
    assert sum("| +0.0 ± 0.0 (3 seeds)" in line for line in found) == 5


def test_rows_of_one_setting_are_told_apart_by_their_values(results):
    frame = tidy.read(results / "tables/one.csv")
    clipped = frame.assign(clip_norm=[None if pd.isna(c) else c * 2 for c in frame["clip_norm"]])
    tidy.write(pd.concat([frame, clipped]), results / "tables/twice.csv")
    found = list(compare.lines("twice:dp_fedavg", "twice:dp_fedavg", results))
    assert [line.split(":")[0] for line in found if " | +" in line] == [
        f"  epsilon_target {epsilon}, clip_norm {clip}" for clip in (0.5, 1) for epsilon in (2, 8)
    ]


@pytest.mark.parametrize(
    ("first", "metric", "words"),
    [
        ("one:dp_fedavgg", "personal_own", r"did you mean 'dp_fedavg'\?"),
        ("one", "personal", "did you mean"),
        ("quikstart", "personal_own", "no table, and no study 'quikstart'; did you mean"),
    ],
)
def test_unknown_words_are_refused(results, first, metric, words):
    with pytest.raises(ConfigError, match=words):
        list(compare.lines(first, "one", results, metric))


def test_tables_that_are_not_there_or_share_nothing_are_refused(results):
    make = r"reviewers\.csv does not exist; .* --cores 2 .*results/tables/reviewers\.csv"
    with pytest.raises(DataError, match=make):
        list(compare.lines("reviewers", "one", results))
    frame = tidy.read(results / "tables/one.csv")
    tidy.write(frame.assign(rounds=range(100, 100 + len(frame))), results / "tables/apart.csv")
    with pytest.raises(DataError, match="no rows that agree in rounds"):
        list(compare.lines("apart", "one", results))
