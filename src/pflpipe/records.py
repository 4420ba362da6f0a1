"""Records: frozen dataclasses that lie on disk as JSON objects with the names of their fields.

In JSON a tuple is a list, what does not exist is null, and infinity is the string ``"inf"``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from os import PathLike
from typing import Any, TypeVar

from pflpipe.errors import DataError, located
from pflpipe.files import read_json

Kind = TypeVar("Kind")
_AGAIN = (
    "it is of another version of pflpipe: remove it (of a run the whole folder) and run snakemake "
    "again"
)
_WORDS = {
    dict: "an object",
    float: "a number",
    int: "a whole number",
    str: "a text",
    tuple: "a list",
}


def to_json(value: Any) -> Any:
    """Return a record, or anything that one holds, as plain JSON values; ``from_json`` is the
    inverse."""
    if dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value))
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    return "inf" if value == math.inf else value


def from_json(kind: type[Kind], values: Any, location: str) -> Kind:
    """Return the record that ``to_json`` made these values of.

    Args:
        kind: its dataclass, whose fields are numbers, texts, tuples of such, dicts with texts for
            keys, records, or one of these and None.
        values: what was read from JSON.
        location: starts messages (``"results/plans/a.json"``).

    Raises:
        DataError: a key is missing or unknown, or its value is of another type.
        PflpipeError: the dataclass refuses its values.
    """
    with located(location):
        return _object(kind, values, location, ": ")


def load(kind: type[Kind], path: str | PathLike[str]) -> Kind:
    """Return the record in a JSON file; raises as ``from_json`` does."""
    return from_json(kind, read_json(path), str(path))


@functools.cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    """Return the types of a record's fields; to read them again takes longer than a record."""
    return typing.get_type_hints(kind)


def _object(kind: type[Kind], values: Any, location: str, mark: str) -> Kind:
    """Build a record whose keys are located by ``<location><mark><key>``."""
    if not isinstance(values, dict):
        raise DataError(location, got=values, expected="an object", do=_AGAIN)
    hints = _hints(typing.cast("typing.Hashable", kind))
    for name in values:
        if name not in hints:
            expected = f"one of {', '.join(hints)}"
            raise DataError(f"{location}: unknown key", got=name, expected=expected, do=_AGAIN)
    found = {}
    for name, hint in hints.items():
        here = f"{location}{mark}{name}"
        if name not in values:
            raise DataError(here, got="no such key", expected=_words(hint), do=_AGAIN)
        found[name] = _value(hint, values[name], here)
    return kind(**found)


def _value(hint: Any, value: Any, location: str) -> Any:
    kind, nullable = _parts(hint)
    if value is None and nullable:
        return None
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _object(kind, value, location, ".")
    if kind is float and value == "inf":
        return math.inf
    accepted: Any = {float: (int, float), tuple: list}.get(kind, kind)
    if not isinstance(value, accepted) or isinstance(value, bool):
        raise DataError(location, got=value, expected=_words(hint), do=_AGAIN)
    return tuple(value) if kind is tuple else value


def _words(hint: Any) -> str:
    kind, nullable = _parts(hint)
    return _WORDS.get(kind, "an object") + (" or null" if nullable else "")


def _parts(hint: Any) -> tuple[Any, bool]:
    """Return the type that an annotation asks for, and whether None is allowed beside it."""
    nullable = isinstance(hint, types.UnionType)
    if nullable:
        (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
    return typing.get_origin(hint) or hint, nullable
