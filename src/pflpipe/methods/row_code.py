"""The list of the parts of a row: of a cell of a study, or of the objects that a program gives
(``pflpipe.train``).

A part from outside the package counts by what its code means, with the files next to it that it
imports. A cell holds these digests, so that its key, its ids and its claim follow from them.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

from pflpipe.cells import Cell, Model, Partition, Privacy, Training
from pflpipe.code import dependencies, meaning, reference, user_files
from pflpipe.code.dependencies import Dependency
from pflpipe.code.meaning import PACKAGE
from pflpipe.errors import ConfigError, DataError
from pflpipe.files import AGAIN
from pflpipe.methods import plugins

_OF_PACKAGE = {
    "loss": "learning/losses.py",
    "network": "learning/networks.py",
    "data": "data/sources.py",
    "features": "data/extraction.py",
    "transform": "learning/augment.py",
    "metric": "learning/metrics.py",
}
"""Kind -> the package's file of all parts of that kind. A method has a file of its own."""
READER = "pflpipe"
"""Name of the data part where the package reads the rows."""


def of_cell(
    cell: Cell, trained: Iterable[Dependency] = (), metrics: Iterable[str] = ()
) -> tuple[Dependency, ...]:
    """Return all parts of a cell's row: those from outside with the digests of the cell, those of
    the package as they are now.

    Args:
        cell: of a study.
        trained: the parts with which its run was trained (``simulation.run_record``); of these
            count the function that made the rows, which a cell does not know, and features.
        metrics: names of its study's metrics, or ``file.py:name``.

    Raises:
        ConfigError: there is no such file, or it is not Python.
    """
    given = [part for part in cell.outside if part.kind != "features"]
    given += [part for part in trained if part.touches == "rows"]
    given += [
        Dependency.of("metric", name, meaning.sha256(user_files.file_of(name)))
        for name in filter(reference.is_reference, metrics)
    ]
    named = {
        "method": [cell.method],
        "loss": [cell.training.loss],
        "network": [cell.model.name],
        "data": [READER],
        "features": [] if cell.features.kind == "none" else [cell.features.kind],
        "transform": list(cell.training.augment),
    }
    found = {part.kind for part in given if part.kind != "metric"}
    ours = [(kind, name) for kind, names in named.items() for name in names if kind not in found]
    ours += [("metric", name) for name in metrics if not reference.is_reference(name)]
    made = [*given, *(of_package(kind, name) for kind, name in ours)]
    order = list(dependencies.TOUCHES)
    return tuple(sorted(made, key=lambda part: (order.index(part.kind), part.name)))


def of_training(cell: Cell, loader: str) -> tuple[Dependency, ...]:
    """Return the parts from outside with which a cell is trained; ``loader`` is that of its data
    set (``datasets.Arrays``)."""
    found = [
        dataclasses.replace(part, sha256=of_values(part.name)) if part.kind == "features" else part
        for part in cell.outside
    ]
    return (*found, *of_loader(loader))


def check_trained(cell: Cell, trained: Iterable[Dependency], location: str) -> None:
    """Raise DataError if a run was trained with other code than a cell has. No file is read."""
    found, wanted = (
        {part.kind: part for part in given if part.touches == "messages"}
        for given in (trained, cell.outside)
    )
    if "method" not in found:  # it may train as one of the package's (``About.trains``)
        wanted.pop("method", None)
    for kind in sorted(found.keys() | wanted):
        if found.get(kind) != wanted.get(kind):
            ours, theirs = (
                f"{part.name} {part.sha256[:12]}" if part else "the package's"
                for part in (wanted.get(kind), found.get(kind))
            )
            raise DataError(f"{location}: code of {kind}", got=theirs, expected=ours, do=AGAIN)


def of_settings(model: Model | None, training: Training) -> tuple[Dependency, ...]:
    """Return the parts from outside of a program's settings; ``model`` is None for an object.

    Raises:
        ConfigError: there is no such file, or it is not Python.
    """
    cell = Cell("", Partition(""), model or Model(""), training, Privacy(), method="")
    return with_digests(cell).outside


def of_method(name: str, source: str) -> tuple[Dependency, ...]:
    """Return the part of a method from outside (``registry.locate``); none for the package's."""
    if not source:
        return ()
    digest = meaning.sha256(plugins.file_of(name, source))
    return (Dependency.of("method", f"{source}:{name}", digest),)


def of_loader(loader: str) -> tuple[Dependency, ...]:
    """Return the part of a user's function that made the rows; none without one."""
    name, _, digest = loader.rpartition(" ")
    return (Dependency.of("data", name, digest),) if name else ()


def with_digests(cell: Cell) -> Cell:
    """Return the cell with the digests of its code from outside, as it is now.

    Raises:
        ConfigError: there is no such file, or it is not Python.
    """
    code = dependencies.unreviewed(cell.outside)
    return dataclasses.replace(cell, digests={part.kind: digest(cell, part) for part in code})


def digest(cell: Cell, part: Dependency) -> str:
    """Return the digest of the code of a cell's part from outside; raises as ``with_digests``."""
    try:
        return meaning.sha256(_file(cell, part))
    except (OSError, ConfigError):
        if reference.is_reference(part.name):
            user_files.check(part.name)  # which says what is wrong with the file
        raise


def check(cell: Cell) -> None:
    """Raise ConfigError if the code from outside is not that of the cell's digests."""
    for part in dependencies.unreviewed(cell.outside):
        got = "other code than when this run was planned"
        expected = f"SHA-256 {part.sha256[:12] or 'of row_code.with_digests'}"
        do = "give the same command again: with other code it is another run"
        ConfigError.unless(digest(cell, part) == part.sha256, f"code of {part}", got, expected, do)


def files(cell: Cell) -> list[Path]:
    """Return the files of a cell's method, network and loss from outside."""
    return [_file(cell, part) for part in dependencies.unreviewed(cell.outside)]


def _file(cell: Cell, part: Dependency) -> Path:
    if part.kind == "method":
        return plugins.file_of(cell.method, cell.source)
    return user_files.file_of(part.name)


@functools.cache  # the package does not change under a process
def of_package(kind: str, name: str) -> Dependency:
    """Return a part of the package; raises ConfigError for an unknown method."""
    file = plugins.file_of(name) if kind == "method" else PACKAGE / _OF_PACKAGE[kind]
    return Dependency.of(kind, name, meaning.sha256(file), package=True)


def of_values(name: str) -> str:
    """Return the SHA-256 of the bytes of a file; of one that is not here nothing."""
    if not Path(name).is_file():
        return ""
    with open(name, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
