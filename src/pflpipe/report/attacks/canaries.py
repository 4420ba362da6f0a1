"""The mu that one-shot canaries estimate in each setting of a study, next to that of its plan."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from pflpipe.attacks.canaries import estimate
from pflpipe.report.attacks.results import attacked, by_setting, mark_claims
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
    """Draw for each setting the estimate with ``ERRORS`` standard errors and the claimed mu, at the
    right edge if it is beyond the scale."""
    numbers = table(study, results)
    heading = (
        "μ estimated from canaries, random directions that took part in training, next to the μ "
        "that the plan claims. The estimate is no bound: it is rather too low."
    )
    drawing, axes, heights = by_setting("canaries", study, results, width, heading)
    alarm = numbers["alarm"].to_numpy()
    for shown, colour, label in (
        (~alarm, style.CERTIFIED, f"estimate ± {ERRORS} standard errors"),
        (alarm, style.NOMINAL, "alarm"),
    ):
        mu, error = (numbers.loc[shown, name] for name in ("mu_estimate", "standard_error"))
        axes.errorbar(mu, heights[shown], xerr=ERRORS * error, fmt="o", color=colour, label=label)
    # Estimates may be 0 or negative, and claims differ by orders of magnitude.
    axes.set_xscale("symlog", linthresh=1)
    edge = float(axes.get_xlim()[1])
    mark_claims(axes, numbers["mu_claimed"].clip(upper=edge), heights)
    axes.set_xlim(right=edge)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("μ")
    style.legend(drawing, axes, columns=style.columns(width))
    return drawing
