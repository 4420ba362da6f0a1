"""Accuracy round by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pflpipe.cells import CLAIMS, WITHOUT_DEPARTURES
from pflpipe.report.figures import style
from pflpipe.report.figures.source import NONE, REFERENCE, Panel, Source
from pflpipe.study.settings import Setting

BEST = 3
"""How many certified or unreviewed methods stand out where a study does not say which."""
_DASHES = dict(zip(CLAIMS, ("-", "-.", ":", "--"), strict=True))


def convergence(source: Source) -> Figure:
    """Accuracy by round, mean over seeds, a panel for each budget: some methods strong and named,
    with the range of their seeds, the others grey.

    Solid: certified. Dash-dotted: unreviewed. Dotted: nominal. Dashed: no privacy.
    """
    tables = {
        setting.indices: source.rounds(setting, source.drawing.metric)
        for panel in source.panels
        for setting in panel.settings
    }
    panels = [
        panel
        for panel in source.panels
        if any(not tables[setting.indices].empty for setting in panel.settings)
    ]
    source.require(bool(panels), f"{source.drawing.metric} by round (training.evaluate_every)")
    strong = _strong(source, panels[-1], tables)
    columns = min(len(panels), style.columns(source.drawing.width))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(source.drawing.width, 1), layout="constrained")
    others = ""
    if any(s.label not in strong for panel in panels for s in panel.settings):
        others = "; grey: the other methods"
    above = style.head(
        figure,
        f"Accuracy by round, {source.words}{_tested(source)}. Mean over {source.seeds_text}, "
        f"shaded: their range{others}.",
    )
    height = max(1.5, style.LINE * 2 * len(strong))
    figure.set_figheight(above + lines * (height + 3.4 * style.LINE))
    grid: Any = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    named = []
    for axes, panel in zip(grid.flat, panels, strict=False):
        points = []
        order = sorted(panel.settings, key=lambda setting: setting.label in strong)
        for setting in order:
            table = tables[setting.indices]
            if table.empty:
                continue
            mean = table.mean(axis=1)
            if setting.label not in strong:
                axes.plot(mean.index, mean, color=style.REST, linewidth=0.7)
                continue
            colour = style.STRONG[strong.index(setting.label)]
            axes.fill_between(
                mean.index, table.min(axis=1), table.max(axis=1), color=colour, alpha=0.12, lw=0
            )
            dashes = _DASHES[source.claim(setting)]
            axes.plot(mean.index, mean, color=colour, linestyle=dashes, marker=".", markersize=3)
            points.append((mean.index[-1], mean.iloc[-1], source.name(setting), colour))
        named.append(style.name_points(axes, points))
        axes.set_title(panel.title, loc="left", fontweight="bold")
        axes.grid(axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.margins(x=0.02)
        axes.label_outer()
    for axes in grid[:, 0]:
        axes.set_ylabel("accuracy (%)")
    for axes in grid[-1]:
        axes.set_xlabel("round")
    style.settle(figure, named)
    return figure


def _tested(source: Source) -> str:
    """Return of how many clients the accuracies are, where it is not all."""
    counts = {cell.training.evaluate_clients for cell in source.study.cells} - {0}
    return f"; {max(counts)} clients, drawn once for a seed" if counts else ""


def _strong(
    source: Source, panel: Panel, tables: dict[tuple[int, ...], pd.DataFrame]
) -> Sequence[str]:
    """Return the labels of what stands out: what the study says, else the reference, what has no
    privacy, and the best certified or unreviewed methods of the last panel."""
    known = [s for s in panel.settings if not tables[s.indices].empty]
    if source.drawing.strong:
        wanted = source.drawing.strong
        rows = source.study.rows
        found = [s for s in known if {s.method, rows[s.indices[0]].variant} & set(wanted)]
        return [setting.label for setting in found][: len(style.STRONG)]

    def last(setting: Setting) -> float:
        return float(np.nan_to_num(tables[setting.indices].iloc[-1].mean()))

    rivals = [s for s in known if source.claim(s) in WITHOUT_DEPARTURES and s.label != REFERENCE]
    best = sorted(rivals, key=lambda setting: (-last(setting), setting.label))[:BEST]
    first = [s for s in known if s.label == REFERENCE]
    plain = [s for s in known if source.claim(s) == NONE]
    return [s.label for s in (*first, *best, *plain)][: len(style.STRONG)]
