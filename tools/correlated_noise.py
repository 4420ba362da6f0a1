"""The noise of cohorts in turn, correlated, over that of secret cohorts, at equal epsilon.

    python tools/correlated_noise.py

writes docs/correlated_noise/table.csv and a figure, docs/images/correlated_noise.png, in a few
minutes. Secret cohorts have each client in a round with probability q, and dp-accounting calibrates
their noise (privacy/accounting.py). Cohorts in turn are 1/q groups, so that cohorts are equally
large and q M cancels; their noise is that of privacy/correlated.py with the best of the bands 1/q
and 1, 2, 4 ... up to the number of rounds. A ratio below 1 says that correlated noise is smaller:
in the sum over all rounds, which is the final model, or in the root mean square over the sums after
each round, which are the models on the way (RMSE).
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.signal import lfilter

from pflpipe.cells import Privacy
from pflpipe.privacy import accounting
from pflpipe.privacy.noise_laws.band import Band
from pflpipe.privacy.noise_laws.buffers import Buffers, fitted
from pflpipe.report.figures import style

FOLDER, FIGURE = Path("docs/correlated_noise"), Path("docs/images/correlated_noise.png")
EPSILONS, ROUNDS, GROUPS = (0.5, 2.0, 8.0), (10, 20, 60, 200, 1_000), (100, 50, 20, 10, 5, 2)
CLIENTS, DELTA, BUFFERS = 3_200, 1e-5, 2
MEASURES = {"final": "final model", "prefixes": "all rounds (RMSE)"}


def multiplier(
    epsilon: float,
    rounds: int,
    *,
    sample_rate: float = 1.0,
    groups: int = 1,
    band: int = 1,
    buffers: int = 0,
) -> float:
    """Return the noise of a round, in clip bounds, that reaches epsilon."""
    privacy = Privacy("gaussian", epsilon, delta=DELTA, clip_norm=1.0, band=band, buffers=buffers)
    plan = accounting.make_plan(
        privacy, rounds=rounds, sample_rate=sample_rate, clients=CLIENTS, groups=groups
    )
    return plan.multiplier


def deviations(rounds: int, band: int, buffers: Buffers | None = None) -> dict[str, float]:
    """Return the standard deviation of the noise on the sum over all rounds, and the root mean
    square of those on the sums after each round, for a multiplier of 1 (both by ``MEASURES``)."""
    # The first column of the matrix of prefix sums times L^-1; the others are shifts of it.
    law = buffers or Band(band)
    column = lfilter([1.0], law.coefficients(rounds), np.ones(rounds))
    variances = np.cumsum(np.square(column))
    return {"final": float(variances[-1] ** 0.5), "prefixes": float(variances.mean() ** 0.5)}


def rows(epsilon: float, rounds: int, groups: int) -> dict[str, float]:
    """Return one row of the table: the noise of both, and for each measure ratio and best band."""
    secret = multiplier(epsilon, rounds, sample_rate=1 / groups)
    row = {"q": 1 / groups, "rounds": rounds, "epsilon": epsilon, "secret_multiplier": secret}
    bands = sorted({groups, *(2**n for n in range(rounds.bit_length()))})
    independent = deviations(rounds, 1)
    buffers = fitted(rounds, groups, BUFFERS)
    of_buffers = multiplier(epsilon, rounds, groups=groups, buffers=BUFFERS) / secret
    buffered = deviations(rounds, rounds, buffers)
    for measure in MEASURES:
        ratios = {
            band: multiplier(epsilon, rounds, groups=groups, band=band)
            * deviations(rounds, band)[measure]
            / (secret * independent[measure])
            for band in bands
        }
        best = min(ratios, key=ratios.__getitem__)
        row |= {f"{measure}_ratio": ratios[best], f"{measure}_band": best}
        row[f"{measure}_ratio_band_1"] = ratios[1]
        row[f"{measure}_ratio_buffers"] = of_buffers * buffered[measure] / independent[measure]
    return row


def draw(table: pd.DataFrame) -> None:
    """Write the figure of a table."""
    with plt.rc_context(fname=style.SHEET):
        figure, grid = plt.subplots(
            *(len(MEASURES), len(EPSILONS)),
            figsize=(max(style.WIDTHS), 4.2),
            sharex=True,
            sharey=True,
            layout="constrained",
        )
        for axes, measure in zip(grid, MEASURES, strict=True):
            for axis, (epsilon, part) in zip(axes, table.groupby("epsilon"), strict=True):
                axis.axhline(1, color=style.PLAIN, linestyle=":")
                for colour, (rounds, line) in zip(
                    style.STRONG, part.groupby("rounds"), strict=False
                ):
                    values = line[f"{measure}_ratio"]
                    label = f"T = {rounds:,}"
                    axis.loglog(line["q"], values, marker="o", ms=3, color=colour, label=label)
                axis.set_title(f"{MEASURES[measure]}, ε = {epsilon:g}")
        grid[0, 0].set_xticks([0.01, 0.1, 0.5], ["0.01", "0.1", "0.5"])
        grid[0, 0].set_yticks([0.25, 0.5, 1, 2, 4], ["1/4", "1/2", "1", "2", "4"])
        grid[0, 0].minorticks_off()
        grid[0, 0].legend(fontsize=6)
        figure.supxlabel("q = 1/b, the share of the clients in a round")
        figure.supylabel("correlated over amplified noise")
        figure.savefig(FIGURE, dpi=200)


def main() -> None:
    """Write table and figure."""
    FOLDER.mkdir(exist_ok=True)
    found = [rows(e, t, b) for e in EPSILONS for t in ROUNDS for b in GROUPS]
    table = pd.DataFrame(found)
    table.to_csv(FOLDER / "table.csv", index=False, float_format="%.4g")
    draw(table)
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()
