"""Panels with one row for each method, as high as their names need."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pflpipe.report.figures import style
from pflpipe.report.figures.source import Source, by_claim
from pflpipe.study.settings import Setting

_GAP = 0.6
_FRAME = 3.6
"""Height of a panel's title, ticks and axis label, in lines of text."""


@dataclass(frozen=True)
class Row:
    """A row of a panel.

    Attributes:
        label: in the study.
        name: written left of it, in one or more lines.
    """

    label: str
    name: str


@dataclass(frozen=True)
class Block:
    """A panel: its title, and its rows in groups that are not ranked with each other."""

    title: str
    groups: Sequence[Sequence[Row]]


@dataclass(frozen=True)
class Places:
    """The axes of a panel, side by side, and the height of each row, by label."""

    axes: tuple[Axes, ...]
    heights: dict[str, float]


def ranked(
    source: Source, settings: Sequence[Setting], worth: Callable[[str], float | None]
) -> list[list[Row]]:
    """Return rows in groups of one claim, best first.

    Args:
        worth: of a label; None where there is nothing to show.
    """
    groups = []
    for members in by_claim(source, settings).values():
        known = [(value, s) for s in members if (value := worth(s.label)) is not None]
        known.sort(key=lambda entry: (-entry[0], entry[1].label))
        groups.append([Row(setting.label, source.name(setting)) for _, setting in known])
    return [group for group in groups if group]


def draw(
    blocks: Sequence[Block], width: float, heading: str, parts: int = 1
) -> tuple[Figure, list[Places]]:
    """Return a figure with the panels, and where their rows are: one panel below the other or, if
    the figure is wide, two side by side.

    Args:
        parts: axes of each panel.
    """
    columns = min(len(blocks), style.columns(width))
    blocks = [_wrapped(block, width / columns) for block in blocks]
    lines = [blocks[start : start + columns] for start in range(0, len(blocks), columns)]
    heights = [max(map(_height, line)) for line in lines]
    figure = Figure(figsize=(width, 1), layout="constrained")
    above = style.head(figure, heading)
    figure.set_figheight(above + style.LINE * (sum(heights) + _FRAME * len(lines)))
    grid: Any = figure.subplots(
        len(lines), columns * parts, squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    panels = grid.reshape(-1, parts)
    for axes in panels[len(blocks) :].flat:
        axes.set_axis_off()
    return figure, [
        _place(tuple(axes), block, heights[index // columns])
        for index, (axes, block) in enumerate(zip(panels, blocks, strict=False))
    ]


def same_scale(
    places: Sequence[Places], part: int = 0, ticks: int = 4, least: float = -math.inf
) -> None:
    """Give one part of all panels one horizontal scale, so that they can be compared, with round
    ticks; it does not begin below ``least``."""
    limits = [place.axes[part].get_xlim() for place in places]
    low, high = max(least, min(low for low, _ in limits)), max(high for _, high in limits)
    for place in places:
        place.axes[part].set_xlim(low, high)
        place.axes[part].xaxis.set_major_locator(MaxNLocator(ticks, steps=(1, 2, 5, 10)))


def _wrapped(block: Block, width: float) -> Block:
    groups = [
        [Row(row.label, "\n".join(style.name_lines(row.name, width))) for row in group]
        for group in block.groups
    ]
    return dataclasses.replace(block, groups=groups)


def _lines(row: Row) -> int:
    return row.name.count("\n") + 1


def _height(block: Block) -> float:
    rows = sum(_lines(row) for group in block.groups for row in group)
    return rows + _GAP * (len(block.groups) - 1)


def _place(axes: tuple[Axes, ...], block: Block, height: float) -> Places:
    heights: dict[str, float] = {}
    names: list[str] = []
    below = 0.0
    for index, group in enumerate(block.groups):
        if index:
            below += _GAP
            for part in axes:
                part.axhline(below - _GAP / 2, color=style.REST, linewidth=0.6)
        for row in group:
            heights[row.label] = below + _lines(row) / 2
            names.append(row.name)
            below += _lines(row)
    for part in axes:
        part.set_ylim(height, 0)
        part.set_yticks(list(heights.values()), names if part is axes[0] else [])
        part.tick_params(axis="y", length=0)
        part.spines["left"].set_visible(False)
        part.grid(axis="x")
    axes[0].set_title(block.title, loc="left", fontweight="bold")
    return Places(axes, heights)
