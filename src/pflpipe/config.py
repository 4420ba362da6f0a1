"""From YAML to cells: config.yaml -> Config, studies/<name>.yaml -> Study (rows of cells), and every check before a job starts.

A study is a product: blocks (deep-merged with a method's own) x study axes x method axes x seeds. Later words win:
blocks, study axes, the method's blocks, the method's axes.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pflpipe import documents, layouts, paper
from pflpipe.cells import Cell, Model, Partition, Privacy, Training
from pflpipe.errors import ConfigError, DataError, PflpipeError, nearest

STUDIES = Path("studies")
Block = TypeVar("Block")
BLOCKS = ("partition", "model", "training", "privacy")


@dataclass(frozen=True)
class Config:
    """config.yaml: which studies, where files live, how to run. Nothing in it changes a result.

    Attributes:
        studies: names of files in ``studies/``.
        data_dir, results_dir: folders, relative to the working directory.
        tracking_uri: MLflow server or database; ``None`` = MLFLOW_TRACKING_URI or the default of tracking.py.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:<index>``.
        backend: ``auto``, ``loop`` or ``vmap`` (clients.py).
        checkpoint_seconds: least time between two checkpoints of a run.
        datasets: data set name -> the user's own ``.npz`` file.
    """

    studies: tuple[str, ...]
    data_dir: Path = Path("data")
    results_dir: Path = Path("results")
    tracking_uri: str | None = None
    device: str = "auto"
    backend: str = "auto"
    checkpoint_seconds: float = 60.0
    datasets: dict[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One cell of a study, its label, and the printed number of a paper (percent) with the metric it compares to."""

    cell: Cell
    variant: str = ""
    paper_value: float | None = None
    paper_metric: str | None = None


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
    return Config(**words)


def study_names(folder: str | os.PathLike[str] = STUDIES) -> tuple[str, ...]:
    """Return the names of all studies of a folder, sorted."""
    return tuple(sorted(file.stem for file in Path(folder).glob("*.yaml") if file.name != paper.FILE))


def load_study(name: str, folder: str | os.PathLike[str] = STUDIES) -> Study:
    """Read ``<folder>/<name>.yaml`` and expand it; all checks that need no data set.

    Raises:
        ConfigError: no such study, syntax, schema, axes, methods, hyper-parameters, privacy block, printed numbers.
    """
    known = study_names(folder)
    if name not in known:
        raise ConfigError(f"study {name!r} does not exist in {folder}/", do=nearest(name, known))
    file = Path(folder) / f"{name}.yaml"
    if not re.fullmatch(r"[A-Za-z0-9_]+", name) or name == "all":  # all.csv joins the studies of config.yaml
        raise ConfigError(f"{file}: a study's file name", got=name, expected="letters, digits and _, and another name than all")
    document = documents.read_yaml(file)
    documents.check_schema(document, "study", str(file))
    _check_entries(document, str(file))
    printed = paper.lookup(document, file)
    rows: dict[str, Row] = {}
    for entry, path, values in _expand(document, str(file)):
        cell = _cell(values, entry, path)
        variant = entry.get("variant", "")
        before = rows.setdefault(cell.id, Row(cell, variant, *printed(cell, variant)))
        if before.variant != variant:
            raise ConfigError(
                f"{path}: variants {before.variant!r} and {variant!r} are the same run", do="change one or remove it"
            )
    layout = layouts.read(document, str(file))
    if layout is not None:
        layouts.grid(layout, tuple(rows.values()))
    return Study(name, document["title"], document["description"], tuple(rows.values()), layout)


def validate(settings: Config, names: Iterable[str] = (), folder: str | os.PathLike[str] = STUDIES) -> dict[str, Study]:
    """Load and check the named studies (default: those of config.yaml) and the data they need, reading array headers only.

    Raises:
        PflpipeError: the first thing that cannot be run.
    """
    known = study_names(folder)
    for name in settings.studies:
        if name not in known:
            raise ConfigError(f"config.yaml: studies: {name!r} does not exist in {folder}/", do=nearest(name, known))
    studies = {name: load_study(name, folder) for name in tuple(names) or settings.studies}
    _check_data(settings, studies.values(), folder)
    return studies


def _check_data(settings: Config, studies: Iterable[Study], folder: str | os.PathLike[str]) -> None:
    """Check the user's files, and that partitions and models fit the data sets, from the headers of arrays."""
    from pflpipe import augment, data, models, partition

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
            for cell in study.cells:
                found = headers[cell.dataset]
                partition.check(cell.partition, found.classes, found.train_size, found.users)
                models.check(cell.model, found.image_shape, found.classes)
                augment.check(cell.training.augment, found.image_shape)


@contextlib.contextmanager
def _placed(place: str) -> Iterator[None]:
    """Put a place before the message of an error that does not know it."""
    try:
        yield
    except PflpipeError as error:
        raise type(error)(f"{place}: {error}") from None


def _check_entries(document: dict[str, Any], file: str) -> None:
    """Check what the schema cannot: known methods, distinct labels, axes that exist."""
    from pflpipe import methods

    labels: set[tuple[str, str]] = set()
    _check_axes(document.get("axes", {}), f"{file}: axes", ())
    for index, entry in enumerate(document["methods"]):
        name, place = entry["name"], f"{file}: methods[{index}]"
        if name not in methods.NAMES:
            raise ConfigError(f"{place}.name: unknown method {name!r}", do=nearest(name, methods.NAMES))
        label = (name, entry.get("variant", ""))
        if label in labels:
            raise ConfigError(f"{place}: {name!r} is listed twice", do="give each entry its own `variant` label")
        labels.add(label)
        _check_axes(entry.get("axes", {}), f"{place}.axes", tuple(methods.info(name).hyperparameters))


def _check_axes(axes: Mapping[str, list[Any]], place: str, hyperparameters: tuple[str, ...]) -> None:
    definitions = documents.schema("study")["$defs"]
    known = ["dataset", "profile", "official_code", *(f"hyperparameters.{name}" for name in hyperparameters)]
    for block in BLOCKS:
        known += [block, *(f"{block}.{key}" for key in definitions[block]["properties"])]
    for path, values in axes.items():
        if path not in known:
            hint = "list the seeds under `seeds`" if path in ("seed", "seeds") else nearest(path, known)
            raise ConfigError(f"{place}: unknown axis {path!r}", do=hint)
        if path in BLOCKS and not all(isinstance(value, dict) for value in values):
            raise ConfigError(f"{place}.{path}", got=values, expected="mappings, each merged into the block")


def _expand(document: dict[str, Any], file: str) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Yield (method entry, place, complete values with ``seed``) for every run, before duplicates are dropped."""
    base = {key: document[key] for key in ("dataset", "profile", *BLOCKS) if key in document}
    for entry in document["methods"]:
        label = f"{entry['name']} ({entry['variant']})" if "variant" in entry else entry["name"]
        own = {key: entry[key] for key in ("profile", "official_code", "hyperparameters", *BLOCKS) if key in entry}
        for study_point in _product(document.get("axes", {})):
            for method_point in _product(entry.get("axes", {})):
                values = copy.deepcopy(base)
                for path, value in study_point.items():
                    _merge(values, _nested(path, value))
                _merge(values, own)
                for path, value in method_point.items():
                    _merge(values, _nested(path, value))
                point = ", ".join(f"{path}={value}" for path, value in {**study_point, **method_point}.items())
                place = f"{file}: method {label}" + (f" at {point}" if point else "")
                documents.check_schema(values, "study", place, part="cell")
                for seed in document["seeds"]:
                    yield entry, place, {**values, "seed": seed}


def _product(axes: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _nested(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    return typing.cast(dict[str, Any], value)


def _merge(target: dict[str, Any], words: Mapping[str, Any]) -> None:
    """Deep-merge ``words`` into ``target``; lists are replaced."""
    for key, value in words.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = copy.deepcopy(value)


def _cell(values: dict[str, Any], entry: dict[str, Any], place: str) -> Cell:
    """Build one cell from schema-checked values."""
    from pflpipe import methods
    from pflpipe.privacy import check_departures

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
    if (
        "sample_level_calibration" in departures
        and training.batch_size == 0
        and values.get("privacy", {}).get("epsilon") is not None
    ):
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


def _block(kind: type[Block], values: Mapping[str, Any]) -> Block:
    """Build a block's dataclass with one spelling per number, so that ``lr: 1`` and ``lr: 1.0`` are the same cell."""
    hints = typing.get_type_hints(kind)
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
