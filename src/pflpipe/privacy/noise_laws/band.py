"""Noise that takes back a part of that of the rounds before it."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pflpipe.privacy.noise_laws.independent import Independent


@dataclass(frozen=True)
class Band(Independent):
    """The first ``width`` coefficients of the square root of the matrix of prefix sums."""

    width: int

    def coefficients(self, rounds: int) -> list[float]:
        """Return c_0 to c_{width - 1}, each the float64 number closest to it."""
        return [math.comb(2 * lag, lag) / 4**lag for lag in range(self.width)]

    def correlate(self, drawn: list[np.ndarray], kept: Any) -> Any:
        """Return the noise of the last rounds, the latest first."""
        weights = self.coefficients(0)[1:]
        for weight, before in zip(weights, kept, strict=False):
            for fresh, old in zip(drawn, before, strict=True):
                fresh -= weight * old
        return [drawn, *kept][: len(weights)]

    def words(self, rounds: int) -> str:
        """Return what the noise of so many rounds is."""
        return f"correlated by a band of {self.width}"
