"""Options: fields of frozen dataclasses that declare their type, bounds, default and text.

``lr: Annotated[float, Option(above=0)]`` and the docstring below it are the only declaration of a
setting. The JSON schema of a study and the checks of a block that was built in Python follow from
it. A hyper-parameter is an option too: an argument of a method's factory.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import json
import math
import numbers
import operator
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pflpipe.errors import ConfigError, PflpipeError, Problems, nearest
from pflpipe.json_records import TYPES, type_of

Block = TypeVar("Block")
_ACCEPTED: dict[type, Any] = {
    bool: bool,
    float: numbers.Real,
    int: numbers.Integral,
    str: str,
    Path: (str, Path),
}
_FINITE = "a finite number"
_ITEM = re.compile(r"    (\w+): (.*(?:\n {8}.*)*)\n?")
BOUNDS: Mapping[str, tuple[str, str, Callable[[Any, Any], bool]]] = {
    "least": ("minimum", ">=", operator.ge),
    "above": ("exclusiveMinimum", ">", operator.gt),
    "most": ("maximum", "<=", operator.le),
    "below": ("exclusiveMaximum", "<", operator.lt),
}
"""Bound of an ``Option`` -> its keyword in a JSON schema, its sign, and the comparison."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """The rules for the value of a field. For a tuple, bounds and choices
    are those of its items.

    Attributes:
        least, above, most, below: bounds; ``above`` and ``below`` exclude the bound.
        choices: the only values, if there are any. If the default is not among them (no mechanism,
            for a method without privacy), it cannot be requested; studies start from the first
            choice.
        pattern: regular expression of a text.
        keys: regular expression of the keys of a mapping, and its description.
        non_empty, distinct: for a tuple: not empty; no item twice.
        only: a field of the same block, and values. The option may differ from its default only if
            the field has one of these values; without values, if it is not None.
        needed: whether the option is then required.
        either: a field of the same block; where ``only`` allows both, one of the two is required.
        unless: a field of the same block, and a value. If the field has this value, the option may
            be left out. Otherwise its default, which its bounds exclude, is refused.
        trained: for a hyper-parameter: whether training reads it, not only ``personalize``.
        layers: for a hyper-parameter: whether it selects layers of the network. A text lists
            beginnings of layer names, separated by commas, and must leave a layer out; a number is
            at most the number of layers.
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] = ()
    pattern: str = ""
    keys: tuple[str, str] | None = None
    non_empty: bool = False
    distinct: bool = False
    only: tuple[str, ...] = ()
    needed: bool = False
    either: str = ""
    unless: tuple[str, str] | None = None
    trained: bool = True
    layers: bool = False


@dataclass(frozen=True)
class Declared:
    """An option with name, type and default (``MISSING`` if there is none) of its field."""

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
        option = dataclasses.replace(option, choices=typing.get_args(hint))
        hint = type(option.choices[0])
    return Declared(name, option, hint, default)


def of_signature(signature: inspect.Signature) -> dict[str, Declared]:
    """Return the arguments of a function as options, by name. Their type is bool, int, float, str
    or Literal, and in a command line all that ``program.add_argument`` takes; ``Annotated`` may add
    an Option."""
    given = signature.parameters.items()
    return {name: _declare(name, one.annotation, one.default) for name, one in given}


def blocks(kind: type) -> Mapping[str, type]:
    """Return the fields of a dataclass that are dataclasses themselves, by name."""
    hints = typing.get_type_hints(kind).items()
    return {n: h for n, h in hints if isinstance(h, type) and dataclasses.is_dataclass(h)}


def items_of(text: str) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Yield the items of a list in a docstring, ``    name: text``, whose other lines are indented
    further: name, text in one line, and its span in the docstring."""
    for item in _ITEM.finditer(text):
        yield item[1], " ".join(item[2].split()), item.span()


def texts(kind: type) -> dict[str, str]:
    """Return the descriptions of a dataclass's fields, the docstrings below them, by name."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__[:-1]):
        found |= _docstrings(owner.__module__)[owner.__name__]
    return found


@functools.cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return class -> field -> text below the field. Python keeps no docstrings of fields, so the
    module's source is read."""
    classes: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.ClassDef):
            texts = classes[node.name] = {}
            for pair in itertools.pairwise(node.body):
                match pair:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                        texts[name] = " ".join(text.split())
    return classes


def schema(kind: type) -> dict[str, Any]:
    """Return the JSON schema of a dataclass with options, and blocks of them: unknown keys are
    refused, options without a default are required."""
    described, items = texts(kind), declared(kind).items()
    properties = {name: {"description": described[name], **rules(item)} for name, item in items}
    nested = {name: schema(block) for name, block in blocks(kind).items()}
    required = [name for name, rule in properties.items() if "default" not in rule]
    return {
        "description": " ".join((kind.__doc__ or "").split()),
        "type": "object",
        "additionalProperties": False,
        "required": required + [name for name, rule in nested.items() if rule["required"]],
        "properties": properties | nested,
    }


def rules(item: Declared) -> dict[str, Any]:
    """Return the JSON schema of one option's value."""
    option, (kind, inner, nullable) = item.option, type_of(item.type)
    limits: dict[str, Any] = {rule: bound for rule, _, _, bound in _bounds(option)}
    if option.choices:
        limits = {"enum": list(option.choices)}
    elif not option.pattern and (inner or kind) in (str, Path):
        limits["minLength"] = 1
    result: dict[str, Any] = {}
    if kind is tuple:
        items = limits if option.choices else {"type": TYPES[inner][0], **limits}
        result |= {"type": "array", "items": items, "uniqueItems": option.distinct}
        result |= {"minItems": 1} if option.non_empty else {}
    elif kind is dict:
        result["type"] = "object"
        if inner in TYPES:
            result["additionalProperties"] = {"type": TYPES[inner][0], **limits}
        if option.keys:
            result["propertyNames"] = {"pattern": option.keys[0], "description": option.keys[1]}
    else:
        result |= limits if option.choices else {"type": TYPES[kind][0], **limits}
        result |= {"pattern": option.pattern} if option.pattern else {}
    if nullable and option.choices:
        result["enum"] = [*option.choices, None]
    elif nullable:
        result["type"] = [result["type"], "null"]
    if item.default is not dataclasses.MISSING:
        default = option.choices[0] if _cannot_be_requested(item) else item.default
        # A tuple becomes a list, and a path a text.
        result["default"] = json.loads(json.dumps(default, default=str))
    return result


def build(kind: type[Block], values: Mapping[str, Any]) -> Block:
    """Return a block from schema-checked values. ``lr: 1`` and ``lr: 1.0`` give the same cell."""
    items = declared(kind)
    hidden = {name: item for name, item in items.items() if _cannot_be_requested(item)}
    first = {name: item.option.choices[0] for name, item in hidden.items()}
    return kind(**{**first, **spelled(items, values)})


def spelled(items: Mapping[str, Declared], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return checked values with the type of their option, such as 1.0 for 1."""
    return {name: _spelled(value, items[name].type) for name, value in values.items()}


def check(block: Any, location: str, error: type[PflpipeError] = ConfigError) -> None:
    """Check the values of a block and the rules between its options.

    Args:
        block: a dataclass with options.
        location: start of error messages (``"partition"``).
        error: the kind that is raised. A kind besides ConfigError tells the first problem alone.

    Raises:
        PflpipeError: all errors of the block, or the first one as ``error``.
    """
    problems = Problems()
    for name, item in declared(type(block)).items():
        option, value, here = item.option, getattr(block, name), f"{location}.{name}"
        if option.unless and value == item.default:
            other, wanted = option.unless
            if getattr(block, other) != wanted:
                do = f"it may be left out with {location}.{other} {wanted} only"
                problems.refuse(f"{here} is missing", do=do)
        elif value is not None or not type_of(item.type)[2]:
            for entry in value if isinstance(value, tuple) else (value,):
                with problems.at():
                    check_value(entry, item, here)
        if option.only:
            other, fitting = option.only[0], option.only[1:]
            setting = getattr(block, other)
            fits = setting in fitting if fitting else setting is not None
            if fits and option.needed and value is None:
                problems.refuse(f"{here} is missing", do=f"{location}.{other} {setting} needs it")
            rival = getattr(block, option.either or name)
            if fits and option.either and (value is None) == (rival is None):
                given = "neither is" if value is None else "both are"
                problems.refuse(f"{location} needs either {name} or {option.either}, {given} given")
            if not fits and value not in (None, item.default):
                values = " or ".join(map(str, fitting))
                what = f"{here} is for {location}.{other} {values}"
                do = f"remove it for {setting}" if fitting else f"add {other}, or remove it"
                problems.refuse(f"{what.strip()} only", got=value, do=do)
    try:
        problems.stop()
    except ConfigError as found:
        if error is ConfigError:
            raise
        raise error(str(found.all[0])) from None


def check_value(value: Any, item: Declared, location: str) -> None:
    """Raise ConfigError unless an option may have this value."""
    option, (kind, inner, _) = item.option, type_of(item.type)
    kind = inner if kind is tuple else kind
    if option.choices:
        unknown = value not in option.choices or isinstance(value, bool)
        if unknown and (not _cannot_be_requested(item) or value != item.default):
            do = nearest(str(value), map(str, option.choices))
            expected = f"one of {', '.join(map(str, option.choices))}"
            raise ConfigError(location, got=value, expected=expected, do=do)
        return
    expected = ""
    if kind in _ACCEPTED and not (
        isinstance(value, _ACCEPTED[kind]) and (kind is bool) == isinstance(value, bool)
    ):
        expected = _FINITE if kind is float else TYPES[kind][1]
    elif value == "" and not option.layers:
        expected = "text that is not empty"
    elif isinstance(value, str) and option.pattern and not re.search(option.pattern, value):
        expected = f"text that matches {option.pattern}"
    elif isinstance(value, int | float) and not (
        math.isfinite(value) and all(holds(value, bound) for _, _, holds, bound in _bounds(option))
    ):
        expected = f"a number {bounds(option)}" if math.isfinite(value) else _FINITE
    ConfigError.unless(not expected, location, value, expected)


def bounds(option: Option) -> str:
    """Return an option's bounds as text, such as ``> 0 and <= 1``."""
    return " and ".join(f"{sign} {bound}" for _, sign, _, bound in _bounds(option))


def _bounds(option: Option) -> Iterator[tuple[str, str, Callable[[Any, Any], bool], float]]:
    for name, rule in BOUNDS.items():
        if (bound := getattr(option, name)) is not None:
            yield (*rule, bound)


def _cannot_be_requested(item: Declared) -> bool:
    choices = item.option.choices
    return bool(choices) and isinstance(item.default, str) and item.default not in choices


def _spelled(value: Any, hint: Any) -> Any:
    kind, inner, _ = type_of(hint)
    if value is None:
        return None
    if kind is tuple:
        return tuple(_spelled(item, inner) for item in value)
    if kind is dict:
        return {name: _spelled(item, inner) for name, item in value.items()}
    return kind(value) if kind in (float, int, Path) else value


def flat(kind: type, prefix: str = "") -> Iterator[tuple[str, Declared]]:
    """Yield (dotted path, option) of a dataclass and of the blocks in it, in order."""
    nested, items = blocks(kind), declared(kind)
    for item in dataclasses.fields(kind):
        if item.name in nested:
            yield from flat(nested[item.name], f"{prefix}{item.name}.")
        elif item.name in items:
            yield f"{prefix}{item.name}", items[item.name]
