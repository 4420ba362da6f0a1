"""The registry: which methods there are, and what a cell's method makes of its training run.

A method is a handful of pure functions of ONE client; a method file is a factory with named
hyper-parameters that returns them, and reads like the paper's algorithm box. The signature of the
factory (types, defaults, ranges) is the schema of its block in a study. A file in this folder is
found because it is there; methods from outside are named by a study's ``file.py:name`` or by an
installed package (plugins.py).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflpipe import cells, options
from pflpipe.errors import ConfigError, nearest
from pflpipe.files import canonical_json
from pflpipe.learning import architectures
from pflpipe.methods import about as declarations
from pflpipe.methods import plugins
from pflpipe.methods.about import About
from pflpipe.options import Declared
from pflpipe.seeds import STREAMS

if TYPE_CHECKING:
    from pflpipe.methods.base import Method

_HELPERS = {"about", "base", "plugins", "registry"}
NAMES = tuple(
    sorted(
        module.name
        for module in pkgutil.iter_modules([str(Path(__file__).parent)])
        if module.name not in _HELPERS
    )
)
"""The package's own methods, one for every file here."""

_PARTS = {
    "body": "a network with layers before the head",
    "norm": "a network with normalisation layers, such as resnet20",
}


@dataclass(frozen=True)
class MethodInfo:
    """A known method: its name and source, and what its file declares."""

    name: str
    source: str
    about: About
    hyperparameters: Mapping[str, Declared]

    @property
    def factory(self) -> Callable[..., Method]:
        """The function that makes the method of its hyper-parameters; needs torch."""
        if self.source:
            return plugins.load(self.name, self.source)[0]
        module = importlib.import_module(f"pflpipe.methods.{self.name}")
        factory: Callable[..., Method] = getattr(module, self.name)
        return factory


def locate(written: str, folder: str | os.PathLike[str] = ".") -> tuple[str, str]:
    """Return name and source of the method that a study names.

    The name is safe as a file name and unique in a study. The source says where a method from
    outside is, so that another process finds it again and another method of the same name has
    other noise: the path of a file relative to the project's folder, or the module of an installed
    package. It is empty for the package's own methods.

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
    if others:
        raise ConfigError(
            f"two methods have the name {name!r}",
            got=", ".join([source, *others]),
            do="give yours another one",
        )
    return name, source


def listed() -> list[tuple[str, str]]:
    """Return name and source of all methods that need no file beside a study: the package's own,
    then those of installed packages."""
    return [locate(name) for name in (*NAMES, *plugins.offered())]


def file_of(name: str, source: str = "") -> Path:
    """Return the file with a method's code, without running it.

    Raises:
        ConfigError: there is none.
    """
    if source.endswith(".py"):
        return Path(source)
    module = source or f"pflpipe.methods.{name}"
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # not even its package
        spec = None
    if spec is None or spec.origin is None:
        raise ConfigError(f"method {name}: there is no module {module}")
    return Path(spec.origin)


def info(name: str, source: str = "") -> MethodInfo:
    """Return the entry of a method; its file runs once in a process.

    Raises:
        ConfigError: unknown, or its file is not a method (plugins.py).
    """
    return _info(name, os.path.abspath(source) if source.endswith(".py") else source)


@functools.cache
def _info(name: str, source: str) -> MethodInfo:
    if source:
        factory, about = plugins.load(name, source)
        hyperparameters = options.of_signature(inspect.signature(factory, eval_str=True))
    elif name in NAMES:
        about, hyperparameters = declarations.read(file_of(name), name)
    else:
        raise ConfigError("method", got=name, do=nearest(name, NAMES))
    for key, item in hyperparameters.items():
        options.check_value(item.default, item, f"hyper-parameter {name}.{key}")
    for what, words, known in (
        ("needs", about.needs, _PARTS),
        ("trains", filter(None, [about.trains]), NAMES),
        ("only_with", about.only_with, hyperparameters),
    ):
        for word in words:
            if word not in known:
                raise ConfigError(f"method {name}: ABOUT.{what}", got=word, do=nearest(word, known))
    return MethodInfo(name, source, about, hyperparameters)


def of(cell: cells.Cell) -> MethodInfo:
    """Return the entry of a cell's method."""
    return info(cell.method, cell.source)


def trained(cell: cells.Cell) -> cells.Cell:
    """Return the cell that is trained for a cell: of everything else than training, nothing is left
    in it.

    Cells that differ in what only ``personalize`` reads, in what is measured, or in how they are
    called, have the same one. A hyper-parameter left out has the default of the cell's own method,
    which the method that it trains may not share.
    """
    own = of(cell)
    other = own.about.trains
    known = info(other).hyperparameters if other else own.hyperparameters
    kept = {
        name: cell.hyperparameters.get(name, entry.default)
        for name, entry in own.hyperparameters.items()
        if name in known and entry.option.trained
    }
    return dataclasses.replace(
        cell,
        method=other or cell.method,
        source="" if other else cell.source,
        hyperparameters=kept,
        training=dataclasses.replace(cell.training, evaluate_every=0, evaluate_clients=0),
        profile="strict",
        official_code=False,
    )


def run_cell(cell: cells.Cell) -> cells.Cell:
    """Return the cell of the training run that a cell needs: ``trained``, or itself if it is tested
    along the way."""
    return cell if cell.training.evaluate_every else trained(cell)


def key(cell: cells.Cell) -> str:
    """Return the key of a cell's training run, 64 hexadecimal digits: runs with equal keys are one
    run and one release.

    A digest of the settings that training reads and that are not their defaults, and of the version
    of all streams. No value of the data is in it, else the noise would depend on what it hides. Of
    a method from outside it has the source besides the name: two files may each have an ``mr_mtl``.
    """
    return hashlib.sha256(
        canonical_json({"streams": STREAMS, **_chosen(trained(cell))}).encode()
    ).hexdigest()


def run_id(cell: cells.Cell) -> str:
    """Return the id of a cell's training run, the folder in ``results/runs``."""
    run = run_cell(cell)
    return cells.slug(
        run.words, [key(cell), _chosen(run)] if run.training.evaluate_every else key(cell)
    )


def _chosen(cell: cells.Cell) -> dict[str, Any]:
    """Return a cell's settings that are not their defaults, hyper-parameters among them."""
    defaults = of(cell).hyperparameters
    chosen = {
        name: value
        for name, value in cell.hyperparameters.items()
        if value != defaults[name].default
    }
    return cells.without_defaults(dataclasses.replace(cell, hyperparameters=chosen))


def departures(
    name: str,
    profile: str,
    official_code: bool,
    source: str = "",
    hyperparameters: Mapping[str, Any] | None = None,
) -> tuple[str, ...]:
    """Return the departures that a profile of a method executes; without hyper-parameters, those of
    its defaults."""
    entry = info(name, source)
    about, values = entry.about, hyperparameters or {}
    avoided = {
        departure
        for key, departures in about.only_with.items()
        if not values.get(key, entry.hyperparameters[key].default)
        for departure in departures
    }
    if official_code and profile != "paper":
        raise ConfigError(
            f"official_code of {name}", got=official_code, expected="profile: paper beside it"
        )
    if official_code and not about.official_departures:
        raise ConfigError(
            f"official_code of {name}",
            got=True,
            expected="a method whose official code departs from its paper",
        )
    found = about.departures + (about.paper_departures if profile == "paper" else ())
    found += about.official_departures if official_code else ()
    return tuple(sorted(set(found).difference(avoided)))


def check_model(
    name: str,
    model: cells.Model,
    hyperparameters: dict[str, Any] | None = None,
    source: str = "",
) -> None:
    """Raise ConfigError when the method or its hyper-parameters need layers that the model does not
    have."""
    names = architectures.parameter_names(model)
    layers = architectures.layers_of(names)
    parts = {"body": set(layers) - {"head"}, "norm": architectures.norm_names(names)}
    entry = info(name, source)
    for part in entry.about.needs:
        if not parts[part]:
            raise ConfigError(
                f"method {name}: model",
                got=model.name,
                expected=_PARTS[part],
                do="leave the method out here",
            )
    for key, item in entry.hyperparameters.items():
        if item.option.layers:
            value, location = (
                (hyperparameters or {}).get(key, item.default),
                f"method {name}: {key}",
            )
            if isinstance(value, str):
                architectures.layers_named(names, value, location)
            elif value > len(layers):
                expected = f"at most {len(layers)}, the model's layers"
                raise ConfigError(location, got=value, expected=expected)


def check_hyperparameters(name: str, values: dict[str, Any], source: str = "") -> dict[str, Any]:
    """Return the method's hyper-parameters with defaults filled in.

    Raises:
        ConfigError: an unknown name, a wrong type, or a value outside the range of the factory's
            signature.
    """
    known = info(name, source).hyperparameters
    for key in values:
        if key not in known:
            raise ConfigError(
                f"hyper-parameter {name}.{key} does not exist",
                do=nearest(key, known) if known else f"{name} has none",
            )
    found = {key: values.get(key, item.default) for key, item in known.items()}
    for key, value in found.items():
        options.check_value(value, known[key], f"hyper-parameter {name}.{key}")
    return options.spelled(known, found)
