"""docs/reliability.csv, the table of docs/reliability.md: what was done to the pipeline, and what
came of it.

A test notes its rows when it has seen them come true; conftest.py carries them from the process of
the test to the first one. That one writes the file if it has the option ``--renew`` (``make
test-faults RENEW=1``). Other sessions leave it alone, because tests that run at the same time read
it. The rows of a test that ran are replaced, those of one that failed are gone, those of all others
stay. There are no times in them: the same tests write the same file.
"""

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
ROWS = TESTS.parent / "docs/reliability.csv"
PROPERTY = "reliability"
COLUMNS = ["test", "fault", "outcome"]

Row = tuple[str, str, str]
"""Test, fault and outcome."""

_noted: dict[str, list[tuple[str, str]]] = {}


def record(fault: str, outcome: str) -> None:
    """Note a row of the test that runs: what was done, and what came of it.

    Args:
        fault: such as "kill -9 of snakemake, 20 times".
        outcome: such as "the same command ends with the same bytes".
    """
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    for words in (fault, outcome):
        assert "|" not in words, "it would end a cell of the table"
        assert "\n" not in words
    _noted.setdefault(test, []).append((fault, outcome))


def noted(test: str) -> list[tuple[str, str]]:
    """Return, once, the rows that a test of this process has noted, by its id."""
    return _noted.pop(test, [])


def renewed(rows: Iterable[Row], found: Mapping[str, Sequence[tuple[str, str]]]) -> list[Row]:
    """Return rows in which those of the tests that ran are replaced, ordered by test.

    Args:
        found: the rows of the tests that ran, by their ids; none of a test that failed.
    """
    new = {test.removeprefix("tests/"): told for test, told in found.items()}
    kept = [row for row in rows if row[0] not in new and _exists(row[0])]
    return sorted(kept + [(test, *row) for test, told in new.items() for row in told])


def read() -> list[Row]:
    """Return the rows on file."""
    with ROWS.open(encoding="utf-8", newline="") as file:
        return [(row["test"], row["fault"], row["outcome"]) for row in csv.DictReader(file)]


def write(found: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Renew the rows on file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *renewed(read(), found)])
    ROWS.write_text(text.getvalue(), encoding="utf-8")


def _exists(test: str) -> bool:
    """Whether there still is a test of this id."""
    file, _, name = test.partition("::")
    path, function = TESTS / file, name.partition("[")[0]
    return path.is_file() and f"def {function}(" in path.read_text(encoding="utf-8")


def gather(config: pytest.Config) -> None:
    """Let the session write the rows of its tests if it was asked to."""
    if config.getoption("--renew"):
        config.pluginmanager.register(Rows())


class Rows:
    """Gathers the rows of the tests that ran, in the process that hears of all of them."""

    def __init__(self) -> None:
        self.found: dict[str, list[tuple[str, str]]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        rows = [tuple(row) for name, row in report.user_properties if name == PROPERTY]
        if report.failed or (report.when == "call" and rows):
            self.found[report.nodeid] = [] if report.failed else rows

    def pytest_sessionfinish(self) -> None:
        if self.found:
            write(self.found)
