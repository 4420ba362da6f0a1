"""The table of docs/reliability.md says what the tests of faults have seen, and no more."""

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
    assert rows == [ROWS[0], (HERE, "a clock", "kept"), (HERE, "a disk", "said")]
    assert reliability.renewed(rows, {}) == rows


def test_a_test_that_failed_has_no_row():
    assert reliability.renewed(ROWS, {f"tests/{HERE}": []}) == [(OTHER, "a kill", "goes on")]


def test_rows_are_noted_for_the_test_that_runs(request):
    reliability.record("a fault", "an outcome")
    assert reliability.noted(request.node.nodeid) == [("a fault", "an outcome")]
    assert reliability.noted(request.node.nodeid) == []


def test_each_row_on_file_is_of_a_test_that_is_there():
    rows = reliability.read()
    assert reliability.renewed(rows, {}) == rows


@pytest.mark.parametrize("asked", [True, False])
def test_only_a_session_that_is_asked_to_renews_the_rows(asked):
    manager = pytest.PytestPluginManager()
    config = SimpleNamespace(getoption={"--renew": asked}.get, pluginmanager=manager)
    reliability.gather(config)
    assert any(isinstance(one, reliability.Rows) for one in manager.get_plugins()) == asked
