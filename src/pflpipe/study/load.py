"""From YAML to cells: studies/<name>.yaml -> Outline -> Study, with all checks that need no data.

An Outline has the rows of every candidate. It becomes a Study once the search has chosen
(search.py); without a search there is one candidate.
"""

import dataclasses
import functools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pflpipe import options
from pflpipe.cells import BLOCKS, Cell, Features, Privacy, Server
from pflpipe.code import reference, user_files
from pflpipe.data import features
from pflpipe.errors import ConfigError, DataError, Problems, nearest
from pflpipe.facts.departures import OF_CALIBRATION, check_adaptive, check_departures
from pflpipe.files import canonical_json, read_json
from pflpipe.learning import architectures, initial, losses
from pflpipe.learning.metrics import ALWAYS
from pflpipe.methods import registry, row_code
from pflpipe.privacy import mechanisms
from pflpipe.privacy.plan import check_delta, check_fixed
from pflpipe.privacy.private_search import PrivateSearch
from pflpipe.seeds import derived_key, release_rng
from pflpipe.study import documents, expansion, figures, layouts, metric_columns, printed
from pflpipe.study.config import PAPERS, RESULTS, STUDIES, study_file
from pflpipe.study.study_spec import Candidate, Chosen, Drawing, Line, Outline, Row, Study

_APART = {
    *("title", "description", "report", "paper", "layout", "figures", "metrics", "dataset"),
    *("looks", "table", "profile", "official_code"),
}
"""Keys without which the runs can be expanded all the same."""
_OF_NOISE = ("rounds", "sample_rate", "groups")
RESERVED = ("all", "audit", Path(printed.FILE).stem)
"""Names that no study may have: tables of several studies, and the file of printed numbers."""


def study_names(folder: str | os.PathLike[str] = STUDIES) -> tuple[str, ...]:
    """Return the names of all studies in a folder and in its ``papers/``, sorted."""
    files = [file for part in ("", PAPERS) for file in Path(folder, part).glob("*.yaml")]
    return tuple(sorted({file.stem for file in files} - {Path(printed.FILE).stem}))


def check_name(name: str, what: str) -> None:
    """Raise ConfigError if no study can have this name."""
    if not re.fullmatch(r"[A-Za-z0-9_]+", name) or name in RESERVED:
        expected = f"letters, digits and _, and another name than {', '.join(RESERVED)}"
        raise ConfigError(what, got=name, expected=expected)


def load_study(
    name: str, folder: str | os.PathLike[str] = STUDIES, results: Path = RESULTS
) -> Study:
    """Read a study's file and return its rows; ``finish`` and ``load_outline`` in one."""
    return finish(load_outline(name, folder), results)


def finish(outline: Outline, results: Path = RESULTS) -> Study:
    """Return the study with the choices of its search, if it has one, from ``results``.

    Raises:
        DataError: the search is not done, or its file belongs to another grid.
    """
    return outline.study(chosen(outline, results))


def chosen(outline: Outline, results: Path) -> list[Chosen]:
    """Return the choice of the search for each searched line, in order; empty without a search.
    Raises as ``finish``."""
    if outline.search is None:
        return []
    file = outline.choices(results)
    record = read_json(file) if file.exists() else {}
    state = "belongs to another search" if record else "does not exist"
    do = f"let snakemake make it: snakemake --cores 2 results/tables/{outline.name}.csv"
    DataError.unless(record.get("grid") == outline.grid, f"{file} {state}", do=do)
    return [Chosen(**line["chosen"]) for line in record["lines"]]


def load_outline(name: str, folder: str | os.PathLike[str] = STUDIES) -> Outline:
    """Read a study's file, expand it, and make all checks that need no data set.

    Raises:
        ConfigError: no such study, or all errors of its syntax, schema, axes, methods,
            hyper-parameters, privacy block, search and printed numbers.
    """
    problems = Problems()
    outline = read(name, folder, problems)
    problems.stop()
    assert outline is not None
    return outline


def read(name: str, folder: str | os.PathLike[str], problems: Problems) -> Outline | None:
    """Return the outline as ``load_outline`` does, but add errors to ``problems``. Runs with errors
    are left out; None if the file cannot be expanded."""
    known = study_names(folder)
    if name not in known:
        raise ConfigError(f"study {name!r} does not exist in {folder}/", do=nearest(name, known))
    file = study_file(name, folder)
    other, what = Path(folder) / file.name, f"study {name!r} has two files"
    is_alone = file == other or not other.exists()
    ConfigError.unless(is_alone, what, f"{file}, {other}", do="rename one")
    check_name(name, f"{file}: a study's file name")
    document = documents.read_yaml(file)
    wrong = []
    for violation in documents.violations(document, documents.validator()):
        wrong.append(violation)
        problems.add(violation.error, str(file))
        # Every run of the entry would report the same error.
        problems.ignore(re.sub(r"^methods\[\d+\]\.", "", str(violation.error)))
    if any(_stops_expansion(violation) for violation in wrong):
        return None
    document = {"title": "", "description": "", **document}
    # The schema has reported missing keys; without them nothing can be expanded.
    if not document.keys() >= set(documents.schema()["required"]):
        return None
    if not all("name" in entry for entry in document["methods"]):
        return None
    entries = expansion.check(document, str(file), problems)
    lookup = printed.lookup({}, file, folder)
    layout = None
    if not any(violation.path[:1] in (("paper",), ("layout",)) for violation in wrong):
        with problems.at():
            lookup = printed.lookup(document, file, folder)
        with problems.at():
            layout = layouts.read(document, str(file))
    lines = list(_lines(document, entries, file, lookup, problems))
    rows = [row for line in lines for row in line.candidates[0].rows]
    measured = dict(ALWAYS)
    if not any(violation.path[:1] in (("metrics",), ("search",)) for violation in wrong):
        named = dict.fromkeys(row.cell.training.loss for row in rows)
        measured = metric_columns.read(document, str(file), map(losses.find, named), problems)
    if layout is not None and lines and not problems:
        with problems.at():
            layouts.grid(layout, rows)
    drawings: tuple[Drawing, ...] = ()
    if not problems:
        with problems.at():
            metric_columns.check_table(document, measured, str(file))
        with problems.at():
            drawings = figures.read(document, str(file), rows, measured)
    outline = Outline(name, document, tuple(lines), layout, drawings, measured)
    if outline.best_round and not problems:
        with problems.at():
            metric_columns.check_best_round(
                outline.best_round, (row.cell for row in rows), str(file)
            )
    return outline


def _stops_expansion(violation: documents.Violation) -> bool:
    """Whether runs cannot be expanded with this violation: the document has another form, not just
    a wrong value or key."""
    path = violation.path
    key, *inner = (path[2:] if path[:1] == ("methods",) else path) or ("",)
    is_value = violation.rule in ("additionalProperties", "finite") or (inner and key in BLOCKS)
    return key in ("axes", "search") or not (is_value or key in _APART)


def _lines(
    document: dict[str, Any],
    entries: list[dict[str, Any]],
    file: Path,
    lookup: printed.Lookup,
    problems: Problems,
) -> Iterator[Line]:
    variants: dict[str, str] = {}
    search = document.get("search", {})
    for point in expansion.points(document, entries, str(file)):
        candidates = []
        for values in point.candidates:
            with problems.at(values.location):
                first = _cell(values.final, point.entry, file)
                is_final = values.tried == values.final
                tried = first if is_final else _cell(values.tried, point.entry, file)
                if not document.get("allow_large_delta"):
                    check_delta(first.privacy.delta, first.partition.clients)
                variant = point.entry.get("variant", "")
                before = variants.setdefault(first.id, variant)
                # Two labels of one run would be two rows of a table with one result.
                what = f"variants {before!r} and {variant!r} are the same run"
                ConfigError.unless(before == variant, what, do="change one or remove it")
                value, metric = printed.NONE
                # Without the location of the run: these errors name the `paper` block.
                with problems.at():
                    value, metric = lookup(first, variant)
                rows = tuple(
                    Row(dataclasses.replace(first, seed=seed), variant, value, metric)
                    for seed in point.entry.get("seeds", document["seeds"])
                )
                if point.searched:
                    fraction = float(search["validation_fraction"])
                    partition = dataclasses.replace(tried.partition, validation_fraction=fraction)
                    tried = dataclasses.replace(tried, partition=partition)
                candidate = Candidate(values.chosen, rows, tried, ())
                candidates.append(_with_trials(candidate, values.seeds))
        if candidates and point.searched and "private" in search:
            with problems.at(point.location):
                candidates = _drawn(candidates, search)
        if candidates:
            label = point.location.removeprefix(f"{file}: method ")
            yield Line(label, point.entry, point.searched, tuple(candidates))


def _with_trials(candidate: Candidate, seeds: Sequence[int]) -> Candidate:
    """Return a candidate that is tried at these seeds, which are not those of its rows: hence with
    other splits and noise."""
    variant = candidate.rows[0].variant
    cells = (dataclasses.replace(candidate.tried, seed=seed) for seed in seeds)
    return dataclasses.replace(candidate, trials=tuple(Row(cell, variant) for cell in cells))


def _drawn(candidates: Sequence[Candidate], search: Mapping[str, Any]) -> list[Candidate]:
    """Return the candidates of a line with the trials of its private search.

    Number, candidates and seeds of the trials are drawn from a stream of releases, which is as
    secret as the noise, and which no other line and no other search has. Every trial has its own
    seed, so that its noise, cohorts and split are new also where it tries a candidate again, and no
    two searches share a run.

    Raises:
        ConfigError: the noise is not Gaussian, or not that of one plan.
    """
    private, first = options.build(PrivateSearch, search["private"]), search["seeds"][0]
    tried = [dataclasses.replace(candidate.tried, seed=first) for candidate in candidates]
    kind, what = tried[0].privacy.mechanism, "privacy.mechanism under a private search"
    ConfigError.unless(mechanisms.of(kind).stable, what, kind, "gaussian")
    for name in _OF_NOISE:
        # The bound of one trial holds for all, so their noise is one.
        is_same = len({getattr(cell.training, name) for cell in tried}) == 1
        what = f"a private search cannot choose training.{name}"
        ConfigError.unless(is_same, what, do="make it an axis, or two entries")
    # Rows at further seeds, or at others, leave a search as it is.
    lines = [dataclasses.replace(candidate.rows[0].cell, seed=0).id for candidate in candidates]
    settings = canonical_json(dataclasses.asdict(private))
    rng = release_rng(derived_key(*map(registry.key, tried)), "trials", settings, *lines)
    trials = list(zip(*private.draw(len(candidates), rng), strict=True))
    return [
        _with_trials(candidate, [first + own for of, own in trials if of == index])
        for index, candidate in enumerate(candidates)
    ]


@functools.cache
def _part(key: str, text: str) -> tuple[list[documents.Violation], Any]:
    """Return the violations of a part of a cell and, if it has none and is a block, the block. The
    cells of a study share most parts, and the schema takes milliseconds for each."""
    value = json.loads(text)
    found = list(documents.violations({key: value}, documents.validator("part")))
    return found, None if found or key not in BLOCKS else options.build(BLOCKS[key], value)


_check = functools.cache(options.check)


def _cell(values: dict[str, Any], entry: dict[str, Any], file: Path) -> Cell:
    """Return one cell, without its seed.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    name, source = entry["name"], entry["source"]
    problems = Problems()
    violated: set[str | int] = set()
    blocks: dict[str, Any] = {"server": Server(), "features": Features()}
    for key in documents.schema()["$defs"]["cell"]["required"]:
        if key not in values:
            problems.refuse(f"{key!r} is missing")
    for key, value in values.items():
        found, block = _part(key, json.dumps(value, default=str))
        blocks |= {} if block is None else {key: block}
        for violation in found:
            blocks.pop(key, None)
            problems.add(violation.error)
            violated |= {*violation.path[:1]} or {violation.key}
    profile, official = values.get("profile", "strict"), values.get("official_code", False)
    hyperparameters: dict[str, Any] = {}
    if "hyperparameters" not in violated:
        with problems.at():
            given = values.get("hyperparameters", {})
            of_code = {"official_code": official is True}
            hyperparameters = registry.check_hyperparameters(name, given, source, **of_code)
    departures: tuple[str, ...] = ()
    with problems.at():
        departures = registry.departures(name, profile, official, source, hyperparameters)
        check_departures(departures)
    # A given noise multiplier is not calibrated, so that no calibration can depart.
    if values.get("privacy", {}).get("epsilon") is None:
        departures = tuple(departure for departure in departures if departure not in OF_CALIBRATION)
    about = registry.info(name, source).about
    # A study's `server` and `privacy` are for all methods; some need neither.
    if not about.sends:
        blocks["server"] = Server()
    if not about.private:
        blocks["privacy"] = Privacy()
    elif "privacy" not in values:
        blocks.pop("privacy", None)
        do = "a private method needs epsilon or noise_multiplier, delta and clip_norm"
        problems.refuse("privacy is missing", do=do)
    elif "privacy" in blocks and blocks["privacy"].clip_quantile is not None:
        with problems.at():
            check_adaptive(departures)
    declared = blocks.get("privacy", Privacy()).departures
    if declared and profile != "paper":
        got, expected = ", ".join(declared), "none, or profile: paper as well"
        problems.refuse("privacy.departures", got=got, expected=expected)
    departures = tuple(sorted({*departures, *declared}))
    for block, built in blocks.items():
        with problems.at():
            if block == "model":  # its other keys mean nothing for a name that does not exist
                architectures.check_options(built)
            else:
                _check(built, block)
    if {"training", "partition", "privacy"} <= blocks.keys():
        training, private, clients = (blocks[n] for n in ("training", "privacy", "partition"))
        of_rounds = training.groups, private.band, private.buffers, training.sample_rate
        with problems.at():
            last = private.mechanism, private.clip_quantile, departures
            check_fixed(*of_rounds, clients.clients, *last)
    if "features" in blocks:
        with problems.at():
            features.check(blocks["features"], str(values.get("dataset", "")))
    if "training" in blocks and blocks["training"].placebo and not about.private:
        problems.refuse(f"training.placebo of {name}", got="no noise", expected="a private method")
    batch_size = blocks["training"].batch_size if "training" in blocks else None
    if "sample_level_calibration" in departures and batch_size == 0:
        do = "the official code calibrates its noise to the batch size"
        problems.refuse("training.batch_size", got=0, expected=">= 1", do=do)
    problems.stop()
    # Jobs run in the project's folder, not in that of the study's file.
    for block, key in (("training", "loss"), ("model", "name")):
        if reference.is_reference(given := getattr(blocks[block], key)):
            place = {key: user_files.beside(given, file.parent)}
            blocks[block] = dataclasses.replace(blocks[block], **place)
    for block, key in (("model", "init"), ("features", "file")):
        if given := getattr(blocks[block], key):
            place = {key: user_files.file_beside(given, file.parent)}
            blocks[block] = dataclasses.replace(blocks[block], **place)
    losses.find(blocks["training"].loss)
    registry.check_loss(name, blocks["training"].loss, hyperparameters, source)
    if blocks["model"].init:
        blocks["model"] = initial.with_digest(blocks["model"])
    blocks |= {"hyperparameters": hyperparameters, "departures": departures, "source": source}
    of_method = {"method": name, "profile": profile, "official_code": official}
    return row_code.with_digests(Cell(dataset=values["dataset"], **of_method, **blocks))
