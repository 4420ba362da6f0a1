"""docs/which_method.md: the regret of a rule on data that it has not seen."""

from dataclasses import replace

import pytest

from pages import which_method
from pages.which_method import ANSWERS, LONG, Case, by_data, fit, left_out, regrets


def case(data: str, people: int, regret: dict[str, float], **other: object) -> Case:
    made = Case(data, f"{data} study", "ε = 2", LONG, False, people, {"local_only": 5.0} | regret)
    return replace(made, **other)


CASES = [
    case("a", 1000, {"x": 0.0, "y": 1.0}),
    case("b", 1000, {"x": 0.5, "y": 0.0, "z": 0.0}),
    case("c", 1000, {"x": 2.0, "y": 0.0}),
    case("few", 30, {"x": 9.0, "y": 8.0, "local_only": 0.0}),
    case("answers", 1000, {"x": 3.0, "w": 0.0}, kind=ANSWERS),
]


def test_a_rule_takes_the_method_that_every_study_of_a_kind_has_with_the_least_regret():
    rule = fit(CASES)
    assert rule.few == 100
    assert [rule.method(one) for one in CASES] == ["y", "y", "y", "local_only", "w"]
    unknown = case("d", 1000, {"z": 0.0})
    assert rule.method(unknown) == "local_only", "neither x nor y: what all kinds have"


def test_what_a_data_set_has_says_nothing_of_the_rule_that_is_judged_on_it():
    """x is the best of b and c without a, whatever a has; its regret on a is what it has there."""
    others = CASES[1:3]
    for regret in (0.0, 7.0):
        a = case("a", 1000, {"x": 7.0 - regret, "y": regret})
        found = left_out([a, *others]).set_index("data")
        assert found.loc["a", "method"] == "y"
        assert found.loc["a", "regret"] == regret


def test_the_data_set_is_the_unit_and_not_the_study_or_the_budget():
    two = [case("a", 1000, {"x": 0.0}, study="long", budget=f"ε = {one}") for one in (1, 2, 3)]
    known = [*two, case("a", 1000, {"x": 4.0}, study="short"), case("b", 1000, {"x": 1.0})]
    found = by_data(regrets(known, lambda _: "x"))
    assert found.to_dict() == {"a": 2.0, "b": 1.0}


def test_a_map_says_up_to_how_many_people_learn_alone_and_no_method():
    region = case("a", 100, {"q": 0.0, "x": 9.0, "y": 9.0, "local_only": 4.0}, map=True)
    rule = fit([*CASES[:3], region])
    assert rule.few == 100
    assert rule.method(replace(region, people=1000)) == "y", "q is in no other study"


def test_few_people_take_what_asks_least_of_others_by_the_other_data_sets_of_their_kind():
    many = case("answers", 1000, {"w": 0.0, "item_effects": 3.0}, kind=ANSWERS)
    few = case("new", 30, {"w": 9.0, "item_effects": 1.0, "local_only": 0.0}, kind=ANSWERS)
    found = left_out([*CASES[:4], many, few]).set_index("data")
    assert found.loc["new", "method"] == "item_effects"
    rule = fit([*CASES[:4], many])
    assert rule.method(CASES[3]) == "local_only"
    page = which_method.page([*CASES[:4], many], "")
    assert rf"At most 100 people: learn alone; where {ANSWERS}, item\_effects." in page


@pytest.mark.parametrize("text", ["On the mean", "a b"])
def test_the_note_stays_and_every_number_of_the_page_follows_from_the_cases(text):
    page = which_method.page(CASES, text)
    assert text in page
    means = by_data(left_out(CASES))
    line = next(one for one in page.splitlines() if one.startswith("| this rule"))
    assert f"| {len(means)} | {means.mean():.1f} |" in line
    worst = left_out(CASES)["regret"].max()
    assert f"{worst:.1f} (" in line
