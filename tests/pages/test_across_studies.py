"""What several studies say together: counted from their intervals, and no word beyond them."""

import math
import re

import pytest

import tabled
from pages.across_studies import Standing, sentences, shared, table
from pflpipe.report.statistics import Difference

TABLES = tabled.table("test_across_studies")

UP, DOWN = Difference(2.0, 0.5, 3.5, 5), Difference(-2.0, -3.5, -0.5, 5)
OPEN = Difference(1.0, -1.0, 3.0, 5)
FEW = Difference(9.0, -math.inf, math.inf, 2)
WORDS = re.compile(r"\b(best|better|worse)\b")


def standing(signs: dict[str, Difference], *kept: str) -> Standing:
    """A study in which a line stands beside learning alone as beside its released model and beside
    the baseline "plain"."""
    plain = {label: found for label, found in signs.items() if label != "plain"}
    return Standing(tuple(signs), signs, signs, plain, frozenset(kept))


def together(budget: str = "ε = 2", **studies: Standing) -> dict[str, dict[str, Standing]]:
    return shared({name: {budget: one} for name, one in studies.items()})


def test_every_sentence_counts_the_intervals_of_every_study():
    found = together(
        "ε = 8",
        one=standing({"a": UP, "b": DOWN, "c": UP, "plain": OPEN}, "a", "c"),
        two=standing({"a": UP, "b": DOWN, "c": OPEN, "plain": OPEN}, "a", "b"),
        three=standing({"b": DOWN, "plain": OPEN}, "plain"),
    )
    assert list(sentences(found, "plain")) == TABLES["SENTENCES"]


BARE = Standing(("a", "b"), {}, {"a": UP}, {"a": UP}, frozenset())


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        ({"a": UP}, standing({"a": OPEN}), "no method shows a gain over"),
        ({"a": UP, "b": UP}, standing({"a": UP}), "a is better than"),
        ({"a": UP, "b": UP}, BARE, "a is better than"),
    ],
    ids=["a gain that one lacks", "a line of one alone", "a line that one alone can compare"],
)
def test_every_study_means_every_one_that_can_compare_a_line(one, two, said):
    found = together(one=standing(one), two=two)
    *_, last = sentences(found, "plain")
    assert last == f"At ε = 2, {said} plain, fine-tuned, in every study that has both."
    if two is not BARE:
        assert set(table(found)["method"]) == {"a"}, "no line of one study alone"


def test_a_budget_of_one_study_alone_is_left_out():
    one = {"ε = 2": standing({"a": UP}), "ε = 8": standing({"a": UP})}
    assert list(shared({"one": one, "two": {"ε = 8": standing({"a": UP})}})) == ["ε = 8"]
    assert shared({"one": one}) == {}


def test_seeds_too_few_for_an_interval_support_no_word_of_comparison_and_no_mark():
    few = standing({"a": FEW, "plain": FEW})
    found = together(one=few, two=few)
    assert not WORDS.search(" ".join(sentences(found, "plain")))
    assert table(found).iloc[0].tolist() == ["alone", "a", "ε = 2", "+9.0", "+9.0"]


def test_without_what_one_compares_with_nothing_is_said():
    bare = Standing(("a",), {}, {}, {}, frozenset())
    assert list(sentences(together(one=bare, two=bare), "plain")) == ["", "", "", ""]


def test_the_table_has_an_arrow_where_an_interval_excludes_0_and_a_star_where_none_is_better():
    found = together(
        one=standing({"a": DOWN, "b": UP, "plain": OPEN}, "b"),
        two=standing({"a": OPEN, "b": OPEN, "plain": OPEN}, "a", "b"),
        three=standing({"a": UP, "c": DOWN}),
    )
    rows = table(found)
    assert list(rows) == ["rival", "method", "budget", "one", "two", "three"]
    for rival in ("alone", "released"):
        assert rows[rows["rival"] == rival].iloc[:, 1:].to_numpy().tolist() == [
            ["b", "ε = 2", "+2.0 ↑ *", "+1.0 *", "–"],
            ["a", "ε = 2", "-2.0 ↓", "+1.0 *", "+2.0 ↑"],
            ["plain", "ε = 2", "+1.0", "+1.0", "–"],
        ]


def test_who_is_bold_as_often_comes_in_the_order_of_gains_over_the_baseline():
    one, two = standing({"a": OPEN, "b": UP, "c": DOWN}), standing({"a": UP, "b": UP, "c": DOWN})
    found = together(one=one, two=two)
    assert table(found)["method"].tolist()[:3] == ["b", "a", "c"]
