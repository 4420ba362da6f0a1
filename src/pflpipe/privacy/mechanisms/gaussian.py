"""Gaussian noise.

The exact curve of T releases without sampling is the closed form of mu-GDP with mu = sqrt(T) /
sigma (Dong, Roth and Su, 2022). Fixed cohorts and correlated noise count as one such release
(correlated.py).
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pflpipe.privacy import noise
from pflpipe.privacy.mechanisms import base
from pflpipe.privacy.mechanisms.base import Mechanism, Releases

WIDEST_MU = 1e4
"""A Gaussian mechanism with a larger mu has almost no noise. Its epsilon (5e7 or more in the closed
form) is reported as infinite, because float64 and dp_accounting cannot count much further."""


class Gaussian(Mechanism):
    """Independent normal numbers."""

    name = "gaussian"

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return standard normal numbers."""
        return noise.normal(generator, shape)

    def law(self, scale: float) -> Any:
        """Return the normal distribution."""
        from scipy import stats

        return stats.norm(scale=scale)

    def energy(self, units: np.ndarray) -> tuple[float, float, Any, float]:
        """Return the sum of squares: of n draws of p numbers around their means it is a chi-square
        number of (n - 1) p degrees of freedom."""
        from scipy import stats

        number = (len(units) - 1) * units[0].size
        return float((units**2).sum()), number, stats.chi2(number), 0.5

    def epsilon(self, of: Sequence[Releases], delta: float) -> float:
        """Return the epsilon of mu-GDP: mu's of independent releases add in squares."""
        return gdp_epsilon(math.hypot(*map(_mu, of)), delta)

    def closed(self, of: Releases) -> bool:
        """Return whether nothing is sampled."""
        return of.rate == 1

    def curve(self, rate: float) -> str:
        """Return the name of the closed form, or of the loss that is counted."""
        return "gdp" if rate == 1 else "pld"

    def delta(self, of: Releases, epsilon: float) -> float | None:
        """Return the delta of mu-GDP; None under sampling."""
        return gdp_delta(_mu(of), epsilon) if of.rate == 1 else None

    def mu(self, of: Releases) -> float | None:
        """Return mu; None under sampling."""
        return _mu(of) if of.rate == 1 else None

    def event(self, multiplier: float) -> Any:
        """Return dp_accounting's Gaussian event."""
        import dp_accounting

        return dp_accounting.GaussianDpEvent(multiplier)

    def width(self, multiplier: float, rounds: int) -> float:
        """Return the loss N(mu^2 / 2, mu^2) at 7 standard deviations."""
        mu = math.sqrt(rounds) / multiplier
        return mu**2 / 2 + 7 * mu

    def has_curve(self, of: Releases) -> bool:
        """Return whether mu is at most ``WIDEST_MU``."""
        return _mu(of) <= WIDEST_MU

    def group(self, of: Releases, delta: float, size: int) -> float:
        """Return the bound of all clients together, or that of the binomial number of those that
        are drawn, which dp_accounting counts as a mixture of as many clip bounds (Ganesh, "Tight
        Group-Level DP Guarantees for DP-SGD with Sampling via Mixture of Gaussians Mechanisms",
        2024)."""
        together = of.unsampled(size)
        unsampled = self.epsilon([together], delta)
        if of.rate == 1 or not self.has_curve(together):
            return unsampled
        interval = base.SEARCH_INTERVAL * base.coarser(self, together)
        return min(unsampled, float(_counted_group(of, size, interval).get_epsilon(delta)))


def gdp_delta(mu: float, epsilon: float) -> float:
    """Return delta(epsilon) of mu-GDP: Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 -
    epsilon/mu); 1 beyond ``WIDEST_MU``."""
    from scipy.special import log_ndtr

    if mu > WIDEST_MU:
        return 1.0
    # Logarithms: e^epsilon overflows long before its product with Phi does.
    return max(
        0.0,
        math.exp(log_ndtr(mu / 2 - epsilon / mu))
        - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)),
    )


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the least epsilon >= 0 with ``gdp_delta(mu, epsilon) <= delta``; infinite at delta 0
    and beyond ``WIDEST_MU``."""
    from scipy.optimize import brentq

    if delta == 0 or mu > WIDEST_MU:
        return math.inf
    if gdp_delta(mu, 0.0) <= delta:
        return 0.0
    # The zCDP bound is never below the root.
    high = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    root = float(
        brentq(lambda value: gdp_delta(mu, value) - delta, 0.0, high + 1.0, xtol=1e-13, rtol=1e-13)
    )
    return root * (1 + 1e-12) + 1e-13  # the safe side of the solver's tolerance


def _mu(of: Releases) -> float:
    """Return the distance by which a client moves all T sums together, in standard deviations of
    the noise."""
    return math.sqrt(of.rounds) / of.multiplier


@functools.lru_cache(maxsize=4)
def _counted_group(of: Releases, size: int, interval: float) -> Any:
    # A grid of FINEST_INTERVAL would take ten seconds.
    from dp_accounting import SelfComposedDpEvent
    from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
    from dp_accounting.pld import PLDAccountant
    from scipy.stats import binom

    drawn = range(size + 1)
    chances = binom.pmf(drawn, size, of.rate).tolist()
    release = MixtureOfGaussiansDpEvent(of.multiplier, drawn, chances)
    accountant = PLDAccountant(value_discretization_interval=interval)
    return accountant.compose(SelfComposedDpEvent(release, of.rounds))
