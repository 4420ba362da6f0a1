"""The epsilons that guesses about the canaries of one run refute, in each setting of a study."""

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
    """Return one row per setting, with the canaries of all its seeds.

    ``epsilon_claimed`` is the epsilon of a certified or unreviewed row, or the nominal epsilon, at
    ``delta``. ``verdict`` is ``refuted`` if the bound exceeds it, ``out of reach`` if no guesses
    could have refuted it, else ``not refuted``.
    """
    records = []
    for one in attacked("one_run", study, results):
        plan, ledger = one.planned.plan, one.planned.ledger
        asked = ledger.epsilon_nominal
        claimed = ledger.epsilon_central if asked is None else asked
        assert claimed is not None  # the attack applies to runs with noise only
        judgement = judged(one.pooled("heads"), one.pooled("scores"), delta_of(plan))
        record = {**one.identity, "seeds": len(one.cells), **judgement}
        record |= {"epsilon_claimed": claimed, "delta": plan.delta}
        records.append(record | {"verdict": _verdict(judgement, claimed)})
    return pd.DataFrame(records)


def _verdict(judgement: Mapping[str, float], claimed: float) -> str:
    if judgement["epsilon_lower"] > claimed:
        return "refuted"
    return "not refuted" if judgement["epsilon_highest"] > claimed else "out of reach"


def figure(study: Study, results: Path, width: float) -> Figure:
    """Draw for each setting the bound, the largest possible bound, and the claim, at the right edge
    if it is beyond the scale."""
    numbers = table(study, results)
    heading = (
        f"Lower bound on ε from guesses about one run's canaries, with {1 - ERROR:.0%} "
        "confidence, and the claimed ε, at the right edge if it is larger. A bound above the claim "
        "refutes it."
    )
    names = dict(enumerate(one.name for one in attacked("one_run", study, results)))
    drawing, (place,) = rows.draw([rows.Block("", [names])], width, heading)
    axes, heights = place.axes[0], np.array(list(place.heights.values()))
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
