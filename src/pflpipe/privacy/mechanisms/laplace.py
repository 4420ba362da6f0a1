"""Laplace noise, which hides a movement by its L1 length.

A shift of a single coordinate is the worst one of a given length, so one dimension suffices. T
releases have the privacy loss distribution or the pure bound, whichever is tighter.

**If a client's message is replaced by another one** under sampling, dp_accounting has no such pair
of distributions; the rest of this page shows what the pair is.

Let C = 1, and let Z be noise of scale b in any number of dimensions. For two messages x and x' of
L1 length at most 1, let A and B be the densities of x + Z and x' + Z relative to that of Z. The two
neighbouring runs have the densities 1 - q + q A and 1 - q + q B relative to that of Z: given the
draw of the other clients their part is a constant, and mixing over their draws makes no delta
larger (it is jointly convex). All means are over Z.

**The worst messages are opposite moves of one coordinate, at every epsilon.** With g = e^epsilon
and c = (1 - q) (1 - g), delta is the mean of (c + q A - g q B)+, and for every number a

    (c + q A - g q B)+  <=  q (A - a)+  +  (c + q a - g q B)+.

The first term is convex in A, the second in B. So the mean of each is largest if a single
coordinate moves by 1, as shown below. Opposite moves of one coordinate reach both largest means.
For them A rises where B falls. So the two sides are equal for a = A at the place where c + q A - g
q B changes its sign (the least A if it is never below 0, the largest if it is never above).

**Of all moves, one coordinate by 1 gives every convex function of A the largest mean.** First let
two coordinates move by t + u = 1. A is exp((2 s - 1) / b), where s in [0, 1] adds up how far each
number has come on its way from 0 to t or u (before it: 0, beyond it: all of it). Take the geometric
mean of the densities with and without the move as the reference. Up to one factor, s has the law
m_t * m_u (a convolution) under it, and 2 m_1 if one coordinate moves by 1; m_t is a point mass at
0, another at t, and 1 / b between. The difference 2 m_1 - m_t * m_u is a point mass at 0 and at 1,
minus those at t and u, minus b^-2 times the convolution of [0, t] and [0, u]: above 0 at the ends,
below 0 between. A mean of f(A) is an integral of e^-v f(e^2v) under the reference, v = (2 s - 1) /
(2 b). The integrals of e^v and of e^-v are 1 for both laws. For a convex f, subtract the line (in
A) that meets f at both ends. The rest is 0 at the ends and at most 0 between, so its integral
against the difference is at least 0. Further coordinates are joined two at a time. A shorter move
is a longer one with a coordinate left out.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pflpipe.privacy import noise
from pflpipe.privacy.mechanisms import base
from pflpipe.privacy.mechanisms.base import Mechanism, Releases

WIDEST_EXPONENT = 700.0
"""dp_accounting takes the exponential of the loss of a release. For a wider loss (almost no noise)
the pure epsilon is used at all deltas, which at q < 1 is up to 1 / q above a curve."""


class Laplace(Mechanism):
    """Independent Laplace numbers of scale b."""

    name = "laplace"
    norm = 1
    variance = 2.0
    kurtosis = 6.0
    pure = True
    stable = False

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return standard Laplace numbers."""
        return noise.laplace(generator, shape)

    def law(self, scale: float) -> Any:
        """Return the Laplace distribution."""
        from scipy import stats

        return stats.laplace(scale=scale)

    def log_ratio(self, seen: Any, unit: Any, multiplier: float) -> Any:
        """Return (|x| - |x - u|) / b."""
        return (abs(seen) - abs(seen - unit)) / multiplier

    def energy(self, units: np.ndarray) -> tuple[float, float, Any, float]:
        """Return the sum of absolute values, a Gamma number. (Around an estimated mean it is too
        large by a fraction 1 / n, a tenth of its standard deviation.)"""
        from scipy import stats

        return float(np.abs(units).sum()), units.size, stats.gamma(units.size), 1.0

    def epsilon(self, of: Sequence[Releases], delta: float) -> float:
        """Return the sum of the pure epsilons, for every delta: T log(1 + q (e^(1/b) - 1)), which
        is T / b at q = 1."""
        return sum(map(_pure, of))

    def delta(self, of: Releases, epsilon: float) -> float | None:
        """Return 0 from the pure epsilon on; None below, and 1 without a curve."""
        return 0.0 if epsilon >= _pure(of) else None

    def event(self, multiplier: float) -> Any:
        """Return dp_accounting's Laplace event."""
        import dp_accounting

        return dp_accounting.LaplaceDpEvent(multiplier)

    def width(self, multiplier: float, rounds: int) -> float:
        """Return the largest loss."""
        return rounds / multiplier

    def has_curve(self, of: Releases) -> bool:
        """Return whether the loss of a round is at most ``WIDEST_EXPONENT``."""
        return 1 / of.multiplier <= WIDEST_EXPONENT

    def replaced(self, of: Releases, delta: float) -> float:
        """Return the smaller of the pure bound of all rounds and the curve of the worst pair."""
        shift = 1 / of.multiplier
        single = largest_loss(of.rate, shift)
        bound = of.rounds * single
        if delta == 0 or single > WIDEST_EXPONENT:
            return bound
        coarser = max(1.0, single / base.WIDEST_SINGLE_LOSS, bound / base.WIDEST_LOSS)
        found = _counted(of, base.FINEST_INTERVAL * coarser).get_epsilon_for_delta(delta)
        return min(bound, float(found))

    def group(self, of: Releases, delta: float, size: int) -> float:
        """Return epsilon of ``size`` times less noise, where all of the group count as soon as one
        of them is drawn: the rate is 1 - (1 - q)^size."""
        rate = 1 - (1 - of.rate) ** size
        together = dataclasses.replace(of, multiplier=of.multiplier / size, rate=rate)
        return base.composed([(self, together)], delta)


def _pure(of: Releases) -> float:
    single = 1 / of.multiplier
    if of.rate == 1:
        return of.rounds * single
    if single > WIDEST_EXPONENT:  # exact in float64: the term left out is e^-single / q
        return of.rounds * (single + math.log(of.rate))
    return of.rounds * math.log1p(of.rate * math.expm1(single))


@functools.lru_cache(maxsize=4)
def _counted(of: Releases, interval: float) -> Any:
    return losses(of.rate, 1 / of.multiplier, interval).self_compose(of.rounds)


def largest_loss(rate: float, shift: float) -> float:
    """Return log((1 - q + q e^(1/b)) / (1 - q + q e^(-1/b))), the largest privacy loss of a round.

    Args:
        rate: q in (0, 1].
        shift: 1 / b.
    """
    with np.errstate(divide="ignore"):  # log 0 at q = 1
        here, away = np.log([rate, 1 - rate])
    # In logarithms, because e^(1/b) overflows float64 for b below 1/709.
    return float(np.logaddexp(away, here + shift) - np.logaddexp(away, here - shift))


def delta_of_round(rate: float, shift: float, epsilons: np.ndarray) -> np.ndarray:
    """Return the delta of one round at each epsilon >= 0; it is 0 from the largest loss on.

    At the change of sign A is r = e^(epsilon - 1/b) + (e^epsilon - 1) (1 - q) / q. The integral of
    the difference of the two densities beyond it is q (1 - sqrt(r e^(-1/b))).
    """
    # ``reached`` is r e^(-1/b); from 1 on the densities no longer cross, and delta is 0.
    reached = np.exp(epsilons - 2 * shift)
    reached += np.expm1(epsilons) * np.exp(-shift) * (1 - rate) / rate
    return rate * (1 - np.sqrt(np.minimum(reached, 1)))


def losses(rate: float, shift: float, interval: float) -> Any:
    """Return dp_accounting's privacy loss distribution of one round, rounded up to multiples of
    ``interval``. It is the same in both directions, since the two runs mirror each other."""
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    last = int(np.ceil(largest_loss(rate, shift) / interval))
    epsilons = interval * np.arange(last + 1)
    above = delta_of_round(rate, shift, epsilons)
    above[-1] = 0.0
    # Delta at -x follows from delta at x with the two runs exchanged: e^-x delta(x) + 1 - e^-x.
    below = np.exp(-epsilons) * above - np.expm1(-epsilons)
    deltas = np.concatenate([below[:0:-1], above])
    pmf = create_pmf_pessimistic_connect_dots_fixed_gap(interval, -last, last, deltas)
    return PrivacyLossDistribution(pmf)
