"""What a study takes from a paper: the numbers that it prints (studies/paper_results.yaml), matched
to cells by the study's ``paper`` block, and the rows and columns of its table, by its ``layout``.

A row has a printed number only if the block names the row's label and the row has the departures of
the paper. The certified version, the version of the official code and all other variants are other
mechanisms and have none.
"""

import functools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pflpipe.cells import PATHS, Cell
from pflpipe.errors import ConfigError, check_known
from pflpipe.methods import registry
from pflpipe.study import documents
from pflpipe.study.epsilon_as_published import departures
from pflpipe.study.settings import condition_text, describe, flatten, heading, words
from pflpipe.study.study_spec import PaperLayout, Row, check_labels

FILE = "paper_results.yaml"
_PLACES = {"paper", "table"}
_NUMBERS = {"accuracy", "printed_gain"}
Lookup = Callable[[Cell, str], tuple[float | None, str | None]]
NONE = (None, None)
"""The printed number, and its metric, of a row that has none."""
_ANY = object()  # the condition does not apply to the run, which then is in every column


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


# ---------------------------------------------------------------- the layout of its table


@dataclass(frozen=True)
class Line:
    """One row of the table.

    Attributes:
        name: the method's name in the paper's table, with the label of our variant in brackets.
        named: whether the paper's table has the method.
        locations: for each column the positions in ``study.rows`` of all seeds of its run; empty
            without a run.
    """

    name: str
    named: bool
    locations: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Grid:
    """Rows and columns of a table; ``header`` has one text per column and condition, the outermost
    condition first."""

    header: tuple[tuple[str, ...], ...]
    lines: tuple[Line, ...]


def layout_of(document: dict[str, Any], file: str) -> PaperLayout | None:
    """Return the ``layout`` block of a schema-checked study, or None without one.

    Raises:
        ConfigError: unknown columns or names, or no metric or rows to show.
    """
    block = document.get("layout")
    if block is None:
        return None

    location, paper = f"{file}: layout", document.get("paper", {})
    metric = block.get("metric", paper.get("metric"))
    names = block.get("rows", paper.get("methods"))
    for key, value in (("metric", metric), ("rows", names)):
        do = "a study without a `paper` block needs it"
        ConfigError.unless(value is not None, f"{location}.{key} is missing", do=do)
    methods = (registry.info(one["name"], one.get("source", "")) for one in document["methods"])
    known = {f"hyperparameters.{name}" for one in methods for name in one.hyperparameters} | PATHS
    for path in block["columns"]:
        check_known(path, known, f"{location}.columns: unknown path")
    check_labels(names, document, f"{location}.rows")
    source = f"{paper['paper']}, {paper['table']}" if paper else ""
    return PaperLayout(tuple(block["columns"]), metric, names, source, location)


def grid(layout: PaperLayout, rows: Sequence[Row]) -> Grid:
    """Return the table of a study's rows: methods in the paper's order, then all others.

    A run to which a condition of the columns does not apply (the budget of a method without
    privacy) is in all columns.

    Raises:
        ConfigError: no run has all conditions, or one entry of the table has different runs.
    """
    flat = [describe(row.cell) for row in rows]
    keys = [tuple(values.get(path, _ANY) for path in layout.columns) for values in flat]
    complete = list(dict.fromkeys(key for key in keys if _ANY not in key))
    # In the order of the file, except that columns with the same outer conditions are adjacent.
    # Reversed, so that the first column with a prefix sets its place.
    placed, depths = reversed(list(enumerate(complete))), range(len(layout.columns) + 1)
    starts = {key[:depth]: location for location, key in placed for depth in depths}
    columns = sorted(complete, key=lambda key: [starts[key[:depth]] for depth in depths])
    got, expected = list(layout.columns), "conditions that apply to a run"
    ConfigError.unless(bool(columns), f"{layout.location}.columns", got, expected)

    by_label: dict[tuple[str, str], list[list[int]]] = {}
    for index, (row, key) in enumerate(zip(rows, keys, strict=True)):
        locations = by_label.setdefault((row.cell.method, row.variant), [[] for _ in columns])
        for members, column in zip(locations, columns, strict=True):
            if all(mine in (_ANY, its) for mine, its in zip(key, column, strict=True)):
                members.append(index)
                _check_equal(flat[members[0]], flat[index], row, layout.location)

    order = list(layout.names)
    lines: list[tuple[int, Line]] = []
    for (method, variant), locations in by_label.items():
        known = next((name for name in (variant, method) if name in layout.names), None)
        label = method if known is None else layout.names[known]
        name = label if variant in ("", known) else f"{label} ({variant})"
        rank = len(order) if known is None else order.index(known)
        lines.append((rank, Line(name, known is not None, tuple(map(tuple, locations)))))
    lines.sort(key=lambda item: item[0])
    # With a row of each column: the kind of a partition stands for a condition without a value.
    header = tuple(_header(layout.columns, column, rows[keys.index(column)]) for column in columns)
    return Grid(header, tuple(line for _, line in lines))


def _check_equal(one: dict[str, Any], other: dict[str, Any], row: Row, location: str) -> None:
    paths = [path for path in {**one, **other} if path != "seed"]
    differing = [path for path in paths if one.get(path) != other.get(path)]
    if differing:
        method = f"{row.cell.method} ({row.variant})" if row.variant else row.cell.method
        what = f"{location}: different runs of {method} are in one entry of the table"
        do = f"add to columns, or to variants of their own: {', '.join(differing)}"
        raise ConfigError(what, do=do)


def _header(paths: Sequence[str], column: tuple[Any, ...], row: Row) -> tuple[str, ...]:
    def text(path: str, value: Any) -> str:
        if value is None and path.startswith("partition."):
            return row.cell.partition.kind  # "iid", where the others have their alpha
        is_bare = words(path).bare
        return ("" if is_bare else f"{heading(path)} = ") + condition_text(value, path)

    return tuple(map(text, paths, column))
