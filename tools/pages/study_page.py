"""The words of a study, rendered from the schema that checks it: for the site's page about them.

The schema is that of study/documents.py: ``study.schema.yaml`` around the options, each of which is
one typed field (cells.py, study_spec.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from pflpipe.cells import OPTIONS
from pflpipe.errors import ConfigError, nearest
from pflpipe.options import Declared
from pflpipe.study import documents

STUDY = "study"
"""The section of the words that stand at the beginning of a line of a study's file."""


def sections() -> dict[str, dict[str, Any]]:
    """Return section -> the schema of a mapping: the study itself, and every mapping within it
    whose keys are known."""
    whole = documents.schema()
    parts = whole["$defs"]
    found = {
        name: rules
        for name, rules in (parts | {"search": whole["properties"]["search"]}).items()
        if "properties" in rules and name not in ("cell", "part")
    }
    found["figures"] = parts["figures"]["additionalProperties"]
    found["range"] = parts["searched"]["additionalProperties"]
    return {STUDY: whole, **found}


def keys(section: str) -> str:
    """Return a list of a section's keys as Markdown: values, whether it is required or what it is
    by default, and what it means.

    Raises:
        ConfigError: there is no such section.
    """
    known = sections()
    if section not in known:
        raise ConfigError("a study has no section", got=section, do=nearest(section, known))
    rules = known[section]
    return "\n".join(
        f"- {_line(section, key, key in rules.get('required', ()), own)}"
        for key, own in rules["properties"].items()
    )


def _line(section: str, key: str, required: bool, own: dict[str, Any]) -> str:
    rules = _resolved(own)
    facts = [_values(section, key, rules), *_need(section, key, required, rules)]
    meaning = " ".join(rules["description"].split()).rstrip(".")
    return f"`{key}` ({'; '.join(facts)}): {meaning}."


def _need(section: str, key: str, required: bool, rules: dict[str, Any]) -> Iterator[str]:
    """Yield whether a key must be there, what it is by default, and what it goes with."""
    item = OPTIONS.get(f"{section}.{key}")
    if item and item.option.unless:
        yield f"required but with `{': '.join(item.option.unless)}`"
    elif item and item.option.needed:
        yield f"required with {_only(item)}, for nothing else"
    elif required or (item and item.default is dataclasses.MISSING):
        yield "required"
    else:
        if "default" in rules:
            yield f"by default `{_yaml(rules['default'])}`"
        if item and item.option.only:
            yield f"with {_only(item)} alone"


def _values(section: str, key: str, rules: dict[str, Any]) -> str:
    part = "method" if key == "methods" else key
    if section in (STUDY, "method") and part in sections() and rules.get("properties") is not None:
        return f"[a block](#{part})"
    if section == STUDY and part in sections():
        return f"[{'a list of blocks' if key == 'methods' else 'blocks by name'}](#{part})"
    if rules.get("type") in ("array", ["array", "null"]):
        items = _resolved(rules["items"])
        return f"a list, each {documents.expected_value(items)}"
    return documents.expected_value({k: v for k, v in rules.items() if k != "pattern"})


def _only(option: Declared) -> str:
    other, *values = option.option.only
    return " or ".join(f"`{other}: {value}`" for value in values) or f"`{other}`"


def _resolved(rules: dict[str, Any]) -> dict[str, Any]:
    """Return rules with those of the definition that they refer to."""
    if "$ref" not in rules:
        return rules
    target: Any = documents.schema()
    for step in rules["$ref"].removeprefix("#/").split("/"):
        target = target[step]
    own = {key: value for key, value in rules.items() if key != "$ref"}
    found = {**_resolved(target), **own}
    if "exclusiveMinimum" in own:  # stricter than the definition's own bound
        found.pop("minimum", None)
    return found


def _yaml(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
