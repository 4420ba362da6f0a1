"""From YAML to cells: config.yaml -> Config, studies/<name>.yaml -> Study (rows of cells), and every check before a job starts.

A study is a product (expansion.py) x seeds. A study with a search is an Outline first: its runs are known once the search has
chosen (search.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pflpipe import documents, expansion, layouts, paper
from pflpipe.cells import Cell, Model, Partition, Privacy, Training
from pflpipe.errors import ConfigError, DataError, PflpipeError, nearest
from pflpipe.files import canonical_json, read_json

STUDIES = Path("studies")
RESULTS = Path("results")
Block = TypeVar("Block")


@dataclass(frozen=True)
class Config:
    """config.yaml: which studies, where files live, how to run. Nothing in it changes a result.

    Attributes:
        studies: names of files in ``studies/``.
        data_dir, results_dir: folders, relative to the working directory.
        tracking_uri: MLflow server or database; ``None`` = MLFLOW_TRACKING_URI or the default of tracking.py.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:<index>``.
        backend: ``auto``, ``loop`` or ``vmap`` (clients.py).
        processes: that share the clients of one run (processes.py).
        checkpoint_seconds: least time between two checkpoints of a run.
        datasets: data set name -> the user's own ``.npz`` file.
    """

    studies: tuple[str, ...]
    data_dir: Path = Path("data")
    results_dir: Path = Path("results")
    tracking_uri: str | None = None
    device: str = "auto"
    backend: str = "auto"
    processes: int = 1
    checkpoint_seconds: float = 60.0
    datasets: dict[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Chosen:
    """What a search chose for a row, and the cost of it.

    Attributes:
        index: which candidate of the row's line.
        values: its values, dotted path -> value.
        sets, runs: how many candidates there were, and how many runs tried them out.
        epsilon, epsilon_with_search: exact central epsilon at ``delta`` of the row's own run, and of that and all ``runs``
            together if their clients were the same; ``None`` where no certified epsilon exists.
    """

    index: int
    values: dict[str, Any]
    sets: int
    runs: int
    epsilon: float | None = None
    epsilon_with_search: float | None = None
    delta: float | None = None


@dataclass(frozen=True)
class Row:
    """One cell of a study, its label, and the printed number of a paper (percent) with the metric it compares to."""

    cell: Cell
    variant: str = ""
    paper_value: float | None = None
    paper_metric: str | None = None
    chosen: Chosen | None = None


@dataclass(frozen=True)
class Study:
    """A study: rows in the order of the file, every cell once, and how a paper's table orders them."""

    name: str
    title: str
    description: str
    rows: tuple[Row, ...]
    layout: layouts.PaperLayout | None = None

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of all rows."""
        return tuple(row.cell for row in self.rows)

    @property
    def methods(self) -> tuple[str, ...]:
        """Method names in the order of the file, each once."""
        return tuple(dict.fromkeys(row.cell.method for row in self.rows))

    @property
    def datasets(self) -> tuple[str, ...]:
        """Data sets in the order of the file, each once."""
        return tuple(dict.fromkeys(row.cell.dataset for row in self.rows))


@dataclass(frozen=True)
class Candidate:
    """One set of values for a line of a study: its rows at the study's seeds, and the runs that try it if there is a search."""

    values: dict[str, Any]
    rows: tuple[Row, ...]
    trials: tuple[Row, ...]


@dataclass(frozen=True)
class Line:
    """One method entry at one point of the axes, with the candidates of its search, or the one there is without."""

    words: str
    candidates: tuple[Candidate, ...]

    @property
    def method(self) -> str:
        """The method's name."""
        return self.candidates[0].rows[0].cell.method

    @property
    def searched(self) -> bool:
        """Whether a search chooses among the candidates."""
        return bool(self.candidates[0].trials)


@dataclass(frozen=True)
class Outline:
    """What a study's file says: the study, except for what its search is to choose.

    Attributes:
        name, document: the study's name and the schema-checked values of its file.
        lines: in the order of the file.
        layout: the table that the study fills, where it has one.
    """

    name: str
    document: dict[str, Any]
    lines: tuple[Line, ...]
    layout: layouts.PaperLayout | None

    @property
    def searched(self) -> tuple[Line, ...]:
        """The lines whose values a search chooses."""
        return tuple(line for line in self.lines if line.searched)

    @cached_property
    def search(self) -> Study | None:
        """The search as a study of its own, named ``<study>/search``; None without one."""
        rows = [row for line in self.searched for candidate in line.candidates for row in candidate.trials]
        return self._study(f"{self.name}/search", rows) if rows else None

    @cached_property
    def everything(self) -> Study:
        """Every run that the study may come to: those that are tried, and those that would follow from any choice."""
        candidates = [candidate for line in self.lines for candidate in line.candidates]
        return self._study(self.name, [row for c in candidates for row in (*c.trials, *c.rows)])

    @cached_property
    def grid(self) -> str:
        """Digest of what the search tries, in order."""
        tried = [[c.values, [row.cell.id for row in c.trials]] for line in self.searched for c in line.candidates]
        return hashlib.sha256(canonical_json(tried).encode()).hexdigest()[:10]

    def choices(self, results: Path) -> Path:
        """Return the file with what the search chose."""
        return results / "searches" / f"{self.name}.json"

    def study(self, chosen: Sequence[Chosen] = ()) -> Study:
        """Return the study that follows from a choice, one for every searched line in order."""
        waiting = iter(chosen)
        rows: list[Row] = []
        for line in self.lines:
            choice = next(waiting) if line.searched else None
            rows += (dataclasses.replace(row, chosen=choice) for row in line.candidates[choice.index if choice else 0].rows)
        return self._study(self.name, rows)

    def _study(self, name: str, rows: Iterable[Row]) -> Study:
        first: dict[str, Row] = {}
        for row in rows:
            first.setdefault(row.cell.id, row)
        return Study(name, self.document["title"], self.document["description"], tuple(first.values()), self.layout)

    def __str__(self) -> str:
        number = len({row.cell.id for line in self.lines for row in line.candidates[0].rows})
        after = f" after a search of {len(self.search.rows)}" if self.search else ""
        methods, datasets = ", ".join(self.everything.methods), ", ".join(self.everything.datasets)
        return f"{number} cells{after}, {methods} on {datasets}"


def load(path: str | os.PathLike[str] = "config.yaml") -> Config:
    """Read config.yaml.

    Raises:
        ConfigError: syntax, unknown keys, wrong types.
    """
    return parse(documents.read_yaml(path), str(path))


def parse(values: Any, place: str = "config.yaml") -> Config:
    """Build a Config from plain values (Snakemake's merged ``config``); ``place`` starts error messages."""
    documents.check_schema(values, "config", place)
    folders = {key: Path(values[key]) for key in ("data_dir", "results_dir") if key in values}
    datasets = {name: Path(file) for name, file in values.get("datasets", {}).items()}
    words = {**values, **folders, "studies": tuple(values["studies"]), "datasets": datasets}
    if "checkpoint_seconds" in words:
        words["checkpoint_seconds"] = float(words["checkpoint_seconds"])
    config = Config(**words)
    if config.processes > 1 and ":" in config.device:
        expected = "cuda, of which each process takes one, or a single process"
        raise ConfigError(f"{place}: device, with processes: {config.processes}", got=config.device, expected=expected)
    return config


def study_names(folder: str | os.PathLike[str] = STUDIES) -> tuple[str, ...]:
    """Return the names of all studies of a folder, sorted."""
    return tuple(sorted(file.stem for file in Path(folder).glob("*.yaml") if file.name != paper.FILE))


def load_study(name: str, folder: str | os.PathLike[str] = STUDIES, results: Path = RESULTS) -> Study:
    """Read ``<folder>/<name>.yaml`` and return its rows; ``finish`` and ``load_outline`` in one."""
    return finish(load_outline(name, folder), results)


def finish(outline: Outline, results: Path = RESULTS) -> Study:
    """Return the study with what its search chose; ``results`` is not looked at for a study without one.

    Raises:
        DataError: the search is not done, or the file is of a search over another grid.
    """
    if outline.search is None:
        return outline.study()
    file = outline.choices(results)
    found = read_json(file) if file.exists() else {}
    if found.get("grid") != outline.grid:
        state = "is of another search" if found else "does not exist"
        raise DataError(f"{file} {state}", do=f"let snakemake make it: snakemake --cores 2 results/tables/{outline.name}.csv")
    return outline.study([Chosen(**line["chosen"]) for line in found["lines"]])


def load_outline(name: str, folder: str | os.PathLike[str] = STUDIES) -> Outline:
    """Read ``<folder>/<name>.yaml`` and expand it; all checks that need no data set.

    Raises:
        ConfigError: no such study, syntax, schema, axes, methods, hyper-parameters, privacy block, search, printed numbers.
    """
    known = study_names(folder)
    if name not in known:
        raise ConfigError(f"study {name!r} does not exist in {folder}/", do=nearest(name, known))
    file = Path(folder) / f"{name}.yaml"
    if not re.fullmatch(r"[A-Za-z0-9_]+", name) or name in ("all", "audit"):  # these tables are not of one study
        expected = "letters, digits and _, and another name than all and audit"
        raise ConfigError(f"{file}: a study's file name", got=name, expected=expected)
    document = documents.read_yaml(file)
    documents.check_schema(document, "study", str(file))
    expansion.check(document, str(file))
    printed = paper.lookup(document, file)
    variants: dict[str, str] = {}
    lines = []
    for point in expansion.points(document, str(file)):
        variant = point.entry.get("variant", "")
        candidates = []
        for values, complete in point.grid:
            first = _cell({**complete, "seed": document["seeds"][0]}, point.entry, point.place)
            cells = [dataclasses.replace(first, seed=seed) for seed in document["seeds"]]
            for before in (variants.setdefault(cell.id, variant) for cell in cells):
                if before != variant:
                    raise ConfigError(
                        f"{point.place}: variants {before!r} and {variant!r} are the same run", do="change one or remove it"
                    )
            rows = tuple(Row(cell, variant, *printed(cell, variant)) for cell in cells)
            tried = _trials(first, document["search"]) if "search" in point.entry else ()
            candidates.append(Candidate(values, rows, tuple(Row(cell, variant) for cell in tried)))
        lines.append(Line(point.place.removeprefix(f"{file}: method "), tuple(candidates)))
    layout = layouts.read(document, str(file))
    if layout is not None:
        layouts.grid(layout, [row for line in lines for row in line.candidates[0].rows])
    return Outline(name, document, tuple(lines), layout)


def _trials(cell: Cell, search: Mapping[str, Any]) -> Iterator[Cell]:
    """Yield the runs that try a cell's values: other seeds, hence other splits and other noise, and more validation data."""
    partition = dataclasses.replace(cell.partition, validation_fraction=float(search["validation_fraction"]))
    for seed in search["seeds"]:
        yield dataclasses.replace(cell, partition=partition, seed=seed)


def validate(settings: Config, names: Iterable[str] = (), folder: str | os.PathLike[str] = STUDIES) -> dict[str, Outline]:
    """Load and check the named studies (default: those of config.yaml) and the data they need, reading array headers only.

    Raises:
        PflpipeError: the first thing that cannot be run.
    """
    known = study_names(folder)
    for name in settings.studies:
        if name not in known:
            raise ConfigError(f"config.yaml: studies: {name!r} does not exist in {folder}/", do=nearest(name, known))
    outlines = {name: load_outline(name, folder) for name in tuple(names) or settings.studies}
    _check_data(settings, [outline.everything for outline in outlines.values()], folder)
    return outlines


def _check_data(settings: Config, studies: Iterable[Study], folder: str | os.PathLike[str]) -> None:
    """Check the user's files, and that partitions and models fit the data sets, from the headers of arrays."""
    from pflpipe import augment, data, methods, models, partition

    headers: dict[str, data.Header] = {}
    for dataset, source in settings.datasets.items():
        with _placed(f"config.yaml: datasets.{dataset}"):
            if source.resolve() == (settings.data_dir / f"{dataset}.npz").resolve():
                raise DataError(f"{source} is the file that pflpipe writes", do="keep yours in another folder")
            headers[dataset] = data.describe(dataset, source)
    for study in studies:
        place = f"{folder}/{study.name}.yaml"
        with _placed(place):
            headers |= {name: data.describe(name) for name in study.datasets if name not in headers}
            needs = ((cell.dataset, cell.partition, cell.model, cell.training.augment) for cell in study.cells)
            for dataset, wanted, model, transforms in dict.fromkeys(needs):
                found = headers[dataset]
                partition.check(wanted, found.classes, found.train_size, found.users)
                models.check(model, found.image_shape, found.classes)
                augment.check(transforms, found.image_shape)
            works = {(c.method, c.model, canonical_json(c.hyperparameters)): c.hyperparameters for c in study.cells}
            for (method, model, _), hyperparameters in works.items():
                methods.check_model(method, model, hyperparameters)


@contextlib.contextmanager
def _placed(place: str) -> Iterator[None]:
    """Put a place before the message of an error that does not know it."""
    try:
        yield
    except PflpipeError as error:
        raise type(error)(f"{place}: {error}") from None


def _cell(values: dict[str, Any], entry: dict[str, Any], place: str) -> Cell:
    """Build one cell from schema-checked values."""
    from pflpipe import methods
    from pflpipe.departures import OF_CALIBRATION, check_departures

    name = entry["name"]
    private = methods.info(name).about.private
    partition = _block(Partition, values["partition"])
    training = _block(Training, values["training"])
    _check_partition(partition, place)
    if training.optimizer != "sgd" and training.momentum:
        raise ConfigError(
            f"{place}: training.momentum is for sgd only", got=training.momentum, do=f"remove it for {training.optimizer}"
        )
    profile, official = values.get("profile", "strict"), values.get("official_code", False)
    with _placed(place):
        hyperparameters = methods.check_hyperparameters(name, values.get("hyperparameters", {}))
        departures = methods.departures(name, profile, official)
        check_departures(departures)
    if values.get("privacy", {}).get("epsilon") is None:
        departures = tuple(departure for departure in departures if departure not in OF_CALIBRATION)
    if "sample_level_calibration" in departures and training.batch_size == 0:
        raise ConfigError(
            f"{place}: training.batch_size",
            got=0,
            expected=">= 1",
            do="the official code calibrates its noise to the batch size",
        )
    return Cell(
        dataset=values["dataset"],
        partition=partition,
        model=_block(Model, values["model"]),
        training=training,
        privacy=_privacy(values.get("privacy", {}), name, place) if private else Privacy(),
        method=name,
        hyperparameters=hyperparameters,
        profile=profile,
        official_code=official,
        departures=departures,
        seed=values["seed"],
    )


_HINTS: dict[type, dict[str, Any]] = {kind: typing.get_type_hints(kind) for kind in (Partition, Model, Training, Privacy)}


def _block(kind: type[Block], values: Mapping[str, Any]) -> Block:
    """Build a block's dataclass with one spelling per number, so that ``lr: 1`` and ``lr: 1.0`` are the same cell."""
    hints = _HINTS[kind]
    spelled: dict[str, Any] = {}
    for key, value in values.items():
        accepted = typing.get_args(hints[key]) or (hints[key],)
        if isinstance(value, list):
            value = tuple(item if isinstance(item, str) else int(item) for item in value)
        elif float in accepted and value is not None:
            value = float(value)
        elif int in accepted and value is not None:
            value = int(value)
        spelled[key] = value
    return kind(**spelled)


def _check_partition(partition: Partition, place: str) -> None:
    needs = {"dirichlet": "alpha", "pathological": "classes_per_client"}
    for kind, key in needs.items():
        value = getattr(partition, key)
        if partition.kind == kind and value is None:
            raise ConfigError(f"{place}: partition.{key} is missing", do=f"a {kind} partition needs it")
        if partition.kind != kind and value is not None:
            raise ConfigError(
                f"{place}: partition.{key} is for {kind} partitions", got=value, do=f"remove it for {partition.kind}"
            )


def _privacy(values: Mapping[str, Any], method: str, place: str) -> Privacy:
    privacy = _block(Privacy, {"mechanism": "gaussian", **values})
    if (privacy.epsilon is None) == (privacy.noise_multiplier is None):
        given = "neither is" if privacy.epsilon is None else "both are"
        raise ConfigError(f"{place}: privacy needs either epsilon or noise_multiplier, {given} given")
    if privacy.mechanism != "gaussian" and privacy.accountant == "rdp":
        raise ConfigError(f"{place}: privacy.accountant", got="rdp", expected=f"exact, for mechanism {privacy.mechanism}")
    for key in ("delta", "clip_norm"):
        if getattr(privacy, key) is None:
            raise ConfigError(f"{place}: privacy.{key} is missing", do=f"{method} is a private method and needs it")
    return privacy
