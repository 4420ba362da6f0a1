"""The expansion of a study: blocks (deep-merged with a method's own) x study axes x method axes x
candidates of the search.

Precedence, from lowest to highest: blocks, study axes, the method's blocks, the method's axes, a
candidate. Values stay plain here; load.py makes cells of them.
"""

import itertools
import math
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pflpipe import options
from pflpipe.cells import BLOCKS, OPTIONS
from pflpipe.errors import ConfigError, PflpipeError, Problems, located
from pflpipe.learning.metrics import ACCURACY
from pflpipe.methods import registry
from pflpipe.study import candidates
from pflpipe.study.candidates import SearchRange
from pflpipe.study.documents import CASES

MOST_RUNS = 1_000_000
"""Most runs of a study: a typing error may give more, and listing them would take days."""


@dataclass(frozen=True)
class Values:
    """One set of values to choose from.

    Attributes:
        chosen: dotted path -> value.
        final, tried: the complete values, except for the seed, of the run that follows from the
            choice, and of the runs that try it.
        seeds: of the runs that try it; none without a search, or of a private one, whose trials
            load.py draws.
        location: start of error messages.
    """

    chosen: dict[str, Any]
    final: dict[str, Any]
    tried: dict[str, Any]
    seeds: Sequence[int]
    location: str


@dataclass(frozen=True)
class Point:
    """One method entry at one point of the axes.

    Attributes:
        entry: the entry as in the file.
        location: start of error messages, such as ``studies/a.yaml: method feddpa at
            privacy.epsilon=2``.
        searched: what its search tries, by dotted path; empty without a search.
        candidates: what its search may choose; a single empty choice without a search.
    """

    entry: dict[str, Any]
    location: str
    searched: Mapping[str, list[Any] | SearchRange]
    candidates: tuple[Values, ...]


def check(document: dict[str, Any], file: str, problems: Problems) -> list[dict[str, Any]]:
    """Check what the schema cannot: known methods, distinct labels, a search that can choose, and
    no more than ``MOST_RUNS`` runs.

    Returns:
        the method entries that can be expanded, with their ``source``; none if a search cannot
        choose.
    """
    labels: set[tuple[str, str]] = set()
    sources: dict[str, str] = {}
    sound = []
    for index, entry in enumerate(document["methods"]):
        location = f"{file}: methods[{index}]"
        try:
            name, source = registry.locate(entry["name"], Path(file).parent)
            registry.info(name, source)
        except PflpipeError as error:
            problems.add(error, f"{location}.name")
            continue
        # In place: all later steps need the name without its file.
        entry |= {"name": name, "source": source}
        label = (name, entry.get("variant", ""))
        # Score files and tables are named by the method alone.
        if sources.setdefault(name, source) != source:
            what = f"{location}.name: two methods have the name {name!r}"
            do = "give one of them another name"
            problems.refuse(what, got=f"{sources[name]}, {source}", do=do)
        elif label in labels:
            do = "give each entry its own `variant` label"
            problems.refuse(f"{location}: {name!r} is listed twice", do=do)
        else:
            labels.add(label)
            sound.append(entry)
    if not _can_choose(document, file, problems):
        return []
    looks = document.get("looks", [])
    if looks != sorted(looks) or (looks and len(document["seeds"]) not in looks):
        expected = f"as many as at one of the looks, which ascend: {', '.join(map(str, looks))}"
        problems.refuse(f"{file}: seeds", got=document["seeds"], expected=expected)
    # Counted before anything is expanded, which would take the memory of all runs.
    runs = sum(_runs(document, entry) for entry in sound)
    if runs > MOST_RUNS:
        what = f"{file}: the values of axes, searches and seeds multiply"
        problems.refuse(what, got=f"{runs:.3g} runs", expected=f"at most {MOST_RUNS}")
        return []
    return sound


def _runs(document: Mapping[str, Any], entry: Mapping[str, Any]) -> int:
    """Return how many runs an entry has, with those that its search tries."""
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


def _can_choose(document: dict[str, Any], file: str, problems: Problems) -> bool:
    """Return whether candidates follow from the search, if there is one; add what is wrong with it
    to ``problems``."""
    search, entries = document.get("search"), document["methods"]
    searching = [index for index, entry in enumerate(entries) if "search" in entry]
    if search is None:
        for index in searching[:1]:
            what = f"{file}: methods[{index}].search: the study has no `search`"
            do = "add to it: search: {seeds: [100, 101], validation_fraction: 0.2}"
            problems.refuse(what, do=do)
        return not searching
    if not searching and "values" not in search:
        do = "give one a `search`, or remove this block"
        problems.refuse(f"{file}: search: no method has values to search", do=do)
    # A seed fixes the split: with a seed of the search, the test rows of a final run could be
    # the validation rows that chose its values.
    final = {seed for part in (document, *entries) for seed in part.get("seeds", ())}
    if both := sorted(final.intersection(search["seeds"])):
        what = f"{file}: search.seeds: also under `seeds`"
        problems.refuse(what, got=both, expected="seeds of their own")
    if "private" in search:
        _check_private(document, final, file, problems)
    ranges = list(_ranges(document))
    # Methods with wider ranges have twice as many candidates as the others.
    same = [location for location, _, _, given in ranges if not given.get("wider")]
    if 0 < len(same) < len(ranges):
        do = f"widen all, for equal effort, or none; not widened: {', '.join(same)}"
        problems.refuse(f"{file}: search: only some ranges have a `wider`", do=do)
    impossible = Problems()
    for location, entry, path, given in ranges:
        with impossible.at(), located(f"{file}: {location}"):
            _check_range(path, options.build(SearchRange, given), f"{file}: {location}", entry)
        if "candidates" not in search:
            do = "say how often under the study's `search`: candidates: 16"
            impossible.refuse(f"{file}: {location}: a range is drawn from", do=do)
    with problems.at():
        impossible.stop()
    return not impossible


def _check_private(
    document: Mapping[str, Any], final: Collection[int], file: str, problems: Problems
) -> None:
    """Add to ``problems`` what a search with a guarantee cannot have."""
    location, search = f"{file}: search", document["search"]
    seeds = search["seeds"]
    if len(seeds) > 1 or max(final) >= seeds[0]:
        expected = f"one above {max(final)}, above which trials draw theirs"
        problems.refuse(f"{location}.seeds of a private search", got=seeds, expected=expected)
    if search.get("metric", ACCURACY) != ACCURACY:
        what = f"{location}.metric of a private search"
        expected = f"{ACCURACY}, of which a client moves the sum by at most 1"
        problems.refuse(what, got=search["metric"], expected=expected)


def _check_range(path: str, given: SearchRange, location: str, entry: Mapping[str, Any]) -> None:
    """Raise ConfigError unless everything in a range is a value of this option."""
    given.check(location)
    block, _, key = path.partition(".")
    if block == "hyperparameters":
        for end in given.widest:
            registry.check_hyperparameters(entry["name"], {key: end}, entry.get("source", ""))
        return
    option, what = OPTIONS.get(path), f"{location}: a range is of numbers with fractions"
    if option is None or option.type not in (float, float | None):
        raise ConfigError(what, do="list its values")
    for end in given.widest:
        options.check_value(end, option, location)


def _ranges(
    document: Mapping[str, Any],
) -> Iterator[tuple[str, Mapping[str, Any], str, dict[str, Any]]]:
    """Yield location, method entry (without a name if for all), path and values of every range of
    a search."""
    shared = {"search": document["search"].get("values", {})}
    owners: dict[str, Any] = {"search.values": shared}
    owners |= {f"methods[{index}].search": entry for index, entry in enumerate(document["methods"])}
    for owner, entry in owners.items():
        for path, given in entry.get("search", {}).items():
            if isinstance(given, dict):
                yield f"{owner}.{path}", entry, path, given


def points(
    document: dict[str, Any], entries: Iterable[dict[str, Any]], file: str
) -> Iterator[Point]:
    """Yield these method entries at every point of the axes, in the order of the file."""
    base = {key: document[key] for key in ("dataset", "profile", *BLOCKS) if key in document}
    search = document.get("search", {})
    tried_at = search.get("at", {})
    for entry in entries:
        label = f"{entry['name']} ({entry['variant']})" if "variant" in entry else entry["name"]
        searched = _searched(document, entry)
        sets = list(_sets(document, searched, Path(file).stem, label))
        seeds = search.get("seeds", ()) if searched and "private" not in search else ()
        keys = ("profile", "official_code", "hyperparameters", *BLOCKS)
        blocks = {key: entry[key] for key in keys if key in entry}
        axes = (candidates.product(owner.get("axes", {})) for owner in (document, entry))
        for study_point, method_point in itertools.product(*axes):
            start, point = f"{file}: method {label}", {**study_point, **method_point}
            choices, of_method = [], [blocks, *_nest(method_point)]
            for chosen in sets:
                final = _merged(base, *_nest(study_point), *of_method, *_nest(chosen))
                tried = _merged(final, *_nest(tried_at))
                location = start + _at({**point, **chosen})
                choices.append(Values(chosen, final, tried, seeds, location))
            yield Point(entry, start + _at(point), searched, tuple(choices))


def _searched(
    document: Mapping[str, Any], entry: Mapping[str, Any]
) -> dict[str, list[Any] | SearchRange]:
    """Return dotted path -> values that the search tries for an entry: its own, and the
    shared ones unless it is a placebo, which has the values of what it is the control of."""
    placebo = entry.get("training", {}).get("placebo")
    shared = {} if placebo else document.get("search", {}).get("values", {})
    about = registry.info(entry["name"], entry["source"]).about
    # Otherwise equal runs would count as different candidates.
    without = {"privacy": not about.private, "server": not about.sends}
    values = {p: given for p, given in shared.items() if not without.get(p.partition(".")[0])}
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
    again = any(given.get("wider") for *_, given in _ranges(document))
    yield from candidates.drawn(searched, number, study, label, again=again)


def chosen_entry(entry: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry as in a file, with the choice of a search."""
    written = {key: entry[key] for key in entry if key not in ("source", "search")}
    return _merged(written, *_nest(values))


def _at(point: Mapping[str, Any]) -> str:
    return " at " + ", ".join(f"{path}={value}" for path, value in point.items()) if point else ""


def _nest(point: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for path, value in point.items():
        # From the innermost key outwards; the values of `cases` are nested already.
        for key in reversed(path.split(".") if path != CASES else ()):
            value = {key: value}
        yield typing.cast(dict[str, Any], value)


def _merged(first: Mapping[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the deep-merged mappings: later ones take precedence, and lists are replaced."""
    merged = dict(first)
    for other in others:
        for key, value in other.items():
            both = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = _merged(merged[key], value) if both else value
    return merged
