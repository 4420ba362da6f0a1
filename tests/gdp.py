"""Gaussian differential privacy by its definition: Dong, Roth and Su (2022), Corollary 1."""

import math


def delta(mu: float, epsilon: float) -> float:
    """Return the least delta, with the normal distribution by its error function."""

    def normal(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    return normal(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal(-mu / 2 - epsilon / mu)
