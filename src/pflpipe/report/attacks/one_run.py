"""Which epsilons the guesses about one run's canaries refute, for each setting of a study."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pflpipe.attacks.one_run import ERROR, judged
from pflpipe.privacy.accounting import delta_of
from pflpipe.report.attacks.results import attacked
from pflpipe.report.figures import rows, style
from pflpipe.study.study_spec import Study


def table(study: Study, results: Path) -> pd.DataFrame:
    """Return one row per setting, of the canaries of all its seeds together.

    ``epsilon_claimed`` is what a certified or unreviewed row states, and what a nominal one asked
    for, at ``delta``. ``verdict`` is ``refuted`` when the bound is above it, ``out of reach`` when
    no guesses could have refuted it, else ``not refuted``.
    """
    records = []
    for one in attacked("one_run", study, results):
        plan, ledger = one.planned.plan, one.planned.ledger
        asked = ledger.epsilon_nominal
        claimed = ledger.epsilon_central if asked is None else asked
        assert claimed is not None  # only what has a mechanism is attacked so
        judgement = judged(one.pooled("heads"), one.pooled("scores"), delta_of(plan))
        records.append(
            {
                **one.identity,
                "seeds": len(one.cells),
                **judgement,
                "epsilon_claimed": claimed,
                "delta": plan.delta,
                "verdict": _verdict(judgement, claimed),
            }
        )
    return pd.DataFrame(records)


def _verdict(judgement: Mapping[str, float], claimed: float) -> str:
    if judgement["epsilon_lower"] > claimed:
        return "refuted"
    return "not refuted" if judgement["epsilon_highest"] > claimed else "out of reach"


def figure(study: Study, results: Path, width: float) -> Figure:
    """Draw for each setting the bound, how far it could have come, and the claim; one far beyond
    lies at the right edge."""
    numbers = table(study, results)
    names = dict(enumerate(one.words for one in attacked("one_run", study, results)))
    heading = (
        f"ε that guesses about one run's canaries show to be spent, with {1 - ERROR:.0%} "
        "confidence, and the ε that is claimed, at the right edge if it is larger. A bound above "
        "the claim refutes it."
    )
    drawing, (place,) = rows.draw([rows.Block("", [names])], width, heading)
    (axes,) = place.axes
    heights = np.array(list(place.heights.values()))
    edge = max(1.0, 1.3 * numbers["epsilon_highest"].max())
    highest, lower = numbers["epsilon_highest"], numbers["epsilon_lower"]
    axes.hlines(heights, 0, highest, color=style.REST, linewidth=5, label="reach of a bound")
    refuted = (numbers["verdict"] == "refuted").to_numpy()
    for shown, colour, label in (
        (~refuted, style.CERTIFIED, "bound"),
        (refuted, style.NOMINAL, "bound that refutes"),
    ):
        axes.plot(lower[shown], heights[shown], "o", color=colour, label=label)
    claims = numbers["epsilon_claimed"].clip(upper=edge)
    axes.plot(claims, heights, "|", color="#000000", ms=9, mew=1.5, label="claimed")
    axes.set_xlim(-0.02 * edge, 1.02 * edge)
    axes.set_xlabel("ε")
    style.legend(drawing, axes, columns=2 * style.columns(width))
    return drawing
