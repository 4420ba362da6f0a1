"""A study's words multiplied out: blocks (deep-merged with a method's own) x study axes x method
axes x the candidates of its search.

Later words win: blocks, study axes, the method's blocks, the method's axes, a candidate. Values
stay plain here; load.py makes cells of them.
"""

from __future__ import annotations

import itertools
import math
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pflpipe import options
from pflpipe.cells import BLOCKS, OPTIONS, PATHS
from pflpipe.errors import ConfigError, PflpipeError, Problems, located, nearest
from pflpipe.methods import registry
from pflpipe.study import candidates
from pflpipe.study.candidates import SearchRange

CASES = "cases"  # an axis whose values are mappings over several blocks
MOST_RUNS = 1_000_000
"""Of a study; a slip of the pen multiplies to more than that, and listing them would take days."""
#: What a search may choose: how a method works, and neither its task nor the privacy that is asked
#: of it.
_CHOSEN_BLOCKS, _CHOSEN_WORDS = ("model", "training", "server"), ("privacy.clip_norm",)


@dataclass(frozen=True)
class Candidate:
    """One set of values to choose from: ``chosen`` (dotted path -> value), the complete ``values``
    of a run but for the seed, those of the runs that ``tried`` it, and the location for errors."""

    chosen: dict[str, Any]
    values: dict[str, Any]
    tried: dict[str, Any]
    location: str


@dataclass(frozen=True)
class Point:
    """One method entry at one point of the axes.

    Attributes:
        entry: the entry as the file has it.
        location: words for errors, e.g. ``studies/a.yaml: method feddpa at privacy.epsilon=2``.
        searched: what its search tries, by dotted path; empty without a search.
        candidates: what its search may choose; one that chooses nothing without a search.
    """

    entry: dict[str, Any]
    location: str
    searched: Mapping[str, list[Any] | SearchRange]
    candidates: tuple[Candidate, ...]


def check(document: dict[str, Any], file: str, problems: Problems) -> list[dict[str, Any]]:
    """Check what the schema cannot: known methods, distinct labels, axes that exist, a search that
    can choose.

    Returns:
        the method entries whose runs can be looked at further; none if the study's own axes are
        wrong.
    """
    axes_are_known = _check_axes(document.get("axes", {}), f"{file}: axes", _known(), problems)
    search = document.get("search", {})
    at = {path: [value] for path, value in search.get("at", {}).items()}
    axes_are_known &= _check_axes(at, f"{file}: search.at", [*OPTIONS], problems)
    axes_are_known &= _check_values(
        search.get("values", {}), f"{file}: search.values", _known(), search, problems
    )
    labels: set[tuple[str, str]] = set()
    sources: dict[str, str] = {}
    sound = []
    for index, entry in enumerate(document["methods"]):
        location = f"{file}: methods[{index}]"
        try:
            name, source = registry.locate(entry["name"], Path(file).parent)
            hyperparameters = registry.info(name, source).hyperparameters
        except PflpipeError as error:
            problems.add(error, f"{location}.name")
            continue
        entry |= {"name": name, "source": source}
        if sources.setdefault(name, source) != source:
            problems.refuse(
                f"{location}.name: two methods have the name {name!r}",
                got=f"{sources[name]}, {source}",
                do="give one of them another name",
            )
            continue
        label = (name, entry.get("variant", ""))
        if label in labels:
            do = "give each entry its own `variant` label"
            problems.refuse(f"{location}: {name!r} is listed twice", do=do)
            continue
        labels.add(label)
        known = _known(hyperparameters)
        if _check_axes(entry.get("axes", {}), f"{location}.axes", known, problems) & _check_values(
            entry.get("search", {}), f"{location}.search", known, search, problems, (name, source)
        ):
            sound.append(entry)
    _check_search(document, file, problems)
    if not axes_are_known:
        return []
    runs = sum(_runs(document, entry) for entry in sound)
    if runs > MOST_RUNS:
        what = f"{file}: the values of axes, searches and seeds multiply"
        expected = f"at most {MOST_RUNS}"
        problems.refuse(what, got=f"{runs:.3g} runs", expected=expected)
        return []
    return sound


def _runs(document: Mapping[str, Any], entry: Mapping[str, Any]) -> int:
    """Return how many runs an entry has, those that its search tries among them."""
    seeds = len(entry.get("seeds", document["seeds"]))
    search = document.get("search", {})
    values = {**search.get("values", {}), **entry.get("search", {})}
    axes = [*document.get("axes", {}).values(), *entry.get("axes", {}).values()]
    if values:
        seeds += len(search.get("seeds", ()))
        seeds *= search.get("candidates", 1)
        if "candidates" not in search:
            axes += [given for given in values.values() if isinstance(given, list)]
    return seeds * math.prod(map(len, axes))


def _check_values(
    values: Mapping[str, Any],
    location: str,
    known: list[str],
    search: Mapping[str, Any],
    problems: Problems,
    method: tuple[str, str] = ("", ""),
) -> bool:
    """Return whether a search can try these values, of one method or of all."""
    blocks = ("hyperparameters", *_CHOSEN_BLOCKS)
    can_be_chosen = [path for path in known if path.partition(".")[0] in blocks]
    ranges = {path: given for path, given in values.items() if isinstance(given, dict)}
    own = Problems()
    # A range is an axis of its ends, as far as names are concerned.
    axes = {**values, **{path: [{}] for path in ranges}}
    _check_axes(axes, location, [*can_be_chosen, *_CHOSEN_WORDS], own)
    for path, given in ranges.items() if not own else ():
        with own.at(), located(f"{location}.{path}"):
            _check_range(path, options.build(SearchRange, given), f"{location}.{path}", method)
        if "candidates" not in search:
            do = "say how often under the study's `search`: candidates: 16"
            own.refuse(f"{location}.{path}: a range is drawn from", do=do)
    problems.take(own, "")
    return not own


def _check_range(path: str, given: SearchRange, location: str, method: tuple[str, str]) -> None:
    """Raise ConfigError unless everything in a range is a value of this option."""
    given.check(location)
    block, _, key = path.partition(".")
    if block == "hyperparameters":
        for end in given.widest:
            registry.check_hyperparameters(method[0], {key: end}, method[1])
        return
    option = OPTIONS.get(path)
    if option is None or option.type not in (float, float | None):
        raise ConfigError(f"{location}: a range is of numbers with fractions", do="list its values")
    for end in given.widest:
        options.check_value(end, option, location)


def _check_search(document: dict[str, Any], file: str, problems: Problems) -> None:
    searching = [index for index, entry in enumerate(document["methods"]) if "search" in entry]
    if "search" not in document:
        for index in searching[:1]:
            problems.refuse(
                f"{file}: methods[{index}].search: the study has no `search`",
                do="add to it: search: {seeds: [100, 101], validation_fraction: 0.2}",
            )
        return
    if not searching and "values" not in document["search"]:
        do = "give one a `search`, or remove this block"
        problems.refuse(f"{file}: search: no method has values to search", do=do)
    ranges = list(_ranges(document))
    same = [f"{owner}.{path}" for owner, path, given in ranges if not given.get("wider")]
    if same and len(same) < len(ranges):
        problems.refuse(
            f"{file}: search: only some ranges have a `wider`",
            do=f"widen all, for equal effort, or none; not widened: {', '.join(same)}",
        )
    lists = (document, *(entry for entry in document["methods"] if "seeds" in entry))
    final = {seed for words in lists for seed in words["seeds"]}
    both = sorted(final & set(document["search"]["seeds"]))
    if both:
        what = f"{file}: search.seeds: also under `seeds`"
        problems.refuse(what, got=both, expected="seeds of their own")


def _known(hyperparameters: Iterable[str] = ()) -> list[str]:
    own = (f"hyperparameters.{name}" for name in hyperparameters)
    return [CASES, *BLOCKS, *OPTIONS, *own]


def _check_axes(
    axes: Mapping[str, list[Any]], location: str, known: list[str], problems: Problems
) -> bool:
    """Return whether the axes can be multiplied out."""
    fine = True
    for path, values in axes.items():
        if path not in known:
            problems.refuse(f"{location}: unknown axis {path!r}", do=_hint(path, known))
            fine = False
        elif path in (*BLOCKS, CASES) and not all(isinstance(value, dict) for value in values):
            target = "study's words" if path == CASES else "block"
            expected = f"mappings, each merged into the {target}"
            problems.refuse(f"{location}.{path}", got=values, expected=expected)
            fine = False
    return fine


def _hint(path: str, known: list[str]) -> str:
    if path in ("seed", "seeds"):
        return "list the seeds under `seeds`"
    if path.startswith("hyperparameters.") and not any(
        name.startswith("hyperparameters.") for name in known
    ):
        return "hyper-parameters belong to an entry whose method has them"
    if path in PATHS:
        return "a search chooses a method's own words, and not what is asked of it"
    return nearest(path, known)


def _ranges(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield whose it is, path and words of every range of a search."""
    owners = {"search.values": document["search"].get("values", {})}
    owners |= {
        f"methods[{index}].search": entry.get("search", {})
        for index, entry in enumerate(document["methods"])
    }
    for owner, values in owners.items():
        for path, given in values.items():
            if isinstance(given, dict):
                yield owner, path, given


def points(
    document: dict[str, Any], entries: Iterable[dict[str, Any]], file: str
) -> Iterator[Point]:
    """Yield these method entries at every point of the axes, in the order of the file."""
    base = {key: document[key] for key in ("dataset", "profile", *BLOCKS) if key in document}
    tried_at = document.get("search", {}).get("at", {})
    for entry in entries:
        label = f"{entry['name']} ({entry['variant']})" if "variant" in entry else entry["name"]
        searched = _searched(document, entry)
        sets = list(_sets(document, searched, Path(file).stem, label))
        own = {
            key: entry[key]
            for key in ("profile", "official_code", "hyperparameters", *BLOCKS)
            if key in entry
        }
        for study_point, method_point in itertools.product(
            candidates.product(document.get("axes", {})),
            candidates.product(entry.get("axes", {})),
        ):
            start, point = f"{file}: method {label}", {**study_point, **method_point}
            found = []
            for chosen in sets:
                values = _merged(
                    base, *_nest(study_point), own, *_nest(method_point), *_nest(chosen)
                )
                tried = _merged(values, *_nest(tried_at))
                found.append(Candidate(chosen, values, tried, start + _at({**point, **chosen})))
            yield Point(entry, start + _at(point), searched, tuple(found))


def _searched(
    document: Mapping[str, Any], entry: Mapping[str, Any]
) -> dict[str, list[Any] | SearchRange]:
    """Return what the search tries for an entry: what it tries for all, and the entry's own."""
    shared = document.get("search", {}).get("values", {})
    about = registry.info(entry["name"], entry["source"]).about
    without = {"privacy": not about.private, "server": not about.sends}
    values = {
        path: given
        for path, given in shared.items()
        if not without.get(path.partition(".")[0])  # it would change nothing
    }
    return candidates.read({**values, **entry.get("search", {})})


def _sets(
    document: Mapping[str, Any],
    searched: Mapping[str, list[Any] | SearchRange],
    study: str,
    label: str,
) -> Iterator[dict[str, Any]]:
    number = document.get("search", {}).get("candidates")
    if number is None or not searched:
        yield from candidates.product(searched)
        return
    again = any(given.get("wider") for _, _, given in _ranges(document))
    yield from candidates.drawn(searched, number, study, label, again=again)


def chosen_entry(entry: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the words of an entry, as a file has them, with what a search chose for it."""
    words = {key: entry[key] for key in entry if key not in ("source", "search")}
    return _merged(words, *_nest(values))


def _at(point: Mapping[str, Any]) -> str:
    return " at " + ", ".join(f"{path}={value}" for path, value in point.items()) if point else ""


def _nest(point: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for path, value in point.items():
        for key in reversed(path.split(".") if path != CASES else ()):
            value = {key: value}
        yield typing.cast(dict[str, Any], value)


def _merged(first: Mapping[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mappings deep-merged: a later one wins, and lists are replaced."""
    merged = dict(first)
    for other in others:
        for key, value in other.items():
            both = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = _merged(merged[key], value) if both else value
    return merged
