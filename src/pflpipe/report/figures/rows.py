"""Panels with one row for each group; their height follows from the wrapped names."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pflpipe.code.dependencies import CLAIMS
from pflpipe.report.comparison import Group, of_claim
from pflpipe.report.figures import style
from pflpipe.report.figures.source import Source

_GAP = 0.6
_FRAME = 3.6
"""Height of a panel's title, ticks and axis label, in lines of text."""


@dataclass(frozen=True)
class Block:
    """A panel: its title, and sections of rows that are ranked separately. A section maps a row's
    subject (a group, an audit) to the name left of the row."""

    title: str
    sections: Sequence[Mapping[Any, str]]

    def wrapped(self, width: float) -> Block:
        """Return the panel, ``width`` inches wide, with names wrapped to less than half of it."""

        def wrapped(name: str) -> str:
            parts = [style.lines_of(part, 0.45 * width) for part in name.split("\n")]
            return "\n".join(itertools.chain(*parts))

        sections = [{row: wrapped(name) for row, name in part.items()} for part in self.sections]
        return Block(self.title, sections)

    @property
    def height(self) -> float:
        """In lines of text."""
        lines = sum(_lines(name) for section in self.sections for name in section.values())
        return lines + _GAP * (len(self.sections) - 1)


@dataclass(frozen=True)
class Places:
    """The axes of a panel, from left to right, and the height of each row."""

    axes: tuple[Axes, ...]
    heights: dict[Any, float]


def ranked(source: Source, title: str, worth: Mapping[Group, float]) -> Block:
    """Return a panel with the groups of ``worth``: one section per claim, largest worth first."""
    sections = []
    for claim in CLAIMS:
        members = sorted(of_claim(worth, claim), key=lambda group: (-worth[group], group.label))
        sections.append({group: source.name(group) for group in members})
    return Block(title, list(filter(None, sections)))


def draw(
    blocks: Sequence[Block], width: float, heading: str, parts: int = 1
) -> tuple[Figure, list[Places]]:
    """Return a figure with the panels, two next to each other if it is wide, and the places of
    their rows.

    Args:
        parts: number of axes of each panel.
    """
    columns = min(len(blocks), style.columns(width))
    blocks = [block.wrapped(width / columns) for block in blocks]
    lines = [blocks[start : start + columns] for start in range(0, len(blocks), columns)]
    heights = [max(block.height for block in line) for line in lines]
    shape, tall = (len(lines), columns * parts), style.LINE * (sum(heights) + _FRAME * len(lines))
    ratios: Any = {"height_ratios": heights}
    count = len(blocks) * parts
    figure, grid = style.panels(count, shape, width, heading, tall, gridspec_kw=ratios)
    return figure, [
        _place(tuple(axes), block, heights[index // columns])
        for index, (axes, block) in enumerate(zip(grid.reshape(-1, parts), blocks, strict=False))
    ]


def same_scale(
    places: Sequence[Places],
    part: int = 0,
    ticks: int = 4,
    within: Sequence[float] = (-math.inf, math.inf),
) -> None:
    """Give one part of all panels the same horizontal scale with round ticks, which does not leave
    the interval ``within``."""
    lows, highs = zip(*(place.axes[part].get_xlim() for place in places), strict=True)
    for place in places:
        place.axes[part].set_xlim(max(within[0], min(lows)), min(within[1], max(highs)))
        place.axes[part].xaxis.set_major_locator(MaxNLocator(ticks, steps=(1, 2, 5, 10)))


def _lines(name: str) -> int:
    return name.count("\n") + 1


def _place(axes: tuple[Axes, ...], block: Block, height: float) -> Places:
    heights: dict[Any, float] = {}
    below = 0.0
    for index, section in enumerate(block.sections):
        if index:
            below += _GAP
            for part in axes:
                part.axhline(below - _GAP / 2, color=style.REST, linewidth=0.6)
        for row, name in section.items():
            heights[row] = below + _lines(name) / 2
            below += _lines(name)
    names = [name for section in block.sections for name in section.values()]
    for part in axes:
        part.set_ylim(height, 0)  # the first row is at the top
        part.set_yticks(list(heights.values()), names if part is axes[0] else [])
        part.tick_params(axis="y", length=0)
        part.spines["left"].set_visible(False)
        part.grid(axis="x")
    axes[0].set_title(block.title, loc="left", fontweight="bold")
    return Places(axes, heights)
