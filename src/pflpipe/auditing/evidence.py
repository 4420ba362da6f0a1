"""What both auditors judge by: measured movements and noise, and the errors of an attacker.

Arithmetic of NumPy and SciPy; the auditor of methods computes its runs with torch, the auditor of
arrays does not know torch.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from pflpipe.privacy import accounting
from pflpipe.privacy.mechanisms.gaussian import gdp_epsilon
from pflpipe.privacy.plan import Plan

WIDEST = 1e-4
"""Largest relative spread of the movement that is not flagged; float32 rounding gives about
1e-6."""
ERROR = 0.01
"""Probability that one of the two bounds does not hold."""
EPSILONS = np.linspace(0, 15, 151)
"""Points at which the claimed curve is compared; 40,000 runs cannot refute an epsilon above 9."""
WHOLE = 160
"""Numbers of a view up to which the whole covariance of its noise is estimated by default."""
SILENT = 1e-9
"""Largest variance along a direction, relative to that of single coordinates, that counts as no
noise; float32 rounding gives about 1e-14."""
POWER = 0.9
"""The factor counts as detected if it is flagged with this probability."""


class Noise:
    """The noise of views ``[n, k]``, as a ruler of movements.

    Args:
        views: draws of it.
        most: number of coordinates up to which the whole covariance is estimated.
    """

    def __init__(self, views: np.ndarray, most: int = WHOLE) -> None:
        centred, n = views - views.mean(axis=0), len(views) - 1
        self.sizes = centred.std(axis=0, ddof=1)
        self.absolute = np.abs(centred).mean(axis=0)
        self.noisy = self.sizes > 0
        self.axes: np.ndarray | None = None
        p = int(self.noisy.sum())
        if p <= most and n > 2 * p:
            # The correlation matrix: divided by the sizes first, so that ``SILENT`` is relative
            # also for coordinates with different scales. Its eigenvectors are directions of
            # independent noise, and (n - p - 1) / n removes the bias of an inverted estimate.
            steps = centred[:, self.noisy] / self.sizes[self.noisy]
            values, self.axes = np.linalg.eigh(steps.T @ steps / n)
            self.tied = values < SILENT
            self.weights = np.where(self.tied, 0, (n - p - 1) / n / np.where(self.tied, 1, values))

    def length(self, movement: np.ndarray) -> float:
        """Return the length of ``[k]`` in standard deviations; infinite if a part has no noise."""
        if (movement[~self.noisy] != 0).any():
            return math.inf
        steps = movement[self.noisy] / self.sizes[self.noisy]
        if self.axes is None:
            return float(np.linalg.norm(steps))
        components = steps @ self.axes
        if (np.abs(components[self.tied]) > 1e-4 * np.linalg.norm(steps)).any():
            return math.inf
        return math.sqrt(float(components**2 @ self.weights))

    def length_in_sum(self, movement: np.ndarray) -> float:
        """Return the L1 length of ``[k]`` in mean absolute values, of Laplace noise its scale."""
        if (movement[~self.noisy] != 0).any():
            return math.inf
        return float((np.abs(movement[self.noisy]) / self.absolute[self.noisy]).sum())


@dataclass(frozen=True)
class Sensitivity:
    """The worst canary of one mechanism.

    Attributes:
        canary: its name.
        length: length of its movement of a release, in units of what the claim covers: at most 1
            for a correct mechanism.
        length_most: the value that ``length`` exceeds with probability ``RARE_LENGTH`` in a correct
            mechanism.
        spread: standard deviation of that movement over the noise, relative to its largest
            coordinate: 0 if correct.
        noise: noise without the canary, as a fraction of the claimed noise (1 if correct). None
            with departures: their noise has no known law, and ``length`` measures it.
        noise_least: the value that ``noise`` falls below with probability ``RARE`` in a correct
            mechanism.
        detects: the largest factor on all noise, below 1, that these checks flag with probability
            ``POWER`` in an otherwise correct mechanism.
    """

    canary: str
    length: float
    length_most: float
    spread: float
    noise: float | None = None
    noise_least: float | None = None
    detects: float = 0.0

    @property
    def short(self) -> bool:
        """Whether the noise is smaller than claimed, or covers less than the release moves."""
        if self.noise is not None and self.noise_least is not None:
            return self.length > self.length_most or self.noise < self.noise_least
        return self.length > self.length_most

    @property
    def flagged(self) -> bool:
        """Whether the noise is too small, or depends on private data."""
        return bool(self.short or self.spread > WIDEST)


@dataclass(frozen=True)
class Evidence:
    """The errors of the attacker and the bounds that follow from them.

    Attributes:
        runs: evaluation runs with and without the canary each.
        false_positives, false_negatives: runs without the canary taken for runs with it, and the
            reverse.
        statistic: name of the attacker's statistic.
        excess: largest excess of the attack over the claimed curve; at most 0 if the claim is not
            refuted.
        mu_lower: lower bound on mu if the mechanism is mu-GDP; None if the claim has another form.
        epsilon_lower: lower bound on epsilon at the plan's delta, from ``mu_lower`` or, without it,
            ``epsilon_direct``.
        epsilon_direct: lower bound without any assumption; it cannot exceed the logarithm of a
            fifth of the runs.
    """

    runs: int
    false_positives: int
    false_negatives: int
    statistic: str
    excess: float
    mu_lower: float | None
    epsilon_lower: float
    epsilon_direct: float

    @property
    def flagged(self) -> bool:
        """Whether the claim is refuted."""
        return bool(self.excess > 0)


def judge(
    claimed: Plan,
    runs: int,
    false_positives: int,
    false_negatives: int,
    statistic: str = "",
    error: float = ERROR,
) -> Evidence:
    """Return the evidence against a claim from an attacker's errors in ``runs`` runs with and
    ``runs`` runs without the canary, whose bounds hold together except with probability
    ``error``."""
    errors = np.array([[false_positives], [false_negatives]])
    excess = excess_of(curve(claimed), runs, errors, error).item()
    upper_fp, upper_fn = _upper(runs, errors, error)[:, 0].tolist()
    at = accounting.delta_of(claimed)
    # (epsilon, delta)-privacy in both directions: 1 - FN <= e^epsilon FP + delta, and the same with
    # the errors exchanged.
    direct = 0.0
    for wrong, missed in ((upper_fp, upper_fn), (upper_fn, upper_fp)):
        if missed < 1 - at:
            direct = max(direct, math.log((1 - at - missed) / wrong))
    mu, epsilon = None, direct
    if accounting.mu(claimed) is not None:
        # The trade-off curve of mu-GDP: Phi^-1(1 - FP) - Phi^-1(FN) <= mu (Nasr et al., 2023).
        mu = max(0.0, float(stats.norm.ppf(1 - upper_fp) - stats.norm.ppf(upper_fn)))
        epsilon = gdp_epsilon(mu, at) if mu > 0 else 0.0
    return Evidence(runs, false_positives, false_negatives, statistic, excess, mu, epsilon, direct)


@functools.lru_cache(maxsize=8)
def detects(claimed: Plan, runs: int, error: float = ERROR) -> float:
    """Return the largest factor on all noise, below 1, that whole runs flag with probability
    ``POWER``.

    It is computed for an attacker that uses the one coordinate that the canary moves and the
    likelihood ratio of the claimed plan: the law of a run's sum is the T-fold convolution of that
    of a round, and the counts of its errors are binomial. 0 if no factor above 0.01 is flagged, for
    example because the claim is very weak.
    """
    claimed_curve = curve(claimed)
    # The same quantiles for every factor, so that the power decreases with the factor and bisection
    # works. 4,000 give the power to half a percent.
    chance = np.random.default_rng(0).random((2, 4_000))

    def power(factor: float) -> float:
        rates = np.array(errors_of_midpoint(claimed, factor))[:, None]
        errors = stats.binom.ppf(chance, runs, rates)
        return float((excess_of(claimed_curve, runs, errors, error) > 0).mean())

    low, high = 0.01, 1.0
    if power(low) < POWER:
        return 0.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle) >= POWER else (low, middle)
    return low


def errors_of_midpoint(claimed: Plan, factor: float) -> tuple[float, float]:
    """Return an attacker's rates of false positives and of false negatives if all noise is smaller
    by a factor.

    The law of one round's log likelihood ratio is put on a grid. Its T-th power under the Fourier
    transform is the law of T rounds.
    """
    real = claimed.multiplier * factor
    noise = claimed.law.law(real)
    edge = float(noise.isf(1e-13))
    x = np.linspace(-edge, 1 + edge, 50_001)
    middles = (x[1:, None] + x[:-1, None]) / 2
    ratio = likelihood(claimed, middles, np.ones(1), known=False)
    absent = np.diff(noise.cdf(x))
    there = (1 - claimed.sample_rate) * absent + claimed.sample_rate * np.diff(noise.cdf(x - 1))
    centre, gap = float(ratio @ absent), float(ratio @ (there - absent))
    width = math.sqrt((ratio - centre) ** 2 @ (absent + there) / 2)
    step = width / 1000
    reach = claimed.rounds * gap + 10 * math.sqrt(claimed.rounds) * width + float(np.ptp(ratio))
    # The grid is circular: large enough that T rounds do not wrap around into each other.
    size = 2 ** math.ceil(math.log2(2 * reach / step))
    places = np.rint((ratio - centre) / step).astype(int) % size
    # The sum of T rounds minus T times the centre, in steps, for each place of the grid.
    totals = (np.arange(size) + size // 2) % size - size // 2
    laws = []
    for law in (absent, there):
        single = np.bincount(places, weights=law, minlength=size)
        laws.append(np.fft.irfft(np.fft.rfft(single) ** claimed.rounds, size).clip(min=0))
    middle = sum(float(law @ totals) for law in laws) / 2
    return float(laws[0][totals > middle].sum()), float(laws[1][totals <= middle].sum())


@functools.lru_cache(maxsize=8)
def curve(claimed: Plan) -> np.ndarray:
    """Return the claimed delta at ``EPSILONS``."""
    return np.array([accounting.delta(claimed, epsilon) for epsilon in EPSILONS])


def size_of_noise(claimed: Plan, units: np.ndarray, level: float) -> tuple[float, float, float]:
    """Return the size of noise over the claimed one, its least value in a correct mechanism (except
    with probability ``level``), and the largest factor that is detected.

    Args:
        units: ``[n, p]`` of mean 0, in units of the claim.
    """
    total, number, law, root = claimed.law.energy(units)
    least, usual = float(law.ppf(level)), float(law.ppf(POWER))
    return (total / number) ** root, (least / number) ** root, (least / usual) ** root


def _upper(runs: int, errors: np.ndarray, error: float) -> np.ndarray:
    """Return the Clopper-Pearson upper bounds of the error rates, ``[...]``."""
    bounds = stats.beta.ppf(1 - error / 2, errors + 1, runs - errors)
    return np.asarray(np.nan_to_num(bounds, nan=1.0))


def excess_of(curve: np.ndarray, runs: int, errors: np.ndarray, error: float = ERROR) -> np.ndarray:
    """Return the largest excess of each of n attacks over a claimed curve, ``[n]``.

    Args:
        curve: the claimed delta at ``EPSILONS``.
        errors: false positives and false negatives ``[2, n]``.
    """
    upper = _upper(runs, errors, error)[:, :, None]
    sides = ((upper[0], upper[1]), (upper[1], upper[0]))
    # One pair of bounds serves all epsilons: they are bounds of the rates, not of delta, so the
    # maximum over epsilon needs no correction for many comparisons.
    gaps = [(1 - missed - np.exp(EPSILONS) * wrong - curve).max(axis=1) for wrong, missed in sides]
    return np.asarray(np.maximum(*gaps))


def likelihood(claimed: Plan, seen: np.ndarray, unit: np.ndarray, known: bool) -> np.ndarray:
    """Return log p(seen | canary) / p(seen | no canary) by the claimed plan, up to the part of the
    other clients."""
    spread, rate = claimed.multiplier, 1.0 if known else claimed.sample_rate
    ratio = claimed.law.log_ratio(seen, unit, spread).sum(axis=1)
    # Under a secret draw: log(1 - q + q e^ratio); e^700 is the last power that float64 holds.
    mixed = ratio if rate == 1 else np.log1p(rate * np.expm1(np.minimum(ratio, 700)))
    return np.asarray(mixed)
