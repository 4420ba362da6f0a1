"""Figures with methods sorted by their accuracy: comparison at each budget, ranks, the gain of
published methods from their departures, and costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pflpipe.code.dependencies import CLAIMS
from pflpipe.methods import registry
from pflpipe.report import comparison
from pflpipe.report.comparison import PLAIN, Group, of_claim
from pflpipe.report.figures import rows, style
from pflpipe.report.figures.source import Source
from pflpipe.report.sentences import capitalised
from pflpipe.report.statistics import ALPHA, MIN_SEEDS, against, paired, rank_intervals
from pflpipe.study.settings import layout

CERTIFIED, UNREVIEWED, NOMINAL, NONE = CLAIMS
_LOOKS: Mapping[str, dict[str, Any]] = {
    CERTIFIED: {"color": style.CERTIFIED, "marker": "o"},
    UNREVIEWED: {"color": style.UNREVIEWED, "marker": "D"},
    NOMINAL: {"color": style.NOMINAL, "marker": "o", "markerfacecolor": "white"},
    NONE: {"color": style.PLAIN, "marker": "s"},
}
_CLAIMS = "Filled: certified{}. Hollow: nominal, with the ε that holds. Grey: no privacy."
_UNREVIEWED = " Diamond: unreviewed, its ε holds only if code from outside keeps the rules."
_BASELINE = registry.info(PLAIN).about.title
_LEVEL = f"{100 * (1 - ALPHA):g} %"

Part = tuple[str, Mapping[Group, tuple[float, float, float]]]
"""A panel's title, and of each of its groups an estimate with the two ends of its interval."""


def privacy_utility(source: Source) -> Figure:
    """Draw the accuracy of each method at each budget, as the difference to ``PLAIN`` on the same
    splits with its interval; best first, in sections by claim.

    Filled: certified. Diamond: unreviewed. Hollow: nominal, with the epsilon that the mechanism
    provides. Grey: no privacy. Right: the mean accuracy. The intervals of a section are those of a
    table: of pooled variances, and together at 95 % (statistics.py). If a panel lacks the baseline,
    all panels show the accuracy itself. A method far worse than the others would compress them: the
    scale ends before it, with an arrow.
    """
    values = [source.values(panel.groups) for panel in source.panels]
    baselines = [{group.label: v for group, v in part.items()}.get(PLAIN) for part in values]
    compared = bool(values) and all(baseline is not None for baseline in baselines)
    parts = []
    for panel, part, baseline in zip(source.panels, values, baselines, strict=True):
        if compared and baseline is not None:
            numbers = _beside(part, baseline)
        else:
            numbers = {group: _interval(one, 0 * one) for group, one in part.items()}
        parts.append((panel.title, numbers))
    what = f"{capitalised(source.what)}, {source.subject}"
    if compared:
        what += f": difference to {_BASELINE} on the same splits"
    delta = layout(source.study).shared.get("privacy.delta")
    claims = _CLAIMS.format(f" (δ = {delta:g})" if delta else "")
    heading = f"{what}. Mean and {_LEVEL} interval over {source.seeds_text}. {claims}"
    if any(of_claim(panel.groups, UNREVIEWED) for panel in source.panels):
        heading += _UNREVIEWED
    source.require(any(len(numbers) for _, numbers in parts), source.metric.heading)
    sign = source.metric.sign
    ends = _scale(parts, sign) if compared else (-np.inf, np.inf)
    beyond = [
        [g for g, (mean, *_) in numbers.items() if not ends[0] <= mean <= ends[1]]
        for _, numbers in parts
    ]
    side, arrow, edge = ("left", "<", ends[0]) if sign > 0 else ("right", ">", ends[1])
    if any(map(len, beyond)):
        heading += f" Arrow: further to the {side}."
    label = f"{source.points} above {_BASELINE}" if compared else source.axis
    figure, places = _dotted(source, parts, heading, label, sign=sign, zero=compared)
    if compared:
        for place, part in zip(places, values, strict=True):
            _write_means(source, place, part)
    rows.same_scale(places, within=ends)
    for place, far in zip(places, beyond, strict=True):
        for group in far:
            look = _LOOKS[group.claim] | {"marker": arrow}
            at = ([edge], [place.heights[group]])
            place.axes[0].plot(*at, linestyle="none", clip_on=False, **look)
    return figure


def _beside(
    values: Mapping[Group, pd.Series[float]], baseline: pd.Series[float]
) -> dict[Group, tuple[float, float, float]]:
    found = {group: (0.0, 0.0, 0.0) for group, one in values.items() if one is baseline}
    for section in comparison.by(values, lambda group: group.claim).values():
        others = {group: values[group] for group in section if group not in found}
        for group, one in against(pd.DataFrame(others), baseline).items() if others else ():
            found[group] = one.mean, one.low, one.high
    return found


def _scale(parts: Sequence[Part], sign: int) -> tuple[float, float]:
    """Return both ends of the scale of all panels if rows are far worse than the others, else
    infinities.

    Far means beyond Tukey's outer fence, three interquartile ranges beyond the worse quartile. Rows
    without privacy are references and always on the scale.
    """
    everything = np.array([ends for _, numbers in parts for ends in numbers.values()])
    references = np.array([g.claim == NONE for _, numbers in parts for g in numbers])
    worth = sign * everything[:, 0]
    lower, upper = np.nanquantile(worth, (0.25, 0.75))
    near = ~(worth < lower - 3 * (upper - lower)) | references
    if near.all():
        return -np.inf, np.inf
    shown = everything[near]
    low, high = (float(end(shown[np.isfinite(shown)])) for end in (np.min, np.max))
    margin = 0.05 * (high - low)  # as matplotlib leaves
    return low - margin, high + margin


def ranks(source: Source) -> Figure:
    """Draw the rank of each certified method at each budget, with its ranks in resamplings of the
    seeds (``statistics.rank_intervals``). The bars are descriptive, not significance tests."""
    parts = []
    for panel in source.panels:
        certified = source.values(of_claim(panel.groups, CERTIFIED))
        values = source.metric.sign * pd.DataFrame(certified)
        intervals = rank_intervals(values, source.study.name, panel.title)
        means = values[list(intervals)].mean()
        numbers = {g: (1.0 + (means > means[g]).sum(), *ends) for g, ends in intervals.items()}
        if len(numbers) > 1:
            parts.append((panel.title, numbers))
    source.require(bool(parts), f"two certified methods to rank, with {MIN_SEEDS} seeds")
    heading = (
        f"Rank by {source.what}, {source.subject}, of certified methods. Dot: rank of the mean; "
        f"bar: the ranks in {_LEVEL} of resamplings of {source.seeds_text}, too short rather than "
        "too long."
    )
    figure, places = _dotted(source, parts, heading, "rank (1 = best)", sign=-1)
    for place in places:
        last = len(place.heights)
        place.axes[0].set_xlim(0.5, last + 0.5)
        place.axes[0].set_xticks(np.unique(np.linspace(1, last, 5).round()))
    return figure


def soundness(source: Source) -> Figure:
    """Draw the cost of soundness: by how much each published version is more accurate than the
    certified one of the same method at the same nominal budget, and the epsilon that holds."""
    parts = []
    for panel in source.panels:
        values = source.values(of_claim(panel.groups, CERTIFIED, NOMINAL))
        differences = {
            published: _interval(values[published], values[sound])
            for members in comparison.by(values, lambda group: group.method).values()
            for published, sound in comparison.pairs(members)
            if published and sound
        }
        if differences:
            parts.append((panel.title, differences))
    source.require(bool(parts), "a method both as certified and as published")
    heading = (
        f"What soundness costs: {source.what} of a method as published, at the ε it claims, less "
        f"that of its certified version; {source.subject}. Mean and {_LEVEL} interval over "
        f"{source.seeds_text}."
    )
    label, sign = f"{source.points} above certified", source.metric.sign
    figure, places = _dotted(source, parts, heading, label, sign=sign, zero=True)
    rows.same_scale(places)
    return figure


def cost(source: Source) -> Figure:
    """Draw accuracy, the megabytes that a client sends and the seconds of training, means over
    seeds: three columns with one row for each method. (In a scatter plot, points and names of many
    methods overlap.)

    A cost is blue on the Pareto frontier: no certified method is better for the same cost or less.
    """
    means = [
        {group: float(v.mean()) for group, v in source.values(panel.groups).items()}
        for panel in source.panels
    ]
    source.require(any(means), source.metric.heading)
    sign = source.metric.sign
    heading = (
        f"{capitalised(source.what)}, {source.subject}, and what it costs: MB that a client sends, "
        f"seconds of training. Means over {source.seeds_text}. A cost is blue where no certified "
        "method is better and no dearer."
    )
    titles = [panel.title for panel in source.panels]
    worth = [{group: sign * mean for group, mean in part.items()} for part in means]
    blocks = [rows.ranked(source, *part) for part in zip(titles, worth, strict=True)]
    figure, places = rows.draw(blocks, source.drawing.width, heading, 1 + len(_COSTS))
    room = source.drawing.width / min(len(blocks), style.columns(source.drawing.width)) / 4
    measured = "\n".join(style.lines_of(source.metric.unit or source.metric.heading, room))
    for place, mean, better in zip(places, means, worth, strict=True):
        spent = [{group: of(group.rows) for group in mean} for of in _COSTS.values()]
        units = (measured, *_COSTS)
        for part, (axes, unit, values) in enumerate(
            zip(place.axes, units, [mean, *spent], strict=True)
        ):
            axes.set_xlabel(unit)
            for group, x in values.items():
                off = part and group.claim == CERTIFIED and _is_beaten(group, better, values)
                look = _LOOKS[group.claim] | ({"color": style.PLAIN} if off else {})
                axes.plot([x], [place.heights[group]], clip_on=False, ls="none", **look)
    for part in range(1 + len(_COSTS)):
        for place in places:
            place.axes[part].set_xlim(left=0 if part else None)
            place.axes[part].xaxis.set_major_formatter("{x:g}")  # no zeros that meet those beside
        rows.same_scale(places, part, ticks=2)
    return figure


def _is_beaten(group: Group, worth: Mapping[Group, float], spent: Mapping[Group, float]) -> bool:
    return any(
        worth[other] >= worth[group]
        and spent[other] <= spent[group]
        and (worth[other], spent[other]) != (worth[group], spent[group])
        for other in of_claim(worth, CERTIFIED)
    )


def _megabytes(lines: pd.DataFrame) -> float:
    # The column counts the expected cohort; here one client takes part in all rounds.
    cohort = lines["clients"] * lines["sample_rate"]
    return 1e-6 * float((lines["upload_bytes_per_round"] * lines["rounds"] / cohort).mean())


_COSTS: Mapping[str, Callable[[pd.DataFrame], float]] = {
    "MB": _megabytes,
    "seconds": lambda lines: float(lines["train_seconds"].astype(float).mean()),
}


def _interval(ours: pd.Series[float], theirs: pd.Series[float]) -> tuple[float, float, float]:
    # Too few seeds have an infinite interval, of which matplotlib draws nothing but the dot.
    difference = paired(ours, theirs)
    return difference.mean, difference.low, difference.high


def _dotted(
    source: Source,
    parts: Sequence[Part],
    heading: str,
    label: str,
    *,
    sign: int = 1,
    zero: bool = False,
) -> tuple[Figure, list[rows.Places]]:
    """Draw a row with a dot and an interval for each group.

    Args:
        label: of the horizontal axis.
        sign: 1 if the largest estimate comes first, -1 if the smallest does.
        zero: whether a line marks 0.
    """
    blocks = [
        rows.ranked(source, title, {group: sign * mean for group, (mean, *_) in numbers.items()})
        for title, numbers in parts
    ]
    figure, places = rows.draw(blocks, source.drawing.width, heading)
    for place, (_, numbers) in zip(places, parts, strict=True):
        (axes,) = place.axes
        for group, (estimate, low, high) in numbers.items():
            look, height = _LOOKS[group.claim], place.heights[group]
            axes.plot([low, high], [height, height], color=look["color"], linewidth=1)
            axes.plot([estimate], [height], linestyle="none", **look)
        if zero:
            axes.axvline(0, color="#000000", linewidth=0.6, zorder=1)
        axes.set_xlabel(label)
    return figure, places


def _write_means(
    source: Source, place: rows.Places, values: Mapping[Group, pd.Series[float]]
) -> None:
    """Write the means to the right of the rows."""
    (axes,) = place.axes
    texts = {g: f"{values[g].mean():.{source.metric.digits}f}" for g in place.heights}
    end = 8 + 4.5 * max(map(len, texts.values()))
    right: Any = {"textcoords": "offset points", "ha": "right", "annotation_clip": False}
    axes.annotate(
        source.metric.unit, (1, 1), (end, 4), xycoords="axes fraction", va="baseline", **right
    )
    for group, height in place.heights.items():
        across = ("axes fraction", "data")
        axes.annotate(texts[group], (1, height), (end, 0), xycoords=across, va="center", **right)
