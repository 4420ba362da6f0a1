"""Strict reading of YAML documents, and schema errors as one line each with file, location and the
nearest known key.

PyYAML keeps the last of two equal keys, reads ``1e-3`` as text, and ``010`` and ``1:30`` as 8 and
90. Here the second is a number and the others are errors.
"""

import functools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.cyaml import CParser  # type: ignore[attr-defined]
from yaml.resolver import Resolver

from pflpipe import options
from pflpipe.cells import BLOCKS, OPTIONS, Cell
from pflpipe.errors import ConfigError, nearest
from pflpipe.json_records import TYPES
from pflpipe.privacy.private_search import PrivateSearch
from pflpipe.study.candidates import SearchRange
from pflpipe.study.figures import ATTACKS, KINDS

SCHEMAS = Path(__file__).resolve().parent / "schemas"
_DEEPEST = 20
_LARGEST = 1e300
_MOST = 100_000
_MOST_LISTED = 30
"""Keys that a message lists; the paths of all options would fill the screen."""
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_OLD = re.compile(r"^[-+]?0[0-9]|:")
"""In a number of YAML 1.1: the beginning of an octal one, or the sign of one of base 60."""
CASES = "cases"
"""An axis whose values are mappings over several blocks."""
MAY_BE_CHOSEN = ("model", "training", "server", "privacy.clip_norm")
"""Beginnings of the paths that a search may choose besides hyper-parameters: how a method works,
and neither its task nor the privacy that is asked of it."""
_TYPES = {"null": "null", **dict(TYPES.values())}
_SIGNS = {rule: sign for rule, sign, _ in options.BOUNDS.values()}


class _StrictLoader(Composer, CParser, SafeConstructor, Resolver):  # type: ignore[misc]
    """A SafeLoader that refuses repeated keys, keys that are not text, and tags.

    The parser of libyaml reads the papers' printed numbers in 0.06 s instead of 0.34 s.
    """

    def __init__(self, text: str) -> None:
        CParser.__init__(self, text)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()
        self._depth += 1
        _refuse(self._depth > _DEEPEST, "nested too deep", event)
        tag = getattr(event, "tag", None)
        _refuse(tag is not None, f"a tag, {tag!r}; remove it", event)
        node: yaml.Node | None = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS and _OLD.search(node.value):
            read = f"{node.value}, which YAML reads as {self.construct_object(node)}"
            _refuse(True, f"{read}; write a decimal number, or quote it as text", node)
        self._depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Checked while composing: constructing a mapping merges "<<" keys in place, after which
        # repeats are legitimate.
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            is_text = key.tag in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")
            _refuse(not is_text, "a key must be text; quote it", key)
            _refuse(key.value in seen, f"key {key.value!r} is given twice", key)
            seen.add(key.value)
        return node


def _refuse(is_wrong: bool, problem: str, place: Any) -> None:
    """Raise an error at the place of a node or an event if it is wrong."""
    if is_wrong:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Return the document of a YAML file as plain values.

    Raises:
        ConfigError: unreadable file, YAML syntax (with the line), a repeated key, no content.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    try:
        loader = _StrictLoader(text)
        node = loader.get_single_node()
        if node is not None and _values(node, {}) > _MOST:
            raise ConfigError(f"{path}: its aliases stand for more than {_MOST} values")
        value = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = error.problem or error.context
        raise ConfigError(f"{path}:{line}: not valid YAML: {problem}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deep") from None
    except (yaml.YAMLError, ValueError) as error:  # control characters; an impossible date
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    ConfigError.unless(value is not None, f"{path}: the file is empty")
    return value


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many values a node stands for; more than ``_MOST`` for a circle of aliases.

    Ten aliases to ten aliases to ten are a thousand values, and reading them takes as long.
    """
    if id(node) not in known:
        known[id(node)] = _MOST  # while its parts are counted: a circle comes back here
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            parts = node.value
        elif isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_values(part, known) for part in parts)
    return known[id(node)]


def dotted(path: Sequence[str | int]) -> str:
    """Return ``methods[2].training.lr`` for ``["methods", 2, "training", "lr"]``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


@functools.cache
def schema() -> dict[str, Any]:
    """Return the JSON schema of a study: ``schemas/study.schema.yaml`` with the options of cells.py
    and ``cell``, one expanded run, and ``part``, some keys of one, in its ``$defs``."""
    whole: dict[str, Any] = read_yaml(SCHEMAS / "study.schema.yaml")
    # The rules for mappings do not apply to lists, nor those for lists to mappings.
    listed_or_drawn = whole["$defs"]["searched"]["additionalProperties"]
    listed_or_drawn |= options.schema(SearchRange) | {"type": ["array", "object"]}
    whole["properties"]["search"]["properties"]["private"] = options.schema(PrivateSearch)
    cell = options.schema(Cell) | {"description": "one expanded run"}
    # A block of a file may be incomplete, because axes and methods add keys.
    parts = {name: {**cell["properties"][name], "required": []} for name in BLOCKS}
    whole["$defs"] |= cell["properties"] | parts
    cell["properties"]["hyperparameters"] = {"type": "object"}
    whole["$defs"] |= {"cell": cell, "part": cell | {"required": []}}
    drawn = whole["$defs"]["figures"]
    drawn["additionalProperties"]["properties"]["kind"]["enum"] = list(KINDS)
    attack = drawn["patternProperties"].pop("attack")
    drawn["patternProperties"][f"^({'|'.join(ATTACKS)})$"] = attack
    return whole


@functools.cache
def validator(part: str = "") -> Draft202012Validator:
    """Return the validator of a study's file, or of a part of ``$defs``."""
    whole = schema()
    definitions = whole["$defs"] | _with_paths(whole["$defs"])
    rules = {"$ref": f"#/$defs/{part}"} if part else whole
    return Draft202012Validator(rules | {"$defs": definitions})


def _with_paths(definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the definitions of axes and of a search's values with the paths that are their keys.

    Those of a method may also name hyper-parameters, which its factory checks.
    """
    blocks = (CASES, *BLOCKS)
    every = (*blocks, *OPTIONS)
    chosen = [path for path in every if path.startswith(MAY_BE_CHOSEN)]
    with_paths = {}
    for name, paths in (("axes", every), ("searched", chosen)):
        values = definitions[name]["additionalProperties"]
        mappings = values | {"items": {"type": "object"}}
        known = {path: mappings if path in blocks else values for path in paths}
        with_paths[name] = definitions[name] | {"properties": known, "additionalProperties": False}
        of_methods = {"patternProperties": {r"^hyperparameters\.": values}}
        with_paths[f"{name}_of_method"] = with_paths[name] | of_methods
    known = {path: {} for path in OPTIONS}
    with_paths["at"] = definitions["at"] | {"properties": known, "additionalProperties": False}
    return with_paths


@dataclass(frozen=True)
class Violation:
    """A violation of a schema.

    Attributes:
        path: location in the document.
        rule: keyword of JSON schema, or ``finite``.
        key: the missing or unknown key; empty for other rules.
        error: the error, which starts with the dotted path.
    """

    path: tuple[str | int, ...]
    rule: str
    key: str
    error: ConfigError


def violations(value: Any, validator: Draft202012Validator) -> Iterator[Violation]:
    """Yield all violations of a schema by plain values, unknown keys first.

    Numbers that are not finite are violations.
    """
    assert isinstance(validator.schema, Mapping)
    top = validator.schema.get("properties", {})
    infinite = list(_infinite(value, ()))
    yield from infinite
    seen = {violation.path for violation in infinite}

    def place(error: ValidationError) -> tuple[bool, list[str]]:
        return error.validator != "additionalProperties", list(map(str, error.absolute_path))

    others = (one for one in validator.iter_errors(value) if tuple(one.absolute_path) not in seen)
    errors = sorted(others, key=place)
    guessed: set[str] = set()
    reported: set[str] = set()
    for error in errors:
        for violation in _explain(error, top):
            text = str(violation.error)
            here = dotted((*violation.path, violation.key))
            if violation.rule == "additionalProperties":
                known = error.schema["properties"]
                guessed |= {dotted((*violation.path, key)) for key in known if repr(key) in text}
            # A misspelt key is one mistake, and not a missing key as well; jsonschema reports an
            # object once for each key that it lacks.
            if text not in reported and not (violation.rule == "required" and here in guessed):
                reported.add(text)
                yield violation


def _infinite(value: Any, path: tuple[str | int, ...]) -> Iterator[Violation]:
    """Yield NaN, infinities and integers beyond floats."""
    if isinstance(value, int | float) and not abs(value) < _LARGEST:
        error = ConfigError(dotted(path), got=value, expected="a finite number")
        yield Violation(path, "finite", "", error)
    items: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield from _infinite(item, (*path, key))


def _explain(error: ValidationError, top: Collection[str]) -> Iterator[Violation]:
    """Yield what jsonschema reports, in the file's terms; ``top`` are the keys of the document."""
    path = tuple(error.absolute_path)
    here = dotted(path)
    prefix = f"{here}: " if here else ""
    rule, rules = str(error.validator), error.schema
    limit: Any = error.validator_value
    instance: Any = error.instance
    assert isinstance(rules, dict)
    if rule == "additionalProperties":
        known, patterns = rules["properties"], "|".join(rules.get("patternProperties", ["$^"]))
        for key in (key for key in instance if key not in known and not re.search(patterns, key)):
            do = nearest(key, known)
            if key in top:
                do = f"`{key}:` stands at the beginning of a line"
            elif do.startswith("known") and len(known) > _MOST_LISTED:
                do = rules["description"]
            yield Violation(path, rule, key, ConfigError(f"{prefix}unknown key {key!r}", do=do))
        return
    if rule == "required":
        for key in (key for key in limit if key not in instance):
            yield Violation(path, rule, key, ConfigError(f"{prefix}{key!r} is missing"))
        return
    what, got, expected, do = here or "the document", instance, expected_value(rules), ""
    if rule == "enum" and isinstance(instance, str):
        guess = nearest(instance, filter(None, limit))
        do = guess if guess.startswith("did") else ""  # the list of all is there already
    elif rule == "uniqueItems":
        what, expected = f"{here}: a value is given twice", ""
    elif rule in ("minItems", "minProperties"):
        what, got, expected = f"{here}: needs at least one entry", ..., ""
    elif rule == "minLength":
        what, got, expected = f"{here}: must not be empty", ..., ""
    yield Violation(path, rule, "", ConfigError(what, got=got, expected=expected, do=do))


def expected_value(rules: dict[str, Any]) -> str:
    """Return the text of a schema's rules for one value."""
    if "pattern" in rules:
        return str(rules["description"])
    if "$ref" in rules:  # a rule beside those of the definition that it refers to
        rules = {name: rule for name, rule in rules.items() if name in _SIGNS} | {"type": "number"}
    if "enum" in rules:
        choices = ("null" if choice is None else str(choice) for choice in rules["enum"])
        return f"one of {', '.join(choices)}"
    types = rules.get("type", [])
    allowed = " or ".join(_TYPES[name] for name in ([types] if isinstance(types, str) else types))
    bounds = " and ".join(f"{sign} {rules[key]}" for key, sign in _SIGNS.items() if key in rules)
    first, _, rest = allowed.partition(" or null")
    limits = [f"of at most {rules['maxLength']} characters"] if "maxLength" in rules else []
    last = "or null" + rest if "or null" in allowed else ""
    return " ".join(filter(None, (first, bounds, *limits, last)))
