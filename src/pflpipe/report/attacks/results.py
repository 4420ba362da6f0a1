"""The results of attacks on the cells of a study, setting by setting."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pflpipe.attacks import jobs
from pflpipe.cells import Cell
from pflpipe.methods import registry as methods
from pflpipe.privacy.ledger import Planned
from pflpipe.report.tidy import existing, planned
from pflpipe.study.settings import Setting, layout
from pflpipe.study.study_spec import Study


@dataclass(frozen=True, eq=False)
class Attacked:
    """A setting of a study with the results of an attack. The label of an unreviewed one says so.

    Attributes:
        cells: the attacked cells of the setting, one or more.
        results: folder with ``attacks/`` and ``plans/``.
    """

    attack: str
    setting: Setting
    cells: tuple[Cell, ...]
    results: Path

    @cached_property
    def planned(self) -> Planned:
        """Plan and ledger, which all seeds share. DataError when they do not exist."""
        return planned(self.cells[0].plan_id, self.results)

    @cached_property
    def arrays(self) -> list[dict[str, np.ndarray]]:
        """The arrays of the attack on each cell. DataError when they do not exist."""
        loaded = []
        for cell in self.cells:
            file = self.results / "attacks" / self.attack / f"{cell.id}.npz"
            with np.load(existing(file, file), allow_pickle=False) as bundle:
                loaded.append(dict(bundle))
        return loaded

    def pooled(self, name: str) -> np.ndarray:
        """Return an array, concatenated over all cells."""
        return np.concatenate([arrays[name] for arrays in self.arrays])

    @property
    def identity(self) -> dict[str, Any]:
        """The first columns of a table."""
        return {"method": self.setting.label, "budget": self.setting.budget, **self.setting.facet}

    @property
    def name(self) -> str:
        """The name of the setting in a figure."""
        setting = self.setting
        label = methods.in_print(setting.label, self.cells[0])
        return ", ".join(filter(None, [label, setting.budget, setting.facet_text]))


def attacked(attack: str, study: Study, results: Path) -> list[Attacked]:
    """Return the settings of a study with cells to which an attack applies, in order."""
    ids = {cell.id for cell in jobs.cells(attack, study)}
    settings = []
    for setting in layout(study).settings:
        cells = tuple(study.cells[i] for i in setting.indices if study.cells[i].id in ids)
        if cells and cells[0].claim == "unreviewed":
            setting = dataclasses.replace(setting, label=f"{setting.label} (unreviewed)")
        if cells:
            settings.append(Attacked(attack, setting, cells, results))
    return settings
