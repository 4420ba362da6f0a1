"""The tables and figures of attacks, one module of this package for each attack."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from pflpipe.files import atomic
from pflpipe.report.attacks import membership, one_run
from pflpipe.report.figures import style
from pflpipe.report.summary import not_covered
from pflpipe.study.study_spec import Drawing, Study

SHOWN: Mapping[str, Any] = {"membership": membership, "one_run": one_run}
"""Modules by the names of ``attacks.jobs``. They read ``results/attacks`` and
``results/plans``; ``figure(study, results, width)`` draws in one of ``style.WIDTHS`` (inches),
``table(study, results)`` returns the numbers."""


def draw(study: Study, drawing: Drawing, results: Path) -> Figure:
    """Draw an attack's figure, with a note on what no epsilon covers."""
    figure: Figure = SHOWN[drawing.kind].figure(study, results, drawing.width)
    style.foot(figure, not_covered(study))
    return figure


def write(study: Study, drawing: Drawing, results: Path, target: Path, bare: bool = False) -> None:
    """Draw as ``draw`` does and write the numbers (.csv) and the files of ``style.save``.

    Raises:
        ConfigError: the study has no run for the attack. DataError: results are missing.
    """
    with atomic(target.with_suffix(".csv")) as path:
        SHOWN[drawing.kind].table(study, results).to_csv(path, index=False)
    style.save(lambda: draw(study, drawing, results), target, bare)
