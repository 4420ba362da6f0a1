"""Records: frozen dataclasses that are stored as JSON objects with the names of their fields.

In JSON a tuple is a list, None is null, and infinity is the string ``"inf"``.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from pflpipe.errors import DataError, located
from pflpipe.files import read_json

Kind = TypeVar("Kind")
# Evaluating the types of a record's fields takes longer than reading a record.
_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)
TYPES: Mapping[Any, tuple[str, str]] = {
    bool: ("boolean", "true or false"),
    float: ("number", "a number"),
    int: ("integer", "a whole number"),
    str: ("string", "text"),
    Path: ("string", "text"),
    tuple: ("array", "a list"),
    dict: ("object", "a mapping"),
}
"""Type -> its name in a JSON schema, and in messages."""
_AGAIN = (
    "it is of another version of pflpipe: remove it (of a run the whole folder) and run snakemake "
    "again"
)


@functools.cache
def type_of(hint: Any) -> tuple[Any, Any, bool]:
    """Return (type, type of its items or None, whether None is allowed) of an annotation."""
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
        return (*type_of(hint)[:2], True)
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    return kind, {tuple: inner[0], list: inner[0], dict: inner[-1]}[kind] if inner else None, False


def to_json(value: Any) -> Any:
    """Return a record, or a value of one, as plain JSON values; ``from_json`` is the inverse."""
    if dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value))
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    return "inf" if value == math.inf else value


def from_json(kind: type[Kind], values: Any, location: str) -> Kind:
    """Return the record from the values of ``to_json``.

    Args:
        kind: its dataclass. Fields are numbers, strings, tuples of these, dicts with string keys,
            records, or one of these or None.
        values: the parsed JSON.
        location: start of error messages (``"results/plans/a.json"``).

    Raises:
        DataError: a key is missing or unknown, or its value has another type.
        PflpipeError: the dataclass refuses its values.
    """
    with located(location):
        return _object(kind, values, location, ": ")


def load(kind: type[Kind], path: str | PathLike[str]) -> Kind:
    """Return the record in a JSON file; raises as ``from_json`` does."""
    return from_json(kind, read_json(path), str(path))


def _object(kind: type[Kind], values: Any, location: str, mark: str) -> Kind:
    """Return a record; errors name its keys ``<location><mark><key>``."""
    if not isinstance(values, dict):
        raise DataError(location, got=values, expected="an object", do=_AGAIN)
    hints = _hints(kind)
    for name in values:
        if name not in hints:
            expected = f"one of {', '.join(hints)}"
            raise DataError(f"{location}: unknown key", got=name, expected=expected, do=_AGAIN)
    fields = {}
    for name, hint in hints.items():
        here = f"{location}{mark}{name}"
        if name not in values:
            raise DataError(here, got="no such key", expected=_type_name(hint), do=_AGAIN)
        fields[name] = _value(hint, values[name], here)
    return kind(**fields)


def _value(hint: Any, value: Any, location: str) -> Any:
    kind, _, nullable = type_of(hint)
    if value is None and nullable:
        return None
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _object(kind, value, location, ".")
    # JSON has no infinity.
    if kind is float and value == "inf":
        return math.inf
    accepted: Any = {float: (int, float), tuple: (list, tuple)}.get(kind, kind)
    # A bool is an int in Python, but no number in JSON.
    if not isinstance(value, accepted) or isinstance(value, bool) != (kind is bool):
        raise DataError(location, got=value, expected=_type_name(hint), do=_AGAIN)
    return tuple(value) if kind is tuple else value


def _type_name(hint: Any) -> str:
    kind, _, nullable = type_of(hint)
    name = TYPES[kind][1] if kind in TYPES and kind is not dict else "an object"
    return name + (" or null" if nullable else "")


def without_defaults(settings: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults or have none. Blocks in it
    are treated alike; a block that has a default is left out if nothing in it differs."""
    changed = {}
    for item in dataclasses.fields(settings):
        value = getattr(settings, item.name)
        if dataclasses.is_dataclass(value):
            value = without_defaults(value)
            if value or item.default is dataclasses.MISSING:
                changed[item.name] = value
        # An empty dict is the default of a field whose default is a factory.
        elif value != item.default and not (item.default_factory is dict and not value):
            changed[item.name] = value
    return changed
