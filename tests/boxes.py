"""Where the text of a figure is, so that none hides another."""

import itertools
from collections.abc import Iterator
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text


def labels(figure: Figure) -> Iterator[tuple[str, Any]]:
    """Yield every piece of text that can be seen, and the box that it takes, in dots."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()
    unseen = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        if not axes.axison
        or not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
        for label in (tick.label1, tick.label2)
    }
    for text in set(figure.findobj(Text)) - unseen:
        words = text.get_text()
        if words.strip() and text.get_visible():
            box = Text.get_window_extent(text, renderer)
            empty = len(words) - len(words.lstrip("\n"))  # lines above it, as a legend's room
            box.y1 -= box.height * empty / (words.count("\n") + 1)
            yield words, box


def check(figure: Figure) -> int:
    """Check that no text overlaps another or leaves the figure; return how many there are."""
    found = list(labels(figure))
    inside = figure.bbox.padded(1)
    for words, box in found:
        assert inside.x0 <= box.x0, words
        assert box.x1 <= inside.x1, words
        assert inside.y0 <= box.y0, words
        assert box.y1 <= inside.y1, words
    for (one, a), (other, b) in itertools.combinations(found, 2):
        apart = a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1
        assert apart, (one, other)
    return len(found)
