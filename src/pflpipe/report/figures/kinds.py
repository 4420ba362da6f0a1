"""The kinds of figures, and functions that draw and write one."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from pflpipe.report.comparison import protected
from pflpipe.report.figures import clients, curves, ranked, style
from pflpipe.report.figures.source import Source
from pflpipe.report.summary import not_covered
from pflpipe.report.tidy import stored
from pflpipe.study.study_spec import Drawing, Study

KINDS: Mapping[str, Callable[[Source], Figure]] = {
    "privacy_utility": ranked.privacy_utility,
    "ranks": ranked.ranks,
    "soundness": ranked.soundness,
    "convergence": curves.convergence,
    "gains": clients.gains,
    "cost": ranked.cost,
    "partition": clients.partition,
}
"""By the kinds of a study's ``figures`` block (study/figures.py)."""


def draw(
    study: Study, drawing: Drawing, results: Path, data: Path, frame: pd.DataFrame | None = None
) -> Figure:
    """Draw a figure of a study, with a note on what no epsilon covers and what the others protect.

    Args:
        results, data: the folders of config.yaml.
        frame: the study's tidy table, or the part that the figure shows; None: that in ``results``.

    Raises:
        DataError: results are missing, or the study has nothing that the figure shows.
    """
    if frame is None:
        frame = stored(study, results)
    figure = KINDS[drawing.kind](Source(study, drawing, frame, results, data))
    style.foot(figure, " ".join([not_covered(study), *protected(frame)]))
    return figure


def write(
    study: Study,
    drawing: Drawing,
    results: Path,
    data: Path,
    target: Path,
    frame: pd.DataFrame | None = None,
    bare: bool = False,
) -> None:
    """Draw a figure as ``draw`` does and write its files as ``style.save`` does."""
    style.save(lambda: draw(study, drawing, results, data, frame), target, bare)
