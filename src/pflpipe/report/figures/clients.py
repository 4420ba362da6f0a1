"""Figures of single clients: who gains by federated learning, and which data each client has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pflpipe.data.checks import are_numbers
from pflpipe.data.split import Split
from pflpipe.report.comparison import ALONE, Group
from pflpipe.report.figures import rows, style
from pflpipe.report.figures.source import Source
from pflpipe.report.tidy import existing

STEPS = (25.0, 50.0)
"""Gains and losses above these (percentage points) are darker."""
_GAIN, _LOSS = ("#a9d0ea", "#4a9fd0", "#005c91"), ("#f7c3a0", "#e98645", "#a84a00")
_PARTS = (("train", "#0072B2"), ("validation", "#E69F00"), ("test", "#b0b0b0"))
_NUMBERED = 30
"""With at most this many clients, the counts are written into the heat map."""
_DETAILS = {"dirichlet": "α = {alpha:g}, ", "pathological": "{classes_per_client} classes each, "}


def gains(source: Source) -> Figure:
    """Draw for each method the share of clients whose personal model is better, or worse, on their
    test rows than the model that they train alone on the same split. Large differences in accuracy
    are darker.

    Shares and not a density, because a client with few test rows has few possible accuracies.
    """
    parts = []
    for panel in source.panels:
        alone = next((group for group in panel.groups if group.method == ALONE), None)
        if alone is not None:
            baseline = dict(source.clients(alone))
            others = [group for group in panel.groups if group.method != ALONE]
            shares = {
                group: share for group in others if (share := _shares(source, group, baseline))
            }
            if shares:
                net = {group: gain[0] - loss[0] for group, (gain, loss) in shares.items()}
                parts.append((shares, rows.ranked(source, panel.title, net)))
    source.require(bool(parts), f"{ALONE} and another method")
    darker = f"; darker: by more than {' and '.join(f'{step:g}' for step in STEPS)} points"
    heading = (
        "Who gains: clients whose personal model is better (blue) or worse (orange) on their own "
        f"test than the model that they train alone{darker if source.in_points else ''}. Clients "
        f"of {source.seeds_text}."
    )
    figure, places = rows.draw([block for _, block in parts], source.drawing.width, heading)
    for place, (shares, _) in zip(places, parts, strict=True):
        (axes,) = place.axes
        for group, (gain, loss) in shares.items():
            for sign, kind, colours in ((1, gain, _GAIN), (-1, loss, _LOSS)):
                for length, colour in zip(kind, colours, strict=False):
                    axes.barh(place.heights[group], sign * length, 0.75, color=colour)
        axes.axvline(0, color="#000000", linewidth=0.6)
        axes.set_xlabel("worse    clients (%)    better")
    rows.same_scale(places)
    for place in places:
        place.axes[0].xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    return figure


def _shares(
    source: Source, group: Group, alone: Mapping[str, pd.Series[float]]
) -> tuple[list[float], list[float]] | None:
    """Return the percentages of clients that gain more than 0 and more than each of ``STEPS``, and
    of those that lose as much; None without clients to compare."""
    runs = source.clients(group)
    better = source.study.metric.sign
    differences = [
        better * (test - alone[split]).dropna() for split, test in runs if split in alone
    ]
    gain = np.concatenate(differences) if differences else np.empty(0)
    if not len(gain):
        return None
    gains, losses = (
        [float(100 * (sign * gain > step).mean()) for step in (0.0, *STEPS[: 2 * source.in_points])]
        for sign in (1, -1)
    )
    return gains, losses


def partition(source: Source) -> Figure:
    """Draw the examples per client and class, and each client's training, validation and test rows,
    for the study's first seed.

    Clients are sorted by their largest class, those without examples come last. Labels that are
    real numbers have no classes: clients are sorted by their examples.
    """
    first = source.study.rows[0].cell.seed
    chosen = [source.study.rows[i].cell for p in source.panels for g in p.groups for i in g.indices]
    cells = {cell.partition_id: cell for cell in chosen if cell.seed == first}
    figure = Figure(figsize=(source.drawing.width, 3.3 * len(cells)), layout="constrained")
    text = "The clients' examples, and which of them train, validate and test."
    heading = style.head(figure, text)
    figure.set_figheight(heading + figure.get_figheight())
    blocks: Any = figure.subfigures(len(cells), 1, squeeze=False)
    for block, cell in zip(blocks[:, 0], cells.values(), strict=True):
        with np.load(existing(source.data / f"{cell.dataset}.npz"), allow_pickle=False) as arrays:
            labels, classes = arrays["train_labels"], int(arrays["classes"])
        if are_numbers(labels):  # counted as one class
            labels, classes = np.zeros(len(labels), np.int64), 1
        split = Split.load(existing(source.results / "partitions" / f"{cell.partition_id}.npz"))
        _holdings(block, split, labels, classes)
        detail = _DETAILS.get(cell.partition.kind, "")
        text = f"{{kind}}, {detail}{len(split.train)} clients".format(**vars(cell.partition))
        title = style.lines_of(f"{cell.dataset}: {text}, seed {first}", source.drawing.width)
        block.suptitle("\n".join(title), x=0.01, ha="left", fontweight="bold")
    return figure


def _by_class(block: Any, axes: Axes, counts: np.ndarray) -> None:
    """Draw a heat map of examples ``[classes, clients]``."""
    held_counts = np.ma.masked_equal(counts, 0)  # zeros stay white
    image = axes.imshow(held_counts, "Blues", vmin=0, aspect="auto", origin="lower")
    axes.set_ylabel("class")
    axes.yaxis.set_major_locator(_whole())
    block.colorbar(image, ax=axes, label="examples", pad=0.01, aspect=14, ticks=_whole())
    if counts.shape[1] <= _NUMBERED and len(counts) <= 20:
        for row, column in zip(*np.nonzero(counts), strict=True):
            number = counts[row, column]
            colour = "white" if number > 0.45 * counts.max() else "black"
            axes.text(column, row, number, ha="center", va="center", fontsize=6, color=colour)


def _whole() -> MaxNLocator:
    return MaxNLocator(integer=True, nbins=6)


def _holdings(block: Any, split: Split, labels: np.ndarray, classes: int) -> None:
    held = [
        np.concatenate([train, validation])
        for train, validation in zip(split.train, split.validation, strict=True)
    ]
    counts = np.stack([np.bincount(labels[row], minlength=classes) for row in held], axis=1)
    # A client without examples gets a class after the last one, so that it comes last.
    largest_class = np.where(counts.any(axis=0), counts.argmax(axis=0), classes)
    order = np.lexsort((-counts.max(axis=0), largest_class))
    counts, clients = counts[:, order], np.arange(len(held))
    if classes == 1:
        below = block.subplots()
    else:
        above, below = block.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [2, 1]})
        _by_class(block, above, counts)
    bottom = np.zeros(len(held))
    for name, colour in _PARTS:
        sizes = np.array([len(row) for row in getattr(split, name)])[order]
        below.bar(clients, sizes, bottom=bottom, width=1.0, color=colour, label=name)
        bottom += sizes
    below.set_xlim(-0.5, len(held) - 0.5)
    below.set_xlabel(f"client, sorted by its {'largest class' if classes > 1 else 'examples'}")
    below.set_ylabel("examples")
    below.xaxis.set_major_locator(_whole())
    place: Any = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "borderaxespad": 0.1}
    below.legend(ncols=3, handlelength=1, columnspacing=1, **place)
