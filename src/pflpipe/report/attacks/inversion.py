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
from pflpipe.cells import Cell
from pflpipe.report.attacks import results as attacks
from pflpipe.report.comparison import round_up
from pflpipe.report.figures import style
from pflpipe.study.settings import Setting
from pflpipe.study.study_spec import Study

SHOWN = 4
"""Images of the first seed that a figure of a column's width shows."""
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
    for setting, cells in _settings(study, results):
        for cell in cells:
            found = attacks.found("inversion", cell, results)
            plan = attacks.planned(cell, results).plan
            records.append(
                {
                    "setting": setting.label,
                    "budget": setting.budget,
                    **setting.facet,
                    "seed": cell.seed,
                    **{
                        f"epsilon_{trust}": _epsilon(cell, results, trust)
                        for trust in ("central", "local")
                    },
                    "delta": plan.delta,
                    "clip_norm": plan.clip_norm,
                    "noise_multiplier": plan.noise_multiplier,
                    "images": len(found["psnr"]),
                    "psnr_mean": found["psnr"].mean(),
                    "psnr_std": found["psnr"].std(ddof=1),
                    "psnr_without_message": found["psnr_without_message"].mean(),
                    **{
                        name: 100 * found[name].mean()
                        for name in ("label_found", "identified", "matched")
                    },
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
        (setting, cells)
        for setting, cells in _settings(study, results)
        if (cells[0].model, cells[0].partition_id) == (first.model, first.partition_id)
    ]
    found = [attacks.found("inversion", cells[0], results) for _, cells in settings]
    shown = min(SHOWN * style.columns(width), *(len(one["psnr"]) for one in found))
    numbers, room = table(study, results), width - shown * SIDE
    words = [["originals"]]
    for setting, cells in settings:
        own = numbers[numbers["cell"].isin([cell.id for cell in cells])]
        words.append(_words(setting, cells[0], own, room))
    drawing = Figure(figsize=(width, 1), layout="constrained")
    above = style.head(
        drawing,
        f"One image from one message of round 1: {first.dataset}, {first.model.name}, seed "
        f"{first.seed}. ε of all {first.training.rounds} rounds: against the world, which sees "
        "sums / against the server, which sees single messages. PSNR in dB above each image; "
        f"without a message, of the mean image, {numbers['psnr_without_message'].mean():.1f}. "
        f"Identified: nearer to its original than to {CANDIDATES - 1} others. Matched: the message "
        f"told from those of {CANDIDATES - 1} others.",
    )
    # The words begin beside the PSNR, which stands above the images.
    heights = [max(SIDE, style.LINE * (len(lines) - 1)) for lines in words]
    drawing.set_figheight(above + sum(heights) + 1.7 * style.LINE * len(heights))
    grid: Any = drawing.subplots(
        len(words),
        1 + shown,
        squeeze=False,
        gridspec_kw={"height_ratios": heights, "width_ratios": [room, *[SIDE] * shown]},
    )
    for place, lines in zip(grid[:, 0], words, strict=True):
        place.set_axis_off()
        rise: Any = {"textcoords": "offset points", "annotation_clip": False}
        place.annotate("\n".join(lines), (0, 1), (0, 72 * style.LINE), va="top", **rise)
    for column in range(shown):
        _show(grid[0, column + 1], found[0]["originals"][column], "")
        for axes, one in zip(grid[1:, column + 1], found, strict=True):
            _show(axes, one["rebuilt"][column], f"{one['psnr'][column]:.1f}")
    return drawing


def _settings(study: Study, results: Path) -> list[tuple[Setting, list[Cell]]]:
    """Return the attacked settings with their cells, the one that gives away most first."""

    def privacy(entry: tuple[Setting, list[Cell]]) -> tuple[bool, float]:
        cell = entry[1][0]
        return cell.privacy.mechanism != "none", -(_epsilon(cell, results, "local") or 0.0)

    return sorted(attacks.settings("inversion", study), key=privacy)


def _epsilon(cell: Cell, results: Path, trust: str) -> float | None:
    """Return the ledger's epsilon against the world (``central``) or the server that sees single
    messages (``local``)."""
    ledger = attacks.planned(cell, results).ledger
    return ledger.epsilon_central if trust == "central" else ledger.epsilon_local


def _words(setting: Setting, cell: Cell, numbers: pd.DataFrame, width: float) -> list[str]:
    """Return what stands beside a row, in lines that fit into a width in inches."""
    if cell.privacy.mechanism == "none":
        budget = "no clipping, no noise"
    elif numbers["noise_multiplier"].iloc[0] == 0:
        budget = "clipping, no noise"
    else:
        worst = [numbers[f"epsilon_{trust}"].max() for trust in ("central", "local")]
        budget = "ε = " + " / ".join(
            f"{math.ceil(value - 1e-3):,}" if 999 < value < 1e6 else round_up(value)
            for value in worst
        )
    rates = [f"{word} {numbers[word].mean():.0f} %" for word in ("identified", "matched")]
    told = ", ".join([f"mean {numbers['psnr_mean'].mean():.1f} dB", *rates])
    words = filter(None, [setting.label, setting.facet_text, budget, told])
    return [line for part in words for line in style.lines_of(part, width - 0.1)]


def _show(axes: Any, image: np.ndarray, title: str) -> None:
    grey = image.shape[2] == 1
    axes.imshow(
        image[:, :, 0] if grey else image,
        cmap="gray" if grey else None,
        vmin=0,
        vmax=1,
        interpolation="nearest",
    )
    axes.set_anchor("N")
    axes.set_title(title)
    axes.set_axis_off()
