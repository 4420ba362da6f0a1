"""The table of docs/reliability.md: what was done to the pipeline, and what came of it.

A test notes its rows when it has seen them come true; conftest.py carries them from the process of
the test to the one that writes the page, at the end of ``make test-faults`` and ``make
test-cluster``. The rows of a test that ran are replaced, those of one that failed are gone, those
of all others stay. There are no times in them: the same tests write the same page.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs/reliability.md"
PROPERTY = "reliability"
BEGIN, END = "<!-- faults: written by the tests -->\n", "<!-- end -->\n"
HEAD = "| what was done | what came of it | shown by |\n|---|---|---|\n"
ROW = re.compile(r"\| (?P<fault>.+) \| (?P<outcome>.+) \| `(?P<test>.+)` \|")

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


def renew(page: str, found: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """Return a page with the rows of these tests in its table, ordered by test.

    Args:
        page: its text.
        found: the rows of the tests that ran, by their ids; none of a test that failed.
    """
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    rows: dict[str, list[tuple[str, str]]] = {}
    for row in map(ROW.fullmatch, table.splitlines()):
        if row is not None and _exists(row["test"]):
            rows.setdefault(row["test"], []).append((row["fault"], row["outcome"]))
    rows |= {test.removeprefix("tests/"): list(lines) for test, lines in found.items()}
    lines = [
        f"| {fault} | {outcome} | `{test}` |\n"
        for test, told in sorted(rows.items())
        for fault, outcome in told
    ]
    return before + BEGIN + HEAD + "".join(lines) + END + after


def write(found: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Renew the page."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(renew(text, found), encoding="utf-8")


def _exists(test: str) -> bool:
    """Whether there still is a test of this id."""
    file, _, name = test.partition("::")
    path, function = TESTS / file, name.partition("[")[0]
    return path.is_file() and f"def {function}(" in path.read_text(encoding="utf-8")
