"""Statistics over the seeds of a study: differences with simultaneous intervals, who may be the
best, ranks.

One mixed model describes the lines of a study at one budget: value = line + seed + luck of the run.
Lines of one seed have the same split, new clients and test rows; this common effect cancels in a
difference. The luck of a run (noise, cohorts, initial model) is common to all of its clients, so
thousands of clients of one run are one observation of it.

Three seeds do not know the variance of one difference: Student's t of it is so wide, and so
different from line to line, that chance decides who is "better". So variances are pooled. The
variance of a difference is a weighted mean of its own (of its values by seed, n - 1 degrees of
freedom) and that of any two lines (twice the variance of the residuals of all lines, ``PRIOR``
degrees, fewer where few residuals are pooled), and never below its own: a pair that is less steady
than the others keeps its own variance, a pair whose seeds agree by chance does not (moderated
variances: Smyth 2004, Linear models and empirical Bayes methods; the prior's weight is fixed here
and not estimated, because with few lines its estimate is too large too often). Its own is that of
the pair and not the sum of two lines', which is too small where lines of one kind have errors in
common. With two lines this is the paired t test.

Intervals are about other seeds and other people of the same kind. Seeds draw P people each out of
a pool of N, with an effect of variance u of each person on the difference. The variance of the mean
over n seeds is then V / n + u / N, where V, the variance over seeds, includes what another draw of
people changes. (Proof: two seeds share P / N of their people, so Var(mean) = u / (n P) + (n - 1) u
/ (n N), and E(V) contains u / P - u / N.) ``People`` gives u / N where people are known. Intervals
are not about other data.

Intervals of one family hold together with 95 % (Šidák 1967: two-sided t intervals with any
correlation hold at least as often as independent ones):

- Lines against a baseline that is fixed beforehand.
- Which line is the best: a line is excluded if the interval of its difference to the largest mean
  excludes 0 in the family of m - 1 comparisons. The line that is truly best is excluded with a
  probability of at most 5 %, although the data choose the line that it is compared with:
  whenever it is excluded, one of m - 1 comparisons that are fixed beforehand fails (Hsu 1984,
  Constrained simultaneous confidence intervals for multiple comparisons with the best).

A run that collapsed is no observation of these means (``collapsed``): they are about the runs that
did not. How often runs collapse is a question of its own (``share``).

tools/benchmarks/bench_verdicts.py simulates studies of which the truth is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy import special, stats

from pflpipe.seeds import numpy_rng

ALPHA = 0.05
"""One minus the confidence of every interval or family of intervals."""
MIN_SEEDS = 3
"""With fewer seeds, an interval is unbounded: two values estimate no variance."""
PRIOR, PART = 2.0, 12
"""Degrees of freedom of the pooled variance in that of a difference; at most this part of the
pool's."""
DROP, SPREADS = 5.0, 10.0
"""A run collapsed if it is more than ``DROP`` points and more than ``SPREADS`` standard deviations
of the median line below the best run of its line."""
MOST_SEEDS = 100
"""More seeds are suggested to nobody."""
DRAWS = 2000
"""Resamples of the seeds for an interval of ranks."""
_DIGITS = 9  # of a percentage; sums in another order differ in later digits
People = Callable[[Any, Any], float]
"""Variance over people of the difference of two lines, divided by the people of the pool."""


@dataclass(frozen=True)
class Difference:
    """The difference of two lines, ours minus theirs, in the unit of what is compared.

    Attributes:
        mean: of the runs that did not collapse; NaN where a line has none.
        low, high: ends of the interval; infinite with fewer than ``MIN_SEEDS`` seeds.
        seeds: those that both lines have.
    """

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def sign(self) -> int:
        """1 if the interval lies above 0, -1 if it lies below 0, and 0 if it includes 0."""
        return int(self.low > 0) - int(self.high < 0)

    def seeds_beside(self, value: float) -> int | None:
        """Return with about how many seeds the interval would leave out a value, if mean and
        spread stay; None if it takes more than ``MOST_SEEDS``."""
        if self.low <= -math.inf:
            return MIN_SEEDS
        # The level of the family is not known here; a quantile far out stands for it.
        far = 1 - ALPHA / 20
        spread = (self.high - self.low) * math.sqrt(self.seeds)
        spread /= float(special.stdtrit(self.seeds + 1, far))
        for seeds in range(self.seeds + 1, MOST_SEEDS + 1):
            reach = spread * float(special.stdtrit(seeds + 1, far)) / math.sqrt(seeds) / 2
            if reach < abs(self.mean - value):
                return seeds
        return None


def collapsed(values: pd.DataFrame) -> pd.DataFrame:
    """Return which runs collapsed: seeds x lines, of accuracies in percent, minus infinity for a
    run that diverged.

    The rule is the same for all lines: a run that diverged, and one that lies more than ``DROP``
    points and more than ``SPREADS`` standard deviations below the best run of the same line. The
    deviation is the median over the lines of theirs, which the few that collapse do not change;
    where half of them do, no run is so far below, and these lines keep their large variances.
    """
    known = values.replace(-math.inf, math.nan)
    limit = max(DROP, SPREADS * float(np.nan_to_num(known.std().median())))
    return known.max().fillna(0.0) - values > limit


def share(count: int, runs: int) -> tuple[float, float]:
    """Return the 95 % interval of the probability of which ``count`` of ``runs`` are a sample, in
    percent (Clopper and Pearson 1934)."""
    ends = stats.binomtest(count, runs).proportion_ci(1 - ALPHA, method="exact")
    return 100 * float(ends.low), 100 * float(ends.high)


class Model:
    """Lines of one budget with their pooled variances.

    Args:
        values: seeds x lines, NaN where a line lacks a seed.
        people: without it intervals are over seeds alone.
    """

    def __init__(self, values: pd.DataFrame, people: People | None = None) -> None:
        finite = values.astype(np.float64).replace([math.inf, -math.inf], math.nan)
        finite = finite[finite.count(axis=1) > 1]  # one line alone at a seed compares with nothing
        self.people = people
        self.lines = finite.columns
        self._values = finite.to_numpy().round(_DIGITS)
        self._seeds = np.isfinite(self._values).sum(axis=0)

    @cached_property
    def _fit(self) -> tuple[np.ndarray, float, float]:
        """Effects of the lines, and the variance of all residuals with its degrees of freedom."""
        known = self._values[:, self._seeds > 0]
        common = np.zeros(len(known))
        for _ in range(1 if np.isfinite(known).all() else 50):
            # Least squares by turns; with all values there, the first turn is exact.
            common = _means(known - _means(known - common[:, None], 0), 1)
        effects = _means(self._values - common[:, None], 0)
        residuals = self._values - effects - common[:, None]
        several = self._seeds > 1
        lines = int(several.sum())
        degrees = float((self._seeds[several] - 1).sum()) * (lines - 1) / max(lines, 1)
        squares = float(np.nansum(residuals[:, several] ** 2))
        return effects, squares / degrees if degrees else math.nan, degrees

    def mean(self, line: Hashable) -> float:
        """Return a line's mean at the seeds of all lines; minus infinity without a value."""
        mean = float(self._fit[0][self.lines.get_loc(line)])
        return -math.inf if math.isnan(mean) else round(mean, _DIGITS)

    def difference(self, ours: Hashable, theirs: Hashable, compared: int = 1) -> Difference:
        """Return ours minus theirs with the interval of a family of ``compared`` differences. If
        no residual is larger than 1e-9, the interval is a point."""
        effects, pool, degrees = self._fit
        one, two = self.lines.get_loc(ours), self.lines.get_loc(theirs)
        mean = round(float(effects[one] - effects[two]), _DIGITS)
        apart = self._values[:, one] - self._values[:, two]
        apart = apart[np.isfinite(apart)]
        seeds = len(apart)
        if seeds < MIN_SEEDS:
            return Difference(mean, -math.inf, math.inf, seeds)
        own = float(apart.var(ddof=1))
        prior = min(PRIOR, degrees / PART) if (self._seeds > 1).sum() > 2 else 0.0
        freedom = prior + seeds - 1
        luck = max(own, (prior * 2 * pool + (seeds - 1) * own) / freedom) / seeds
        people = self.people(ours, theirs) if self.people else 0.0
        if luck + people < 10.0 ** (-2 * _DIGITS):
            return Difference(mean, mean, mean, seeds)
        level = 1 - (1 - (1 - ALPHA) ** (1 / max(compared, 1))) / 2
        # special.stdtrit and not stats.t.ppf, which costs a hundred times as much per call.
        quantile = float(special.stdtrit(freedom, level))
        # The people are many, so their part has the quantile of a normal distribution.
        reach = math.hypot(
            quantile * math.sqrt(luck), float(special.ndtri(level)) * math.sqrt(people)
        )
        return Difference(mean, mean - reach, mean + reach, seeds)


def _means(values: np.ndarray, axis: int) -> np.ndarray:
    counts = np.isfinite(values).sum(axis=axis)
    return np.asarray(
        np.where(counts, np.nansum(values, axis=axis) / np.maximum(counts, 1), np.nan)
    )


def against(
    values: pd.DataFrame,
    baseline: pd.Series[float],
    people: Callable[[Any], float] | None = None,
) -> dict[Any, Difference]:
    """Return every line's difference to a baseline, as one family.

    Args:
        values: seeds x lines, NaN where a line lacks a seed; without the baseline.
        baseline: by seed.
        people: of a line and the baseline, see ``People``.
    """
    lines = [*values]
    columns = pd.concat([values.set_axis(range(len(lines)), axis=1), baseline.rename(-1)], axis=1)
    known = None if people is None else lambda place, _: people(lines[place])
    model = Model(columns, known)
    return {line: model.difference(place, -1, len(lines)) for place, line in enumerate(lines)}


def paired(ours: pd.Series[float], theirs: pd.Series[float]) -> Difference:
    """Return the difference of two lines by seed: with no others, that of the paired t test."""
    return against(ours.to_frame("ours"), theirs)["ours"]


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
        behind: its difference to every other comparable line, as one family.
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


def contest(values: pd.DataFrame, people: People | None = None) -> Contest | None:
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
    model = Model(finite, people)
    behind = {line: model.difference(leader, line, len(others)) for line in others}
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
