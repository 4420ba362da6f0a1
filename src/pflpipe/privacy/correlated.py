"""Cohorts that are fixed in advance, and noise that is correlated over their rounds.

The clients are divided into b groups, and round t, counted from 0, has group t mod b. Who is in
which group is public, so no draw hides anything. With a band of 1 the noise of each round is
independent. With a larger band round t releases x_t + C sigma w_t, where x_t is its clipped sum and

    w_t = z_t - sum_{0 < j < band, j <= t} c_j w_{t-j},      c_j = binom(2 j, j) / 4^j,

with independent standard normal z_t. In matrices w = L^-1 z. L is lower triangular and Toeplitz,
with the first ``band`` coefficients of the square root of the matrix of prefix sums. The noise of
later rounds takes back a part of that of earlier ones, so sums over rounds have less noise.

A band needs the noise of as many rounds. Buffered linear Toeplitz noise (BLT) is correlated over
all rounds and needs d arrays s_1 to s_d, which start at 0. After each round

    w_t = z_t - sum_j omega_j s_j,      then s_j <- theta_j s_j + w_t.

So L has c_0 = 1 and c_i = sum_j omega_j theta_j^(i-1): a band of all rounds with other numbers. The
rest of this page holds for both.

Sources: Choquette-Choo et al., "(Amplified) Banded Matrix Factorization", NeurIPS 2023 (bands and
their sensitivity, without its amplification); Kalinin and Lampert, "Banded Square Root Matrix
Factorization for Differentially Private Model Training", NeurIPS 2024 (the coefficients); Dvijotham
et al., "Efficient and Near-Optimal Noise Generation for Streaming Differential Privacy", 2024, and
McMahan, Xu, Zhang, "A Hassle-free Algorithm for Private Learning in Practice: Don't Use Tree
Aggregation, Use BLTs", 2024 (buffers, fitted to the rounds in which a client takes part).

**What one client changes.** Multiplied by L, all releases together are L x + C sigma z. A client of
group g moves x_t by d_t in the rounds of its group, with a length of at most C, and by 0 in others.
L has no negative entry, so |sum_t L_st d_t| <= C sum_t L_st over the rounds of the group, and equal
moves reach this bound. For g = 0 these sums are those of every other group, shifted to earlier
rounds, so that more of them count. Therefore

    sensitivity^2 = sum_s (sum_{t = 0, b, 2b ...} L_st)^2.

Moves may depend on earlier releases. Given these, row s of L x + C sigma z is normal with a mean
that the client moves by (L d)_s, and the squares of these lengths sum to at most (C sensitivity)^2
for every course of the run. Such a sequence is mu-GDP with mu = sensitivity / sigma, as one
Gaussian release (Denisov et al., "Improved Differential Privacy for SGD via Optimal Private Linear
Operators on Adaptive Streams", NeurIPS 2022, theorem 2.1). A public scale of a round multiplies
x_t + C sigma w_t and follows from earlier releases, so it is post-processing. The number of groups
may be 1: all clients take part in every round.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pflpipe.privacy.noise import normal
from pflpipe.privacy.noise_laws.independent import Independent, sensitivity
from pflpipe.privacy.plan import Plan

Drawn = Callable[[Sequence[tuple[int, ...]]], list[np.ndarray]]
"""The standard noise of a round: float64 arrays of the given shapes."""


def single(plan: Plan) -> Plan:
    """Return the plan of one release that has the curve of a plan with ``fixed`` cohorts; any other
    plan is returned as it is."""
    if not plan.fixed:
        return plan
    multiplier = plan.multiplier / sensitivity_of(plan)
    noise = None if plan.noise_multiplier is None else multiplier
    return replace(plan, noise_multiplier=noise, rounds=1, groups=1, band=1, buffers=None)


def sensitivity_of(plan: Plan) -> float:
    """Return the sensitivity of all releases of a plan together."""
    return sensitivity(plan.noise_law, plan.rounds, plan.groups)


def whitened(plan: Plan, latest: Sequence[Any]) -> Any:
    """Return the row of L x + C sigma z of a round over the sensitivity: independent noise of
    ``single``'s multiplier.

    Args:
        plan: with groups or a band.
        latest: releases of this and earlier rounds, the latest first: all, or as many as the band.
    """
    weights = plan.noise_law.coefficients(plan.rounds)
    row = sum(weight * one for weight, one in zip(weights, latest, strict=False))
    return row / sensitivity_of(plan)


class Correlated:
    """The noise of a run's rounds, w_t. What a law keeps of the last rounds is kept; that of a run
    that resumes is computed again.

    Args:
        generator_of: returns a new generator of the z of a round, counted from 0.
        law: of the plan.
    """

    def __init__(
        self, generator_of: Callable[[int], np.random.Generator], law: Independent
    ) -> None:
        self._generator_of, self._law = generator_of, law
        self._round, self._kept = 0, list[list[np.ndarray]]()

    def at(self, round: int) -> Drawn:
        """Return the noise of a round. The shapes must be the same in all rounds."""
        return functools.partial(self._at, round)

    def _at(self, round: int, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        if round < self._round:
            self._round, self._kept = 0, []
        for earlier in range(self._round, round + 1):
            generator = self._generator_of(earlier)
            drawn = [normal(generator, shape) for shape in shapes]
            self._kept = self._law.correlate(drawn, self._kept)
        self._round = round + 1
        return drawn
