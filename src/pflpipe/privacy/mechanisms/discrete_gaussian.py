"""Discrete Gaussian noise: whole numbers of steps, drawn without any rounding.

Source: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020.
A number k has the probability proportional to e^(-k^2 / (2 s^2)), here with s = ``STEPS`` steps of
the grid. Every message is rounded to whole steps, each number towards zero, so that it is no
longer than before: at most s / sigma steps for the multiplier sigma. A released sum is a whole
number of steps times one public number of few digits, and float64 holds it without rounding.

**The curve.** Moved by a vector of d steps in L2, such noise is d^2 / (2 s^2)-zCDP in any number of
dimensions (their theorem 14), so T releases are rho-zCDP with rho = T / (2 sigma^2), and for every
order alpha > 1 (their proposition 12)

    delta = e^((alpha - 1) (alpha rho - epsilon)) (1 - 1 / alpha)^alpha / (alpha - 1).

It is an upper bound, a little above the curve of as much Gaussian noise. Nobody has shown it for
cohorts that are drawn, and a public scale would round products, so both are refused. Sums of
independent draws are not discrete Gaussian: single messages do not share this noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pflpipe.privacy.mechanisms.base import Releases
from pflpipe.privacy.mechanisms.gaussian import Gaussian

STEPS = 1024
"""Steps of the grid in a standard deviation of the noise."""
DIGITS = 24
"""Binary digits of the size of a step: with 29 of a sum, all that float64 has."""


class DiscreteGaussian(Gaussian):
    """Independent discrete Gaussian numbers. To more digits than float64 has, their moments are
    those of normal ones, so that the audit measures them as such."""

    name = "discrete_gaussian"
    stable = False
    sampled = False
    scaled = False

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return whole numbers of steps in standard deviations (their algorithm 3)."""
        drawn, missing = np.empty(math.prod(shape)), np.arange(math.prod(shape))
        while missing.size:
            steps = _laplace(generator, missing.size)
            # e^(-(|y| - s)^2 / (2 s^2)), with which the law of y becomes the wanted one.
            kept = _coin(generator, (np.abs(steps) - STEPS) ** 2, 2 * STEPS**2)
            drawn[missing[kept]] = steps[kept] / STEPS
            missing = missing[~kept]
        return drawn.reshape(shape)

    def spread(self, wanted: float) -> float:
        """Return the next larger size of ``DIGITS`` digits."""
        mantissa, exponent = math.frexp(wanted)
        return math.ldexp(math.ceil(math.ldexp(mantissa, DIGITS)), exponent - DIGITS)

    def step(self, spread: float) -> float:
        """Return a step."""
        return spread / STEPS

    def epsilon(self, of: Sequence[Releases], delta: float) -> float:
        """Return the least epsilon of all orders; infinite at delta 0."""
        if delta == 0:
            return math.inf
        rho = sum(map(self.rho, of))

        def bound(order: Any) -> Any:
            return rho * order + np.log1p(-1 / order) - np.log(delta * order) / (order - 1)

        return max(0.0, self.least(bound))

    def closed(self, of: Releases) -> bool:
        """Return True: nothing else counts these releases."""
        return True

    def curve(self, rate: float) -> str:
        """Return the name of zero-concentrated differential privacy."""
        return "zcdp"

    def delta(self, of: Releases, epsilon: float) -> float | None:
        """Return the least delta of all orders."""
        rho = self.rho(of)

        def logarithm(order: Any) -> Any:
            ratio = (order - 1) * (order * rho - epsilon) + order * np.log1p(-1 / order)
            return ratio - np.log(order - 1)

        return min(1.0, math.exp(min(0.0, self.least(logarithm))))

    def mu(self, of: Releases) -> float | None:
        """Return None: the curve is not that of mu-GDP."""
        return None

    def rho(self, of: Releases) -> float:
        """Return the rho of all rounds."""
        return of.rounds / (2 * of.multiplier**2)

    def least(self, bound: Callable[[Any], Any]) -> float:
        """Return the least bound that a search over the orders finds. Each of them holds."""
        from scipy.optimize import minimize_scalar

        def at(logarithm: float) -> float:
            return float(bound(1 + math.exp(logarithm)))

        return float(minimize_scalar(at, bounds=(-30, 30), method="bounded").fun)


def _laplace(generator: np.random.Generator, count: int) -> np.ndarray:
    """Return discrete Laplace numbers of scale ``STEPS``, int64 (their algorithm 2)."""
    drawn, missing = np.empty(count, dtype=np.int64), np.arange(count)
    while missing.size:
        part = generator.integers(0, STEPS, missing.size)
        kept = _coin(generator, part, STEPS)
        whole, going = np.zeros(missing.size, dtype=np.int64), np.flatnonzero(kept)
        while going.size:
            going = going[_coin(generator, np.full(going.size, STEPS), STEPS)]
            whole[going] += 1
        steps = part + STEPS * whole
        negative = generator.integers(0, 2, missing.size) == 1
        kept &= ~negative | (steps > 0)  # 0 has one sign
        drawn[missing[kept]] = np.where(negative, -steps, steps)[kept]
        missing = missing[~kept]
    return drawn


def _coin(generator: np.random.Generator, exponent: np.ndarray, divisor: int) -> Any:
    """Return bool ``[n]``, each True with probability e^(-exponent / divisor), from whole random
    numbers alone (their algorithm 1)."""
    whole, part = np.divmod(exponent, divisor)
    heads = _small_coin(generator, part, divisor)
    going = np.flatnonzero(heads & (whole > 0))
    while going.size:
        heads[going] = _small_coin(generator, np.full(going.size, divisor), divisor)
        whole[going] -= 1
        going = going[heads[going] & (whole[going] > 0)]
    return heads


def _small_coin(generator: np.random.Generator, part: np.ndarray, divisor: int) -> np.ndarray:
    """Return ``_coin`` for exponents of at most 1: coins of part / (k divisor) are tossed for k =
    1, 2, ... until one fails; the result is whether k is odd then."""
    heads, going, tosses = np.ones(part.size, dtype=bool), np.arange(part.size), 1
    while going.size:
        again = generator.integers(0, divisor * tosses, going.size) < part[going]
        heads[going[~again]] = tosses % 2 == 1
        going, tosses = going[again], tosses + 1
    return heads
