"""pfl (pfl-research, PyPI): the central mechanisms of its package privacy.

What pfl claims, in its docstrings:

- GaussianMechanism (privacy/gaussian_mechanism.py:27-60): the noise's standard deviation is
  relative_noise_stddev times the clip bound, for the sum of a cohort's clipped statistics;
  ``construct_single_iteration`` and ``from_privacy_accountant`` choose it for an (epsilon, delta).
- LaplaceMechanism (privacy/laplace_mechanism.py:20-30): epsilon, by noise of scale bound / epsilon
  after an L1 clip.
- AdaptiveClippingGaussianMechanism (privacy/adaptive_clipping.py:34-88): the Gaussian mechanism's
  guarantee also for the indicators that adapt the bound (Andrew et al., 2021).
- BandedMatrixFactorizationMechanism (privacy/ftrl_mechanism.py:141-175): that of as many Gaussian
  releases as a device takes part in, if min_separation rounds lie between two of them.

Its accountants count for neighbours that add or remove a device. Every call clips with
``postprocess_one_user``, adds the statistics and calls ``postprocess_server``, as pfl's simulation
does. The sum is released; the cohort size, by which it is divided, is public.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import operator
import tempfile
import types
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.privacy.adaptive_clipping import AdaptiveClippingGaussianMechanism
from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.laplace_mechanism import LaplaceMechanism
from pfl.privacy.privacy_accountant import PLDPrivacyAccountant
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from pfl.stats import MappedVectorStatistics

from audits import Entry, finite
from pflpipe import Claim

set_framework_module(pytorch_ops)

PROGRAM, VERSION = "pfl", version("pfl")
CLIENTS, MULTIPLIER, CLIP, DELTA, INDICATOR_NOISE = 10, 1.0, 1.0, 1e-5, 2.0
ITERATIONS = 12
"""Of matrix factorization; a device takes part in one of them."""
SECONDS = 0.3
Mechanism = Callable[[], Any]


def central_sum(mechanism: Any, messages: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return what a central mechanism makes of the sum of a cohort's messages.

    A client that sends zeros adds nothing, not even the indicator of adaptive clipping. An empty
    cohort has the sum of one that sends zeros.
    """
    user = types.SimpleNamespace(seed=None)
    server: Any = types.SimpleNamespace(cohort_size=len(messages), seed=int(rng.integers(1, 2**31)))
    sent = []
    for message in messages if len(messages) else np.zeros((1, messages.shape[1]), np.float32):
        halves = map(torch.from_numpy, np.array_split(message, 2))
        statistics: Any = MappedVectorStatistics(dict(zip("ab", halves, strict=True)))
        clipped, _ = mechanism.postprocess_one_user(stats=statistics, user_context=user)
        sent.append(clipped if message.any() else clipped.apply_elementwise(torch.zeros_like))
    noised, _ = mechanism.postprocess_server(
        stats=functools.reduce(operator.add, sent), central_context=server, aggregate_metrics=None
    )
    return np.concatenate([noised["a"].numpy(), noised["b"].numpy()])


class Sums:
    """Rounds of a central mechanism. ``step`` releases the noised sum and, if the clip bound
    adapts, the logarithm of the next bound.

    Attributes:
        made: makes the mechanism of a run.
        finite: whether NaN and infinity are replaced by 0 before pfl sees them.
    """

    def __init__(self, made: Mechanism, finite: bool = True) -> None:
        self.made, self.finite = made, finite

    def start(self, clients: int, dimension: int) -> None:
        """Begin a run."""
        self.mechanism = self.made()

    def step(self, messages: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> Any:
        """Return what a round releases."""
        sent = finite(messages) if self.finite else messages
        released = central_sum(self.mechanism, sent, rng)
        if not isinstance(self.mechanism, AdaptiveClippingGaussianMechanism):
            return released
        return np.append(released, math.log(self.mechanism.mutable_clipping_bound.value()))


def all_iterations(messages: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> Any:
    """Return what matrix factorization releases in all iterations, ``[iterations d]``. Clients take
    part in the first one alone."""
    mechanism = CentrallyAppliedPrivacyMechanism(copy.deepcopy(FACTORIZED))
    nobody = np.zeros_like(messages[:1])
    cohorts = [finite(messages), *[nobody] * (ITERATIONS - 1)]
    return np.concatenate([central_sum(mechanism, cohort, rng) for cohort in cohorts])


def central(mechanism: Any) -> Mechanism:
    """Return what makes a mechanism central; it has no state."""
    return lambda: CentrallyAppliedPrivacyMechanism(mechanism)


def adaptive() -> Any:
    """Return Gaussian noise with an adaptive clip bound."""
    return AdaptiveClippingGaussianMechanism(
        lambda bound: GaussianMechanism(bound, MULTIPLIER), CLIP, INDICATOR_NOISE, 0.5
    )


def factorized() -> BandedMatrixFactorizationMechanism:
    """Return matrix factorization; it writes its matrix below the working directory."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return BandedMatrixFactorizationMechanism(
            CLIP, ITERATIONS, ITERATIONS, lambda times: accountant(times, 1.0)
        )


def accountant(compositions: int, rate: float) -> PLDPrivacyAccountant:
    """Return pfl's accountant of Gaussian noise."""
    return PLDPrivacyAccountant(
        compositions, rate, "gaussian", delta=DELTA, noise_parameter=MULTIPLIER
    )


GAUSSIAN = GaussianMechanism(CLIP, MULTIPLIER)
SINGLE = GaussianMechanism.construct_single_iteration(CLIP, 1.0, DELTA)
FACTORIZED = factorized()
FEW = {"clients": 4, "dimension": 6}
ONE_ROUND = Claim(**FEW, noise_multiplier=MULTIPLIER, delta=DELTA)

AUDITS = [
    Entry(
        title="GaussianMechanism with PLDPrivacyAccountant, sampling, finite statistics",
        release=Sums(central(GaussianMechanism.from_privacy_accountant(accountant(3, 0.5), CLIP))),
        claim=Claim(
            clients=8,
            dimension=6,
            noise_multiplier=MULTIPLIER,
            epsilon=accountant(3, 0.5).epsilon,
            delta=DELTA,
            rounds=3,
            sample_rate=0.5,
            adjacency="add_remove",
        ),
        source="privacy/gaussian_mechanism.py:89-112, privacy/privacy_mechanism.py:252-311",
        said=(
            "GaussianMechanism.from_privacy_accountant (lines 49-51, 142-151) is "
            "recommended for several iterations; the accountant counts this epsilon for three."
        ),
        seconds=SECONDS,
    ),
    Entry(
        title="GaussianMechanism.construct_single_iteration(epsilon 1), finite statistics",
        release=Sums(central(SINGLE)),
        claim=Claim(**FEW, epsilon=1.0, delta=DELTA),
        source="privacy/gaussian_mechanism.py:89-139, privacy/compute_parameters.py",
        said='The docstring (lines 42-46): it sets the noise "to ensure (epsilon, delta) DP".',
        seconds=SECONDS,
    ),
    Entry(
        title="GaussianMechanism, any statistics",
        release=Sums(central(GAUSSIAN), finite=False),
        claim=ONE_ROUND,
        source="privacy/privacy_mechanism.py:373-406",
        said=(
            "The docstring (privacy/gaussian_mechanism.py:27-40): the norm is at most the bound, "
            "and the noise is relative_noise_stddev times the bound."
        ),
        remark="A norm of NaN is not larger than the bound, so statistics with NaN pass unclipped.",
        seconds=SECONDS,
    ),
    Entry(
        title="LaplaceMechanism(epsilon 1), finite statistics",
        release=Sums(central(LaplaceMechanism(CLIP, 1.0))),
        claim=Claim(**FEW, mechanism="laplace", epsilon=1.0),
        source="privacy/laplace_mechanism.py:48-69",
        said="The docstring (lines 20-30): epsilon, by noise of scale bound / epsilon.",
        seconds=SECONDS,
    ),
    Entry(
        title="AdaptiveClippingGaussianMechanism, finite statistics",
        release=Sums(adaptive),
        claim=ONE_ROUND,
        source="privacy/adaptive_clipping.py:109-228",
        said=(
            "The docstring (privacy/adaptive_clipping.py:47-55): noise on the indicators' sum "
            "protects them; the accountant counts the multiplier of the Gaussian mechanism alone."
        ),
        remark=(
            "Indicators are -1 and 1, scaled so that they and the update together are no longer "
            "than the bound that the noise covers. The cohort size is public: the client that is "
            "missing adds no indicator, and the average is over the same number."
        ),
        seconds=SECONDS,
    ),
    Entry(
        title="BandedMatrixFactorizationMechanism, 12 iterations, one participation",
        release=all_iterations,
        claim=Claim(
            clients=2,
            dimension=2,
            noise_multiplier=MULTIPLIER,
            epsilon=accountant(1, 1.0).epsilon,
            delta=DELTA,
        ),
        source="privacy/ftrl_mechanism.py:177-218",
        said=(
            "The constructor (lines 181-188) takes the accountant of "
            "ceil(num_iterations / min_separation) Gaussian releases, here of one."
        ),
        remark=(
            "All iterations are one release here. The audit measures the covariance of its noise, "
            "so that correlated noise counts for what it covers. The optimizer's X is C^T C with "
            "ones on its diagonal (lines 40-43, 203), so that every column of C has length 1. "
            "np.linalg.cholesky (line 208) returns L with X = L L^T instead, whose rows have "
            "length 1. The first column of L is longer: 1.596 here, 3.1 for 100 iterations and a "
            "separation of 50. A client of the first iteration moves the result by that."
        ),
        farther=1.596,
        seconds=SECONDS,
    ),
]
