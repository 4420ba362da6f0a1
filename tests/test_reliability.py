"""The table of docs/reliability.md says what the tests of faults have seen, and no more."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import reliability

HERE = "test_reliability.py::test_a_test_that_ran_renews_its_rows_and_no_others"
OTHER = "test_files.py::test_json_has_one_spelling_and_comes_back"
ROWS = [
    (OTHER, "a kill", "goes on"),
    ("test_files.py::test_that_is_gone", "a kill", "goes on"),
    (HERE, "a disk, full", "told"),
]


def test_a_test_that_ran_renews_its_rows_and_no_others():
    rows = reliability.renewed(ROWS, {f"tests/{HERE}": [("a disk", "said"), ("a clock", "kept")]})
    assert rows == [
        (OTHER, "a kill", "goes on"),
        (HERE, "a clock", "kept"),
        (HERE, "a disk", "said"),
    ]
    assert reliability.renewed(rows, {}) == rows


def test_a_test_that_failed_has_no_row():
    assert reliability.renewed(ROWS, {f"tests/{HERE}": []}) == [(OTHER, "a kill", "goes on")]


def test_rows_are_noted_for_the_test_that_runs(request):
    reliability.record("a fault", "an outcome")
    assert reliability.noted(request.node.nodeid) == [("a fault", "an outcome")]
    assert reliability.noted(request.node.nodeid) == []


def test_rows_with_the_same_outcome_are_one_line():
    rows = [
        ("a.py::test_a[0]", "plan: emptied", "refused"),
        ("a.py::test_a[1]", "plan: truncated", "refused"),
        ("a.py::test_a[2]", "array: emptied", "refused"),
        ("a.py::test_a[2]", "array: truncated", "refused"),
        ("a.py::test_a[2]", "disk full, rule table", "refused"),
        ("a.py::test_a[2]", "disk full, rule table", "it fails"),
    ]
    assert reliability.table(rows).removeprefix(reliability.HEAD).splitlines() == [
        "| plan, array: emptied, truncated; disk full, rule table | refused |",
        "| disk full, rule table | it fails |",
    ]


def test_the_table_of_the_page_has_the_rows_on_file_and_each_is_of_a_test_that_is_there():
    rows = reliability.read()
    assert reliability.renewed(rows, {}) == rows
    page = reliability.PAGE.read_text(encoding="utf-8").partition(reliability.BEGIN)[2]
    assert page.partition(reliability.END)[0] == reliability.table(rows)


@pytest.mark.parametrize("asked", [True, False])
def test_only_a_session_that_is_asked_to_renews_the_page(asked):
    manager = pytest.PytestPluginManager()
    config = SimpleNamespace(getoption={"--renew": asked}.get, pluginmanager=manager)
    reliability.gather(config)
    assert any(isinstance(one, reliability.Rows) for one in manager.get_plugins()) == asked
