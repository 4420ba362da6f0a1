"""The mu that one-shot canaries estimate in each setting of a study, next to that of its plan."""

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
from pflpipe.report.attacks.results import attacked
from pflpipe.report.figures import style
from pflpipe.study.study_spec import Study

ERRORS = 3
"""An estimate raises an alarm if it exceeds the claim by this many standard errors."""


def table(study: Study, results: Path) -> pd.DataFrame:
    """Return one row per setting: the claimed mu, the estimate from the canaries of all seeds, and
    whether it raises an alarm.

    ``crowding`` is k T / (sigma^2 d) of one run. It lowers the estimate by half of it or more.
    """
    records = []
    for one in attacked("canaries", study, results):
        plan, first, x = one.planned.plan, one.arrays[0], one.pooled("x")
        coordinates, each = int(first["coordinates"]), len(first["x"])
        mu, error = estimate(x)
        sigma = plan.noise_multiplier or 0.0
        claimed = math.sqrt(plan.rounds) / sigma if sigma else math.inf
        records.append(
            {
                **one.identity,
                "seeds": len(one.cells),
                "canaries": len(x),
                "coordinates": coordinates,
                "crowding": each * plan.rounds / (sigma**2 * coordinates) if sigma else math.inf,
                "mu_claimed": claimed,
                "mu_estimate": mu,
                "standard_error": error,
                "alarm": mu - ERRORS * error > claimed,
            }
        )
    return pd.DataFrame(records)


def figure(study: Study, results: Path, width: float) -> Figure:
    """Draw for each setting the canaries' x against N(0, 1), the estimate with three standard
    errors, and the claimed mu."""
    settings, numbers = attacked("canaries", study, results), table(study, results)
    columns = min(len(settings), 2 * style.columns(width))
    titles = [
        [
            line
            for text in (one.name, *_verdict(numbers.iloc[index]))
            for line in style.lines_of(text, 0.85 * width / columns)
        ]
        for index, one in enumerate(settings)
    ]
    heading = (
        "μ estimated from canaries, random directions that took part in training, next to the μ "
        "of the plan. The estimate is no bound: it is rather too low."
    )
    lines, tallest = -(-len(settings) // columns), max(map(len, titles))
    height = lines * (1.0 + style.LINE * (tallest + 2)) + 2 * style.LINE
    drawing, grid = style.panels(len(settings), (lines, columns), width, heading, height)
    for index, (axes, one) in enumerate(zip(grid.flat, settings, strict=False)):
        _panel(axes, one.pooled("x"), numbers.iloc[index])
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
    shade: Any = {"color": style.NOMINAL, "alpha": 0.2, "linewidth": 0}
    axes.axvspan(mu - reach, mu + reach, label=f"estimate ± {ERRORS} errors", **shade)
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
