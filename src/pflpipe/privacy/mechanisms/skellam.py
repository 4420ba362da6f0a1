"""Skellam noise, which clients can add in shares: the difference of two Poisson numbers.

Source: Agarwal, Kairouz, Liu, "The Skellam Mechanism for Differentially Private Federated
Learning", NeurIPS 2021. Independent Skellam numbers add up to one of the sum of their variances, so
that the sum of shares has this law exactly, for any number of shares (secure_sum.py).

**The curve.** Let whole numbers move by k, with |k|_2^2 <= L, under independent noise of variance
mu. For every whole order a > 1 (their theorem 3.5)

    divergence <= a L / (2 mu) + ((2 a - 1) L + 6 |k|_1) / (4 mu^2).

Of whole numbers |k|_1 <= |k|_2^2, so the second term is at most (2 a + 5) L / (4 mu^2): the first
one times (2 a + 5) / (2 a mu), which is at most 9 / (4 mu). With mu = sigma^2 L >= ``LEAST`` the
divergence of T releases is at most a rho with rho = ``WORSE`` T / (2 sigma^2), in any number of
dimensions, and (Canonne, Kamath, Steinke, NeurIPS 2020, proposition 12)

    delta = e^((a - 1) (a rho - epsilon)) (1 - 1 / a)^a / (a - 1).

Nobody has shown it for cohorts that are drawn. Half the multiplier
stands for another message in place of a client's, or for two clients: |k|^2 is 4 L then, and
``WORSE`` depends on mu alone.
"""

import math
from collections.abc import Sequence

import numpy as np

from pflpipe.privacy.mechanisms.base import Releases
from pflpipe.privacy.mechanisms.discrete_gaussian import DiscreteGaussian

LEAST = 100
"""The least variance of the noise on a sum of whole numbers."""
WORSE = 1 + 9 / (4 * LEAST)
ORDERS = np.concatenate([np.arange(2.0, 1025.0), 2.0 ** np.arange(11, 41)])


class Skellam(DiscreteGaussian):
    """Independent Skellam numbers, of the variances that secure_sum.py takes."""

    name = "skellam"
    sampled = False

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return Skellam numbers of a large variance, in standard deviations."""
        return skellam(generator, 2.0**40, shape) / 2.0**20

    def counted(self, multiplier: float) -> float:
        """Return the multiplier itself."""
        return multiplier

    def closed(self, of: Releases) -> bool:
        """Return True: nothing else counts these releases."""
        return True

    def curve(self, rate: float) -> str:
        """Return the name of Renyi divergences at whole orders."""
        return "skellam"

    def mu(self, of: Releases) -> float | None:
        """Return None: the curve is not that of mu-GDP."""
        return None

    def epsilon(self, of: Sequence[Releases], delta: float) -> float:
        """Return the least epsilon of all orders; infinite at delta 0."""
        if delta == 0:
            return math.inf
        spent = sum(map(_rho, of)) * ORDERS + np.log1p(-1 / ORDERS)
        return max(0.0, float((spent - np.log(delta * ORDERS) / (ORDERS - 1)).min()))

    def delta(self, of: Releases, epsilon: float) -> float | None:
        """Return the least delta of all orders."""
        ratio = (ORDERS - 1) * (ORDERS * _rho(of) - epsilon) + ORDERS * np.log1p(-1 / ORDERS)
        return math.exp(min(0.0, float((ratio - np.log(ORDERS - 1)).min())))


def _rho(of: Releases) -> float:
    """Return the bound on the divergence of all rounds over its order."""
    return WORSE * of.rounds / (2 * of.multiplier**2)


def skellam(generator: np.random.Generator, variance: float, shape: Sequence[int]) -> np.ndarray:
    """Return independent Skellam numbers of mean 0, int64 ``[*shape]``."""
    first, second = (generator.poisson(variance / 2, shape) for _ in range(2))
    return np.asarray(first - second)
