"""Methods in the order of their accuracy: the comparison at each budget, intervals of ranks, what a
published method gains by its departures, and what accuracy costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pflpipe.report.figures import rows, style
from pflpipe.report.figures.source import (
    CERTIFIED,
    NOMINAL,
    NONE,
    REFERENCE,
    UNREVIEWED,
    Source,
    by_claim,
)
from pflpipe.report.statistics import ALPHA, MIN_SEEDS, Difference, paired, rank_intervals
from pflpipe.study.settings import Setting

_LOOKS: Mapping[str, dict[str, Any]] = {
    CERTIFIED: {"color": style.CERTIFIED, "marker": "o"},
    UNREVIEWED: {"color": style.UNREVIEWED, "marker": "D"},
    NOMINAL: {"color": style.NOMINAL, "marker": "o", "markerfacecolor": "white"},
    NONE: {"color": style.PLAIN, "marker": "s"},
}
_CLAIMS = "Filled: certified{}. Hollow: nominal, with the ε that holds. Grey: no privacy."
_UNREVIEWED = " Diamond: unreviewed, its ε holds only if the method's file keeps the rules."
_LEVEL = f"{100 * (1 - ALPHA):g} %"


def privacy_utility(source: Source) -> Figure:
    """Accuracy of each method at each budget, as the difference to ``REFERENCE`` on the same
    splits with its interval; best first, rows of one claim among themselves.

    Filled: certified. Diamond: unreviewed. Hollow: nominal, with the epsilon that the mechanism
    provides. Grey: no privacy. Right: the mean accuracy. Each interval is of its method alone: of
    twenty such intervals one may well exclude 0 by chance, and words about who is better follow
    from the adjusted ones (docs/results.md). Where a panel lacks the reference, they are those of
    the accuracy itself. What is far below all others would press them into one line: the scale ends
    before it, and an arrow points there.
    """
    sign = source.metric.sign
    values = [source.values(panel.settings) for panel in source.panels]
    compared = bool(values) and all(REFERENCE in own for own in values)
    found = [
        _frame(
            {label: paired(v, own[REFERENCE] if compared else 0 * v) for label, v in own.items()}
        )
        for own in values
    ]
    blocks = [
        rows.Block(
            panel.title, rows.ranked(source, panel.settings, _worth(sign * numbers["estimate"]))
        )
        for panel, numbers in zip(source.panels, found, strict=True)
    ]
    what = f"{_sentence(source.what)}, {source.words}"
    if compared:
        what += f": difference to {REFERENCE} on the same splits"
    delta = source.layout.shared.get("privacy.delta")
    claims = _CLAIMS.format(f" (δ = {delta:g})" if delta else "")
    heading = f"{what}. Mean and {_LEVEL} interval over {source.seeds_text}. {claims}"
    if any(source.claim(s) == UNREVIEWED for panel in source.panels for s in panel.settings):
        heading += _UNREVIEWED
    source.require(any(map(len, found)), source.metric.heading)
    least = _least(source, found) if compared and sign > 0 else -np.inf
    if any((numbers["estimate"].to_numpy(float) < least).any() for numbers in found):
        heading += " Arrow: further to the left."
    figure, places = rows.draw(blocks, source.drawing.width, heading)
    for panel, place, numbers, own in zip(source.panels, places, found, values, strict=True):
        (axes,) = place.axes
        _dots(source, axes, panel.settings, place.heights, numbers)
        if compared:
            axes.axvline(0, color="#000000", linewidth=0.6, zorder=1)
            _numbers(source, axes, place.heights, own)
        axes.set_xlabel(f"{source.points} above {REFERENCE}" if compared else source.axis)
    rows.same_scale(places, least=least)
    for panel, place, numbers in zip(source.panels, places, found, strict=True):
        beyond = set(numbers.index[numbers["estimate"].to_numpy(float) < least])
        far = [setting for setting in panel.settings if setting.label in beyond]
        _arrows(source, place.axes[0], far, place.heights)
    return figure


def _least(source: Source, found: Sequence[pd.DataFrame]) -> float:
    """Return where the scale of all panels begins if rows are far below the others, else minus
    infinity.

    Far is beyond Tukey's outer fence, three times as far from the middle half of all rows as this
    is wide; what has no privacy is always shown, since all is compared with it.
    """
    everything = pd.concat(found)
    estimates = everything["estimate"].to_numpy(float)
    lower, upper = np.nanquantile(estimates, (0.25, 0.75))
    references = {
        setting.label
        for panel in source.panels
        for setting in by_claim(source, panel.settings).get(NONE, [])
    }
    near = ~(estimates < lower - 3 * (upper - lower)) | everything.index.isin(references)
    if near.all():
        return -np.inf
    shown = everything[near].to_numpy(float)
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    return low - 0.05 * (high - low)  # the margin that matplotlib leaves


def ranks(source: Source) -> Figure:
    """Rank of each certified method at each budget, with the ranks that it takes when the seeds are
    drawn again with replacement (``statistics.rank_intervals``): a description, no test."""
    parts = []
    for panel in source.panels:
        certified = by_claim(source, panel.settings).get(CERTIFIED, [])
        numbers = _ranks(source, panel.title, certified)
        if len(numbers) > 1:
            groups = rows.ranked(source, certified, _worth(-numbers["estimate"]))
            parts.append((certified, numbers, rows.Block(panel.title, groups)))
    source.require(bool(parts), f"two certified methods to rank, with {MIN_SEEDS} seeds")
    heading = (
        f"Rank by {source.what}, {source.words}, of certified methods. Dot: rank of the mean; bar: "
        f"the ranks in {_LEVEL} of resamplings of {source.seeds_text}, which are rather too few "
        "than too many."
    )
    figure, places = rows.draw([block for *_, block in parts], source.drawing.width, heading)
    for place, (certified, numbers, _) in zip(places, parts, strict=True):
        (axes,) = place.axes
        _dots(source, axes, certified, place.heights, numbers)
        axes.set_xlim(0.5, len(numbers) + 0.5)
        axes.set_xticks(np.unique(np.linspace(1, len(numbers), 5).round()))
        axes.set_xlabel("rank (1 = best)")
    return figure


def soundness(source: Source) -> Figure:
    """What soundness costs: by how much each published version is more accurate than the certified
    one of the same method, at the same nominal budget, and the epsilon that holds for it."""
    parts = []
    for panel in source.panels:
        claims = by_claim(source, panel.settings)
        values = source.values(panel.settings)
        certified = [s for s in claims.get(CERTIFIED, []) if s.label in values]
        own = {
            setting.label: other.label
            for setting in claims.get(NOMINAL, [])
            for other in certified[::-1]  # the first one in the study's order is kept
            if other.method == setting.method and setting.label in values
        }
        if own:
            numbers = _frame(
                {label: paired(values[label], values[other]) for label, other in own.items()}
            )
            worth = _worth(source.metric.sign * numbers["estimate"])
            groups = rows.ranked(source, panel.settings, worth)
            parts.append((panel, numbers, rows.Block(panel.title, groups)))
    source.require(bool(parts), "a method both as certified and as published")
    heading = (
        f"What soundness costs: {source.what} of a method as published, at the ε it claims, less "
        f"that of its certified version; {source.words}. Mean and {_LEVEL} interval over "
        f"{source.seeds_text}."
    )
    figure, places = rows.draw([block for *_, block in parts], source.drawing.width, heading)
    for place, (panel, numbers, _) in zip(places, parts, strict=True):
        (axes,) = place.axes
        _dots(source, axes, panel.settings, place.heights, numbers)
        axes.axvline(0, color="#000000", linewidth=0.6, zorder=1)
        axes.set_xlabel(f"{source.points} above certified")
    rows.same_scale(places)
    return figure


def cost(source: Source) -> Figure:
    """Accuracy against the megabytes that a client sends and the seconds of training, means over
    seeds: three columns of one row for each method, where many points of a plane would hide each
    other and their names.

    A cost is blue on the frontier, where no certified method is better for the same or less.
    """
    parts = []
    for panel in source.panels:
        means = {label: v.mean() for label, v in source.values(panel.settings).items()}
        worth = _worth(source.metric.sign * pd.Series(means, dtype=float))
        parts.append(
            (panel, means, rows.Block(panel.title, rows.ranked(source, panel.settings, worth)))
        )
    source.require(any(means for _, means, _ in parts), source.metric.heading)
    sign = source.metric.sign
    heading = (
        f"{_sentence(source.what)} ({source.words}) and what it costs: MB that a client sends, "
        f"seconds of training. Means over {source.seeds_text}. A cost is blue where no certified "
        "method is better and no dearer."
    )
    figure, places = rows.draw(
        [block for *_, block in parts], source.drawing.width, heading, len(_COSTS) + 1
    )
    for place, (panel, means, _) in zip(places, parts, strict=True):
        drawn = [setting for setting in panel.settings if setting.label in means]
        certified = {s.label for s in drawn if source.claim(s) == CERTIFIED}
        spent = [means] + [{s.label: of(source.rows(s)) for s in drawn} for of in _COSTS.values()]
        for part, (axes, values) in enumerate(zip(place.axes, spent, strict=True)):
            for setting in drawn:
                label = setting.label
                look = dict(_LOOKS[source.claim(setting)])
                beaten = any(
                    sign * means[a] >= sign * means[label]
                    and values[a] <= values[label]
                    and (means[a], values[a]) != (means[label], values[label])
                    for a in certified
                )
                if part and label in certified and beaten:
                    look["color"] = style.PLAIN
                axes.plot([values[label]], [place.heights[label]], clip_on=False, ls="none", **look)
            axes.set_xlabel([source.metric.unit or source.metric.heading, *_COSTS][part])
    for part in range(len(_COSTS) + 1):
        if part:
            for place in places:
                place.axes[part].set_xlim(left=0)
        rows.same_scale(places, part, ticks=2)
    return figure


def _sentence(words: str) -> str:
    """Return words that begin a sentence."""
    return words[:1].upper() + words[1:]


def _megabytes(lines: pd.DataFrame) -> float:
    # What the expected cohort sends in a round, for one client that takes part in all rounds.
    cohort = lines["clients"] * lines["sample_rate"]
    return 1e-6 * float((lines["upload_bytes_per_round"] * lines["rounds"] / cohort).mean())


_COSTS: Mapping[str, Callable[[pd.DataFrame], float]] = {
    "MB": _megabytes,
    "seconds": lambda lines: float(lines["train_seconds"].astype(float).mean()),
}


def _frame(found: Mapping[str, Difference]) -> pd.DataFrame:
    """Return ``estimate``, ``low``, ``high`` by label; a dot without an interval where the seeds
    are too few for one."""
    numbers = pd.DataFrame.from_dict(
        {label: (one.mean, one.low, one.high) for label, one in found.items()},
        orient="index",
        columns=["estimate", "low", "high"],
    )
    return numbers.replace([np.inf, -np.inf], np.nan)


def _ranks(source: Source, title: str, settings: Sequence[Setting]) -> pd.DataFrame:
    values = source.metric.sign * pd.DataFrame(source.values(settings))
    found = rank_intervals(values, source.study.name, title)
    means = values[list(found)].mean()
    numbers = {label: (1.0 + (means > means[label]).sum(), *found[label]) for label in found}
    return pd.DataFrame.from_dict(numbers, orient="index", columns=["estimate", "low", "high"])


def _worth(order: pd.Series[float]) -> Callable[[str], float | None]:
    return lambda label: float(order[label]) if label in order.index else None


def _dots(
    source: Source,
    axes: Axes,
    settings: Sequence[Setting],
    heights: Mapping[str, float],
    numbers: pd.DataFrame,
) -> None:
    for setting in settings:
        if setting.label in heights:
            look, height = _LOOKS[source.claim(setting)], heights[setting.label]
            estimate, low, high = map(float, numbers.loc[setting.label])
            axes.plot([low, high], [height, height], color=look["color"], linewidth=1)
            axes.plot([estimate], [height], linestyle="none", **look)


def _arrows(
    source: Source, axes: Axes, settings: Sequence[Setting], heights: Mapping[str, float]
) -> None:
    """Mark what lies left of the scale at its end."""
    for setting in settings:
        look = _LOOKS[source.claim(setting)] | {"marker": "<"}
        at = ([axes.get_xlim()[0]], [heights[setting.label]])
        axes.plot(*at, linestyle="none", clip_on=False, **look)


def _numbers(
    source: Source,
    axes: Axes,
    heights: Mapping[str, float],
    values: Mapping[str, pd.Series[float]],
) -> None:
    """Write the means right of the rows."""
    place: Any = {"textcoords": "offset points", "ha": "right", "annotation_clip": False}
    axes.annotate(
        source.metric.unit, (1, 1), (26, 4), xycoords="axes fraction", va="baseline", **place
    )
    for label, height in heights.items():
        axes.annotate(
            f"{values[label].mean():.{source.metric.digits}f}",
            (1, height),
            (26, 0),
            xycoords=("axes fraction", "data"),
            va="center",
            **place,
        )
