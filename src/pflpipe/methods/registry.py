"""The registry of methods, and the identity of the training run of a cell.

Every file of this folder is a method (base.py). The signature of its factory is the schema of its
block in a study. A method from outside the package is named by a study's ``file.py:name`` or
offered by an installed package (plugins.py).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflpipe import cells, json_records, options
from pflpipe.errors import ConfigError, Problems, nearest
from pflpipe.learning import architectures
from pflpipe.methods import about as declarations
from pflpipe.methods import plugins
from pflpipe.methods.about import About
from pflpipe.options import Declared
from pflpipe.seeds import run_key

if TYPE_CHECKING:
    from pflpipe.methods.base import Method

_HELPERS = {"about", "base", "plugins", "registry", "row_code"}
_MODULES = {module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])}
NAMES = tuple(sorted(_MODULES - _HELPERS))
"""The methods of the package, one per file of this folder."""

_PARTS = {
    "body": "a network with layers before the head",
    "norm": "a network with normalisation layers, such as resnet20",
}
CLASSES = "classes"
"""What a method needs that is made for cross-entropy: prototypes or one-hot labels of K classes."""
ITEMS = "items"
"""What a method needs that is made for people and items: the network ``embedding``."""
TWO_CLASSES = "two_classes"
"""What a method needs that is made for answers of two classes, and for cross-entropy."""


FORMER = {
    ("dp_fedsam", "rho"): 0.5,
    ("dp_fedsam_topk", "rho"): 0.5,
    ("blur_lus", "weight"): 0.4,
}
"""First defaults of hyper-parameters that have another one now. Keys of runs leave these values out
still: a key that meant another value before would give its noise to other messages."""


@dataclass(frozen=True)
class MethodInfo:
    """A method: its name and source, its ``ABOUT`` and its hyper-parameters. The function of a
    method from outside is ``loaded``."""

    name: str
    source: str
    about: About
    hyperparameters: Mapping[str, Declared]
    loaded: Callable[..., Method] | None = None

    @property
    def factory(self) -> Callable[..., Method]:
        """The function that makes the method of its hyper-parameters; needs torch."""
        if self.loaded is not None:
            return self.loaded
        module = importlib.import_module(f"pflpipe.methods.{self.name}")
        factory: Callable[..., Method] = getattr(module, self.name)
        return factory


def locate(written: str, folder: str | os.PathLike[str] = ".") -> tuple[str, str]:
    """Return name and source of the method that a study names.

    The name is safe as a file name and unique in a study. The source locates a method from outside
    the package: the path of a file relative to the project's folder, or the module of an installed
    package. Other processes find the method by it, and methods of the same name with different
    sources have different noise. It is empty for the methods of the package.

    Args:
        written: a name, or ``file.py:name``.
        folder: of the study's file, to which the file's path is relative.

    Raises:
        ConfigError: unknown, or two methods have the name.
    """
    if ":" in written or written.endswith(".py"):
        name, source = plugins.in_file(written, folder)
        others = ["pflpipe"] * (name in NAMES) + list(filter(None, [plugins.module_of(name)]))
    else:
        name, source = written, plugins.module_of(written)
        others = ["pflpipe"] * (name in NAMES and source != "")
        if name not in NAMES and not source:
            known = {*NAMES, *plugins.offered()}
            raise ConfigError(f"unknown method {name!r}", do=nearest(name, known))
    what, got = f"two methods have the name {name!r}", ", ".join([source, *others])
    ConfigError.unless(not others, what, got, do="give yours another one")
    return name, source


def listed() -> list[tuple[str, str]]:
    """Return name and source of all methods that need no file: those of this package, then those of
    installed packages."""
    return [locate(name) for name in (*NAMES, *plugins.offered())]


def info(name: str, source: str = "") -> MethodInfo:
    """Return the entry of a method. Its file is run once per process.

    Raises:
        ConfigError: the method is unknown, or its file is not a method (plugins.py).
    """
    if not source.endswith(".py"):
        return _info(name, source)
    # A file counts by its content: the digest of a cell is that of the code that runs.
    content = Path(source).read_bytes() if Path(source).is_file() else b""
    return _info(name, os.path.abspath(source), content)


@functools.cache
def _info(name: str, source: str, content: bytes = b"") -> MethodInfo:
    factory = None
    if source:
        factory, about = plugins.load(name, source)
        hyperparameters = options.of_signature(inspect.signature(factory, eval_str=True))
    elif name in NAMES:
        about, hyperparameters = declarations.read(plugins.file_of(name), name)
    else:
        raise ConfigError("method", got=name, do=nearest(name, NAMES))
    # Defaults are checked too, so that a mistake in a file shows when it is loaded.
    for key, item in hyperparameters.items():
        options.check_value(item.default, item, f"hyper-parameter {name}.{key}")
    for what, words, known in (
        ("needs", about.needs, (*_PARTS, CLASSES, ITEMS, TWO_CLASSES)),
        ("trains", filter(None, [about.trains]), NAMES),
        ("only_with", about.only_with, hyperparameters),
        ("official_defaults", about.official_defaults, hyperparameters),
    ):
        for word in words:
            here = f"method {name}: ABOUT.{what}"
            ConfigError.unless(word in known, here, word, do=nearest(word, known))
    return MethodInfo(name, source, about, hyperparameters, factory)


def of(cell: cells.Cell) -> MethodInfo:
    """Return the entry of a cell's method."""
    return info(cell.method, cell.source)


def in_print(label: str, cell: cells.Cell) -> str:
    """Return the label of a line of a cell's method with the method's name in print, for figures
    and papers; tables for machines have its key."""
    return of(cell).about.title + label.removeprefix(cell.method)


def trained(cell: cells.Cell) -> cells.Cell:
    """Return the cell with only the settings that training reads.

    Cells that differ in hyper-parameters of ``personalize``, in evaluation or in their names have
    the same one. A hyper-parameter that the cell leaves out has the default of the cell's method;
    the method named by ``trains`` may have another default.
    """
    entry = of(cell)
    other = entry.about.trains
    trained_parameters = info(other).hyperparameters if other else entry.hyperparameters
    hyperparameters = {
        name: cell.hyperparameters.get(name, parameter.default)
        for name, parameter in entry.hyperparameters.items()
        if name in trained_parameters and parameter.option.trained
    }
    return dataclasses.replace(
        cell,
        method=other or cell.method,
        source="" if other else cell.source,
        digests={
            kind: digest
            for kind, digest in cell.digests.items()
            if not (other and kind == "method")
        },
        hyperparameters=hyperparameters,
        training=dataclasses.replace(
            cell.training, evaluate_every=0, evaluate_clients=0, evaluate_personal=True
        ),
        profile="strict",
        official_code=False,
    )


def run_cell(cell: cells.Cell) -> cells.Cell:
    """Return the cell of the training run that a cell needs: ``trained``, or the cell itself if
    accuracies are measured during training."""
    return cell if cell.training.evaluate_every else trained(cell)


def key(cell: cells.Cell) -> str:
    """Return the key of a cell's training run, 64 hexadecimal digits: runs with equal keys are one
    run and one release.

    It is made of the settings that training reads and that differ from their defaults. Of a method,
    a loss and a network from outside the package it contains name and digest: with other code,
    other messages have other noise.
    """
    return run_key(_chosen(trained(cell)))


def run_id(cell: cells.Cell) -> str:
    """Return the id of a cell's training run, the folder in ``results/runs``."""
    run = run_cell(cell)
    named = [key(cell), _chosen(run)] if run.training.evaluate_every else key(cell)
    return cells.slug(run.words, named)


@dataclass(frozen=True)
class Resolved:
    """A cell with what its settings name, looked up once.

    Attributes:
        about: the declarations of its method.
        factory: makes the method of the cell's hyper-parameters.
        key, run_id: of its training run.
    """

    cell: cells.Cell
    about: About
    factory: Callable[..., Method]
    key: str
    run_id: str


def resolve(cell: cells.Cell) -> Resolved:
    """Return a cell with what its settings name; raises as ``info``."""
    entry = of(cell)
    return Resolved(cell, entry.about, entry.factory, key(cell), run_id(cell))


def _chosen(cell: cells.Cell) -> dict[str, Any]:
    """Return a cell's settings that are not their defaults, hyper-parameters among them."""
    chosen = {
        name: value
        for name, item in of(cell).hyperparameters.items()
        if (value := cell.hyperparameters.get(name, item.default))
        != FORMER.get((cell.method, name), item.default)
    }
    return json_records.without_defaults(dataclasses.replace(cell, hyperparameters=chosen))


def departures(
    name: str,
    profile: str,
    official_code: bool,
    source: str = "",
    hyperparameters: Mapping[str, Any] | None = None,
) -> tuple[str, ...]:
    """Return the departures that a profile of a method executes, by default with the default
    hyper-parameters."""
    entry = info(name, source)
    about = entry.about
    values = hyperparameters or {}
    avoided = {
        departure
        for key, departures in about.only_with.items()
        if not values.get(key, entry.hyperparameters[key].default)
        for departure in departures
    }
    unless, what = ConfigError.unless, f"official_code of {name}"
    unless(not official_code or profile == "paper", what, True, "profile: paper as well")
    expected = "a method whose official code departs from its paper"
    unless(not official_code or bool(about.official_departures), what, True, expected)
    names = about.departures + (about.paper_departures if profile == "paper" else ())
    names += about.official_departures if official_code else ()
    return tuple(sorted(set(names).difference(avoided)))


def check_model(
    name: str,
    model: cells.Model,
    hyperparameters: Mapping[str, Any] | None = None,
    source: str = "",
    outputs: int = 1,
) -> None:
    """Raise ConfigError if the method or its hyper-parameters need layers that the model does not
    have, or a table of items with so many ``outputs``."""
    names = architectures.parameter_names(model)
    layers = architectures.layers_of(names)
    parts = {"body": set(layers) - {"head"}, "norm": architectures.norm_names(names)}
    entry = info(name, source)
    check_normalisation(name, model, entry.about.has_global_model)
    if ITEMS in entry.about.needs:
        architectures.check_table(model, outputs, f"method {name}: model")
    unless, leave, needs = ConfigError.unless, architectures.LEAVE, entry.about.needs
    unless(outputs <= 2 or TWO_CLASSES not in needs, f"method {name}: classes", outputs, "2", leave)
    for part, found in parts.items():
        is_there = bool(found) or part not in needs
        unless(is_there, f"method {name}: model", model.name, _PARTS[part], leave)
    for key, item in entry.hyperparameters.items():
        if item.option.layers:
            location = f"method {name}: {key}"
            value = (hyperparameters or {}).get(key, item.default)
            if isinstance(value, str):
                architectures.layers_named(names, value, location)
            else:
                expected = f"at most {len(layers)}, the model's layers"
                unless(value <= len(layers), location, value, expected)


def check_loss(name: str, loss: str, hyperparameters: Mapping[str, Any], source: str = "") -> None:
    """Raise ConfigError if the method, or a solver of heads among its hyper-parameters, is made for
    cross-entropy and the loss is another one."""
    exact = ("ridge", "newton")  # heads.EXACT, which needs torch
    solvers = [key for key, value in hyperparameters.items() if value in exact]
    of_classes = {CLASSES, TWO_CLASSES}.intersection(info(name, source).about.needs)
    what = f"method {name}" + "".join(f": {key}={hyperparameters[key]}" for key in solvers)
    do = f"take sgd for {solvers[0]}" if solvers else architectures.LEAVE
    fits = loss == "cross_entropy" or not (solvers or of_classes)
    ConfigError.unless(fits, f"{what}: training.loss", loss, "cross_entropy", do)


def check_normalisation(name: str, model: cells.Model, has_global_model: bool) -> None:
    """Raise ConfigError if the model has BatchNorm and the method a model for everybody."""
    expected = (
        "group: the averages stay with the clients, so that the model that this method releases "
        "for everybody could not be used"
    )
    fits = model.normalisation != "batch" or not has_global_model
    ConfigError.unless(fits, f"method {name}: model.normalisation", "batch", expected)


def check_hyperparameters(
    name: str, values: dict[str, Any], source: str = "", *, official_code: bool = False
) -> dict[str, Any]:
    """Return the method's hyper-parameters with defaults filled in.

    Raises:
        ConfigError: an unknown name, a wrong type, or a value outside the range of the factory's
            signature.
    """
    entry, problems = info(name, source), Problems()
    known = entry.hyperparameters
    values = {**entry.about.official_defaults, **values} if official_code else values
    for key in values:
        if key not in known:
            do = nearest(key, known) if known else f"{name} has none"
            problems.refuse(f"hyper-parameter {name}.{key} does not exist", do=do)
    found = {key: values.get(key, item.default) for key, item in known.items()}
    for key, value in found.items():
        with problems.at():
            options.check_value(value, known[key], f"hyper-parameter {name}.{key}")
    problems.stop()
    return options.spelled(known, found)
