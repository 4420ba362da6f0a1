"""The list of the parts of a row: of a cell of a study, or of the objects that a program gives
(``pflpipe.train``).

A part from outside the package counts by what its code means, with the files next to it that it
imports. A cell holds these digests, so that its key, its ids and its claim follow from them.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from pathlib import Path

from pflpipe import code_version, parts
from pflpipe.cells import Cell
from pflpipe.code_version import PACKAGE
from pflpipe.data import outside
from pflpipe.errors import ConfigError
from pflpipe.methods import registry
from pflpipe.parts import Part

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


def of_cell(cell: Cell, loader: str = "", metrics: Iterable[str] = ()) -> tuple[Part, ...]:
    """Return all parts of a cell's row, with digests of the code as it is now.

    Args:
        cell: of a study.
        loader: ``loader`` of the arrays of its data set (``datasets.Arrays``).
        metrics: names of its study's metrics, or ``file.py:name``.

    Raises:
        ConfigError: there is no such file, or it is not Python.
    """
    named = {
        "method": [cell.method],
        "loss": [cell.training.loss],
        "network": [cell.model.name],
        "data": [READER],
        "features": [] if cell.features.kind == "none" else [cell.features.kind],
        "transform": list(cell.training.augment),
    }
    given = (*from_outside(with_digests(cell), loader), *_of_metrics(metrics))
    found = {part.kind for part in given}
    ours = [(kind, name) for kind, names in named.items() for name in names if kind not in found]
    ours += [("metric", name) for name in metrics if not parts.is_reference(name)]
    made = [*given, *(of_package(kind, name) for kind, name in ours)]
    return tuple(sorted(made, key=lambda part: (list(parts.TOUCHES).index(part.kind), part.name)))


def from_outside(cell: Cell, loader: str = "") -> tuple[Part, ...]:
    """Return the parts of a cell's run that are not the package's, with the digests of the cell;
    ``loader`` is as for ``of_cell``."""
    found = [
        dataclasses.replace(part, sha256=of_values(part.name)) if part.kind == "features" else part
        for part in cell.outside
    ]
    return (*found, *of_loader(loader))


def of_method(name: str, source: str) -> tuple[Part, ...]:
    """Return the part of a method from outside (``registry.locate``); none for the package's."""
    if not source:
        return ()
    digest = code_version.sha256(registry.file_of(name, source))
    return (Part.of("method", f"{source}:{name}", digest),)


def of_loader(loader: str) -> tuple[Part, ...]:
    """Return the part of a user's function that made the rows; none without one."""
    name, _, digest = loader.rpartition(" ")
    return (Part.of("data", name, digest),) if name else ()


def with_digests(cell: Cell) -> Cell:
    """Return the cell with the digests of its code from outside, as it is now.

    Raises:
        ConfigError: there is no such file, or it is not Python.
    """
    code = parts.unreviewed(cell.outside)
    return dataclasses.replace(cell, digests={part.kind: digest(cell, part) for part in code})


def digest(cell: Cell, part: Part) -> str:
    """Return the digest of the code of a cell's part from outside; raises as ``with_digests``."""
    try:
        return code_version.sha256(_file(cell, part))
    except (OSError, ConfigError):
        if parts.is_reference(part.name):
            outside.check(part.name)  # which says what is wrong with the file
        raise


def check(cell: Cell) -> None:
    """Raise ConfigError if the code from outside is not that of the cell's digests."""
    for part in parts.unreviewed(cell.outside):
        if digest(cell, part) != part.sha256:
            raise ConfigError(
                f"code of {part}",
                got="other code than when this run was planned",
                expected=f"SHA-256 {part.sha256[:12] or 'of row_code.with_digests'}",
                do="give the same command again: with other code it is another run",
            )


def files(cell: Cell) -> list[Path]:
    """Return the files of a cell's method, network and loss from outside."""
    return [_file(cell, part) for part in parts.unreviewed(cell.outside)]


def _file(cell: Cell, part: Part) -> Path:
    if part.kind == "method":
        return registry.file_of(cell.method, cell.source)
    return outside.file_of(part.name)


def _of_metrics(names: Iterable[str]) -> list[Part]:
    return [
        Part.of("metric", name, code_version.sha256(outside.file_of(name)))
        for name in filter(parts.is_reference, names)
    ]


def of_package(kind: str, name: str) -> Part:
    """Return a part of the package; raises ConfigError for an unknown method."""
    file = registry.file_of(name) if kind == "method" else PACKAGE / _OF_PACKAGE[kind]
    return Part.of(kind, name, code_version.sha256(file), package=True)


def of_values(name: str) -> str:
    """Return the SHA-256 of the bytes of a file; of one that is not here nothing."""
    if not Path(name).is_file():
        return ""
    with open(name, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
