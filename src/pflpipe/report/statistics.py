"""Statistics over the seeds of a study: paired differences with intervals, who may be the best,
ranks.

The unit is the run. All clients of a run share its noise, cohorts and initial model, so thousands
of clients of one run are one observation of a method. An interval over clients would be too short:
one more seed could refute it. Every statistic is therefore one number per run first (a mean over
clients, a worst tenth, a share of clients); its standard deviation is that over seeds.

Lines (columns of a table: seeds x lines) are paired by seed. At the same seed they have the same
split, new clients and test rows, whose effect cancels in a difference. The interval is Student's t;
its degrees of freedom are one less than the number of seeds that both lines have.

Clients are not resampled. Client 3 of one seed is another person, or has another share of the data,
than client 3 of the next seed (data/partition.py): clients are nested in seeds, not crossed with
them, and the variance of the seeds' means includes theirs. An interval is therefore about other
seeds of the same data set (noise, partition, new clients). It is not about other data.

There are two families of intervals. In each, the probability that any interval excludes 0 wrongly
is at most 5 % per study:

- Lines against a baseline that is fixed beforehand: Holm's procedure over the lines (Holm 1979,
  A simple sequentially rejective multiple test procedure).
- Which line is the best: a line is excluded if the interval of its difference to the largest mean
  excludes 0 at the level 0.05 / (m - 1). The line that is truly best is excluded with a probability
  of at most 5 %, although the data choose the line that it is compared with: whenever it is
  excluded, one of m - 1 comparisons that are fixed beforehand fails (Hsu 1984, Constrained
  simultaneous confidence intervals for multiple comparisons with the best, in Bonferroni's form,
  without equal variances).

scipy has the distribution, but not Holm's procedure.
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
"""With fewer seeds, an interval is unbounded: two values estimate no variance."""
DRAWS = 2000
"""Resamples of the seeds for an interval of ranks."""
_DIGITS = 9  # of a percentage; sums in another order differ in later digits


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
        """1 if the interval lies above 0, -1 if it lies below 0, and 0 if it includes 0."""
        return int(self.low > 0) - int(self.high < 0)


def paired(ours: pd.Series[float], theirs: pd.Series[float], alpha: float = ALPHA) -> Difference:
    """Return the mean difference and its 1 - ``alpha`` interval, by t over the seeds of both.

    A seed with a value that is missing or not finite is left out. If all differences are equal to
    1e-9, the interval is that point, and p is 0 unless the point is 0.

    Args:
        ours, theirs: one number for each run, by seed.
    """
    # pandas aligns by seed: a seed that only one line has becomes NaN and is dropped below.
    differences = (ours - theirs).to_numpy(np.float64).round(_DIGITS)
    differences = differences[np.isfinite(differences)]
    n = len(differences)
    mean = float(differences.mean()) if n else math.nan
    if n < MIN_SEEDS:
        return Difference(mean, -math.inf, math.inf, 1.0, n)
    if np.ptp(differences) == 0:
        return Difference(mean, mean, mean, float(mean == 0), n)
    # special.stdtrit and not stats.t.ppf, which costs a hundred times as much per call; tables need
    # thousands.
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
        # Holm's procedure stops at the first line that is not rejected; its level stays for all
        # later lines, whose p-values are larger. Adjusted p-values never decrease.
        if largest <= ALPHA:
            level = ALPHA / left
        largest = max(largest, min(1.0, plain[line].p * left))
        adjusted[line] = replace(paired(values[line], baseline, level), p=largest)
        left -= 1
    return {line: adjusted[line] for line in values}


def comparable(values: pd.DataFrame) -> pd.DataFrame:
    """Return the lines with ``MIN_SEEDS`` finite values or more, at the seeds that all of these
    have; without lines or rows where that leaves fewer seeds."""
    finite = values.astype(np.float64).replace([math.inf, -math.inf], math.nan)
    finite = finite.loc[:, finite.notna().sum() >= MIN_SEEDS].dropna()
    return finite if len(finite) >= MIN_SEEDS else finite.iloc[:0, :0]


@dataclass(frozen=True)
class Contest:
    """Who may be the best of a section.

    Attributes:
        leader: the line with the largest mean over the seeds that all comparable lines have; the
            first of equal ones.
        behind: its difference to every other comparable line, at the level of the module's second
            family.
        kept: the leader and all lines that are not distinguishable from it; the line that is truly
            best is among them with 95 % confidence.
    """

    leader: Any
    behind: dict[Any, Difference]
    kept: frozenset[Any]

    @property
    def decided(self) -> bool:
        """Whether the leader is the best: no other line is kept."""
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
    finite = comparable(values)
    if finite.shape[1] < 2:
        return None
    # Rounded, so that equal means tie whatever the order of their sums; the first line wins.
    leader = finite.columns[int(np.argmax(finite.mean().to_numpy().round(_DIGITS)))]
    others = [line for line in finite if line != leader]
    behind = {line: paired(values[leader], values[line], ALPHA / len(others)) for line in others}
    kept = [line for line, difference in behind.items() if difference.sign <= 0]
    return Contest(leader, behind, frozenset([leader, *kept]))


def rank_intervals(values: pd.DataFrame, *stream: str) -> dict[Any, tuple[int, int]]:
    """Return the first and last rank (1 is the largest mean) of every comparable line in 95 % of
    resampled sets of seeds, drawn with replacement for all lines alike.

    Seeds are few and a resample repeats some, so the intervals are too short rather than too long.
    They are descriptive; no sentence about the best method uses them.

    Args:
        values: as for ``contest``.
        stream: names of the random stream.
    """
    finite = comparable(values)
    if finite.empty:
        return {}
    # One set of resamples for all lines: ranks compare lines at the same seeds.
    numbers = finite.to_numpy()
    draws = numpy_rng(0, "ranks", *stream).integers(len(numbers), size=(DRAWS, len(numbers)))
    means = numbers[draws].mean(axis=1).round(_DIGITS)
    ranks = stats.rankdata(-means, axis=1)
    low, high = np.quantile(ranks, [ALPHA / 2, 1 - ALPHA / 2], axis=0)
    return {
        line: (math.floor(low[index]), math.ceil(high[index]))
        for index, line in enumerate(finite.columns)
    }
