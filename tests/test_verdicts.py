"""Whether personalization pays: what must not change the word, and what must."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pytest

from pflpipe.learning.metrics import CONSTANT_ERROR
from pflpipe.report import verdicts
from pflpipe.report.comparison import FIRST_METRIC, MAIN, Group
from pflpipe.report.verdicts import judge

SEEDS = (4, 0, 3, 1, 2)
LUCK = np.array([0.2, -0.1, 0.0, 0.1, -0.2])
SCORES = {
    "local_only": 60 + 0 * LUCK,
    "one": 63.0 + LUCK,
    "two": 66.0 - LUCK[::-1],
    "plain": 50 + 2 * LUCK,
}
RELEASED = {"plain": 62.5 - LUCK}


def group(label: str, scores, released=None, seeds=SEEDS, diverged=None) -> Group:
    """The runs of a method; ``diverged`` is seed -> round."""
    alone = label == "local_only"
    values = {"seed": seeds, "personal_own": scores, "global_own": released, "rounds": 3}
    values |= {"method": label, "claim": "none" if alone else "certified"}
    values |= {"upload_bytes_per_round": 0 if alone else 8}
    values["diverged_round"] = [(diverged or {}).get(seed) for seed in seeds]
    return Group(label, "ε = 2", pd.DataFrame(values, dtype=object))


def groups(shift: float = 0.0, order: Sequence[int] = range(5), **other: Group) -> list[Group]:
    """Those of ``SCORES`` with the seeds in another order and all accuracies shifted, some of them
    in another version."""
    chosen, found = list(order), {}
    seeds = np.array(SEEDS)[chosen].tolist()
    for name, scores in SCORES.items():
        released = RELEASED[name][chosen] + shift if name in RELEASED else None
        found[name] = group(name, scores[chosen] + shift, released, seeds)
    return list((found | other).values())


def told(members: Sequence[Group]) -> tuple[str, str, list[float]]:
    found = judge(members)
    ends = [end for _, one in found.beside.values() for end in (one.mean, one.low, one.high)]
    return found.word, found.group.label, [round(end, 9) for end in ends]


@pytest.mark.parametrize(
    "same",
    [
        groups(order=(3, 1, 4, 0, 2)),
        groups(shift=-20.0),
        groups()[::-1],
        groups(new=group("new", [math.nan] * 5)),
    ],
    ids=["seeds in another order", "harder data", "methods in another order", "nothing ran"],
)
def test_what_tells_nothing_of_methods_changes_no_verdict(same):
    word, name, ends = told(same)
    assert (word, name, ends) == told(groups()) == ("pays", "two", ends)
    assert told(groups(two=group("a", SCORES["two"]))) == ("pays", "a", ends), "nor does a name"


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0])
def test_a_method_that_equals_its_rival_never_pays(spread):
    rng = np.random.default_rng(1)
    for _ in range(20):
        scores = 70 + spread * rng.normal(size=5)
        equal = {name: group(name, scores) for name in ("one", "two")}
        found = judge(groups(plain=group("plain", SCORES["plain"], scores), **equal))
        assert found.word != "pays"


@pytest.mark.parametrize(
    "fallen",
    [
        group("two", [66.0, math.nan, 66.1, 66.2, 66.1]),
        group("two", [66.0, math.inf, 66.1, 66.2, 66.1]),
        group("two", SCORES["two"], diverged={0: 7}),
        group("two", [66.0, 40.0, 66.1, 66.2, 66.1]),
    ],
    ids=["no score", "no number", "diverged", "far below"],
)
def test_a_run_that_failed_counts_as_collapsed_however_it_did(fallen):
    found = judge(groups(two=fallen, one=group("one", SCORES["one"] - 10)))
    assert (found.word, found.group.label) == ("undecided", "two")
    assert found.collapsed == {"two": (1, 5)}


def test_a_rival_that_collapsed_once_must_be_beaten_and_one_that_mostly_does_is_none():
    """Three seeds: one collapse leaves two, which tell nothing."""
    three = {name: group(name, scores[:3], seeds=(0, 1, 2)) for name, scores in SCORES.items()}
    for released, word in (
        ([62.0, 62.1, 62.2], "pays"),
        ([62.0, 62.1, 40.0], "undecided"),
        ([65.0, 30.0, 40.0], "pays"),
    ):
        plain = group("plain", SCORES["plain"][:3], released, (0, 1, 2))
        assert judge(list((three | {"plain": plain}).values())).word == word


def beside_alone(ours, released, **fallen: Mapping[int, int]) -> verdicts.Verdict:
    """The verdict on one personal model beside a released one and learning alone, which has 60."""
    lines = group("ours", ours, **fallen), group("plain", 50 + 2 * LUCK, released)
    return judge([group("local_only", 60 + 0 * LUCK), *lines])


def test_a_personal_model_above_learning_alone_shows_that_learning_together_helps_and_is_advised():
    """Beside a rival that collapsed once, which must be beaten and is not advised; one that did not
    costs less, and is advised where it is shown to help too."""
    rival = np.array([30.0, *(65.4 - LUCK)[1:]])
    for found, helps, advised in (
        (beside_alone(66 + LUCK, rival), True, "ours"),
        (beside_alone(66 + LUCK, 65.3 - LUCK), True, "the released model of plain"),
        (beside_alone(60.9 + LUCK, rival), False, "learning alone"),
        (beside_alone(66 + LUCK, rival, diverged={4: 1}), False, "learning alone"),
    ):
        assert (found.word, found.helps) == (verdicts.UNDECIDED, helps)
        assert found.instead.name == advised
    assert verdicts.instead(beside_alone(66 + LUCK, rival)) == "use ours"


def test_a_rival_that_the_only_model_above_alone_does_not_beat_is_advised_where_it_does_not_pay():
    """It is better than learning alone by no whole point for sure, but less than a point below a
    model that is."""
    common = 0.3 * np.array([1.0, -1.0, 0.5, -0.5, 0.0])
    found = beside_alone(61.8 + common, 61.4 + 1.3 * common)
    assert found.beside["b"][1].high < verdicts.MARGIN
    assert (found.word, found.helps) == (verdicts.DOES_NOT, True)
    assert found.instead.name == "the released model of plain"
    low = beside_alone(50 + LUCK, 61.4 + 1.3 * common)
    assert (low.word, low.helps, low.instead.name) == ("does not pay", False, "learning alone")


def test_what_is_advised_says_whether_learning_together_helps():
    rng, seen = np.random.default_rng(0), set()
    for _ in range(100):
        means = 60 + 3 * rng.random(2)
        found = beside_alone(*(mean + 0.5 * rng.normal(size=5) for mean in means))
        seen.add((found.word, found.helps))
        if found.word != verdicts.PAYS:
            assert found.helps == (found.instead.name != "learning alone")
    assert len(seen) == 5


def test_learning_together_is_no_more_often_wrongly_said_to_help_with_many_methods():
    """Every gain over learning alone is exactly the margin, so that the word is wrong."""
    rng, studies = np.random.default_rng(5), 150
    wrong = 0
    for _ in range(studies):
        none = group("local_only", 60 + rng.normal(size=5))
        scores = 60 + verdicts.MARGIN + rng.normal(size=(2, 8, 5))
        wrong += judge([none, *(group(f"m{i}", *scores[:, i]) for i in range(8))]).helps
    assert wrong / studies <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / studies)


def test_methods_that_diverge_at_every_seed_leave_the_word_to_the_others():
    lost = group("one", SCORES["one"], diverged=dict.fromkeys(SEEDS, 1))
    assert judge(groups(one=lost, two=group("two", SCORES["two"] - 10))).word == "does not pay"


def of_errors(constant: float, found: Sequence[Group]) -> list[Group]:
    """The groups with errors in place of accuracies: those of the own constant are ``constant``, of
    which an accuracy of 100 is nothing and of 0 everything."""
    settings = json.dumps({FIRST_METRIC: "mean_absolute_error"})
    own = {"hyperparameters": settings, CONSTANT_ERROR: constant}
    made = []
    for one in found:
        values = {name: one.values(name).to_numpy() for name in (MAIN, verdicts.RELEASED)}
        errors = {name: (100 - value) * constant / 100 for name, value in values.items()}
        made.append(Group(one.label, one.budget, one.rows.assign(**errors, **own)))
    return made


@pytest.mark.parametrize("unit", [1e-6, 1.0, 3e7])
@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_errors_get_the_verdict_of_accuracies_whatever_the_unit_of_the_label(unit, shift):
    """A point is 1 % of the own constant's error, and less error is better."""
    groups_of = groups(local_only=group("local_only", SCORES["local_only"] + shift))
    assert told(of_errors(unit, groups_of)) == told(groups_of)
    assert told(groups_of)[0] == ("pays", "does not pay")[shift > 0]


@pytest.mark.parametrize("nothing", [0.0, math.nan])
def test_errors_have_no_verdict_where_the_own_constant_has_none(nothing):
    members = of_errors(1.0, groups())
    for one in members:
        one.rows[CONSTANT_ERROR] = nothing
    assert judge(members) is None


def test_one_seed_decides_nothing():
    single = [group(name, scores[:1] + 20, seeds=(0,)) for name, scores in SCORES.items()]
    assert judge(single).word == "undecided"


def test_a_word_that_is_read_after_every_seed_is_no_more_often_wrong():
    """The gain is exactly the margin, so that both words are wrong."""
    studies, looks = 150, range(3, 10)

    def share(counted: int) -> float:
        rng, wrong = np.random.default_rng(3), 0
        for _ in range(studies):
            ours = 60 + verdicts.MARGIN + rng.normal(size=looks[-1])
            values = pd.DataFrame({"own": ours, "rival": 60.0})
            words = (verdicts.decide(values[:n], ["own"], ["rival"], None, counted) for n in looks)
            wrong += any(one.word != "undecided" for one in words)
        return wrong / studies

    limit = 0.05 + 2 * math.sqrt(0.05 * 0.95 / studies)
    assert share(len(looks)) <= limit < share(1), "looks that count as one are wrong too often"
