"""A search whose choice has a guarantee: the best of a random number of independent trials.

Each trial draws one of the candidates, with replacement, trains it with fresh noise, and releases a
noised score. Only the candidate of the best trial is published; neither the other trials nor their
number are. So the number has to be as secret as the noise: it comes from a stream of
``seeds.release_rng`` that no other search has. Source: Papernot and Steinke, "Hyperparameter Tuning
with Renyi Differential Privacy" (ICLR 2022), Theorem 2. The number of trials is a negative binomial
without zero: eta = 0 (logarithmic) or eta = 1 (geometric).
"""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from pflpipe.errors import PrivacyError
from pflpipe.options import Option
from pflpipe.privacy import accounting
from pflpipe.privacy.plan import Plan

ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512)
"""Renyi orders of the bound. Whole ones, at which the divergence of a sampled release is exact."""
_ETA = {"logarithmic": 0, "geometric": 1}


@dataclass(frozen=True)
class PrivateSearch:
    """A choice among candidates that has a guarantee of its own."""

    trials: Annotated[float, Option(above=1, most=1_000_000)]
    """expected number of trials; the number is drawn and never published"""
    distribution: Annotated[str, Option(choices=tuple(_ETA))] = "logarithmic"
    """of the number of trials, at least one: logarithmic costs less, geometric is seldom as small
    as one"""
    score_noise: Annotated[float, Option(above=0)] = 10.0
    """standard deviation of the noise on a trial's score, the sum over clients of validation
    accuracies in [0, 1]"""

    @property
    def gamma(self) -> float:
        """The parameter gamma in (0, 1) with which the number of trials has its mean."""
        from scipy.optimize import brentq

        if self.distribution == "geometric":
            return 1 / self.trials
        # E[K] = (1 / gamma - 1) / log(1 / gamma), here solved for log(1 / gamma).
        root = brentq(lambda x: math.expm1(x) / x - self.trials, 1e-300, 700.0, xtol=1e-12)
        return math.exp(-float(root))

    def number(self, rng: np.random.Generator) -> int:
        """Return a number of trials, drawn from its distribution; at least 1."""
        if self.distribution == "geometric":
            return int(rng.geometric(self.gamma))
        return int(rng.logseries(1 - self.gamma))

    def draw(self, candidates: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
        """Return the candidate of every trial, drawn with replacement, and a number below 2^53 for
        each, so that trials differ in their randomness.

        Args:
            candidates: how many there are.
            rng: of the search; it is as secret as the noise.
        """
        trials = self.number(rng)
        drawn = rng.integers(candidates, size=trials)
        return drawn.tolist(), rng.integers(2**53, size=trials).tolist()

    def score(self, accuracies: np.ndarray, rng: np.random.Generator) -> float:
        """Return the released score of a trial.

        Args:
            accuracies: of the clients that have validation rows, in [0, 1]. A client without rows
                adds nothing, so that a client moves the sum by at most 1.
            rng: of the trial; its noise is part of the release.
        """
        total = float(np.clip(np.nan_to_num(accuracies), 0, 1).sum())
        return total + self.score_noise * float(rng.standard_normal())

    def epsilon(self, tried: Plan, final: Plan, delta: float) -> float:
        """Return epsilon at delta of the search together with one run that follows from it;
        infinite without noise.

        Args:
            tried: plan of every trial.
            final: plan of the run that follows.

        Raises:
            PrivacyError: a plan is not Gaussian.
        """
        for plan in (tried, final):
            what = "search.private: mechanism"
            PrivacyError.unless(plan.law.stable, what, plan.mechanism, "gaussian")
            if not plan.noise_multiplier:
                return math.inf
        spent = self.renyi(tried) + accounting.renyi(final, ORDERS)
        return accounting.epsilon_of_renyi(spent, ORDERS, delta)

    def renyi(self, tried: Plan) -> np.ndarray:
        """Return the bound on the Renyi divergence of the search alone at every order."""
        orders = np.array(ORDERS, dtype=float)
        trial = accounting.renyi(tried, ORDERS) + orders / (2 * self.score_noise**2)
        width = -math.log(self.gamma)
        # The second order of Theorem 2 is free. At order 1 only the last term is left.
        second = min(width, float(((1 - 1 / orders) * trial + width / orders).min()))
        choice = (1 + _ETA[self.distribution]) * second + math.log(self.trials) / (orders - 1)
        return np.asarray(trial + choice)
