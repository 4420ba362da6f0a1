"""Which epsilons the guesses about one run's canaries refute, for each setting of a study."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pflpipe.attacks.one_run import ERROR, judged
from pflpipe.privacy.accounting import delta_of
from pflpipe.report.attacks import results as attacks
from pflpipe.report.figures import style
from pflpipe.study.outline import Study


def table(study: Study, results: Path) -> pd.DataFrame:
    """Return one row per setting, of the canaries of all its seeds together.

    ``epsilon_claimed`` is what a certified row promises, and what a nominal one asked for, at
    ``delta``. ``verdict`` is ``refuted`` when the bound is above it, ``out of reach`` when no
    guesses could have refuted it, else ``not refuted``.
    """
    records = []
    for setting, cells in attacks.settings("one_run", study):
        planned = attacks.planned(cells[0], results)
        plan, ledger = planned.plan, planned.ledger
        games = [attacks.found("one_run", cell, results) for cell in cells]
        heads, scores = (
            np.concatenate([game[name] for game in games]) for name in ("heads", "scores")
        )
        asked = ledger.epsilon_nominal
        claimed = ledger.epsilon_central if asked is None else asked
        assert claimed is not None  # only what has a mechanism is attacked so
        found = judged(heads, scores, delta_of(plan))
        record = {
            "method": setting.label,
            "budget": setting.budget,
            **setting.facet,
            "seeds": len(cells),
        }
        record |= found
        record |= {
            "epsilon_claimed": claimed,
            "delta": plan.delta,
            "verdict": _verdict(found, claimed),
        }
        records.append(record)
    return pd.DataFrame(records)


def _verdict(found: Mapping[str, float], claimed: float) -> str:
    if found["epsilon_lower"] > claimed:
        return "refuted"
    return "not refuted" if found["epsilon_highest"] > claimed else "out of reach"


def figure(study: Study, results: Path) -> Figure:
    """Draw for each setting the bound, how far it could have come, and the claim; one far beyond
    lies at the right edge."""
    settings, numbers = attacks.settings("one_run", study), table(study, results)
    rows = np.arange(len(numbers))
    drawing = Figure(figsize=(max(style.WIDTHS), 1.2 + 0.2 * len(numbers)), layout="constrained")
    axes = drawing.subplots()
    edge = max(1.0, 1.3 * numbers["epsilon_highest"].max())
    refuted = numbers["verdict"] == "refuted"
    axes.hlines(
        rows,
        0,
        numbers["epsilon_highest"],
        color="#56B4E9",
        linewidth=5,
        alpha=0.5,
        label="a bound could be",
    )
    for shown, colour, label in (
        (~refuted, "#0072B2", "bound"),
        (refuted, "#D55E00", "bound that refutes the claim"),
    ):
        axes.plot(numbers["epsilon_lower"][shown], rows[shown], "o", color=colour, label=label)
    claims = numbers["epsilon_claimed"].clip(upper=edge)
    axes.plot(claims, rows, "|", color="#000000", markersize=11, markeredgewidth=2, label="claimed")
    words = [
        ", ".join(filter(None, [setting.label, setting.budget, setting.facet_text]))
        for setting, _ in settings
    ]
    axes.set_yticks(rows, words)
    axes.set(xlim=(-0.02 * edge, 1.02 * edge), ylim=(len(numbers) - 0.5, -0.5))
    axes.set_xlabel(f"ε that the guesses show to be spent, with {1 - ERROR:.0%} confidence")
    drawing.legend(loc="outside lower center", ncols=4)
    return drawing
