"""Accuracy round by round."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pflpipe.code.dependencies import CLAIMS, WITHOUT_DEPARTURES
from pflpipe.report.comparison import PLAIN, Group, of_claim
from pflpipe.report.figures import style
from pflpipe.report.figures.source import Panel, Source
from pflpipe.report.sentences import capitalised

BEST = 3
"""Number of certified or unreviewed methods that are emphasised by default."""
_APART = 0.02
"""Distance between the bars of ranges, as a share of the rounds."""
_DASHES = dict(zip(CLAIMS, ("-", "-.", ":", "--"), strict=True))


def convergence(source: Source) -> Figure:
    """Draw accuracy by round, mean over seeds, a panel for each budget. Emphasised methods have a
    name in the legend and, right of their last round, a bar with the range of their seeds there
    (shaded ranges of several methods hide the curves); the others are grey. An error has no upper
    end: the scale ends above the emphasised methods.

    Solid: certified. Dash-dotted: unreviewed. Dotted: nominal. Dashed: no privacy.
    """
    groups = dict.fromkeys(group for panel in source.panels for group in panel.groups)
    measured = {group: source.rounds(group, source.drawing.metric) for group in groups}
    tables = {group: table for group, table in measured.items() if not table.empty}
    panels = [panel for panel in source.panels if tables.keys() & {*panel.groups}]
    source.require(bool(panels), f"{source.drawing.metric} by round (training.evaluate_every)")
    strong = _strong(source, panels[-1], tables)
    is_all = all(group.label in strong for panel in panels for group in panel.groups)
    others = "" if is_all else "; grey: the other methods"
    means = {group: table.mean(axis=1) for group, table in tables.items()}
    named = [group for group in tables if group.label in strong]
    low = min(float(np.nanmin(table)) for table in tables.values())
    high = max(map(max, means.values()))
    top = max([max(means[g].max(), tables[g].iloc[-1].max()) for g in named], default=high)
    is_cut = source.metric.sign < 0 and bool(high > top)
    others += " (cut off above the scale)" * is_cut
    heading = (
        f"{capitalised(source.what)} by round, {source.subject}{_tested(source)}. "
        f"Mean over {source.seeds_text}, bars: their range in the last round{others}."
    )
    width = source.drawing.width
    height = 1.5 + 3.4 * style.LINE
    columns = min(len(panels), style.columns(width))
    lines = -(-len(panels) // columns)
    figure, grid = style.panels(
        len(panels), (lines, columns), width, heading, lines * height, sharex=True, sharey=True
    )
    for axes, panel in zip(grid.flat, panels, strict=False):
        drawn = [group for group in panel.groups if group in tables]
        for group in sorted(drawn, key=lambda group: group.label in strong):
            table, mean = tables[group], means[group]
            if group.label not in strong:
                axes.plot(mean.index, mean, color=style.REST, linewidth=0.7)
                continue
            place = strong.index(group.label)
            colour = style.STRONG[place]
            last = table.iloc[-1]
            beside = mean.index[-1] + _APART * (1 + place) * (mean.index[-1] - mean.index[0])
            axes.vlines(beside, last.min(), last.max(), color=colour)
            dashes = _DASHES[group.claim]
            look: Any = {"color": colour, "linestyle": dashes, "marker": ".", "markersize": 3}
            axes.plot(mean.index, mean, label=source.name(group).replace("\n", ", "), **look)
        axes.set_title(panel.title, loc="left", fontweight="bold")
        axes.grid(axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.margins(x=0.02)
        axes.label_outer()
    if is_cut:
        margin = 0.05 * (top - low)
        grid[0, 0].set_ylim(low - margin, top + margin)
    for axes in grid[:, 0]:
        axes.set_ylabel(source.axis)
    for axes in grid[-1]:
        axes.set_xlabel("round")
    style.legend(figure, *grid.flat, columns=style.columns(width))
    return figure


def _tested(source: Source) -> str:
    """Return the number of clients of an accuracy, unless it is all."""
    counts = {cell.training.evaluate_clients for cell in source.study.cells} - {0}
    return f"; {max(counts)} clients, drawn once for a seed" if counts else ""


def _strong(source: Source, panel: Panel, tables: Mapping[Group, pd.DataFrame]) -> Sequence[str]:
    """Return the labels of emphasised groups: those that the study names, else the baseline, those
    without privacy, and the best certified or unreviewed methods of the last panel."""
    drawn = [group for group in panel.groups if group in tables]
    if source.drawing.strong:
        wanted, rows = set(source.drawing.strong), source.study.rows
        chosen = [g for g in drawn if {g.method, rows[g.indices[0]].variant} & wanted]
        return [group.label for group in chosen][: len(style.STRONG)]

    def last(group: Group) -> float:
        mean = source.metric.sign * float(tables[group].iloc[-1].mean())
        return -math.inf if math.isnan(mean) else mean

    rivals = [group for group in of_claim(drawn, *WITHOUT_DEPARTURES) if group.label != PLAIN]
    best = sorted(rivals, key=lambda group: (-last(group), group.label))[:BEST]
    first = [group for group in drawn if group.label == PLAIN]
    return [group.label for group in (*first, *best, *of_claim(drawn, "none"))][: len(style.STRONG)]
