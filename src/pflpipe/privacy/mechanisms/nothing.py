"""No noise: the mechanism ``none`` of runs without privacy, whose epsilon is infinite."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pflpipe.privacy.mechanisms.base import Mechanism, Releases


class Nothing(Mechanism):
    """Zeros."""

    name = "none"

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return zeros."""
        return np.zeros(shape)

    def law(self, scale: float) -> Any:
        """Return the distribution of a number that is always 0."""
        from scipy import stats

        return stats.rv_discrete(values=([0], [1]))

    def energy(self, units: np.ndarray) -> tuple[float, float, Any, float]:
        """Return the sum of squares, which is always 0."""
        return float((units**2).sum()), units.size, self.law(1.0), 0.5

    def epsilon(self, of: Sequence[Releases], delta: float) -> float:
        """Return infinity."""
        return math.inf

    def event(self, multiplier: float) -> Any:
        """Return dp_accounting's event without privacy."""
        import dp_accounting

        return dp_accounting.NonPrivateDpEvent()

    def width(self, multiplier: float, rounds: int) -> float:
        """Return infinity."""
        return math.inf
