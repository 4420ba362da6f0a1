"""What attacks left on disk for the cells of a study, setting by setting."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from pflpipe import records
from pflpipe.attacks import registry
from pflpipe.cells import Cell
from pflpipe.errors import DataError
from pflpipe.privacy.ledger import Planned
from pflpipe.study.settings import Setting, layout
from pflpipe.study.study_spec import Study


def settings(name: str, study: Study) -> list[tuple[Setting, list[Cell]]]:
    """Return the settings of a study that have cells for an attack, with these cells, in the
    study's order; an unreviewed one has this word in its label."""
    ids = {cell.id for cell in registry.cells(name, study)}
    rows = study.rows
    chosen = [
        (setting, [rows[i].cell for i in setting.indices if rows[i].cell.id in ids])
        for setting in layout(study).settings
    ]
    return [(_marked(setting, attacked[0]), attacked) for setting, attacked in chosen if attacked]


def _marked(setting: Setting, cell: Cell) -> Setting:
    if cell.claim != "unreviewed":
        return setting
    return dataclasses.replace(setting, label=f"{setting.label} (unreviewed)")


def words(setting: Setting) -> str:
    """Return what a figure calls a setting."""
    return ", ".join(filter(None, [setting.label, setting.budget, setting.facet_text]))


def found(name: str, cell: Cell, results: Path) -> dict[str, np.ndarray]:
    """Return the arrays that an attack wrote for a cell; DataError when it has not."""
    with np.load(
        _made(results / "attacks" / name / f"{cell.id}.npz"), allow_pickle=False
    ) as bundle:
        return dict(bundle)


def planned(cell: Cell, results: Path) -> Planned:
    """Return a cell's plan and its ledger as they lie in ``results/plans``; DataError when they do
    not."""
    return records.load(Planned, _made(results / "plans" / f"{cell.plan_id}.json"))


def _made(path: Path) -> Path:
    if not path.is_file():
        raise DataError(
            f"{path} does not exist", do=f"let snakemake make it: snakemake --cores 2 {path}"
        )
    return path
