"""Noise of each round by itself."""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Independent:
    """The noise of a round is w_t = z_t. Other laws take something back from it."""

    def coefficients(self, rounds: int) -> list[float]:
        """Return c_0 and the further numbers of the first column of L."""
        return [1.0]

    def correlate(self, drawn: list[np.ndarray], kept: Any) -> Any:
        """Make w_t of the z_t of a round, in place, and return what the next round needs.

        Args:
            drawn: standard normal arrays.
            kept: what the last round returned; empty at the first.
        """
        return kept

    def words(self, rounds: int) -> str:
        """Return what the noise of so many rounds is."""
        return "independent"


@functools.cache
def sensitivity(law: Independent, rounds: int, groups: int) -> float:
    """Return the length by which a client moves all releases together, in whitened noise and clip
    bounds. It is the root of the number of a client's rounds for independent noise."""
    rows = np.convolve(np.arange(rounds) % groups == 0, law.coefficients(rounds))[:rounds]
    return float(np.linalg.norm(rows))
