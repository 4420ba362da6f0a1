"""The epsilon of a group of clients that vanish together, such as all dealt clients of a person."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from pflpipe.privacy import accounting, correlated
from pflpipe.privacy.plan import Plan


def epsilon_of_group(plan: Plan, delta: float, size: int) -> float:
    """Return a bound on the central epsilon at delta if the uploads of ``size`` clients are zero
    together; infinite without noise.

    Together they move a sum by at most ``size`` clip bounds, which counts as ``size`` times less
    noise. With Poisson sampling the drawn ones are a binomial number. For Gaussian noise
    dp_accounting counts the mixture of as many clip bounds (Ganesh, "Tight Group-Level DP
    Guarantees for DP-SGD with Sampling via Mixture of Gaussians Mechanisms", 2024).
    For Laplace noise all of them count as soon as one is drawn: the rate is then
    ``1 - (1 - q)^size``.
    """
    plan = correlated.single(plan)
    if size == 1 or not plan.noise_multiplier:
        return accounting.epsilon(plan, delta)
    together = dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier / size)
    if plan.mechanism == "laplace":
        drawn = 1 - (1 - plan.sample_rate) ** size
        return accounting.epsilon(dataclasses.replace(together, sample_rate=drawn), delta)
    unsampled = accounting.epsilon(dataclasses.replace(together, sample_rate=1.0), delta)
    if plan.sample_rate == 1 or accounting.has_no_curve(together):
        return unsampled
    interval = accounting.SEARCH_INTERVAL * accounting.coarser(together)
    counted = _counted_group(plan.multiplier, plan.sample_rate, plan.rounds, size, interval)
    return min(unsampled, float(counted.get_epsilon(delta)))


@functools.lru_cache(maxsize=4)
def _counted_group(multiplier: float, rate: float, rounds: int, size: int, interval: float) -> Any:
    # A grid of FINEST_INTERVAL would take ten seconds.
    from dp_accounting import SelfComposedDpEvent
    from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
    from dp_accounting.pld import PLDAccountant
    from scipy.stats import binom

    drawn = range(size + 1)
    release = MixtureOfGaussiansDpEvent(multiplier, drawn, binom.pmf(drawn, size, rate).tolist())
    accountant = PLDAccountant(value_discretization_interval=interval)
    return accountant.compose(SelfComposedDpEvent(release, rounds))
