"""An option: a field of a frozen dataclass that says everything about itself.

``lr: Annotated[float, Option("learning rate", above=0)]`` is the only place that knows its type,
its bounds and the words for it. The JSON schema of a study, the checks of a block that was built in
Python, and the headings of tables are made from that. An option with a default needs nothing else.
A hyper-parameter is an option too: an argument of a method's factory in the place of a field.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import numbers
import operator
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pflpipe.errors import ConfigError, Problems, nearest
from pflpipe.records import TYPES, parts

Block = TypeVar("Block")
_ACCEPTED: dict[type, Any] = {
    bool: bool,
    float: numbers.Real,
    int: numbers.Integral,
    str: str,
    Path: (str, Path),
}
_FINITE = "a finite number"
BOUNDS: Mapping[str, tuple[str, str, Callable[[Any, Any], bool]]] = {
    "least": ("minimum", ">=", operator.ge),
    "above": ("exclusiveMinimum", ">", operator.gt),
    "most": ("maximum", "<=", operator.le),
    "below": ("exclusiveMaximum", "<", operator.lt),
}
"""Bound of an ``Option`` -> its word in a JSON schema, its sign, and the comparison."""


@dataclass(frozen=True)
class Option:
    """What a field may say, and the words for it. Bounds and words of a tuple are its items'.

    Attributes:
        text: what it is; where there is a ``pattern``, what fits it. A hyper-parameter has its
            text in the header of the method's file.
        least, above, most, below: bounds, the last of each pair excluded.
        words: the only values, if there are any. Of a default that is none of them (no mechanism,
            where a method asks for no privacy) nobody can ask, and a study has the first instead.
        pattern: regular expression of a text.
        keys: regular expression of the keys of a mapping, and words for it.
        non_empty, distinct: of a tuple: not empty; no item twice.
        only: a field of the same block and the values, one of which it must have for this option to
            be more than its default; without values, any but None.
        needed: whether the option must then be given.
        either: a field of the same block; where ``only`` allows both, one of the two must be given.
        unless: a field of the same block and the value with which alone this option may be left
            out, at a default that its bounds exclude.
        heading, phrase: as the heading of a column, and in a caption with ``{}`` for the value; by
            default the field's name.
        value_labels: values that have words of their own.
        bare: whether a value in a table's head needs no heading beside it.
        always: whether a caption says it even where it is the default.
        condition: whether it tells runs apart in tables and figures; not where a row has other
            words for it, or it changes no result.
        trained: of a hyper-parameter: whether training reads it, or ``personalize`` alone.
        layers: of a hyper-parameter: whether it is about the network's layers. A text has the
            beginnings of their names, separated by commas, and leaves a layer out; a number is at
            most theirs.
    """

    text: str = ""
    _: dataclasses.KW_ONLY
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    words: tuple[Any, ...] = ()
    pattern: str = ""
    keys: tuple[str, str] | None = None
    non_empty: bool = False
    distinct: bool = False
    only: tuple[str, ...] = ()
    needed: bool = False
    either: str = ""
    unless: tuple[str, str] | None = None
    heading: str = ""
    phrase: str = ""
    value_labels: Mapping[Any, str] = field(default_factory=dict)
    bare: bool = False
    always: bool = False
    condition: bool = True
    trained: bool = True
    layers: bool = False

    def value_text(self, value: Any) -> str:
        """Return one value in words, for titles and table heads."""
        if isinstance(value, tuple):
            return "+".join(map(str, value)) or "none"
        if value is None:
            return "none"
        text = f"{value:g}" if isinstance(value, float) else str(value)
        return self.value_labels.get(value, text)


@dataclass(frozen=True)
class Declared:
    """An option, and what its field says: name, type and default (``MISSING`` if it has none)."""

    name: str
    option: Option
    type: Any
    default: Any


_DECLARED: dict[type, Mapping[str, Declared]] = {}


def declared(kind: type) -> Mapping[str, Declared]:
    """Return the options of a dataclass by name, in its order; other fields are left out."""
    if kind not in _DECLARED:
        hints, items = typing.get_type_hints(kind, include_extras=True), {}
        for item in dataclasses.fields(kind):
            if typing.get_origin(hints[item.name]) is typing.Annotated:
                factory = item.default_factory
                default = item.default if factory is dataclasses.MISSING else factory()
                items[item.name] = _declare(item.name, hints[item.name], default)
        _DECLARED[kind] = items
    return _DECLARED[kind]


def _declare(name: str, hint: Any, default: Any) -> Declared:
    option = Option()
    if typing.get_origin(hint) is typing.Annotated:
        hint, option = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        option = dataclasses.replace(option, words=typing.get_args(hint))
        hint = type(option.words[0])
    heading = option.heading or name
    phrase = option.phrase or f"{heading} {{}}"
    option = dataclasses.replace(option, heading=heading, phrase=phrase)
    return Declared(name, option, hint, default)


def of_signature(signature: inspect.Signature) -> dict[str, Declared]:
    """Return the options that are the arguments of a function, by name: of type bool, int, float,
    str or Literal, perhaps Annotated with an Option."""
    return {
        name: _declare(name, parameter.annotation, parameter.default)
        for name, parameter in signature.parameters.items()
    }


def blocks(kind: type) -> Mapping[str, type]:
    """Return the fields of a dataclass that are dataclasses themselves, by name."""
    hints = typing.get_type_hints(kind)
    return {
        name: hint
        for name, hint in hints.items()
        if isinstance(hint, type) and dataclasses.is_dataclass(hint)
    }


def schema(kind: type) -> dict[str, Any]:
    """Return the JSON schema of a dataclass with options, and blocks of them: unknown keys are
    refused, options without a default are required."""
    properties = {name: rules(item) for name, item in declared(kind).items()}
    nested = {name: schema(block) for name, block in blocks(kind).items()}
    required = [name for name, found in properties.items() if "default" not in found]
    return {
        "description": " ".join((kind.__doc__ or "").split()),
        "type": "object",
        "additionalProperties": False,
        "required": required + [name for name, found in nested.items() if found["required"]],
        "properties": properties | nested,
    }


def rules(item: Declared) -> dict[str, Any]:
    """Return the JSON schema of one option's value."""
    option, (kind, inner, nullable) = item.option, parts(item.type)
    limits: dict[str, Any] = {rule: bound for rule, _, _, bound in _bounds(option)}
    if option.words:
        limits = {"enum": list(option.words)}
    elif inner in (str, Path) or (inner is None and kind in (str, Path)):
        limits["minLength"] = 1
    found: dict[str, Any] = {"description": option.text}
    if kind is tuple:
        items = limits if option.words else {"type": TYPES[inner][0], **limits}
        found |= {"type": "array", "items": items, "uniqueItems": option.distinct}
        found |= {"minItems": 1} if option.non_empty else {}
    elif kind is dict:
        found |= {"type": "object"}
        if inner in TYPES:
            found["additionalProperties"] = {"type": TYPES[inner][0], **limits}
        if option.keys:
            found["propertyNames"] = {"pattern": option.keys[0], "description": option.keys[1]}
    else:
        found |= limits if option.words else {"type": TYPES[kind][0], **limits}
        found |= {"pattern": option.pattern} if option.pattern else {}
    if nullable:
        found["type"] = [found["type"], "null"]
    if item.default is not dataclasses.MISSING:
        default = option.words[0] if _unspeakable(item) else item.default
        # A tuple becomes a list, and a path a text.
        found["default"] = json.loads(json.dumps(default, default=str))
    return found


def build(kind: type[Block], values: Mapping[str, Any]) -> Block:
    """Return a block from schema-checked values with one spelling per number, so that ``lr: 1`` and
    ``lr: 1.0`` are the same cell."""
    found = declared(kind)
    asked = {name: item.option.words[0] for name, item in found.items() if _unspeakable(item)}
    return kind(**{**asked, **spelled(found, values)})


def spelled(items: Mapping[str, Declared], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return checked values with one spelling per number."""
    return {name: _spelled(value, items[name].type) for name, value in values.items()}


def check(block: Any, location: str) -> None:
    """Check the values of a block, and that its options fit one another.

    Args:
        block: a dataclass with options.
        location: starts messages (``"partition"``).

    Raises:
        PflpipeError: everything that is wrong with it.
    """
    problems = Problems()
    for name, item in declared(type(block)).items():
        option, value, here = item.option, getattr(block, name), f"{location}.{name}"
        if option.unless and value == item.default:
            other, wanted = option.unless
            if getattr(block, other) != wanted:
                do = f"it may be left out with {location}.{other} {wanted} only"
                problems.refuse(f"{here} is missing", do=do)
        elif value is not None or not parts(item.type)[2]:
            for entry in value if isinstance(value, tuple) else (value,):
                with problems.at():
                    check_value(entry, item, here)
        if option.only:
            other, fitting = option.only[0], option.only[1:]
            found = getattr(block, other)
            fits = found in fitting if fitting else found is not None
            if fits and option.needed and value is None:
                problems.refuse(f"{here} is missing", do=f"{location}.{other} {found} needs it")
            rival = getattr(block, option.either or name)
            if fits and option.either and (value is None) == (rival is None):
                given = "neither is" if value is None else "both are"
                problems.refuse(f"{location} needs either {name} or {option.either}, {given} given")
            if not fits and value != item.default:
                what = f"{here} is for {' '.join([f'{location}.{other}', ' or '.join(fitting)])}"
                do = f"remove it for {found}" if fitting else f"add {other}, or remove it"
                problems.refuse(f"{what.strip()} only", got=value, do=do)
    problems.stop()


def check_value(value: Any, item: Declared, location: str) -> None:
    """Raise ConfigError unless this is a value of an option."""
    option, (kind, inner, _) = item.option, parts(item.type)
    kind = inner if kind is tuple else kind
    if option.words:
        unknown = value not in option.words or isinstance(value, bool)
        if unknown and (not _unspeakable(item) or value != item.default):
            do = nearest(str(value), map(str, option.words))
            expected = f"one of {', '.join(map(str, option.words))}"
            raise ConfigError(location, got=value, expected=expected, do=do)
    elif kind in _ACCEPTED and not (
        isinstance(value, _ACCEPTED[kind]) and (kind is bool) == isinstance(value, bool)
    ):
        expected = _FINITE if kind is float else TYPES[kind][1]
        raise ConfigError(location, got=value, expected=expected)
    elif value == "" and not option.layers:
        raise ConfigError(location, got=value, expected="text that is not empty")
    elif isinstance(value, str) and option.pattern and not re.search(option.pattern, value):
        raise ConfigError(location, got=value, expected=option.text)
    elif isinstance(value, int | float) and not (
        math.isfinite(value) and all(holds(value, bound) for _, _, holds, bound in _bounds(option))
    ):
        expected = f"a number {bounds(option)}" if math.isfinite(value) else _FINITE
        raise ConfigError(location, got=value, expected=expected)


def bounds(option: Option) -> str:
    """Return an option's bounds in words, such as ``> 0 and <= 1``."""
    return " and ".join(f"{sign} {bound}" for _, sign, _, bound in _bounds(option))


def _bounds(option: Option) -> Iterator[tuple[str, str, Callable[[Any, Any], bool], float]]:
    for name, rule in BOUNDS.items():
        if (bound := getattr(option, name)) is not None:
            yield (*rule, bound)


def _unspeakable(item: Declared) -> bool:
    # A default that stands for "was not asked for" and is no word of a study.
    words = item.option.words
    return bool(words) and isinstance(item.default, str) and item.default not in words


def _spelled(value: Any, hint: Any) -> Any:
    kind, inner, _ = parts(hint)
    if value is None:
        return None
    if kind is tuple:
        return tuple(_spelled(item, inner) for item in value)
    if kind is dict:
        return {name: _spelled(item, inner) for name, item in value.items()}
    return kind(value) if kind in (float, int, Path) else value


def flat(kind: type, prefix: str = "") -> Iterator[tuple[str, Declared]]:
    """Yield (dotted path, option) of a dataclass and of the blocks within it, in their order."""
    nested, own = blocks(kind), declared(kind)
    for item in dataclasses.fields(kind):
        if item.name in nested:
            yield from flat(nested[item.name], f"{prefix}{item.name}.")
        elif item.name in own:
            yield f"{prefix}{item.name}", own[item.name]
