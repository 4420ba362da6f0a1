"""The ``layout`` block of a study: the row and column of each run in a paper's table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pflpipe.cells import PATHS
from pflpipe.errors import ConfigError, check_known
from pflpipe.methods import registry
from pflpipe.study.settings import condition_text, describe, heading, words
from pflpipe.study.study_spec import PaperLayout, Row, check_labels

_ANY = object()  # the condition does not apply to the run, which then is in every column


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


def read(document: dict[str, Any], file: str) -> PaperLayout | None:
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
