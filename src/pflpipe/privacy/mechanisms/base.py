"""What a mechanism is: a kind of noise, and the epsilon that follows from it.

A subclass is one file. It says how long a message is (``norm``), draws the noise, and has the
privacy curve of T releases without sampling; dp_accounting counts them with sampling, by the
privacy loss distribution (PLD) of the event that the subclass names. Epsilons are upper bounds,
never estimates. Adjacency is zero_out (mechanism.py) unless a function says otherwise.

SciPy and dp_accounting are imported inside functions, because each import takes a second.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

FINEST_INTERVAL = 1e-4
"""dp_accounting's default discretisation of the privacy loss. All reported numbers use it."""
SEARCH_INTERVAL = 1e-3
"""Discretisation during the search for a multiplier, whose result is checked at FINEST_INTERVAL,
and of the loss of a group of sampled clients."""
WIDEST_LOSS, WIDEST_SINGLE_LOSS = 200.0, 20.0
"""A loss of all rounds, or of one round, wider than this (almost no noise) gets a proportionally
coarser grid, which is still a bound."""


@dataclass(frozen=True)
class Releases:
    """Releases that cost the same: ``rounds`` of them, to cohorts that are drawn with the
    probability ``rate``, under noise of ``multiplier`` times what a client changes at most."""

    multiplier: float
    rate: float
    rounds: int

    def unsampled(self, size: float = 1) -> Releases:
        """Return the releases to everybody, with ``size`` times less noise."""
        return Releases(self.multiplier / size, 1.0, self.rounds)


class Mechanism(abc.ABC):
    """A kind of noise, and what all of them have unless they say otherwise.

    Attributes:
        name: in a study.
        norm: 1 or 2, the norm of the joint clip: the length of a movement that the noise hides.
        variance, kurtosis: of standard noise.
        pure: whether it has an epsilon at delta 0.
        stable: whether independent draws add up to noise of the same kind, so that it can be shared
            by messages and correlated over rounds.
        sampled: whether it has a curve under Poisson sampling.
        scaled: whether it has a curve in units of a public scale.
    """

    name: ClassVar[str]
    norm: ClassVar[int] = 2
    variance: ClassVar[float] = 1.0
    kurtosis: ClassVar[float] = 3.0
    pure: ClassVar[bool] = False
    stable: ClassVar[bool] = True
    sampled: ClassVar[bool] = True
    scaled: ClassVar[bool] = True

    # ---------------------------------------------------------------- noise

    @abc.abstractmethod
    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return standard noise, float64 ``[*shape]``."""

    def spread(self, wanted: float) -> float:
        """Return the size of the noise on a released sum where ``wanted`` is asked for."""
        return wanted

    def step(self, spread: float) -> float:
        """Return the step of the grid on which a released sum with noise of this size lies; 0 for
        real numbers."""
        return 0.0

    @abc.abstractmethod
    def law(self, scale: float) -> Any:
        """Return SciPy's distribution of the noise."""

    def log_ratio(self, seen: Any, unit: Any, multiplier: float) -> Any:
        """Return log p(seen | moved by ``unit``) / p(seen) of each number, of NumPy or torch: that
        of normal noise, as which rounding counts where there is no other."""
        return (seen - unit / 2) * unit / multiplier**2

    @abc.abstractmethod
    def energy(self, units: np.ndarray) -> tuple[float, float, Any, float]:
        """Return the energy of noise ``[n, p]`` of mean 0 in units of the claimed one, its number
        of terms, the law of their sum in a correct mechanism, and the power of the energy that is
        the size of the noise."""

    # ---------------------------------------------------------------- privacy curve

    def counted(self, multiplier: float) -> float:
        """Return the multiplier with which noise of a multiplier counts in all that follows."""
        return multiplier

    @abc.abstractmethod
    def epsilon(self, of: Sequence[Releases], delta: float) -> float:
        """Return epsilon at delta of all releases together as if nothing were sampled; infinite if
        no curve reaches this delta."""

    def closed(self, of: Releases) -> bool:
        """Return whether ``epsilon`` is the whole curve, so that nothing is counted."""
        return False

    def curve(self, rate: float) -> str:
        """Return the name of the curve in a certificate."""
        return "pld"

    def delta(self, of: Releases, epsilon: float) -> float | None:
        """Return delta at epsilon; None where it is counted."""
        return None

    def mu(self, of: Releases) -> float | None:
        """Return mu if the releases are mu-GDP, else None."""
        return None

    @abc.abstractmethod
    def event(self, multiplier: float) -> Any:
        """Return dp_accounting's event of one release without sampling."""

    @abc.abstractmethod
    def width(self, multiplier: float, rounds: int) -> float:
        """Return the privacy loss that rounds without sampling exceed with a probability of about
        1e-12."""

    def has_curve(self, of: Releases) -> bool:
        """Return whether there is enough noise for a PLD."""
        return True

    def replaced(self, of: Releases, delta: float) -> float:
        """Return epsilon at delta if a client's message is replaced by another one.

        Two messages of norm C are up to 2 C apart, so without sampling this is ``epsilon`` of half
        the multiplier. With sampling a round without the client is the same in both runs:
        dp_accounting counts (1 - q) N(0) + q N(C) against (1 - q) N(0) + q N(-C), which is far
        below the number of half the multiplier.
        """
        halved = of.unsampled(2)
        unsampled = self.epsilon([halved], delta)
        if of.rate == 1 or not self.has_curve(halved):
            return unsampled
        interval = FINEST_INTERVAL * coarser(self, halved)
        found = counted(((self, of),), interval, "REPLACE_ONE").get_epsilon(delta)
        return min(unsampled, float(found))

    def group(self, of: Releases, delta: float, size: int) -> float:
        """Return a bound on epsilon at delta if the messages of ``size`` clients are zero together.

        Together they move a sum by at most ``size`` clip bounds, which counts as ``size`` times
        less noise.
        """
        return self.epsilon([of.unsampled(size)], delta)


def composed(
    parts: Sequence[tuple[Mechanism, Releases]], delta: float, interval: float = FINEST_INTERVAL
) -> float:
    """Return epsilon at delta of releases on the same clients, all with noise.

    ``interval`` discretises the privacy loss where there is no closed form.
    """
    rounds: dict[tuple[Mechanism, float, float], int] = {}
    for law, of in parts:  # rounds of equal noise add up, also across runs
        noise = law, of.multiplier, of.rate
        rounds[noise] = rounds.get(noise, 0) + of.rounds
    merged = [(law, Releases(z, rate, count)) for (law, z, rate), count in rounds.items()]
    # A bound without amplification. Below delta = 1e-15, where a PLD is truncated, no other bound
    # is finite.
    bound = 0.0
    for law in dict.fromkeys(law for law, _ in merged):
        bound += law.epsilon([of for its, of in merged if its is law], delta)
    if all(law.closed(of) for law, of in merged):
        return bound
    if delta == 0 or math.isinf(bound) or not all(law.has_curve(of) for law, of in merged):
        return bound
    widest = max(law.width(of.multiplier, 1) for law, of in merged) / WIDEST_SINGLE_LOSS
    together = sum(law.width(of.multiplier, of.rounds) for law, of in merged) / WIDEST_LOSS
    return min(bound, _sampled(tuple(merged), interval * max(1.0, widest, together), delta))


# A search composes the same few noises for every method and every number of clients.
@functools.lru_cache(maxsize=1024)
def _sampled(parts: tuple[tuple[Mechanism, Releases], ...], interval: float, delta: float) -> float:
    return float(counted(parts, interval).get_epsilon(delta))


def coarser(law: Mechanism, of: Releases) -> float:
    """Return the factor by which the grid of a loss is coarser than FINEST_INTERVAL."""
    single = law.width(of.multiplier, 1) / WIDEST_SINGLE_LOSS
    return max(1.0, single, law.width(of.multiplier, of.rounds) / WIDEST_LOSS)


@functools.lru_cache(maxsize=4)
def counted(
    parts: tuple[tuple[Mechanism, Releases], ...],
    interval: float,
    neighbors: str = "ADD_OR_REMOVE_ONE",
) -> Any:
    """Return dp_accounting's PLD accountant of all releases."""
    # The last few are cached, because a ledger reads one curve at several deltas.
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    relation = dp_accounting.NeighboringRelation[neighbors]
    accountant = PLDAccountant(relation, value_discretization_interval=interval)
    for law, of in parts:
        release = law.event(of.multiplier)
        if of.rate < 1:
            release = dp_accounting.PoissonSampledDpEvent(of.rate, release)
        accountant.compose(dp_accounting.SelfComposedDpEvent(release, of.rounds))
    return accountant
