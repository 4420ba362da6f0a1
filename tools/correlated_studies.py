"""Secret cohorts beside groups in turn with three kinds of noise, as trained: what the studies
correlated_noise_spi and correlated_noise_jester reached.

    python tools/correlated_studies.py results

reads their tables and writes docs/correlated_noise/studies.csv: for each study, budget, method and
kind of noise the mean accuracy over seeds, the difference to secret cohorts at the same seed with
its 95 % interval (Student's t, each interval for itself), and the noise multiplier of a run.
Accuracy is that of personal models on their clients' test rows; of dp_fedavg_global that of the
released model.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from pflpipe.cells import Cell
from pflpipe.report.statistics import paired
from pflpipe.study.load import load_outline

STUDIES = ("correlated_noise_spi", "correlated_noise_jester")
TARGET = Path("docs/correlated_noise/studies.csv")
DRAWN = "secret cohorts, independent"
KEYS = ["study", "epsilon_target", "method"]


def kind(cell: Cell) -> str:
    """Return how the cohorts and the noise of a run were drawn."""
    if cell.training.groups == 1:
        return DRAWN
    if cell.privacy.buffers:
        return f"groups, {cell.privacy.buffers} buffers"
    return (
        f"groups, band of {cell.privacy.band}" if cell.privacy.band > 1 else "groups, independent"
    )


def compared(results: Path, study: str) -> pd.DataFrame:
    """Return one row for each budget, method and kind of noise of a study."""
    kinds = {cell.id: kind(cell) for cell in load_outline(study).everything.cells}
    table = pd.read_csv(results / "tables" / f"{study}.csv")
    table["noise"] = table["cell"].map(kinds)
    released = table["method"] == "dp_fedavg_global"
    table["accuracy"] = table["personal_own"].where(~released, table["global_own"])
    found = []
    for key, rows in table.groupby(KEYS, sort=False):
        by_seed = rows.pivot(index="seed", columns="noise", values="accuracy")
        for noise, part in rows.groupby("noise", sort=False):
            difference = paired(by_seed[noise], by_seed[DRAWN])
            multiplier = part["noise_multiplier"].iloc[0]
            numbers = difference.mean, difference.low, difference.high, multiplier
            found.append((*key, noise, part["accuracy"].mean(), *numbers))
    names = ["noise", "accuracy", "to_secret", "low", "high", "noise_multiplier"]
    return pd.DataFrame(found, columns=[*KEYS, *names])


def main() -> None:
    """Write the table."""
    table = pd.concat([compared(Path(sys.argv[1]), study) for study in STUDIES])
    table.to_csv(TARGET, index=False, float_format="%.4g")
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()
