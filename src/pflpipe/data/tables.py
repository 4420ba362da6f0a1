"""Tables with one row for each example: CSV, TSV and Parquet files, and DataFrames."""

from __future__ import annotations

import csv
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pflpipe.code import guard
from pflpipe.data import limits, texts, vocabulary
from pflpipe.data.blocks import Part
from pflpipe.data.contract import RowsWarning
from pflpipe.errors import DataError, located, nearest

_NAMELESS = "Unnamed: "
"""Beginning of the name that pandas gives to a column without one, as that of an index."""
_OF_MERGE = re.compile(r"(_x|_y|_left|_right|\.\d+)$")
"""End of the name that pandas gives to a column when another one has its name."""
_EXACT = {"float16": 2**11, "float32": 2**24}
"""Type of floats -> the whole number up to which they have all; others have those to 2**53."""


def read(path: Path, **layout: Any) -> Part:
    """Return ``arrays`` of a file. Every value of a CSV or TSV file is text, as it stands there.

    Raises:
        DataError: as ``arrays``; or the file cannot be read, is too large, or needs pyarrow.
    """
    limits.check(path.stat().st_size, str(path))
    form: Any = {"dtype": str, "keep_default_na": False, "index_col": False}
    try:
        if path.suffix.lower() == ".parquet":
            table = pd.read_parquet(path)
        else:
            # Numbers would make one user of 007 and 7.
            separator = "\t" if path.suffix.lower() == ".tsv" else ","
            form |= {"encoding": "utf-8-sig", "skipinitialspace": True}
            _check_lines(path, separator, layout.get("text"))
            table = pd.read_csv(path, sep=separator, **form)
    except DataError:
        raise
    except Exception as error:  # of pandas or pyarrow: there is no common base
        do = "pip install pyarrow" if isinstance(error, ImportError) else "mend the file"
        raise DataError(f"{path} cannot be read", got=guard.described(error), do=do) from None
    with located(str(path)):
        return arrays(table, **layout)


def frame(table: Any, label: str | None, layout: dict[str, Any]) -> pd.DataFrame:
    """Return a table of another library as a DataFrame. Where its columns name their classes, as
    Hugging Face's ``ClassLabel`` does, it has the names, and the layout gets them as declared.

    Raises:
        DataError: no single table in memory, or one whose rows a transform would change.
    """
    if isinstance(table, pd.DataFrame):
        return table
    do = "give one split, such as table['train'], and of a lazy frame what collect() returns"
    is_table, kind = hasattr(table, "to_pandas"), type(table).__name__
    DataError.unless(is_table, "table", kind, "a DataFrame, or a table with to_pandas()", do)
    form, do = getattr(table, "format", None), "write its values into the table by map"
    has_transform = isinstance(form, Mapping) and form.get("type") == "custom"
    DataError.unless(not has_transform, "table", "a transform, which would be ignored", do=do)
    found: pd.DataFrame = table.to_pandas()
    features = getattr(table, "features", None)
    for name, feature in features.items() if isinstance(features, Mapping) else ():
        words: list[str] | None = getattr(feature, "names", None)
        if words:
            places = found[name].to_numpy(dtype=int, na_value=-1)
            found[name] = np.array([*words, ""])[places]
            if name == label:
                layout["classes"] = words
            else:
                layout["vocabularies"] = {name: words, **layout.get("vocabularies", {})}
    return found


def _check_lines(path: Path, separator: str, text: str | None) -> None:
    """Raise DataError if a name stands twice in the first line, or a line is longer than it; warn
    of a value that holds other lines. pandas would rename the one and cut or take the others."""
    csv.field_size_limit(2**31 - 1)  # texts may be long; pandas has no limit
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, delimiter=separator, skipinitialspace=True)
        header = next(rows, [])
        _require_once(filter(None, header))
        width, line = len(header), rows.line_num
        for row in rows:
            where, line = f"{path}: line {line + 1}", rows.line_num
            do = "put a value with a separator in quotes, or leave the line out"
            DataError.unless(
                not any(row[width:]), where, f"{len(row)} values", f"{width}, as in line 1", do
            )
            for value in row if "\n" in "".join(row) else ():
                within, most = value.count("\n"), value.count(separator)
                if within and most >= within * (width - 1) and (width > 2 or text is None):
                    said = f"{where}: a value holds {within + 1} lines, as after a stray quote"
                    warnings.warn(f"{said}: their rows are missing", RowsWarning, stacklevel=2)


def _require_once(names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        do = "give each column a name of its own"
        DataError.unless(count == 1, f"{count} columns have the name {name!r}", do=do)


def arrays(
    table: pd.DataFrame,
    *,
    label: str | None = None,
    target: str | None = None,
    classes: int | Sequence[Any] | None = None,
    user: str | None = None,
    text: str | None = None,
    **layout: Any,
) -> Part:
    """Return the rows of a table as arrays, and a line that says what the columns were taken for.

    Args:
        table: a row for each example.
        label: the column of labels that are classes.
        target: instead of ``label``, the column of numbers to predict, which ``ranges`` scales too.
        classes: all labels in the order of their numbers, or how many there are: 0, 1, ...
        user: the column of user ids.
        text: instead of features, a column of texts. Without ``label`` and ``target`` each token
            that follows another in a text is a label.
        layout: of texts the arguments of ``texts.Tokens``; otherwise

            - ``features``, the columns of features; by default all others that have a name.
            - ``vocabularies``, column of text -> all values that it may have.
            - ``encoding``, ``one_hot`` or ``index``: what a value of a vocabulary becomes.
            - ``ranges``, column of numbers -> the two values that become -1 and 1.

    Returns:
        features float32 ``[N, D]`` or tokens int32 ``[N, T]``, labels int64 ``[N]`` or targets
        float32 ``[N]``, users text ``[N]`` or None, the line.

    Raises:
        DataError: no ``classes``; a column is missing, a value is missing or not declared, or a
            column of text has no vocabulary.
    """
    if {label, target, text} == {None} or None not in (label, target):
        got = f"label {label}, target {target}, text {text}"
        raise DataError("the table", got=got, expected="label or target, or text, with one or none")
    table = table.set_axis(table.columns.map(str), axis=1)
    _require_once(table.columns)
    own = [name for name in (user, label, target, text) if name is not None]
    ranges = {} if text else layout.get("ranges", {})
    for name in [*own, *ranges]:
        _require_column(table, name)
    users = None if user is None else _text(table[user])
    labels, note = None, f"user {user}"
    if target is not None:
        given = _numbers(table[target], ranges.get(target))
        if given is None:
            raise DataError(f"target: {target}", got="a column of text", expected="numbers")
        labels, note = given.astype(np.float32), f"{note}; target {_ranged(target, ranges)}"
    elif label is not None:
        labels = vocabulary.number(_text(table[label]), classes, "classes")
        note = f"{note}; label {label}"
    if text is None:
        assert labels is not None  # for mypy: one of label and target is there
        rows, words, columns = _features(table, own, **layout)
        return Part(rows, labels, users, f"{note}; features {words}", columns)
    tokens = texts.Tokens(**layout)
    rows, labels, row = tokens.examples(list(_text(table[text])), labels)
    users = None if users is None else users[row]
    return Part(rows, labels, users, f"{note}; text {text}: {tokens}")


def _features(
    table: pd.DataFrame,
    own: Sequence[str],
    features: Sequence[str] | None = None,
    vocabularies: Mapping[str, Sequence[Any]] = {},
    encoding: str = "one_hot",
    ranges: Mapping[str, Sequence[float]] = {},
) -> tuple[np.ndarray, str, dict[str, np.ndarray]]:
    """Return the features ``[N, D]``, what they were taken for, and the numbers of each column;
    ``own`` are other columns."""
    named = (name for name in map(str, table.columns) if not name.startswith(_NAMELESS))
    taken = features or [name for name in named if name not in own]
    fits, got = bool(len(table) and taken), f"{len(table)} rows with {len(taken)} features"
    DataError.unless(fits, "the table", got, "a line with the names, then rows")
    for name in [*taken, *vocabularies]:
        _require_column(table, name)
        got, do = f"{name}, the user, label or target", "leave it out of features: [...]"
        DataError.unless(name not in own, "features", got, "other columns", do)
        if _OF_MERGE.sub("", name) in [_OF_MERGE.sub("", other) for other in own]:
            said = f"feature {name} has the name of one of {', '.join(own)} with another end"
            do = "leave it out if it is a copy of a merge"
            warnings.warn(f"{said}: {do}", RowsWarning, stacklevel=2)
    columns, words, undeclared = [], [], {}
    numbers: dict[str, np.ndarray] = {}
    for name in taken:
        if declared := vocabularies.get(name):
            places = vocabulary.number(_text(table[name]), declared, f"vocabularies.{name}")
            one_hot = encoding == "one_hot"
            columns.append(np.eye(len(declared))[places] if one_hot else places[:, None])
            numbers[name] = places
            words.append(f"{name} (one of {len(declared)})")
        elif (values := _numbers(table[name], ranges.get(name))) is None:
            undeclared[name] = vocabulary.listed(_text(table[name]))
        else:
            columns.append(values[:, None])
            numbers[name] = values
            words.append(_ranged(name, ranges))
    what = f"columns of text without a vocabulary: {', '.join(undeclared)}"
    expected = "all values that each may have, declared: rows of one person would decide it"
    every = ", ".join(f"{name}: {values}" for name, values in undeclared.items())
    write = f"write vocabularies: {{{every}}}, or leave them out by features: [...]"
    do = f"{write}; for texts see docs/own_files.md"
    DataError.unless(not undeclared, what, expected=expected, do=do)
    return np.concatenate(columns, axis=1).astype(np.float32), ", ".join(words), numbers


def _require_column(table: pd.DataFrame, name: str) -> None:
    if name not in table.columns:
        raise DataError(f"no column {name!r}", do=nearest(name, map(str, table.columns)))


def _text(column: pd.Series) -> np.ndarray:
    """Return the values of a column as text ``[N]``; whole numbers have no point."""
    _require(column.isna() | (column.astype(str) == ""), column, "a value")
    if pd.api.types.is_float_dtype(column) and (column % 1 == 0).all():
        # A float of a larger whole number may stand for several of them.
        most, high = _EXACT.get(str(column.dtype).lower(), 2**53), column.abs().max()
        what, got, do = f"column {column.name!r}", f"{column.dtype} {high:.0f}", "store integers"
        DataError.unless(high < most, what, got, f"whole numbers below {most}", do)
        column = column.astype(np.int64)
    return column.astype(str).to_numpy(dtype=str)


def _ranged(name: str, ranges: Mapping[str, Sequence[float]]) -> str:
    """Return a column of numbers as the line has it: with its range, if it has one."""
    return name if name not in ranges else "{} ({:g} to {:g})".format(name, *ranges[name])


def _numbers(column: pd.Series, scale: Sequence[float] | None = None) -> np.ndarray | None:
    """Return the values of a column as float64 ``[N]``, or None if none is a number. The two values
    of ``scale`` become -1 and 1."""
    is_number = pd.api.types.is_numeric_dtype(column)  # dates would become nanoseconds
    given = column if is_number else column.astype(str)
    values = pd.to_numeric(given, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    if not is_number and np.isnan(values).all() and (given != "").any():
        return None
    _require(pd.Series(~np.isfinite(values)), column, "a finite number")
    low, high = scale or (-1, 1)
    DataError.unless(low < high, f"ranges.{column.name}", [low, high], "the lower one first")
    scaled: np.ndarray = (2 * values - low - high) / (high - low)
    return scaled


def _require(wrong: pd.Series, column: pd.Series, expected: str) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        what, do = f"column {column.name!r}", "leave these rows out, or fill them by a fixed rule"
        got = f"{column.iloc[row] or 'nothing'} in {wrong.sum()} rows, the first {row}"
        raise DataError(what, got=got, expected=f"{expected} in every row", do=do)
