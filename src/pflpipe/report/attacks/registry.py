"""What shows an attack: a module of this package with its table and its figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import pandas as pd
from matplotlib.figure import Figure

from pflpipe.report.attacks import canaries, inversion, membership, one_run
from pflpipe.report.figures import style
from pflpipe.report.summary import not_covered
from pflpipe.study.outline import Study
from pflpipe.study.settings import DIAGNOSTICS


class Shown(Protocol):
    """What a module of this package offers."""

    def figure(self, study: Study, results: Path) -> Figure:
        """Draw what was found for the cells of a study, from ``results/attacks`` and
        ``results/plans``."""

    def table(self, study: Study, results: Path) -> pd.DataFrame:
        """Return the numbers of the figure."""


SHOWN: Mapping[str, Shown] = {
    "membership": membership,
    "inversion": inversion,
    "canaries": canaries,
    "one_run": one_run,
}
"""The names of ``attacks.registry``."""


def draw(name: str, study: Study, results: Path) -> Figure:
    """Draw an attack's figure above a line about what no epsilon covers."""
    figure = SHOWN[name].figure(study, results)
    style.foot(figure, not_covered(study, f"Measured values are {DIAGNOSTICS}"))
    return figure
