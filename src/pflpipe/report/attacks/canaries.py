"""What one-shot canaries estimate in each setting of a study, beside what its plan claims."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import norm

from pflpipe.attacks.canaries import estimate
from pflpipe.cells import Cell
from pflpipe.report.attacks import results as attacks
from pflpipe.report.figures import style
from pflpipe.study.study_spec import Study

ERRORS = 3
"""Standard errors by which an estimate must exceed the claim to be an alarm."""


def table(study: Study, results: Path) -> pd.DataFrame:
    """Return one row per setting: the claimed mu, the estimate from the canaries of all seeds, and
    whether it is an alarm.

    ``crowding`` is k T / (sigma^2 d) of one run: the estimate is low by about half of it, or more.
    """
    records = []
    for setting, cells in attacks.settings("canaries", study):
        plan = attacks.planned(cells[0], results).plan
        x, coordinates, each = _heard(cells, results)
        mu, error = estimate(x)
        sigma = plan.noise_multiplier or 0.0
        claimed = math.sqrt(plan.rounds) / sigma if sigma else math.inf
        record = {
            "method": setting.label,
            "budget": setting.budget,
            **setting.facet,
            "seeds": len(cells),
            "canaries": len(x),
        }
        record |= {
            "coordinates": coordinates,
            "crowding": each * plan.rounds / (sigma**2 * coordinates) if sigma else math.inf,
        }
        record |= {
            "mu_claimed": claimed,
            "mu_estimate": mu,
            "standard_error": error,
            "alarm": mu - ERRORS * error > claimed,
        }
        records.append(record)
    return pd.DataFrame(records)


def figure(study: Study, results: Path, width: float) -> Figure:
    """Draw for each setting the canaries' x against N(0, 1), the estimate with three standard
    errors, and the claimed mu."""
    settings, numbers = attacks.settings("canaries", study), table(study, results)
    columns = min(len(settings), 2 * style.columns(width))
    lines = math.ceil(len(settings) / columns)
    room = 0.85 * width / columns
    titles = [
        [
            line
            for words in (attacks.words(setting), *_verdict(numbers.iloc[index]))
            for line in style.lines_of(words, room)
        ]
        for index, (setting, _) in enumerate(settings)
    ]
    drawing = Figure(figsize=(width, 1), layout="constrained")
    above = style.head(
        drawing,
        "What canaries, random directions that trained along, estimate of μ, beside what the plan "
        "claims. No bound: the estimate errs downwards.",
    )
    tallest = max(map(len, titles))
    drawing.set_figheight(above + lines * (1.0 + style.LINE * (tallest + 2)) + 2 * style.LINE)
    grid: Any = drawing.subplots(lines, columns, squeeze=False)
    for axes in grid.flat[len(settings) :]:
        axes.set_axis_off()
    for index, (axes, (_, cells)) in enumerate(zip(grid.flat, settings, strict=False)):
        _panel(axes, _heard(cells, results)[0], numbers.iloc[index])
        axes.set_title("\n".join(titles[index]), loc="left")
    for axes in grid[:, 0]:
        axes.set_ylabel("density")
    for axes in grid.flat[max(len(settings) - columns, 0) : len(settings)]:
        axes.set_xlabel("$\\sqrt{d}$ cos(canary,\nsum of releases)")
    style.legend(drawing, *grid.flat, columns=2 * style.columns(width))
    return drawing


def _panel(axes: Axes, x: np.ndarray, numbers: pd.Series[Any]) -> None:
    low, high = min(-3.5, x.min() - 0.5), max(3.5, x.max() + 0.5)
    grid = np.linspace(low, high, 300)
    axes.hist(x, bins="fd", density=True, color="#56B4E9", label="canaries")
    axes.plot(grid, norm.pdf(grid), color=style.PLAIN, label="took no part: N(0, 1)")
    mu, reach = numbers["mu_estimate"], ERRORS * numbers["standard_error"]
    axes.axvspan(
        mu - reach,
        mu + reach,
        color=style.NOMINAL,
        alpha=0.2,
        linewidth=0,
        label=f"estimate ± {ERRORS} errors",
    )
    axes.axvline(mu, color=style.NOMINAL)
    if numbers["mu_claimed"] <= high:
        axes.axvline(numbers["mu_claimed"], color="#000000", linestyle="--", label="claimed")
    axes.set(xlim=(low, high), yticks=())


def _verdict(numbers: pd.Series[Any]) -> tuple[str, str]:
    digits = 2 if numbers["mu_claimed"] < 100 else 0
    return (
        f"μ ≈ {numbers['mu_estimate']:.2f} ± {numbers['standard_error']:.2f}",
        f"claimed {numbers['mu_claimed']:.{digits}f}" + (": ALARM" if numbers["alarm"] else ""),
    )


def _heard(cells: list[Cell], results: Path) -> tuple[np.ndarray, int, int]:
    """Return the x of all seeds together, the number of coordinates, and how many canaries the
    first seed's run had."""
    runs = [attacks.found("canaries", cell, results) for cell in cells]
    return (
        np.concatenate([run["x"] for run in runs]),
        int(runs[0]["coordinates"]),
        len(runs[0]["x"]),
    )
