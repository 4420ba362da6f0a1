"""Numbers printed in the papers (studies/paper_results.yaml), found for the cells of a study by its
``paper`` block.

A printed number stands beside a row only where the row claims to be what was printed: the block
names its label, and it departs in what the paper departs in. A certified version, the official
code's version and every variant that is not named are other mechanisms and carry none.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pflpipe.cells import PATHS, Cell
from pflpipe.errors import ConfigError, check_known
from pflpipe.study import documents
from pflpipe.study.epsilon_as_published import departures
from pflpipe.study.settings import flatten
from pflpipe.study.study_spec import check_labels

FILE = "paper_results.yaml"
_PLACES = {"paper", "table"}
_NUMBERS = {"accuracy", "printed_gain"}
Lookup = Callable[[Cell, str], tuple[float | None, str | None]]


def none(cell: Cell, variant: str) -> tuple[float | None, str | None]:
    """The lookup of a study without printed numbers."""
    return None, None


def lookup(document: dict[str, Any], file: Path) -> Lookup:
    """Return a function (cell, variant) -> (printed number in percent or None, metric it compares
    to or None).

    Args:
        document: a schema-checked study; without a ``paper`` block the function always returns
            (None, None).
        file: the study's path; the printed numbers lie beside it.

    Raises:
        ConfigError: the block names a paper, table, method, field or path that does not exist. The
            returned function raises it when a cell matches no printed row or several, or when the
            block names a row that is not the paper's mechanism.
    """
    block = document.get("paper")
    if block is None:
        return none
    location = f"{file}: paper"
    everything = _printed_rows(file.parent / FILE)
    papers = {row["paper"] for row in everything}
    check_known(block["paper"], papers, f"{location}.paper: unknown paper")
    of_paper = [row for row in everything if row["paper"] == block["paper"]]
    tables = {row["table"] for row in of_paper}
    check_known(block["table"], tables, f"{location}.table: unknown table")
    rows = [row for row in of_paper if row["table"] == block["table"]]
    match: dict[str, str] = block.get("match", {})
    _check_match(match, rows, f"{location}.match")
    check_labels(block["methods"], document, f"{location}.methods")
    methods = {row["method"] for row in rows}
    for label, method in block["methods"].items():
        check_known(method, methods, f"{location}.methods.{label}: the table has no method")

    def find(cell: Cell, variant: str) -> tuple[float | None, str | None]:
        label = variant or cell.method
        method = block["methods"].get(label)
        if method is None:
            return None, None
        if departures(cell, official_code=False) != set(cell.departures):
            raise ConfigError(
                f"{location}.methods.{label}: its row is not the paper's mechanism",
                got=", ".join(cell.departures) or "no departures",
                expected="profile: paper, without official_code",
                do="name another row, or none",
            )
        values = dict(flatten(cell.to_dict()))
        ours = {field: values.get(path) for path, field in match.items()}
        found = [
            r
            for r in rows
            if r["method"] == method
            and all(_same(r.get(key), value) for key, value in ours.items())
        ]
        if len(found) != 1:
            words = ", ".join(f"{key}={value}" for key, value in {"method": method, **ours}.items())
            fields = {key for row in found for key in row} - _NUMBERS
            differing = sorted(
                key for key in fields if len({str(row.get(key)) for row in found}) > 1
            )
            hint = f"add to match one of: {', '.join(differing)}" if differing else ""
            raise ConfigError(
                f"{location}: {len(found)} printed rows for {words}",
                expected="exactly one",
                do=hint,
            )
        return found[0]["accuracy"], block["metric"]

    return find


def _printed_rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        raise ConfigError(
            f"{path}: no such file",
            do="a study with a `paper` block reads the printed numbers from it",
        )
    return _parsed(path, path.read_bytes())


@functools.lru_cache(maxsize=1)
def _parsed(path: Path, content: bytes) -> list[dict[str, Any]]:
    """Return the rows of a file that reads so: once for all studies that are read after one
    another, of whose time it would be half."""
    rows: list[dict[str, Any]] = documents.read_yaml(path)["results"]
    return rows


def _check_match(match: dict[str, str], rows: list[dict[str, Any]], location: str) -> None:
    fields = {key for row in rows for key in row} - _NUMBERS - _PLACES
    for path, field in match.items():
        if not path.startswith("hyperparameters."):
            check_known(path, PATHS, f"{location}: unknown path")
        check_known(field, fields, f"{location}.{path}: unknown field")


def _same(printed: Any, ours: Any) -> bool:
    """Numbers by value; words without regard to case and punctuation, so that ``CIFAR-10`` is
    ``cifar10``."""
    if isinstance(printed, str) and isinstance(ours, str):
        return re.sub(r"[^a-z0-9]", "", printed.lower()) == re.sub(r"[^a-z0-9]", "", ours.lower())
    return bool(printed == ours)
