"""What a study's seeds support: paired differences with intervals, who may be the best, ranks.

The unit is the run. One run's noise, cohorts and initial model are common to all of its clients, so
thousands of clients of one run are one observation of a method, and an interval over clients would
promise what one more seed can break. Every statistic here is therefore one number for each run
first (a mean over clients, a worst tenth, a share of clients), and its spread is that over seeds.

Lines are paired by seed: at the same seed all of them have the same split, the same new clients and
the same test rows, whose luck cancels in a difference. The interval is Student's t with one degree
of freedom less than the seeds that both lines have; a line with ten seeds meets one with five on
those five.

Clients are not resampled. Client 3 of one seed is another person, or another deal, than client 3 of
the next one (data/partition.py): clients are nested in seeds, not crossed with them, and the spread
of the seeds' means has theirs in it. What an interval is about is therefore other seeds of the same
data set: noise, deal, who is new. It is not about other data.

Two questions, and for each a family of intervals, of which any excludes 0 wrongly in at most 5 % of
studies:

- a line against a baseline that was named before anybody looked: Holm's procedure over the lines
  (Holm 1979, A simple sequentially rejective multiple test procedure);
- which line is the best: a line is out if the interval of its difference to the largest mean
  excludes 0 at the level 0.05 / (m - 1). The line that is truly best is out with a probability of
  at most 5 %, although the data chose whom it is compared with: whenever it is out, one of m - 1
  comparisons that are fixed beforehand fails (Hsu 1984, Constrained simultaneous confidence
  intervals for multiple comparisons with the best, in Bonferroni's form, without equal variances).

scipy has the distribution; Holm's procedure, which it lacks, is three lines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import special, stats

from pflpipe.seeds import numpy_rng

ALPHA = 0.05
"""One minus the confidence of every interval or family of intervals."""
MIN_SEEDS = 3
"""With fewer, an interval is the whole line: two seeds say little of a spread."""
DRAWS = 2000
"""Resamples of the seeds behind an interval of ranks."""
_DIGITS = 9  # of a percentage; what sums in another order differ by is no difference


@dataclass(frozen=True)
class Difference:
    """A paired difference of two lines, ours minus theirs, in the unit of what is compared.

    Attributes:
        mean: over the seeds that both have; NaN without any.
        low, high: ends of the interval; infinite with fewer than ``MIN_SEEDS`` seeds.
        p: two-sided; 1 with fewer than ``MIN_SEEDS`` seeds.
        seeds: how many both have.
    """

    mean: float
    low: float
    high: float
    p: float
    seeds: int

    @property
    def sign(self) -> int:
        """1 where the interval lies above 0, -1 where it lies below, and 0 where it does not
        tell."""
        return int(self.low > 0) - int(self.high < 0)


def paired(ours: pd.Series[float], theirs: pd.Series[float], alpha: float = ALPHA) -> Difference:
    """Return the mean difference and its 1 - ``alpha`` interval, by t over the seeds of both.

    A value that is missing or not finite takes its seed out. Equal differences at every seed, to
    1e-9, are taken at their word: the interval is that point, and p is 0 unless the point is 0.

    Args:
        ours, theirs: one number for each run, by seed.
    """
    differences = (ours - theirs).to_numpy(np.float64).round(_DIGITS)
    differences = differences[np.isfinite(differences)]
    n = len(differences)
    mean = float(differences.mean()) if n else math.nan
    if n < MIN_SEEDS:
        return Difference(mean, -math.inf, math.inf, 1.0, n)
    if np.ptp(differences) == 0:
        return Difference(mean, mean, mean, float(mean == 0), n)
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    reach = float(special.stdtrit(n - 1, 1 - alpha / 2)) * error
    p = 2 * float(special.stdtr(n - 1, -abs(mean) / error))
    return Difference(mean, mean - reach, mean + reach, p, n)


def against(values: pd.DataFrame, baseline: pd.Series[float]) -> dict[Any, Difference]:
    """Return every line's difference to a baseline, with intervals that exclude 0 exactly where
    Holm's procedure over the lines rejects equality at ``ALPHA``, and with Holm's p.

    In the order of their p the lines have levels ALPHA / m, ALPHA / (m - 1), ... up to the first
    one that is not rejected, whose level all later ones share.

    Args:
        values: seeds x lines, NaN where a line lacks a seed; without the baseline.
        baseline: by seed.
    """
    plain = {line: paired(values[line], baseline) for line in values}
    adjusted: dict[Any, Difference] = {}
    level, largest, left = 0.0, 0.0, len(plain)
    for line in sorted(plain, key=lambda line: plain[line].p):
        if largest <= ALPHA:
            level = ALPHA / left
        largest = max(largest, min(1.0, plain[line].p * left))
        adjusted[line] = replace(paired(values[line], baseline, level), p=largest)
        left -= 1
    return {line: adjusted[line] for line in values}


def comparable(values: pd.DataFrame) -> pd.DataFrame:
    """Return the lines with ``MIN_SEEDS`` finite values or more, at the seeds that all of these
    have; without lines or rows where that leaves fewer seeds."""
    known = values.astype(np.float64).replace([math.inf, -math.inf], math.nan)
    known = known.loc[:, known.notna().sum() >= MIN_SEEDS].dropna()
    return known if len(known) >= MIN_SEEDS else known.iloc[:0, :0]


@dataclass(frozen=True)
class Contest:
    """Who may be the best of a section.

    Attributes:
        leader: the line with the largest mean over the seeds that all comparable lines have; the
            first of equal ones.
        behind: its difference to every other comparable line, at the level of the module's second
            family; what is out lies wholly below the leader.
        kept: the leader and all that is not distinguishable from it; the line that is truly best
            is among them with 95 % confidence.
    """

    leader: Any
    behind: dict[Any, Difference]
    kept: frozenset[Any]

    @property
    def decided(self) -> bool:
        """Whether the leader is the best: nobody else is kept."""
        return len(self.kept) == 1

    @property
    def bold(self) -> frozenset[Any]:
        """The lines that a table has in bold: ``kept``, or none where no line is out."""
        return self.kept if len(self.kept) <= len(self.behind) else frozenset()


def contest(values: pd.DataFrame) -> Contest | None:
    """Return who may be the best of a section; None where fewer than two lines are comparable.

    Args:
        values: seeds x lines, more is better, NaN where a line lacks a seed.
    """
    known = comparable(values)
    if known.shape[1] < 2:
        return None
    leader = known.columns[int(np.argmax(known.mean().to_numpy().round(_DIGITS)))]
    others = [line for line in known if line != leader]
    behind = {line: paired(values[leader], values[line], ALPHA / len(others)) for line in others}
    kept = [line for line, difference in behind.items() if difference.sign <= 0]
    return Contest(leader, behind, frozenset([leader, *kept]))


def rank_intervals(values: pd.DataFrame, *stream: str) -> dict[Any, tuple[int, int]]:
    """Return the first and last rank (1 is the largest mean) of every comparable line in 95 % of
    resampled sets of seeds, drawn with replacement for all lines alike.

    Seeds are few and a resample repeats some, so the intervals are rather short than long: they
    describe, and no word of a sentence follows from them.

    Args:
        values: as of ``contest``.
        stream: words that name the random stream.
    """
    known = comparable(values)
    if known.empty:
        return {}
    numbers = known.to_numpy()
    draws = numpy_rng(0, "ranks", *stream).integers(len(numbers), size=(DRAWS, len(numbers)))
    means = numbers[draws].mean(axis=1).round(_DIGITS)
    ranks = stats.rankdata(-means, axis=1)
    low, high = np.quantile(ranks, [ALPHA / 2, 1 - ALPHA / 2], axis=0)
    return {
        line: (math.floor(low[index]), math.ceil(high[index]))
        for index, line in enumerate(known.columns)
    }
