"""What it changes that people answered other statements, with as many answers of each person.

    python tools/shared_answers.py write SPI.npz FOLDER   data, study and config.yaml
    cd FOLDER && pflpipe run shared_answers
    python tools/shared_answers.py read FOLDER             docs/heterogeneity/shared_answers.csv

Each of the 4,000 people of SPI keeps ``KEPT`` of its 135 answers: the share s of them to the same
statements, drawn once, and the others to statements of its own, drawn from the rest. A fifth of
each person's are its own test rows, so that training and test rows have one law at every s. Rates
are those that ``pflpipe init`` would propose if it did not know SPI (init_rates.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

KEPT, SHARES = 60, (0.0, 0.5, 1.0)
OUT = Path("docs/heterogeneity/shared_answers.csv")
STUDY = """
title: "How much does it matter that people answered the same statements?"
dataset: spi_0
partition: {kind: natural, clients: 3200, test_fraction: 0.2, common_test: 100}
model: {name: embedding, hidden: [8], items: 135}
training: {rounds: 60, sample_rate: 0.1, local_epochs: 5, batch_size: 0, optimizer: sgd, lr: 1.3}
privacy: {delta: 1.0e-5, clip_norm: 1.0}
seeds: [0, 1, 2]
axes:
  dataset: [spi_0, spi_50, spi_100]
  privacy.epsilon: [2, 8]
methods:
  - name: own_constant
    training: &once {rounds: 1, sample_rate: 1}
  - name: local_only
  - name: dp_fedavg_global
  - name: dp_fedavg
  - name: fedrep
    training: {lr: 23}
    privacy: {clip_norm: 2.1}
    hyperparameters: {head_lr: 0.1, head_epochs: 15}
  - name: item_effects
    training: *once
    hyperparameters: {answers: 43}
  - name: one_release_factors
    training: *once
    hyperparameters: {answers: 43}
"""


def kept(share: float, people: int, items: int) -> np.ndarray:
    """Return the statements that each person keeps, ``[people, KEPT]``, in rising order."""
    rng = np.random.default_rng(0)
    order = rng.permutation(items)
    common = round(share * KEPT)
    rows = [
        np.sort(np.r_[order[:common], rng.permutation(order[common:])[: KEPT - common]])
        for _ in range(people)
    ]
    return np.stack(rows)


def write(file: Path, folder: Path) -> None:
    """Write the three data sets, the study and its settings."""
    with np.load(file) as table:
        answers = table["answers"]
    people, items = answers.shape
    (folder / "studies").mkdir(parents=True, exist_ok=True)
    named = []
    for share in SHARES:
        asked, name = kept(share, people, items), f"spi_{100 * share:g}"
        np.savez(
            folder / f"{name}.npz",
            train_images=asked.reshape(-1, 1).astype(np.float32),
            train_labels=(np.take_along_axis(answers, asked, 1) >= 4).ravel().astype(np.int64),
            train_users=np.repeat(np.arange(people), KEPT),
            classes=2,
        )
        named.append(f"  {name}: {(folder / name).resolve()}.npz\n")
    (folder / "studies/shared_answers.yaml").write_text(STUDY, encoding="utf-8")
    (folder / "config.yaml").write_text(
        f"studies: [shared_answers]\ndatasets:\n{''.join(named)}", encoding="utf-8"
    )


def points(folder: Path) -> Iterator[dict[str, object]]:
    """Yield one row for each share and budget: mean accuracy on own test rows of each method."""
    table = pd.read_csv(folder / "results/tables/shared_answers.csv")
    table["share"] = table["dataset"].str.removeprefix("spi_").astype(float) / 100
    budgets = sorted(table["epsilon_target"].dropna().unique())
    for (share, budget), part in (
        ((share, budget), table[table["share"] == share]) for share in SHARES for budget in budgets
    ):
        here = part[part["epsilon_target"].isna() | (part["epsilon_target"] == budget)]
        means = here.groupby("method")["personal_own"].mean().round(1)
        yield {"share": share, "epsilon": budget, **means}


if __name__ == "__main__":
    command, *places = sys.argv[1:]
    if command == "write":
        write(*map(Path, places))
    else:
        pd.DataFrame(points(Path(places[0]))).to_csv(OUT, index=False)
        print(OUT.read_text())
