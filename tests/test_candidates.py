"""Candidates are drawn by the law that a range names, and nothing else in a study moves them."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import malformed
import tabled
from pflpipe.study import candidates
from pflpipe.study.candidates import SearchRange
from pflpipe.study.load import load_outline

TABLES = tabled.table("test_candidates")
SEARCH, METHODS = TABLES["SEARCH"], TABLES["METHODS"]
LR, CLIP = SEARCH["values"].values()


@pytest.fixture
def drawn(good: Path):
    """Return a function that gives the candidates' values by method entry of a study with some
    words changed; None leaves a word of the search out."""

    def drawn(name: str = "good", methods=METHODS, axes=None, **search):
        search = {key: value for key, value in (SEARCH | search).items() if value is not None}
        words = {"methods": methods, "search": search, "axes": axes or {}}
        malformed.write(good / f"studies/{name}.yaml", malformed.STUDY | words)
        lines = load_outline(name).lines
        return {line.words: [one.values for one in line.candidates] for line in lines}

    return drawn


# What every method gets


def test_every_method_gets_the_same_number_over_the_shared_values_and_its_own(drawn):
    found = drawn()
    assert {len(values) for values in found.values()} == {4}
    names = {words: list(values[0]) for words, values in found.items()}
    assert names == TABLES["NAMES"], "no clip norm without privacy"


def test_a_methods_own_words_replace_the_shared_ones(drawn):
    assert {values["training.lr"] for values in drawn(candidates=30)["dp_fedavg"]} == {0.1, 0.2}


def test_no_two_methods_values_or_candidates_share_a_draw(drawn):
    methods = [{"name": "dp_fedavg"}, {"name": "feddpa"}]
    found = drawn(methods=methods, values={"training.lr": LR, "training.weight_decay": LR})
    numbers = [value for values in found.values() for each in values for value in each.values()]
    assert len(set(numbers)) == len(numbers) == 2 * 4 * 2


def test_further_candidates_leave_the_first_ones_as_they_were(drawn):
    few, many = drawn(), drawn(candidates=9)
    assert {words: values[:4] for words, values in many.items()} == few


def test_other_methods_other_values_and_axes_leave_the_draws_as_they_were(drawn):
    before = drawn()["feddpa"]
    assert drawn(methods=METHODS[2:])["feddpa"] == before
    assert drawn(methods=METHODS[::-1])["feddpa"] == before
    found = drawn(values={"training.weight_decay": LR, **SEARCH["values"]})["feddpa"]
    for values in found:
        del values["training.weight_decay"]
    assert found == before
    by_epsilon = drawn(axes={"privacy.epsilon": [2, 8]})
    assert by_epsilon["feddpa at privacy.epsilon=2"] == before
    assert by_epsilon["feddpa at privacy.epsilon=8"] == before


def test_another_study_draws_for_itself(drawn):
    assert drawn("one")["feddpa"] != drawn("two")["feddpa"]


@pytest.mark.slow
def test_wider_ranges_are_drawn_from_as_often_again_after_the_first(drawn):
    wider = {"training.lr": LR | {"wider": [0.003, 30]}}
    wider["privacy.clip_norm"] = CLIP | {"wider": [0.01, 10]}
    methods = [METHODS[0], METHODS[1], METHODS[3]]
    before = drawn(methods=methods, candidates=50)
    found = drawn(methods=methods, candidates=50, values=wider)
    assert {words: values[:50] for words, values in found.items()} == before
    assert {len(values) for values in found.values()} == {100}, "lists are drawn from again, too"
    further = [values["training.lr"] for values in found["fedavg"][50:]]
    assert 0.003 <= min(further) < 0.03
    assert 3 < max(further) <= 30


def test_lists_without_a_number_of_candidates_are_the_grid_of_all(drawn):
    methods = [{"name": "feddpa", "search": {"hyperparameters.tau": [0.3, 0.4]}}]
    (found,) = drawn(methods=methods, candidates=None, values={"training.lr": [0.1, 0.2]}).values()
    grid = [(0.1, 0.3), (0.1, 0.4), (0.2, 0.3), (0.2, 0.4)]
    assert [tuple(values.values()) for values in found] == grid


# Their law


def draws(value, number=2000):
    found = candidates.drawn({"x": value}, number, "study", "method", again=False)
    return [candidate["x"] for candidate in found]


LOG, LINEAR = SearchRange(0.03, 3.0), SearchRange(0.0, 2.0, "linear")
LAWS = [(LOG, stats.loguniform(0.03, 3.0)), (LINEAR, stats.uniform(0, 2))]


@pytest.mark.parametrize(("range_", "law"), LAWS, ids=["log", "linear"])
def test_ranges_are_drawn_uniformly_on_a_log_scale_or_on_a_linear_one_by_name(range_, law):
    assert stats.kstest(draws(range_), law.cdf).pvalue > 0.01


def test_lists_are_drawn_uniformly():
    found = draws(["a", "b", "c"])
    assert stats.chisquare([found.count(word) for word in "abc"]).pvalue > 0.01


POSITIONS = st.floats(0, 1, exclude_max=True)


@st.composite
def ranges(draw) -> SearchRange:
    low, high = draw(st.floats(1e-6, 1e3)), draw(st.floats(1.001, 1e6))
    if draw(st.booleans()):
        return SearchRange(-low, -low + high, "linear")
    return SearchRange(low, low * high)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(ranges(), POSITIONS, POSITIONS)
def test_a_value_is_in_its_range_and_grows_with_its_position(range_, one, other):
    range_.check("here")
    first, second = (range_.at(position, wider=False) for position in sorted((one, other)))
    assert range_.low <= first <= second <= range_.high
    assert float(f"{first:.3g}") == first or first in (range_.low, range_.high)


# Their edges


@pytest.mark.parametrize(
    ("position", "edge"), [(0.0, "low"), (0.09, "low"), (0.11, ""), (0.89, ""), (0.91, "high")]
)
@pytest.mark.parametrize("range_", [SearchRange(0.01, 100.0), SearchRange(-3.0, 5.0, "linear")])
def test_the_outer_tenth_of_the_scale_is_an_edge(range_, position, edge):
    assert range_.edge(range_.at(position, wider=False)) == edge


def test_the_edge_of_widened_ranges_is_that_of_all_that_was_drawn_from():
    assert SearchRange(0.1, 1.0).edge(1.0) == "high"
    assert SearchRange(0.1, 1.0, wider=(0.01, 10.0)).edge(1.0) == ""
    assert math.isclose(SearchRange(0.1, 1.0, wider=(0.01, 10.0)).at(0.0, wider=True), 0.01)
