"""Standard normal and standard Laplace numbers without a largest value.

A generator that turns one uniform number into one normal number has a largest value: 5.77 standard
deviations in float32, 12.2 in NumPy's ziggurat, whose last values are far apart. A release beyond
it proves that a client is there. At small noise multipliers this is likelier than the delta of the
plan. Here numbers far from 0 are drawn again from the law of the tail, as often as needed.
"""

import numpy as np

FAR = 4.0
"""Standard deviations beyond which a normal number is drawn again."""
RESTART = 20.0
"""An exponential number beyond this value is replaced by this value plus another exponential
number, which has the same law. (The finest uniform number, 2^-53, is e^-36.7.)"""


def normal(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return independent standard normal numbers, float64 ``[*shape]``."""
    # The sign stays and only the size is drawn again, so that the law is symmetric to the bit.
    drawn: np.ndarray = np.asarray(generator.standard_normal(shape))
    far = np.asarray(np.abs(drawn) > FAR)
    drawn[far] = np.copysign(_beyond(generator, int(far.sum())), drawn[far])
    return drawn


def laplace(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return independent standard Laplace numbers (scale 1, variance 2), float64 ``[*shape]``:
    differences of exponentials."""
    drawn = exponential(generator, shape)
    drawn -= exponential(generator, shape)
    return drawn


def exponential(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return independent standard exponential numbers, float64 ``[*shape]``."""
    drawn: np.ndarray = np.asarray(generator.standard_exponential(shape))
    flat, passed = drawn.reshape(-1), 0.0  # a view: writing to it changes ``drawn``
    far = np.flatnonzero(flat > RESTART)
    # The law has no memory: given X > a, X - a is again standard exponential.
    while far.size:
        passed += RESTART
        excess = generator.standard_exponential(far.size)
        flat[far] = passed + excess
        far = far[excess > RESTART]
    return drawn


def _beyond(generator: np.random.Generator, count: int) -> np.ndarray:
    """Return ``count`` normal numbers, conditioned on being above ``FAR``.

    Source: G. Marsaglia, "Generating a Variable from the Tail of the Normal Distribution",
    Technometrics 6 (1964).
    """
    tail, missing = np.empty(count), np.arange(count)
    # The density beyond a is proportional to e^(-a s) e^(-s^2 / 2) at a + s: s is drawn with the
    # first factor, E / a for an exponential E, and accepted with the second as probability.
    while missing.size:
        step, chance = (exponential(generator, (missing.size,)) for _ in range(2))
        step = step / FAR
        good = 2 * chance > step**2
        tail[missing[good]] = FAR + step[good]
        missing = missing[~good]
    return tail
