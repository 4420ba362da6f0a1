"""Noise that may be deployed: whole numbers from the operating system's randomness.

``privacy: {noise: secure}`` of a discrete Gaussian plan. Every step from a message to the release
is one of whole numbers, so that no rounding is left out of the proof (Mironov, "On Significance of
the Least Significant Bits for Differential Privacy", CCS 2012; Casacuberta, Shoemate, Vadhan,
Wagaman, "Widespread Underestimation of Sensitivity in Differentially Private Libraries and How to
Fix It", CCS 2022):

1. **A message** is clipped in floating-point numbers, which is not relied upon. It is divided by
   the step of a message, rounded towards zero to a vector k of whole numbers, and counts as zero
   unless |k|^2 <= ``Grid.length``. That comparison is exact (``clipping.in_steps``), and ``length``
   is the largest whole number L with s^2 / L >= sigma^2, found with fractions. So one client moves
   the sum of all k by at most sqrt(L) <= s / sigma, whatever the clip did.
2. **The sum** of the k is exact: it stays below 2^53, which ``grid`` checks.
3. **The noise** is discrete Gaussian of scale s, a float64 that the sampler takes as a fraction.
   The curve is that of mechanisms/discrete_gaussian.py, since s has ``STEPS`` steps at least. The
   noise stays below 2^52, but for a chance below 2^-2000.
4. **The release** is that whole number times a power of two, rounded to the dtype of the model: a
   function of the whole number, hence post-processing.

The sampler is OpenDP's, which draws discrete Gaussian numbers by algorithm 3 of the same paper with
fractions of any size, from a cryptographic generator that the operating system seeds. Nobody can
draw the noise of a round again, this program included: who repeats a round makes a second release.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from pflpipe.errors import ConfigError, PrivacyError
from pflpipe.privacy.mechanisms.discrete_gaussian import STEPS

DIGITS = 26
"""Binary digits of the longest message in steps: its square, below 2^52, is exact in float64."""
MOST_CLIENTS, MOST_NOISE = 2**DIGITS, 2.0**20
"""Clients and noise multipliers up to which sums and noise stay below 2^53 steps."""


@dataclass(frozen=True)
class Grid:
    """The whole numbers that a release is made of.

    Attributes:
        step: of the released mean, a power of two.
        message: of a message: M times as long and 2^-19 of it more, so that no message that is
            longer than C by the rounding of the clip (1e-6) counts as zero.
        scale: s of the discrete Gaussian noise, in steps.
        length: the largest sum of squares of a message, in steps.
    """

    step: float
    message: float
    scale: float
    length: int


def grid(clip_norm: float, multiplier: float, clients: int) -> Grid:
    """Return the grid on which the longest message has between 2^25 and 2^26 steps.

    Raises:
        PrivacyError: sums or noise could be larger than the whole numbers of float64, or noise so
            small that its curve is not known.
    """
    unless = PrivacyError.unless
    do = "take noise: reproducible"
    what = "privacy.noise secure"
    unless(clients <= MOST_CLIENTS, f"{what}: clients", clients, f"at most {MOST_CLIENTS}", do)
    fits = multiplier <= MOST_NOISE
    unless(fits, f"{what}: noise_multiplier", multiplier, f"at most {MOST_NOISE:g}", do)
    share = clip_norm / clients
    step = math.ldexp(1.0, math.frexp(share)[1] - DIGITS)
    scale = multiplier * (share / step)
    least = f"at least {STEPS / (share / step):.2g}"
    unless(scale >= STEPS, f"{what}: noise_multiplier", multiplier, least, "take more noise")
    length = math.floor((Fraction(scale) / Fraction(multiplier)) ** 2)
    return Grid(step, step * clients * (1 + 2**-19), scale, length)


@functools.cache
def sampler(scale: float) -> Callable[[list[int]], list[int]]:
    """Return OpenDP's function that adds discrete Gaussian numbers of a scale to whole numbers.

    Raises:
        ConfigError: OpenDP is not installed.
    """
    try:
        import opendp.prelude as opendp
    except ImportError:
        do = "pip install 'pflpipe[secure]', or take noise: reproducible"
        raise ConfigError("privacy.noise secure", got="no opendp here", do=do) from None
    opendp.enable_features("contrib")
    domain = opendp.vector_domain(opendp.atom_domain(T="i64"))
    found: Any = opendp.m.make_gaussian(domain, opendp.l2_distance(T="f64"), scale=scale)
    return lambda numbers: found(numbers)  # type: ignore[no-any-return]


def draw(scale: float, count: int) -> np.ndarray:
    """Return new discrete Gaussian numbers of a scale, int64 ``[count]``; raises as ``sampler``."""
    return np.array(sampler(scale)([0] * count), dtype=np.int64)


def drawn(numbers: np.ndarray) -> Callable[[Sequence[tuple[int, ...]]], list[np.ndarray]]:
    """Return the noise of a round, ``correlated.Drawn``, which is the same in every call: these
    whole numbers, float64 in the shapes that are asked for."""

    def shaped(shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        parts = np.split(numbers.astype(np.float64), ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    return shaped
