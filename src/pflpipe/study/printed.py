"""Numbers printed in papers (studies/paper_results.yaml), matched to the cells of a study by its
``paper`` block.

A row has a printed number only if the block names the row's label and the row has the departures of
the paper. The certified version, the version of the official code and all other variants are other
mechanisms and have none.
"""

import functools
import os
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
NONE = (None, None)
"""The printed number, and its metric, of a row that has none."""


def lookup(document: dict[str, Any], file: Path, folder: str | os.PathLike[str]) -> Lookup:
    """Return a function (cell, variant) -> (printed number in percent, metric that it is compared
    with), or (None, None).

    Args:
        document: a schema-checked study.
        file: the study's path.
        folder: that of all studies, which has the printed numbers.

    Raises:
        ConfigError: the block names an unknown paper, table, method, field or path. The returned
            function raises it if a cell matches no printed row or several, or if the block names a
            row with another mechanism than the paper's.
    """
    block = document.get("paper")
    if block is None:
        return lambda cell, variant: NONE
    location = f"{file}: paper"
    everything = _printed_rows(Path(folder) / FILE)
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
            return NONE
        # Papers print the accuracy of their mechanism: another mechanism is another experiment.
        is_papers = departures(cell, official_code=False) == set(cell.departures)
        what = f"{location}.methods.{label}: its row is not the paper's mechanism"
        got, do = ", ".join(cell.departures) or "no departures", "name another row, or none"
        ConfigError.unless(is_papers, what, got, "profile: paper, without official_code", do)
        values = dict(flatten(cell.to_dict()))
        ours = {field: values.get(path) for path, field in match.items()}
        of_method = [row for row in rows if row["method"] == method]
        matching = [r for r in of_method if all(_same(r.get(key), ours[key]) for key in ours)]
        if len(matching) != 1:
            wanted = ", ".join([f"method={method}", *(f"{key}={ours[key]}" for key in ours)])
            fields = {key for row in matching for key in row} - _NUMBERS
            differing = sorted(k for k in fields if len({str(row.get(k)) for row in matching}) > 1)
            hint = f"add to match one of: {', '.join(differing)}" if differing else ""
            what = f"{location}: {len(matching)} printed rows for {wanted}"
            raise ConfigError(what, expected="exactly one", do=hint)
        return matching[0]["accuracy"], block["metric"]

    return find


def _printed_rows(path: Path) -> list[dict[str, Any]]:
    do = "a study with a `paper` block reads the printed numbers from it"
    ConfigError.unless(path.exists(), f"{path}: no such file", do=do)
    return _parsed(path, path.read_bytes())


@functools.lru_cache(maxsize=1)
def _parsed(path: Path, content: bytes) -> list[dict[str, Any]]:
    """Return the rows of a file with this content. Parsing takes half the time of reading a study;
    the cache parses once for all studies."""
    rows: list[dict[str, Any]] = documents.read_yaml(path)["results"]
    return rows


def _check_match(match: dict[str, str], rows: list[dict[str, Any]], location: str) -> None:
    fields = {key for row in rows for key in row} - _NUMBERS - _PLACES
    for path, field in match.items():
        if not path.startswith("hyperparameters."):
            check_known(path, PATHS, f"{location}: unknown path")
        check_known(field, fields, f"{location}.{path}: unknown field")


def _same(printed: Any, ours: Any) -> bool:
    """Compare numbers by value, and text without case and punctuation: ``CIFAR-10`` is
    ``cifar10``."""
    if isinstance(printed, str) and isinstance(ours, str):
        return re.sub(r"[^a-z0-9]", "", printed.lower()) == re.sub(r"[^a-z0-9]", "", ours.lower())
    return bool(printed == ours)
