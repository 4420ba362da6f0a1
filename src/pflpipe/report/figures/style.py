"""What all figures share: style sheet, colours, headings, notes and legends.

Figures do not change matplotlib's global state (no pyplot), and their files have no date and no
random ids: the same results give the same bytes. The colours are those of Okabe and Ito ("Color
Universal Design", 2008), which people with any colour vision can distinguish, without yellow, which
is invisible on white.
"""

import math
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pflpipe.files import atomic, write_text

SHEET = Path(__file__).with_name("pflpipe.mplstyle")
CERTIFIED, UNREVIEWED, NOMINAL, PLAIN = "#0072B2", "#CC79A7", "#D55E00", "#777777"
REST = "#c8c8c8"
STRONG = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Colours of emphasised lines, in order; with the grey ``REST``, eight."""
LINE = 0.14
"""Height of a line of text, in inches."""
_NOTE = 0.108
"""Height of a line of a note, whose text is smaller, in inches."""
WIDTHS = (3.3, 6.7)
"""Widths of figures, in inches: a column of a paper, or its page."""
_CHARACTERS = 16
"""Number of characters that fit into an inch, on average and with a margin."""
_METADATA: Mapping[str, Mapping[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}


def save(draw: Callable[[], Figure], target: Path, bare: bool = False) -> None:
    """Draw in the style of all figures and write ``target`` (.png) and, next to it, .svg and
    .pdf. ``bare`` leaves heading and note out and writes them as .txt instead."""
    with matplotlib.rc_context(fname=SHEET):
        figure = draw()
        if bare:
            write_text(target.with_suffix(".txt"), _without_text(figure))
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()
        figure.set_layout_engine(None)  # the layout is computed once for all files
        for kind, metadata in _METADATA.items():
            with atomic(target.with_suffix(f".{kind}")) as path:
                figure.savefig(path, format=kind, metadata=metadata)


def _without_text(figure: Figure) -> str:
    # Undo ``head`` and ``foot``; return their text. What ``legend`` reserves stays.
    heading, below = figure.get_suptitle(), figure.get_supxlabel()
    note = below.lstrip("\n")
    figure.suptitle("")
    figure.supxlabel(below.removesuffix(note))
    lines = len([*heading.splitlines(), *note.splitlines()])
    figure.set_figheight(figure.get_figheight() - LINE * lines)
    for one in figure.legends:
        one.set_bbox_to_anchor((0, 0))
    # A line that ends with a hyphen was broken inside of a word.
    texts = (re.sub(r"(?<!-)\n", " ", text).replace("\n", "") for text in (heading, note))
    return "\n\n".join(filter(None, texts)) + "\n"


def lines_of(text: str, width: float, size: float = 8) -> list[str]:
    """Wrap a text to a width in inches, for a font size in points."""
    return textwrap.wrap(text, max(int(_CHARACTERS * width * 8 / size), 8))


def columns(width: float) -> int:
    """Return how many panels are next to each other in a figure."""
    return 1 + (width > min(WIDTHS))


def head(figure: Figure, text: str) -> float:
    """Write a heading above a figure, over its whole width; return its height in inches."""
    lines = lines_of(text, figure.get_figwidth())
    figure.suptitle("\n".join(lines), x=0.01, ha="left", va="top")
    return len(lines) * LINE


def panels(
    count: int, shape: tuple[int, int], width: float, heading: str, height: float, **options: Any
) -> tuple[Figure, Any]:
    """Return a figure with a grid of axes below its heading, and the grid.

    Args:
        count: number of axes; the other places of the grid stay empty.
        shape: rows and columns of the grid.
        height: of the grid with its titles and labels, in inches.
        options: of ``Figure.subplots``.
    """
    figure = Figure(figsize=(width, 1), layout="constrained")
    figure.set_figheight(head(figure, heading) + height)
    grid: Any = figure.subplots(*shape, squeeze=False, **options)
    for axes in grid.flat[count:]:
        axes.set_axis_off()
    return figure, grid


def foot(figure: Figure, text: str) -> None:
    """Write a note below a figure and its legend, over its whole width. The figure grows by the
    height of the note."""
    lines = lines_of(text, figure.get_figwidth(), 6.5)
    figure.supxlabel(figure.get_supxlabel() + "\n".join(lines), x=0.01, ha="left", color=PLAIN)
    figure.set_figheight(figure.get_figheight() + LINE * len(lines))
    for one in figure.legends:
        one.set_bbox_to_anchor((0, LINE * len(lines) / figure.get_figheight()))


def legend(figure: Figure, *axes: Axes, columns: int) -> None:
    """Write a legend below a figure, each label once. The figure grows by the height of the legend.

    An empty ``supxlabel`` of the same height reserves its place, because matplotlib's layout would
    place a legend outside of the axes and a note on top of each other.

    Args:
        axes: with the labelled marks.
        columns: of the legend.
    """
    marks: dict[str, Artist] = {}
    for part in axes:
        for handle, label in zip(*part.get_legend_handles_labels(), strict=True):
            marks.setdefault(label, handle)
    look: Any = {"loc": "lower left", "bbox_to_anchor": (0, 0), "borderaxespad": 0}
    look |= {"ncols": columns, "handlelength": 1.5, "columnspacing": 1}
    key = figure.legend(list(marks.values()), list(marks), **look)
    height = key.get_window_extent().height / figure.dpi
    figure.supxlabel("\n" * math.ceil(1 + height / _NOTE), x=0.01, ha="left")
    figure.set_figheight(figure.get_figheight() + height + _NOTE)
