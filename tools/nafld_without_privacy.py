"""What answers of NAFLD's patients allow without privacy, by scikit-learn and counts alone.

    python tools/nafld_without_privacy.py data/nafld.npz results/partitions/nafld-*.npz

prints, for all 5,106 people and then for the split of each file, the mean accuracy of people on
their own test rows in percent: one logistic regression, the same with age and sex apart for each
kind of measurement, what a person had more often of the same kind, and these counts with two rows
of the second model's probability in front of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

from pflpipe.data.split import Split

KINDS = 3
"""The first features say which measurement a row is; age and sex follow."""
ROWS = 2.0
"""How many rows the model counts as beside a person's own."""
NO_PENALTY = 1e4


def logistic(x: np.ndarray, y: np.ndarray, users: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Return the probability of 1 at rows ``asked [T, D]`` by a logistic regression of rows ``x [N,
    D]`` in which every person has the same weight."""
    weights = 1 / np.bincount(users)[users]
    model = LogisticRegression(C=NO_PENALTY, max_iter=500)
    model.fit(x, y, sample_weight=weights / weights.mean())
    chances: np.ndarray = model.predict_proba(asked)[:, 1]
    return chances


def by_kind(x: np.ndarray) -> np.ndarray:
    """Return rows ``[N, D]`` with the features after the first three apart for each of these."""
    kinds = x[:, :KINDS]
    return np.hstack([kinds, *(kinds * column[:, None] for column in x[:, KINDS:].T)])


def accuracies(train: tuple[np.ndarray, ...], test: tuple[np.ndarray, ...]) -> list[float]:
    """Return the four accuracies, in percent; both are rows, labels and people ``0 .. M - 1``."""
    (x, y, users), (asked, labels, owners) = train, test
    plain = logistic(x, y, users, asked)
    apart = logistic(by_kind(x), y, users, by_kind(asked))
    kinds, asked_kinds = (rows[:, :KINDS].argmax(1) for rows in (x, asked))
    seen, above = np.zeros((2, users.max() + 1, KINDS))
    np.add.at(seen, (users, kinds), 1)
    np.add.at(above, (users, kinds), y)
    usual = (above.sum(1) / seen.sum(1))[owners]
    own, had = above[owners, asked_kinds], seen[owners, asked_kinds]
    # Where the kind says nothing, all of a person's rows decide.
    alone = np.where(2 * own == had, usual, own / np.maximum(had, 1))
    together = (own + ROWS * apart) / (had + ROWS)
    people = np.bincount(owners)
    means = (
        np.bincount(owners, (chances > 0.5) == labels)[people > 0] / people[people > 0]
        for chances in (plain, apart, alone, together)
    )
    return [100 * float(mean.mean()) for mean in means]


def numbered(rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of all people, and the number of the person of each."""
    return np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(one) for one in rows])


def main() -> None:
    """Print a line for all people and one for each split."""
    with np.load(sys.argv[1]) as data:
        train, test = (
            [data[f"{part}_{name}"] for name in ("images", "labels", "users")]
            for part in ("train", "test")
        )
    users = np.unique(train[2])
    print("one model, by kind, alone, one model and own counts")
    every = [(*part[:2], np.searchsorted(users, part[2])) for part in (train, test)]
    print("all people", *(f"{value:.1f}" for value in accuracies(*every)))
    for path in sys.argv[2:]:
        split, parts = Split.load(path), []
        source = train if split.own_from_train else test
        for arrays, rows in ((train, split.train), (source, split.test)):
            index, people = numbered(rows)
            parts.append((arrays[0][index], arrays[1][index], people))
        print(Path(path).stem, *(f"{value:.1f}" for value in accuracies(*parts)))


if __name__ == "__main__":
    main()
