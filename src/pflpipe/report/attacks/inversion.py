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
from pflpipe.report.figures import style
from pflpipe.report.summary import round_up
from pflpipe.study.outline import Study
from pflpipe.study.settings import Setting

SHOWN = 4
"""Images of the first seed that the figure shows."""
ABREAST = 5
"""Settings beside each other."""


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


def figure(study: Study, results: Path) -> Figure:
    """Draw the originals and what each setting's messages gave away, from the least private setting
    to the most private one.

    A row is one image of the study's first seed: same global model, same noise but for its size.
    Above a rebuilt image stands its PSNR, above a column the setting with its numbers over all
    images and seeds. Only settings that share the first one's network and partition have these
    images; the others are in the table.
    """
    first = registry.cells("inversion", study)[0]
    settings = [
        (setting, cells)
        for setting, cells in _settings(study, results)
        if (cells[0].model, cells[0].partition_id) == (first.model, first.partition_id)
    ]
    columns = [attacks.found("inversion", cells[0], results) for _, cells in settings]
    numbers = table(study, results)
    shown = min(SHOWN, *(len(found["psnr"]) for found in columns))
    blocks = [
        range(start, min(start + ABREAST, len(columns)))
        for start in range(0, len(columns), ABREAST)
    ]
    width = max(style.WIDTHS)
    each = width / (1 + min(ABREAST, len(columns)))
    side = min(each, 1.2)
    headings = []
    for setting, cells in settings:
        own = numbers[numbers["cell"].isin([cell.id for cell in cells])]
        headings.append(_heading(setting, cells[0], own, each))
    tallest = max(map(len, headings))
    drawing = Figure(figsize=(width, 1), layout="constrained")
    above = style.head(
        drawing,
        f"One image from one message of round 1: {first.dataset}, {first.model.name}, seed "
        f"{first.seed}. ε of all {first.training.rounds} rounds: against the world, which sees "
        "sums / against the server, which sees single messages. Without a message: "
        f"{numbers['psnr_without_message'].mean():.1f} dB (mean image), both rates 1 of "
        f"{CANDIDATES}.",
    )
    height = len(blocks) * (style.LINE * (tallest + 2) + shown * (side + 1.6 * style.LINE))
    drawing.set_figheight(above + height)
    parts: Any = drawing.subfigures(len(blocks), 1, squeeze=False)
    for part, block in zip(parts[:, 0], blocks, strict=True):
        grid = part.subplots(shown, 1 + min(ABREAST, len(columns)), squeeze=False)
        for axes in grid[:, 1 + len(block) :].flat:
            axes.set_axis_off()
        for row in range(shown):
            _show(grid[row, 0], columns[0]["originals"][row], "original")
            for axes, index in zip(grid[row, 1:], block, strict=False):
                found = columns[index]
                _show(axes, found["rebuilt"][row], f"{found['psnr'][row]:.1f} dB")
        for axes, index in zip(grid[0, 1:], block, strict=False):
            words = "\n".join(headings[index])
            axes.set_title(f"{words}\n\n{axes.get_title()}")
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


def _heading(setting: Setting, cell: Cell, numbers: pd.DataFrame, width: float) -> list[str]:
    """Return what stands above a column of a width in inches, in lines that fit."""
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
    means = f"mean {numbers['psnr_mean'].mean():.1f} dB"
    rates = [f"{word} {numbers[word].mean():.0f} %" for word in ("identified", "matched")]
    words = filter(None, [setting.label, setting.facet_text, budget, means, *rates])
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
    axes.set_title(title)
    axes.set_axis_off()
