"""Settings: the rows of a study that differ only in their seed, and the labels that distinguish
settings.

Tables and figures share them, so that a line of a figure has the name of a row of the table.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from pflpipe import options
from pflpipe.cells import OPTIONS, Cell
from pflpipe.facts.datasets import DATASETS
from pflpipe.study.study_spec import Row, Study

NO_PRIVACY = "no privacy"
CHOSEN_ON_VALIDATION = "Hyper-parameters were chosen on validation data; no ε covers that choice."


def measured(datasets: Iterable[str]) -> str:
    """Return what is said wherever measured numbers are shown, so that nobody takes the epsilon
    next to them for a promise about them."""
    return f"Measured values are diagnostics: {measurements(datasets)}."


def measurements(datasets: Iterable[str]) -> str:
    """Return what measured numbers are. Only the data sets that pflpipe knows are called public."""
    data = " on public data" * all(name in DATASETS for name in datasets)
    return f"the experimenter's own measurements{data}, covered by no ε"


@dataclass(frozen=True, eq=False)
class Setting:
    """All seeds of one line of a table or figure.

    Attributes:
        label: the method with its variant, profile, and the values that distinguish it from the
            method's other lines.
        budget: the request, not the result: ``ε = 2``, ``σ = 1.1`` or ``NO_PRIVACY``.
        facet: the study's conditions that vary over all methods, e.g. ``{"α": "0.3"}``; ``"–"`` if
            a condition does not apply.
        choice: the choice of the study's search, e.g. ``tau=0.4, lr=0.1``, which is not part of the
            label; empty without a search.
        indices: positions of its rows in ``study.rows``, hence in the frame of ``tidy``.
    """

    label: str
    budget: str
    _: KW_ONLY
    facet: Mapping[str, str] = field(default_factory=dict)
    indices: Sequence[int] = ()
    choice: str = ""

    @property
    def facet_text(self) -> str:
        """Title of a figure's panel, e.g. ``α = 0.3, M = 100``."""
        return ", ".join(f"{name} = {value}" for name, value in self.facet.items())

    def belongs(self, facet: Mapping[str, str]) -> bool:
        """Whether a panel shows this line: a condition that does not apply to it fits every
        panel."""
        return all(value in ("–", facet[name]) for name, value in self.facet.items())


@dataclass(frozen=True)
class Layout:
    """The settings of a study, and the conditions that all of them share."""

    settings: tuple[Setting, ...]
    shared: Mapping[str, Any]
    per_method: Mapping[str, str]

    @cached_property
    def facets(self) -> tuple[Mapping[str, str], ...]:
        """The distinct combinations of conditions, one for each panel, in the study's order."""
        distinct = {tuple(setting.facet.items()): setting for setting in self.settings}.values()
        return tuple(
            setting.facet
            for setting in distinct
            if not any(setting.belongs(other.facet) for other in distinct if other is not setting)
        )


def layout(study: Study) -> Layout:
    """Group a study's rows into settings, and label each by the values that vary.

    A condition with the same set of values for every method is a facet (a column, a panel). One
    that varies within a method is part of its label. One that is fixed per method is listed as a
    hyper-parameter of that method, and so is a hyper-parameter that follows from the facets. All
    others are shared.
    """
    # The id with seed 0 is the same for all seeds of a setting.
    groups: dict[tuple[str, str], list[int]] = {}
    for index, row in enumerate(study.rows):
        groups.setdefault((dataclasses.replace(row.cell, seed=0).id, row.variant), []).append(index)
    members = [study.rows[indices[0]] for indices in groups.values()]
    choices = [_choice(row) for row in members]
    chosen = {path for choice in choices for path in choice}
    flat = [
        {path: value for path, value in _describe(row.cell).items() if path not in choice}
        for row, choice in zip(members, choices, strict=True)
    ]
    families = [(r.cell.method, r.variant, r.cell.profile, r.cell.official_code) for r in members]

    facets, labelled, fixed = [], [], []
    shared: dict[str, Any] = {}
    for path in dict.fromkeys(path for values in flat for path in values):
        by_family: dict[Any, set[Any]] = {}
        for family, values in zip(families, flat, strict=True):
            if path in values:
                by_family.setdefault(family, set()).add(values[path])
        sets = list(by_family.values())
        # chosen: other rows have other values
        condition = not path.startswith("hyperparameters.") and path not in chosen
        if condition and len(set().union(*sets)) == 1:
            shared[path] = next(iter(sets[0]))
        elif condition and all(values == sets[0] for values in sets):
            facets.append(path)
        elif any(len(values) > 1 for values in sets):
            labelled.append(path)
        else:
            fixed.append(path)

    own = [path for path in labelled if path.startswith("hyperparameters.")]
    following = [path for path in own if _follows(path, facets, families, flat)]
    fixed += following
    labelled = [path for path in labelled if path not in following]

    settings, named = [], [(heading(path), path) for path in facets]
    per_method: dict[str, list[str]] = {}
    for row, values, choice, indices in zip(members, flat, choices, groups.values(), strict=True):
        name = _family_label(row)
        parts = [_equation(path, values[path]) for path in labelled if path in values]
        for path in fixed:
            entry = _equation(path, values[path]) if path in values else ""
            if entry and entry not in per_method.setdefault(name, []):
                per_method[name].append(entry)
        facet = {head: condition_text(values[p], p) if p in values else "–" for head, p in named}
        settings.append(
            Setting(
                f"{name} {' '.join(parts)}".strip(),
                budget_text(row.cell),
                facet=facet,
                indices=tuple(indices),
                choice=", ".join(_equation(path, value) for path, value in choice.items()),
            )
        )
    fixed_texts = {name: ", ".join(parts) for name, parts in per_method.items()}
    return Layout(tuple(settings), shared, fixed_texts)


def _follows(
    path: str,
    facets: Sequence[str],
    families: Sequence[Any],
    flat: Sequence[Mapping[str, Any]],
) -> bool:
    """Return whether every method has one value of a path at each combination of conditions."""
    known: dict[Any, set[Any]] = {}
    for family, values in zip(families, flat, strict=True):
        if path in values:
            at = (family, *(values.get(facet) for facet in facets))
            known.setdefault(at, set()).add(values[path])
    return all(len(found) == 1 for found in known.values())


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, value) of nested dictionaries; lists are values."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def describe(cell: Cell) -> dict[str, Any]:
    """Return dotted path -> value of the settings of a run, without those of a mechanism if it has
    none. Lists become tuples, because values are compared in sets."""
    return {
        path: tuple(value) if isinstance(value, list) else value
        for path, value in flatten(cell.to_dict())
        if not (cell.privacy.mechanism == "none" and path.startswith("privacy."))
    }


def _describe(cell: Cell) -> dict[str, Any]:
    # The values that may distinguish settings; all options of the model are one value.
    values = {_path(path): value for path, value in describe(cell).items()}
    return {
        path: value
        for path, value in (values | {"model": model_name(cell)}).items()
        if path.startswith(("model", "hyperparameters."))
        or (path in OPTIONS and words(path).condition)
    }


def _path(path: str) -> str:
    return "model" if path.startswith("model.") else path


def _choice(row: Row) -> dict[str, Any]:
    # The choice of a search, with the paths of _describe.
    named = dict(flatten(row.chosen.values)) if row.chosen else {}
    paths = set(map(_path, named))
    return {path: value for path, value in _describe(row.cell).items() if path in paths}


def _equation(path: str, value: Any) -> str:
    return f"{heading(path)}={condition_text(value, path)}"


def _family_label(row: Row) -> str:
    method, profile = row.cell.method, row.cell.profile
    profile = "official code" if row.cell.official_code else profile
    marks = dict.fromkeys(m for m in (row.variant, profile) if m not in ("", "strict", method))
    return f"{method} ({', '.join(marks)})" if marks else method


def budget_text(cell: Cell) -> str:
    """Return the requested budget: ``ε = 2``, ``σ = 1.1`` or ``NO_PRIVACY``."""
    if cell.privacy.mechanism == "none":
        return NO_PRIVACY
    if cell.privacy.epsilon is not None:
        return f"ε = {cell.privacy.epsilon:g}"
    return f"σ = {cell.privacy.noise_multiplier:g}"


@dataclass(frozen=True)
class Words:
    """The texts of an option in tables and figures (option_words.yaml).

    Attributes:
        heading: heading of a column; by default the option's name.
        phrase: text of a caption, with ``{}`` for the value; by default heading and value.
        values: value -> its text, where that is not the value itself.
        bare: whether a value in a table's head needs no heading next to it.
        always: whether a caption states it even if it is the default.
        condition: whether it distinguishes runs. It does not if rows have another column for it, or
            if it changes no result.
    """

    heading: str
    phrase: str = ""
    values: Mapping[Any, str] = field(default_factory=dict)
    bare: bool = False
    always: bool = False
    condition: bool = True


# A value that has a word of its own may be a number, which documents.py refuses as a key.
_WORDS: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("option_words.yaml").read_text(encoding="utf-8")
)


@functools.cache
def words(path: str) -> Words:
    """Return the texts of an option by its dotted path, or of a hyper-parameter."""
    return Words(**{"heading": path.rpartition(".")[2], **_WORDS.get(path, {})})


def heading(path: str) -> str:
    """Return a condition's or hyper-parameter's name as the heading of a column."""
    return words(path).heading


def phrase(path: str, value: Any) -> str:
    """Return a condition as text for a caption, e.g. ``T = 30 rounds``."""
    return (words(path).phrase or f"{heading(path)} {{}}").format(condition_text(value, path))


def condition_text(value: Any, path: str = "") -> str:
    """Return the text of a condition's value, for titles and table heads."""
    if isinstance(value, tuple):
        return "+".join(map(str, value)) or "none"
    if value is None:
        return "none"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return words(path).values.get(value, text)


def is_usual(path: str, value: Any) -> bool:
    """Whether captions omit a value: it is None, or a default that need not be stated."""
    if value is None or path not in OPTIONS:
        return value is None
    item = OPTIONS[path]
    return bool(not words(path).always and value == item.default)


def model_name(cell: Cell) -> str:
    """Return the network's name with the options that differ from their defaults, such as
    ``mlp-32`` for an mlp with one hidden layer of 32."""
    parts = [cell.model.name.rpartition(":")[2]]
    for name, item in options.declared(type(cell.model)).items():
        value = getattr(cell.model, name)
        if name == "name" or value == item.default:
            continue
        if isinstance(value, tuple):
            parts += map(str, value)
        elif isinstance(value, dict):
            parts += (f"{key}={argument}" for key, argument in sorted(value.items()))
        else:
            path = f"model.{name}"
            parts.append(heading(path) if value is True else phrase(path, value))
    return "-".join(parts)


def round_up(epsilon: float | None) -> str:
    """Return an epsilon with three significant digits, rounded up (but for a relative error of
    1e-6, so that 2.0000000001 stays 2)."""
    return _rounded(epsilon, math.ceil, 1 - 1e-6)


def round_down(bound: float | None) -> str:
    """Return a lower bound with three significant digits, rounded down (but for a relative error of
    1e-6)."""
    return _rounded(bound, math.floor, 1 + 1e-6)


def _rounded(value: float | None, towards: Callable[[float], int], slack: float) -> str:
    if value is None or math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "∞"
    if value <= 0:
        return "0"
    # The slack keeps 2.0000000001, a rounding error of the accountant, from becoming 2.01.
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{towards(value / step * slack) * step:.3g}"
