"""The gain by groups of people, from scores that are given exactly."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from synthetic import ROWS, fixed, made

import gain_by_group
from pages import one_study
from pages.panel import panels


def test_public_boundaries_and_words_make_groups_and_the_unknown_are_in_none():
    columns = {"sex": np.array(["men", "", "women"]), "age": np.array([24.9, 45, np.nan])}
    found = gain_by_group.groups(columns, ["sex", "age=25,45"])
    assert {name: list(inside) for name, inside in found.items()} == {
        "men": [True, False, False],
        "women": [False, False, True],
        "age below 25": [True, False, False],
        "age 25 to 44": [False, False, False],
        "age 45 or above": [False, True, False],
    }


@pytest.fixture
def rows() -> pd.DataFrame:
    """Ten people, whose places among eleven users differ by seed, are 20 points above alone; each
    of users 0 to 3 has 100 right answers more than that."""
    level = fixed((45, 40, 40), local_only=(51, 40, 40), fedrep=(71, 40, 40))
    study = made(level, people=(10,), fractions=(0.2,), epsilons=(2.0,))
    who, correct = {}, study.correct.copy()
    for seed, name in enumerate(study.held):
        who[name] = np.delete(np.arange(11), seed)
        inside = [str(place) for place, user in enumerate(who[name]) if user < 4]
        correct.loc[inside, f"{name}-fedrep-2.0"] += ROWS // 10
    means = [100 * correct[cell].mean() / ROWS for cell in study.runs["cell"]]
    runs = study.runs.assign(personal_own=means)
    (panel,) = panels(dataclasses.replace(study, correct=correct, runs=runs))
    low = np.arange(11) < 4
    return pd.DataFrame(gain_by_group.table(panel, {"low": low, "high": ~low}, who))


def test_every_user_is_found_again_at_every_seed(rows):
    assert rows[["budget", "method", "rival", "group", "people"]].to_numpy().tolist() == [
        ["ε = 2", "fedrep", "local_only", "low", 4],
        ["ε = 2", "fedrep", "local_only", "high", 7],
    ]
    assert rows["gain"].round(1).tolist() == [30, 20]
    assert ((rows["low"] < rows["gain"]) & (rows["gain"] < rows["high"])).all()


def test_the_page_shows_groups_with_their_people_and_intervals(rows):
    table = one_study.by_group(rows)
    assert table.header == ("group", "people", "fedrep to local_only, ε = 2")
    (section,) = table.sections
    assert [entry.text for entry in section[0]][:2] == ["low", "4"]
    assert section[0][2].text.startswith("+30.0 (")
