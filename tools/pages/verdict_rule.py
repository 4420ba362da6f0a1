"""When a printed number counts as reproduced: a rule, and nothing else.

A printed number is one run that nobody here has seen. So the interval is that of one more run: our
mean plus and minus Student's quantile times the standard deviation that was measured between seeds
and, after a last round, between rounds. An interval that holds the table's other numbers too says
nothing about this one, on either side.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

ROUNDS = 5
"""The last rounds of a run, of which the spread between rounds is taken."""
POWER = 0.8
"""The share of a table's other printed numbers that an interval must leave out."""
REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
NO_POWER, TOGETHER = "undecided, no power", "undecided, its reading is off"


@dataclass(frozen=True)
class Spread:
    """The standard deviation of one run's number, and its degrees of freedom; none where no row has
    two seeds."""

    deviation: float
    freedom: int

    def half(self, seeds: int) -> float:
        """Return half the length of the interval for one more run, around a mean over seeds."""
        if not self.freedom:
            return math.inf
        quantile = float(stats.t.ppf(0.975, self.freedom))
        return quantile * self.deviation * math.sqrt(1 + 1 / seeds)


def spread(rows: Iterable[Sequence[Sequence[float]]], best: bool) -> Spread:
    """Return what differs from run to run.

    Args:
        rows: of every row and seed, the accuracies after each round.
        best: the best round is reported, and not the last one.
    """
    squares, freedom, between_rounds = 0.0, 0, []
    for seeds in rows:
        ends = [series[-ROUNDS:] for series in seeds]
        values = [max(series) for series in seeds] if best else [np.mean(end) for end in ends]
        squares += len(values) * float(np.var(values))
        freedom += len(values) - 1
        between_rounds += [float(np.var(end, ddof=1)) for end in ends]
    if not freedom:
        return Spread(math.inf, 0)
    rounds = 0.0 if best else float(np.mean(between_rounds))
    return Spread(math.sqrt(squares / freedom + rounds), freedom)


def off_together(differences: Sequence[float], halves: Sequence[float]) -> bool:
    """Return whether the rows of a reading are off on the same side: their mean difference to the
    print is longer than its own interval.

    Args:
        differences: ours minus the printed number, of every row of the reading.
        halves: half the lengths of their intervals.
    """
    together = math.sqrt(sum(half**2 for half in halves)) / len(halves)
    return abs(float(np.mean(differences))) > together


def inside(printed: Iterable[float], ours: float, half: float) -> int:
    """Return how many printed numbers an interval holds."""
    return sum(abs(number - ours) <= half for number in printed)


def verdict(
    printed: float, ours: float, half: float, others: Sequence[float], together: bool
) -> str:
    """Return the verdict on one printed number.

    Args:
        printed: the number.
        ours: the mean over seeds.
        half: half the length of its interval.
        others: the table's other printed numbers.
        together: whether the rows of the same reading are off together.
    """
    if len(others) - inside(others, ours, half) < POWER * len(others):
        return NO_POWER
    if not inside([printed], ours, half):
        return NOT_REPRODUCED
    return TOGETHER if together else REPRODUCED
