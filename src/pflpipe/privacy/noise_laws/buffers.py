"""Noise that a few buffers correlate over all rounds: buffered linear Toeplitz noise (BLT)."""

import functools
import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from pflpipe import options
from pflpipe.errors import PrivacyError
from pflpipe.options import Option
from pflpipe.privacy.noise_laws.independent import Independent, sensitivity


@dataclass(frozen=True)
class Buffers(Independent):
    """The recurrence of d buffers (correlated.py).

    Attributes:
        decays: theta of each buffer, in [0, 1): the share of it that is left after a round.
        scales: omega of each buffer, at least 0: the share of it that a round takes back.
    """

    decays: Annotated[tuple[float, ...], Option(least=0, below=1)]
    scales: Annotated[tuple[float, ...], Option(least=0)]

    def __post_init__(self) -> None:
        """Raise PrivacyError for a value out of its range."""
        options.check(self, "privacy plan", PrivacyError)
        what, expected = "decays and scales of buffers", "as many of both, at least one"
        got = f"{len(self.decays)} and {len(self.scales)}"
        fits = 0 < len(self.decays) == len(self.scales)
        PrivacyError.unless(fits, f"privacy plan: {what}", got, expected)

    def coefficients(self, rounds: int) -> list[float]:
        """Return c_0 = 1 and c_i = sum_j omega_j theta_j^(i-1)."""
        powers = np.power.outer(self.decays, np.arange(rounds - 1))
        return [1.0, *(np.array(self.scales) @ powers).tolist()]

    def correlate(self, drawn: list[np.ndarray], kept: Any) -> Any:
        """Return the buffers after a round."""
        kept = kept or [[np.zeros_like(one) for one in drawn] for _ in self.scales]
        for weight, before in zip(self.scales, kept, strict=True):
            for fresh, old in zip(drawn, before, strict=True):
                fresh -= weight * old
        for decay, buffer in zip(self.decays, kept, strict=True):
            for old, fresh in zip(buffer, drawn, strict=True):
                old *= decay
                old += fresh
        return kept

    def words(self, rounds: int) -> str:
        """Return what the noise of so many rounds is."""
        return f"correlated by a band of {rounds} with {len(self.decays)} buffers"


@functools.cache
def fitted(rounds: int, groups: int, number: int) -> Buffers:
    """Return buffers with the least noise at equal epsilon: the sensitivity times the root mean
    square of the deviations of the sums after each round.

    All rounds count, because clients compute their gradients at the model after each of them.
    L-BFGS starts at decays between 0 and 1 - 1 / T. Six decimals are kept, so that a plan does not
    follow the rounding of a processor.
    """
    from scipy.optimize import minimize
    from scipy.signal import lfilter

    def buffers(point: np.ndarray) -> Buffers:
        decays, scales = np.split(point, 2)
        return Buffers(tuple((1 - np.exp(-decays)).tolist()), tuple(scales.tolist()))

    def noise(point: np.ndarray) -> float:
        tried = buffers(point)
        # The first column of the matrix of prefix sums times L^-1; the others are shifts of it.
        column = lfilter([1.0], tried.coefficients(rounds), np.ones(rounds))
        length = sensitivity(tried, rounds, groups)
        return float(np.log(length) + np.log(np.cumsum(column**2).mean()) / 2)

    places = (np.arange(number) + 0.5) / number
    start = np.r_[math.log(rounds) * places, np.full(number, 0.5 / number)]
    limits = [(0, math.log(1e6))] * number + [(0, 1)] * number
    found = buffers(minimize(noise, start, method="L-BFGS-B", bounds=limits).x)
    decays, scales = (np.round(part, 6).tolist() for part in (found.decays, found.scales))
    return Buffers(tuple(decays), tuple(scales))
