"""Documents that a JSON schema describes, and documents that it almost describes, for hypothesis.

hypothesis-jsonschema does the first for draft 7 of JSON schema, and was last released in 2024; ours
is of 2020-12 and uses a small part of it.
"""

import copy
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

Path = tuple[str | int, ...]
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=6)
    | st.dates()
    | st.sampled_from(["$(touch pwned)", "'; touch pwned #", "{x}", "a\nb", "../x.py:y", "\x00"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=5,
)


def of_schema(
    rules: dict[str, Any], whole: dict[str, Any], words: dict[str, st.SearchStrategy[Any]]
) -> st.SearchStrategy[Any]:
    """Return what a schema describes.

    Args:
        rules: the schema, or a part of it.
        whole: the schema that its references are into.
        words: by description or by the last part of a reference: what is taken instead, such as the
            names of methods where the schema says text.
    """
    if "$ref" in rules:
        found = whole
        *_, name = parts = rules["$ref"].removeprefix("#/").split("/")
        for part in parts:
            found = found[part]
        if name in words:
            return words[name]
        return of_schema(found | {k: v for k, v in rules.items() if k != "$ref"}, whole, words)
    if rules.get("description") in words:
        return words[rules["description"]]
    if "enum" in rules:
        return st.sampled_from(rules["enum"])
    types = rules.get("type", ["object", "array"])
    if isinstance(types, list):
        return st.one_of(of_schema(rules | {"type": kind}, whole, words) for kind in types)
    return _OF_TYPE[types](rules, whole, words)


def _object(rules: dict[str, Any], *context: Any) -> st.SearchStrategy[Any]:
    known = {name: of_schema(rule, *context) for name, rule in rules.get("properties", {}).items()}
    required = set(rules.get("required", ()))
    others = {name: known[name] for name in known if name not in required}
    fixed = st.fixed_dictionaries({n: known[n] for n in known if n in required}, optional=others)
    more = rules.get("additionalProperties")
    if not isinstance(more, dict):
        return fixed
    keys = context[1].get("keys", st.text(min_size=1, max_size=4))
    least = rules.get("minProperties", 0)
    values = of_schema(more, *context)
    return st.dictionaries(keys, values, min_size=least, max_size=least + 1)


def _array(rules: dict[str, Any], *context: Any) -> st.SearchStrategy[Any]:
    items = of_schema(rules["items"], *context) if "items" in rules else ANYTHING
    least = rules.get("minItems", 0)
    unique = repr if rules.get("uniqueItems") else None
    return st.lists(items, min_size=least, max_size=least + 1, unique_by=unique)


def _number(rules: dict[str, Any], *_: Any) -> st.SearchStrategy[Any]:
    low = rules.get("minimum", rules.get("exclusiveMinimum"))
    high = rules.get("maximum", rules.get("exclusiveMaximum"))
    ends = {"exclude_min": "exclusiveMinimum" in rules}
    ends["exclude_max"] = "exclusiveMaximum" in rules
    return st.floats(low, high, **ends, allow_nan=False, allow_infinity=False)


_OF_TYPE: dict[str, Any] = {
    "object": _object,
    "array": _array,
    "number": _number,
    "integer": lambda rules, *_: st.integers(rules.get("minimum", 0), rules.get("maximum", 40)),
    "string": lambda rules, *_: (
        st.from_regex(rules["pattern"], fullmatch=True)
        if "pattern" in rules
        else st.text(min_size=rules.get("minLength", 0), max_size=8)
    ),
    "boolean": lambda *_: st.booleans(),
    "null": lambda *_: st.none(),
}


def paths(document: Any, path: Path = ()) -> Iterator[Path]:
    """Yield every place of a document."""
    yield path
    items: Any = ()
    if isinstance(document, dict | list):
        items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield from paths(value, (*path, key))


def at(document: Any, path: Sequence[str | int]) -> Any:
    """Return what stands at a place of a document."""
    return functools.reduce(lambda inner, key: inner[key], path, document)


@st.composite
def changed(draw: st.DrawFn, documents: st.SearchStrategy[Any]) -> Any:
    """Draw a document with up to three places that have something else, nothing, or another
    name."""
    document = copy.deepcopy(draw(documents))
    for _ in range(draw(st.integers(0, 3))):
        places = [path for path in paths(document) if path] or [("",)]
        *parents, last = draw(st.sampled_from(places))
        place = at(document, parents)
        how = draw(st.sampled_from(["put", "drop", "rename", "twice"]))
        if how == "put":
            place[last] = draw(ANYTHING)
        elif how == "drop" and last in (place if isinstance(place, dict) else range(len(place))):
            del place[last]
        elif isinstance(place, list):
            place.append(copy.deepcopy(place[last]))
        elif last in place:
            place[f"{last}{draw(st.text(max_size=1))}"] = copy.deepcopy(place[last])
    return document
