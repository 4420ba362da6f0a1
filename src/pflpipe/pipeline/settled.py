"""What the package says of the settings of a certificate's row, and of all rows."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pflpipe import json_records, options
from pflpipe.cells import BLOCKS, Cell
from pflpipe.checking import verify
from pflpipe.errors import DataError, PflpipeError
from pflpipe.files import canonical_json


class RefutedError(PflpipeError):
    """Something in a certificate is refuted."""

    exit_code = 1


def findings(
    file: Path, given: Callable[[str], verify.Evidence] | None = None
) -> list[verify.Finding]:
    """Return ``verify.findings`` of a certificate, with what the package refuses in settings.

    Raises:
        DataError: the file cannot be read as a certificate of this version.
    """
    try:
        return verify.findings(file, given, refused)
    except verify.UnreadableError as error:
        raise DataError(str(error)) from None


def require_unrefuted(found: list[verify.Finding], file: Path) -> None:
    """Raise RefutedError if a part of a certificate is refuted."""
    if refuted := [one.part for one in found if one.verdict == verify.REFUTED]:
        raise RefutedError(f"{file}: refuted", got=", ".join(refuted))


def refused(row: dict[str, Any]) -> list[str]:
    """Return why a row's settings are not those of a cell, or of another one."""
    settings = row["settings"]
    try:
        cell = cell_of(settings)
    except PflpipeError as error:
        return [str(error)]
    same = canonical_json(cell.identity) == canonical_json(settings) and cell.id == row["cell"]
    return [] if same else [f"its settings are those of {cell.id}"]


def cell_of(settings: Mapping[str, Any]) -> Cell:
    """Return the cell with these settings and the defaults of all others.

    Raises:
        PflpipeError: a setting is unknown, missing, or out of its range.
    """
    values = _with_defaults(Cell, settings)
    del values["streams"]
    values |= {name: _with_defaults(kind, values[name]) for name, kind in BLOCKS.items()}
    cell = json_records.from_json(Cell, values, "settings")
    for name in BLOCKS:
        options.check(getattr(cell, name), f"settings.{name}")
    return cell


def _with_defaults(kind: Any, settings: Any) -> dict[str, Any]:
    values = dict(settings) if isinstance(settings, dict) else json_records.to_json(settings)
    for item in dataclasses.fields(kind):
        if item.default is not dataclasses.MISSING:
            values.setdefault(item.name, item.default)
        elif item.default_factory is not dataclasses.MISSING:
            values.setdefault(item.name, item.default_factory())
    return values
