"""Discrete Gaussian noise: whole numbers of steps, drawn without any rounding.

Source: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020.
A number k has the probability proportional to e^(-k^2 / (2 s^2)), here with s = ``STEPS`` steps of
the grid. Every message is rounded to whole steps, each number towards zero, so that it is no
longer than before: at most s / sigma steps for the multiplier sigma. A released sum is a whole
number of steps times one public number of few digits, and float64 holds it without rounding.

**The curve** is that of Gaussian noise with a multiplier that is smaller by 8e-6 of it. Let normal
numbers of scale sqrt(s^2 - r^2), moved by whole numbers, become whole numbers at random: k with a
probability proportional to e^(-(k - y)^2 / (2 r^2)) from y. A moved y gives a k moved as far, so
this is post-processing of Gaussian noise. Each k then has its probability under scale s, but for a
factor between 1 / t and t,

    t = (1 + u) / (1 - u),    u = 2 sum_j e^(-2 pi^2 r^2 j^2),

since the sum of e^(-(k - y)^2 / (2 r^2)) over all k depends on y by the factor 1 + u at most
(Poisson's summation; Peikert, "An Efficient and Parallel Gaussian Sampler for Lattices", CRYPTO
2010, theorem 3.1). With r = 4 steps u is below 10^-136. The factor of 2^63 numbers, coordinates
times rounds, is below 1 + 10^-116, and no digit of an epsilon moves. This holds in any number of
dimensions, for drawn cohorts, and for noise of more than ``STEPS`` steps.

A public scale would round products, so it is refused. Sums of independent draws are not discrete
Gaussian: single messages do not share this noise.
"""

import math
from typing import Any

import numpy as np

from pflpipe.privacy.mechanisms.gaussian import Gaussian

STEPS = 1024
"""Steps of the grid in a standard deviation of the noise."""
ROUNDED = 4
"""r of the proof, in steps."""
DIGITS = 24
"""Binary digits of the size of a step: with 29 of a sum, all that float64 has."""


class DiscreteGaussian(Gaussian):
    """Independent discrete Gaussian numbers. To more digits than float64 has, their moments are
    those of normal ones, so that the audit measures them as such."""

    name = "discrete_gaussian"
    stable = False
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

    def counted(self, multiplier: float) -> float:
        """Return the multiplier of the Gaussian noise in the proof."""
        return multiplier * math.sqrt(1 - (ROUNDED / STEPS) ** 2)


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
