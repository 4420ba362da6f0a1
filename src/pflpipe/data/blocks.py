"""Blocks of config.yaml that say how a file or a folder of the user is read as a data set:
``{file: answers.csv, user: person, label: y, classes: [no, yes]}``.

A block is a mapping of plain values, which study/schemas/block.schema.yaml checks when config.yaml
is read. Here are the checks that read no row; ``sources`` reads the rows.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pflpipe.errors import DataError, nearest

Source = Path | dict[str, Any]
"""A path, a function ``my_data.py:load`` as a path, or a block."""
Fill = Callable[[dict[str, Any]], None]
"""Fills missing values, NaN in ``train_images`` and ``test_images``, in place, by what follows from
each person's own training rows."""


class Part(NamedTuple):
    """What is read of a file.

    Attributes:
        examples, labels: as in ``datasets.Arrays``.
        users: text ``[N]``, or None.
        note: a line that says what was taken for what.
        columns: name -> numbers ``[N]`` of each feature, if a table has named them.
        fill: called by ``datasets.arrays_from``; None if nothing is to be filled.
    """

    examples: np.ndarray
    labels: np.ndarray
    users: np.ndarray | None
    note: str
    columns: Mapping[str, np.ndarray] = {}
    fill: Fill | None = None


TABLES = (".csv", ".tsv", ".parquet")
LEAF = ".json"
TFF = ".h5"
HUB = "hub"
_TABULAR = (*TABLES, HUB)
_OF_ROWS = ("user", "label", "target", "classes")
_OF_COLUMNS = (
    *("features", "exclude", "vocabularies", "encoding", "ranges"),
    *("texts", "dates", "missing"),
)
_OF_TABLES = (*_OF_ROWS, *_OF_COLUMNS)
_OF_TOKENS = ("tokens", "vocabulary", "length")
KEYS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(TABLES, ("file", "test", "unit", "ids", *_OF_TABLES, "text", *_OF_TOKENS)),
    LEAF: ("file", "test", "unit", "ids", "classes", *_OF_TOKENS),
    TFF: ("file", "test", "unit", "ids", "example", "label", "classes", "text", *_OF_TOKENS),
    "folder": ("folder", "unit", "ids", "classes", "size", "channels"),
    HUB: (
        *("hub", "revision", "config", "split", "test", "unit", "ids"),
        *(*_OF_TABLES, "text", *_OF_TOKENS),
    ),
}
"""Ending of a file, ``folder`` or ``hub`` -> the keys of its block."""


def kind(block: Mapping[str, Any]) -> str:
    """Return the key of ``KEYS`` that tells how a block is read; other endings are returned too."""
    named = [key for key in ("folder", HUB) if key in block]
    return named[0] if named else Path(block["file"]).suffix.lower()


def has_users(block: Mapping[str, Any]) -> bool:
    """Return whether a block declares the user of each row; all forms but tables always do."""
    return kind(block) not in _TABULAR or "user" in block


def is_fitted(block: Mapping[str, Any]) -> bool:
    """Return whether a person's own rows fill that person's missing values."""
    missing = block.get("missing")
    rules = missing.values() if isinstance(missing, dict) else [missing]
    return any(rule in ("median", "most_frequent") for rule in rules)


def labels(block: Mapping[str, Any]) -> tuple[int, bool] | None:
    """Return how many classes a block declares, or numbers to predict, and which of both; None
    where only the rows or a vocabulary tell."""
    if "target" in block:
        return 1, True
    classes = block.get("classes")
    count = len(classes) if isinstance(classes, list) else classes
    return None if count is None else (count, False)


def paths(block: Mapping[str, Any]) -> list[Path]:
    """Return the files that a block names, or its folder; none of the hub."""
    if HUB in block:
        return []
    return [Path(block[key]) for key in ("file", "folder", "test") if key in block]


def files(block: Mapping[str, Any]) -> list[Path]:
    """Return ``paths``, the files of a folder in the hub's place, and those of vocabularies."""
    words = block.get("vocabulary")
    listed = [words, *block.get("texts", {}).values()]
    copy = sorted(Path(block[HUB]).rglob("*")) if HUB in block else []
    found = [*paths(block), *filter(Path.is_file, copy)]
    return [*found, *(Path(entry) for entry in listed if isinstance(entry, str))]


def check(block: Mapping[str, Any]) -> None:
    """Raise DataError unless a block names one source that exists, in a form that can be read, and
    has the keys of this form."""
    given = sorted(block)
    fits = sum(key in block for key in ("file", "folder", HUB)) == 1
    DataError.unless(fits, "a data set", given, "one of file, folder and hub")
    form = kind(block)
    if form not in KEYS:
        expected = f"a file that ends in {', '.join((*TABLES, LEAF, TFF))}"
        do = "an .npz file and a function have no block: write the path alone"
        raise DataError(f"file: {block['file']}", expected=expected, do=do)
    for key in block:
        if key not in KEYS[form]:
            raise DataError(f"{key} is not for {form}", do=nearest(key, KEYS[form]))
    for key, what in (("unit", "unit, the word for a user"), ("ids", "ids, how users are told")):
        fits = key not in block or has_users(block)
        DataError.unless(fits, what, block.get(key), do="write user: as well")
    of_text = "text" in block or any(key in block for key in _OF_TOKENS)
    needed = [*_OF_TOKENS[1:], *(["text"] if form != LEAF else [])] if of_text else []
    for key in needed:
        expected = f"{', '.join(needed)} for texts"
        DataError.unless(key in block, f"{key} is missing", expected=expected)
    without = {"example", *_OF_COLUMNS} & block.keys()
    fits, what = not (of_text and without), "text, the only example of a row"
    DataError.unless(fits, what, given, "no others")
    labelled = of_text or form not in _TABULAR or "label" in block or "target" in block
    do = "write label: and the name of its column"
    DataError.unless(labelled, "label is missing", do=do)
    for key in ("example", "label"):
        fits, do = of_text or form != TFF or key in block, f"write {key}: and its name in the file"
        DataError.unless(fits, f"{key} is missing", do=do)
    fits = "target" not in block or not {"label", "classes"} & block.keys()
    what, expected = "target, the column of numbers to predict", "target without label and classes"
    DataError.unless(fits, what, given, expected)
    if form == HUB:
        is_copy, named = Path(block[HUB]).is_dir(), block.get("revision")
        expected = "none, for a folder" if is_copy else "a commit of 40 signs: a branch may move"
        do = f"the history of {block[HUB]} lists them"
        DataError.unless(is_copy == (named is None), "revision", named, expected, do)
    do = "write user: as well, or a value or indicator: these follow from a person's own rows"
    fits = has_users(block) or not is_fitted(block)
    DataError.unless(fits, "missing", block.get("missing"), do=do)
    for path in files(block):
        exists = path.is_dir() if form == "folder" else path.is_file()
        if form != "folder" and path.is_dir():
            do = "write its rows to one file, with the names of its folders as a column of text"
            raise DataError(str(path), got="a folder", expected="one file", do=do)
        do = "join the files of a folder first" if path.exists() else "mend the path, or make it"
        expected = "a folder" if form == "folder" else "a file"
        DataError.unless(exists, f"{path} does not exist", expected=expected, do=do)
