"""What gradient inversion rebuilds in each setting of a study: images, and their distances from the
originals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pflpipe.attacks import registry
from pflpipe.attacks.inversion import CANDIDATES
from pflpipe.report.attacks.results import Attacked, attacked
from pflpipe.report.comparison import round_up
from pflpipe.report.figures import style
from pflpipe.study.study_spec import Study

SHOWN = 4
"""Images of the first seed that a figure of a column's width shows."""
RATES = ("label_found", "identified", "matched")
"""What is counted of an attack's images."""
SIDE = 0.5
"""Of an image, in inches."""


def table(study: Study, results: Path) -> pd.DataFrame:
    """Return one row per attacked cell: its epsilons, mean and standard deviation of PSNR (dB), and
    the rates in percent.

    ``epsilon_local`` is the ledger's, against the server that sees single messages,
    ``epsilon_central`` that against the world; both count all rounds of the cell, of which the
    attack uses the first. Infinity is ``inf``, nothing asked for is missing.
    """
    records = []
    for one in _settings(study, results):
        for cell, arrays, planned in zip(one.cells, one.arrays, one.plans, strict=True):
            plan, ledger = planned.plan, planned.ledger
            records.append(
                {
                    "setting": one.setting.label,
                    "budget": one.setting.budget,
                    **one.setting.facet,
                    "seed": cell.seed,
                    "epsilon_central": ledger.epsilon_central,
                    "epsilon_local": ledger.epsilon_local,
                    "delta": plan.delta,
                    "clip_norm": plan.clip_norm,
                    "noise_multiplier": plan.noise_multiplier,
                    "images": len(arrays["psnr"]),
                    "psnr_mean": arrays["psnr"].mean(),
                    "psnr_std": arrays["psnr"].std(ddof=1),
                    "psnr_without_message": arrays["psnr_without_message"].mean(),
                    **{name: 100 * arrays[name].mean() for name in RATES},
                    "candidates": CANDIDATES,
                    "cell": cell.id,
                }
            )
    return pd.DataFrame(records)


def figure(study: Study, results: Path, width: float) -> Figure:
    """Draw the originals and, in a row for each setting, what its messages gave away, from the
    least private setting to the most private one.

    A column is one image of the study's first seed: same global model, same noise but for its size.
    Above a rebuilt image stands its PSNR, beside a row the setting with its numbers over all images
    and seeds. Only settings that share the first one's network and partition have these images; the
    others are in the table.
    """
    first = registry.cells("inversion", study)[0]
    settings = [
        one
        for one in _settings(study, results)
        if (one.cells[0].model, one.cells[0].partition_id) == (first.model, first.partition_id)
    ]
    attacks = [one.arrays[0] for one in settings]
    shown = min(SHOWN * style.columns(width), *(len(arrays["psnr"]) for arrays in attacks))
    numbers, room = table(study, results), width - shown * SIDE
    words = [["originals"]]
    for one in settings:
        ids = [cell.id for cell in one.cells]
        words.append(_words(one, numbers[numbers["cell"].isin(ids)], room))
    heading = (
        f"One image from one message of round 1: {first.dataset}, {first.model.name}, seed "
        f"{first.seed}. ε of all {first.training.rounds} rounds: against the world, which sees "
        "sums / against the server, which sees single messages. PSNR in dB above each image; "
        f"without a message, of the mean image, {numbers['psnr_without_message'].mean():.1f}. "
        f"Identified: nearer to its original than to {CANDIDATES - 1} others. Matched: the message "
        f"told from those of {CANDIDATES - 1} others."
    )
    # The words begin next to the PSNR, which stands above the images.
    heights = [max(SIDE, style.LINE * (len(lines) - 1)) for lines in words]
    shape = len(words), 1 + shown
    ratios: Any = {"height_ratios": heights, "width_ratios": [room, *[SIDE] * shown]}
    height = sum(heights) + 1.7 * style.LINE * len(heights)
    drawing, grid = style.panels(
        shape[0] * shape[1], shape, width, heading, height, gridspec_kw=ratios
    )
    for place, lines in zip(grid[:, 0], words, strict=True):
        place.set_axis_off()
        rise: Any = {"textcoords": "offset points", "annotation_clip": False}
        place.annotate("\n".join(lines), (0, 1), (0, 72 * style.LINE), va="top", **rise)
    for column in range(shown):
        _show(grid[0, column + 1], attacks[0]["originals"][column], "")
        for axes, arrays in zip(grid[1:, column + 1], attacks, strict=True):
            _show(axes, arrays["rebuilt"][column], f"{arrays['psnr'][column]:.1f}")
    return drawing


def _settings(study: Study, results: Path) -> list[Attacked]:
    """Return the attacked settings, the one that gives away most first."""

    def privacy(one: Attacked) -> tuple[bool, float]:
        epsilon = one.planned.ledger.epsilon_local
        return one.cells[0].privacy.mechanism != "none", -(epsilon or 0.0)

    return sorted(attacked("inversion", study, results), key=privacy)


def _words(one: Attacked, numbers: pd.DataFrame, width: float) -> list[str]:
    """Return what stands next to a row, in lines that fit into a width in inches."""
    if one.cells[0].privacy.mechanism == "none":
        budget = "no clipping, no noise"
    elif numbers["noise_multiplier"].iloc[0] == 0:
        budget = "clipping, no noise"
    else:
        worst = [numbers[f"epsilon_{trust}"].max() for trust in ("central", "local")]
        budget = "ε = " + " / ".join(
            f"{math.ceil(value - 1e-3):,}" if 999 < value < 1e6 else round_up(value)
            for value in worst
        )
    scores = [f"mean {numbers['psnr_mean'].mean():.1f} dB"]
    scores += [f"{name} {numbers[name].mean():.0f} %" for name in ("identified", "matched")]
    words = filter(None, [one.setting.label, one.setting.facet_text, budget, ", ".join(scores)])
    return [line for part in words for line in style.lines_of(part, width - 0.1)]


def _show(axes: Any, image: np.ndarray, title: str) -> None:
    axes.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_anchor("N")
    axes.set_title(title)
    axes.set_axis_off()
