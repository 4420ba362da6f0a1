"""Tables with one row for each example: CSV, TSV and Parquet files, DataFrames, and tables of
Hugging Face's hub, or of a folder in its layout, read by its library ``datasets``."""

import csv
import importlib
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pflpipe.code import guard
from pflpipe.data import columns, limits, texts, vocabulary
from pflpipe.data.blocks import Part
from pflpipe.data.contract import RowsWarning
from pflpipe.errors import DataError, Problems, located


def read(path: Path, **layout: Any) -> Part:
    """Return ``arrays`` of a file. Every value of a CSV or TSV file is text, as it stands there.

    Raises:
        DataError: as ``arrays``; or as ``texts_of``.
    """
    table, swallowed = texts_of(path, layout.get("text"))
    with located(str(path)):
        part = arrays(table, **layout)
    return part._replace(note=part.note + swallowed)


def texts_of(path: Path, text: str | None = None) -> tuple[pd.DataFrame, str]:
    """Return the table of a file as it stands there, and which of its lines a value has swallowed.

    Raises:
        DataError: the file cannot be read, is too large, or needs pyarrow.
    """
    limits.check(path.stat().st_size, str(path))
    swallowed = ""
    form: Any = {"dtype": str, "keep_default_na": False, "index_col": False}
    try:
        if path.suffix.lower() == ".parquet":
            table = pd.read_parquet(path)
        else:
            # Numbers would make one user of 007 and 7.
            separator = "\t" if path.suffix.lower() == ".tsv" else ","
            form |= {"encoding": "utf-8-sig", "skipinitialspace": True}
            swallowed = _check_lines(path, separator, text)
            with warnings.catch_warnings():
                # Of longer lines, which have only empty values more.
                warnings.simplefilter("ignore", pd.errors.ParserWarning)
                table = pd.read_csv(path, sep=separator, **form)
    except DataError:
        raise
    except Exception as error:  # of pandas or pyarrow: there is no common base
        do = "pip install pyarrow" if isinstance(error, ImportError) else "mend the file"
        do = "save it as UTF-8" if isinstance(error, UnicodeError) else do
        raise DataError(f"{path} cannot be read", got=guard.described(error), do=do) from None
    return table, swallowed


def of_hub(block: Mapping[str, Any], split: str, cache: Path) -> Any:
    """Return a split of a block's data set, of which ``frame`` makes a DataFrame. A program
    in the data set is never run: the library has refused them since its version 4.

    Args:
        block: ``hub``, a name or a folder, with ``revision`` and ``config``.
        split: such as ``train``.
        cache: folder of what is downloaded.

    Raises:
        DataError: the library is not installed, or the data set cannot be read or is too large.
    """
    place = f"hub: {block['hub']}"
    try:
        datasets = importlib.import_module("datasets")  # no part of pflpipe[all]
    except ImportError:
        install = "pip install 'datasets>=4'"
        raise DataError(place, got="no Python package datasets", do=install) from None
    do = "mend hub, revision, config and split, or give the folder of a copy"
    with guard.foreign(f"{place}, split {split}, cannot be read", do=do):
        table = datasets.load_dataset(
            block["hub"],
            block.get("config"),
            split=split,
            revision=block.get("revision"),
            cache_dir=str(cache),
        )
    limits.check(table.data.nbytes, place)
    return table


def frame(table: Any, label: str | None, layout: dict[str, Any]) -> pd.DataFrame:
    """Return a table of another library as a DataFrame, with names of text. Where its columns name
    their classes, as Hugging Face's ``ClassLabel`` does, it has the names, and the layout gets them
    as declared.

    Raises:
        DataError: no single table in memory, or one whose rows a transform would change.
    """
    if isinstance(table, pd.DataFrame):
        return table.set_axis(table.columns.map(str), axis=1)
    do = "give one split, such as table['train'], and of a lazy frame what collect() returns"
    is_table, kind = hasattr(table, "to_pandas"), type(table).__name__
    DataError.unless(is_table, "table", kind, "a DataFrame, or a table with to_pandas()", do)
    form, do = getattr(table, "format", None), "write its values into the table by map"
    has_transform = isinstance(form, Mapping) and form.get("type") == "custom"
    DataError.unless(not has_transform, "table", "a transform, which would be ignored", do=do)
    found: Any = table.to_pandas()
    if not isinstance(found, pd.DataFrame):
        raise DataError("table", got=kind, expected="a table, not a column")
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
    return found.set_axis(found.columns.map(str), axis=1)


def _check_lines(path: Path, separator: str, text: str | None) -> str:
    """Raise DataError if a name stands twice in the first line, or a line is longer than it; warn
    of a value that holds other lines, and return where. pandas would rename the one and cut or take
    the others."""
    swallowed = []
    csv.field_size_limit(2**31 - 1)  # texts may be long; pandas has no limit
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, delimiter=separator, skipinitialspace=True)
        header = next(rows, [])
        _require_once(filter(None, header))
        only = header[0] if len(header) == 1 else ""
        fits, expected = not set(only) & set(";,|\t"), "commas in .csv, tabs in .tsv"
        DataError.unless(fits, f"{path}: the separator of line 1", only, expected)
        width, line = len(header), rows.line_num
        for row in rows:
            where, line = f"{path}: line {line + 1}", rows.line_num
            joined = "".join(row)
            DataError.unless("\0" not in joined, where, "bytes of zero", "text", "mend the file")
            do = "put a value with a separator in quotes, or leave the line out"
            DataError.unless(
                not any(row[width:]), where, f"{len(row)} values", f"{width}, as in line 1", do
            )
            for value in row if "\n" in joined else ():
                within, most = value.count("\n"), value.count(separator)
                if within and most >= within * (width - 1) and (width > 2 or text is None):
                    said = "a value holds several lines, as after a stray quote"
                    warnings.warn(f"{said}: their rows are missing", RowsWarning, stacklevel=2)
                    swallowed.append(f"{where.rpartition(': ')[2]} holds {within + 1} lines")
    return columns.LEFT_OUT + swallowed[0] if swallowed else ""


def _require_once(names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        do = "give each column a name of its own"
        what = f"{count} columns have the name {vocabulary.short(name)!r}"
        DataError.unless(count == 1, what, do=do)


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
        layout: of texts the arguments of ``texts.Tokens``; otherwise those of ``columns.Layout``.

    Returns:
        features float32 ``[N, D]`` or tokens int32 ``[N, T]``, labels int64 ``[N]`` or targets
        float32 ``[N]``, users text ``[N]`` or None, the line; and of features the numbers of each
        column and, if values are missing that a person's own rows fill, what fills them.

    Raises:
        DataError, or Errors with all problems: no ``classes``; a column is missing, a value is
            missing or not declared, or a column of text has no vocabulary.
    """
    if {label, target, text} == {None} or None not in (label, target):
        got = f"label {label}, target {target}, text {text}"
        raise DataError("the table", got=got, expected="label or target, or text, with one or none")
    table = table.set_axis(table.columns.map(str), axis=1)
    _require_once(table.columns)
    own = [name for name in (user, label, target, text) if name is not None]
    expected = "a column for each of user, label, target and text"
    DataError.unless(len(set(own)) == len(own), "the table", own, expected)
    ranges = {} if text else layout.get("ranges", {})
    users = labels = None
    note, problems = f"user {user}", Problems()
    for name in own:
        with problems.at():
            columns.require_column(table, name)
    problems.stop()
    if user is not None:
        with problems.at():
            users = columns.text(table[user])
    with problems.at():
        if target is not None:
            labels = columns.numbers(table[target], ranges.get(target)).astype(np.float32)
            note = f"{note}; target {columns.ranged(target, ranges.get(target))}"
        elif label is not None:
            labels = vocabulary.number(columns.text(table[label]), classes, "classes")
            note = f"{note}; label {label}"
    if text is None:
        rows, words, named, fill = columns.Layout(**layout).of(table, own, problems)
        assert labels is not None  # for mypy: one of label and target is there
        return Part(rows, labels, users, f"{note}; features {words}", named, fill)
    problems.stop()
    tokens = texts.Tokens(**layout)
    rows, labels, row = tokens.examples(list(columns.text(table[text])), labels)
    users = None if users is None else users[row]
    return Part(rows, labels, users, f"{note}; text {text}: {tokens}")
