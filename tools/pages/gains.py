"""Who gains from learning together: clients of a run beside themselves learning alone at the same
seed, hence with the same examples and the same test rows.

Every gain is one number per run, whose spread over seeds is the business of statistics.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from pages.archive import Archive, is_new

PARTS = {
    "size": ("fewest", "few", "some", "many", "most"),
    "classes": ("narrow", "middle", "broad"),
}
GAINS = (
    *("above", "below", "net", "worse"),
    *(f"{kind}_{part}" for kind, parts in PARTS.items() for part in parts),
    "new",
)
CHANCE = 1.645
"""Standard errors by which one of twenty people is worse off where nobody is."""


def gains(study: Archive, alone: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run, by cell, with the columns ``GAINS``; NaN where a run has no partner
    at its seed or a group is empty.

    ``above``, ``below``: share of the clients in training with test rows, in percent, whose
    personal model has more, or fewer, of them right than their model alone; ``net`` is above less
    below. ``worse``: share of those who have fewer by more than ``CHANCE`` standard errors of the
    difference on their own test rows. ``size_fewest`` ... ``size_most``: mean gain in percent
    points of the clients with the fewest examples to train with, a fifth, and so on;
    ``classes_narrow`` ...: the same in thirds by the effective number of classes (archive.py), the
    measure of skew. ``new``: mean gain of the clients who were not in training, over what they
    learn alone.

    Args:
        study: what was committed.
        alone: the rows of its runs that learn alone.
    """
    partner = {(row.seed, row.partition): str(row.cell) for row in alone.itertuples()}
    clients = study.percent.index
    held = {name: one.reindex(clients) for name, one in study.held.items()}
    rows = {}
    for run in study.runs.itertuples():
        other = partner.get((run.seed, run.partition))
        found = dict.fromkeys(GAINS, math.nan)
        if other is not None:
            both = study.percent[[run.cell, other]].to_numpy()
            found |= dict(_of_run(both, held[str(run.partition)]))
        rows[run.cell] = found
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(GAINS))


def _of_run(both: np.ndarray, held: pd.DataFrame) -> Iterator[tuple[str, float]]:
    gain = both[:, 0] - both[:, 1]
    tested, new = ~np.isnan(gain), is_new(held)
    in_training = tested & ~new
    own, strangers = gain[in_training], gain[tested & new]
    if len(strangers):
        yield "new", float(strangers.mean())
    if not len(own):
        return
    above, below = 100 * float((own > 0).mean()), 100 * float((own < 0).mean())
    yield from (("above", above), ("below", below), ("net", above - below))
    ours, alone = both[in_training].T
    # Rows that one model has right and the other wrong, as often as if they were independent.
    apart = ours * (100 - alone) + alone * (100 - ours)
    error = np.sqrt(apart / held["test_size"].to_numpy(float)[in_training])
    yield "worse", 100 * float((own < -CHANCE * error).mean())
    for kind, column in (("size", "train_size"), ("classes", "classes")):
        values = held[column].to_numpy(float)[in_training]
        for part, members in zip(PARTS[kind], _parts(values, len(PARTS[kind])), strict=True):
            if members.any():
                yield f"{kind}_{part}", float(own[members].mean())


def _parts(values: np.ndarray, number: int) -> Iterator[np.ndarray]:
    """Yield who is in each of several equal parts, the lowest values first; clients that are alike
    are in one part, so that parts differ in size, or are empty."""
    ends = np.quantile(values, np.arange(1, number) / number)
    place = np.searchsorted(ends, values)
    yield from (place == part for part in range(number))


def curve(study: Archive, rows: pd.DataFrame) -> pd.Series[float]:
    """Return the mean accuracy over the seeds of a line by evaluated round, in percent; the last
    round is always among them.

    Where the study tested some of the clients by round (``evaluate_clients``), all rounds are of
    these, so that lines are compared with each other and not with all clients.

    Args:
        rows: of the line's runs.
    """
    curves = study.curves.reindex(columns=rows["cell"])
    last = pd.DataFrame({run.cell: {run.rounds: run.personal_own} for run in rows.itertuples()})
    return curves.combine_first(last).sort_index().mean(axis=1, skipna=False)


def cost(study: Archive, rows: pd.DataFrame, target: float) -> int | None:
    """Return the first evaluated round in which the ``curve`` of a line reaches a target, in
    percent; None if it never does."""
    reached = curve(study, rows)
    rounds = reached.index[reached >= target]
    return int(rounds[0]) if len(rounds) else None
