"""FL4Health's client-level differential privacy (VectorInstitute/FL4Health; PyPI: fl4health).

Its package accepts Python 3.10 only, so it is read, not imported.
``fl4health/clients/clipping_client.py``, lines 86-111: a client multiplies its update by
min(1, C / its length), all layers together. ``fl4health/strategies/noisy_aggregate.py``:

- lines 47-67, without weights: the sum of the updates plus noise of standard deviation z C, divided
  by the number of the clients in the round;
- lines 70-122, with weights: the counts of a round over the cap are w_k, at most 1. The sum of
  w_k x update / (q W), plus noise z C max(w) / q, divided by the number of clients. W is the sum of
  all w; with the default cap, all examples of all clients, W = 1.

``fl4health/strategies/client_dp_fedavgm.py``, lines 349-371, if the bound adapts: z becomes
(z^-2 - (2 z_b)^-2)^-1/2, the bound is updated by the noised share b of updates within it,
C' = C exp(-lr (b - quantile)), and then the noise is drawn with C', although the updates were
clipped to C. The paper that it follows (Andrew et al., 2021, algorithm 1) adds the noise of the
bound to which the updates were clipped.

``fl4health/servers/client_level_dp_fed_avg_server.py``, lines 119-151, prints "Model privacy after
full training will be (epsilon, delta)" of the multiplier z with the sampling rate and the rounds.
"""

from __future__ import annotations

import math

import numpy as np

from audits import Entry, finite
from pflpipe.auditing.claim import Claim

PROGRAM = "FL4Health"
VERSION = "0.4.2"

CLIENTS, DELTA, BOUND = 10, 1e-5, 1.0


def clipped(messages: np.ndarray, bound: float) -> np.ndarray:
    """Return what the clients send."""
    lengths = np.linalg.norm(messages.astype(np.float64), axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return messages * np.where(lengths > bound, bound / np.maximum(lengths, 1e-12), 1.0)


def unweighted(messages: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the noisy mean, or, of an empty round, nothing: aggregate_fit returns no update."""
    return _mean(finite(messages), rng)


def with_nan(messages: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the noisy mean of messages as they are."""
    return _mean(messages, rng)


def _mean(messages: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if len(messages) == 0:
        return np.zeros(messages.shape[1])
    noise = rng.normal(0, BOUND, messages.shape[1])
    mean: np.ndarray = (clipped(messages, BOUND).sum(axis=0) + noise) / len(messages)
    return mean


def weighted(messages: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the noisy weighted mean with the default cap and all clients in the round."""
    shares = weights / weights.sum()
    total = shares @ clipped(finite(messages), BOUND)
    noise = rng.normal(0, BOUND * shares.max(), messages.shape[1])
    released: np.ndarray = (total + noise) / len(messages)
    return released


def adaptive(messages: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the noisy mean of a first round with an adaptive bound and the defaults of the
    strategy, z = z_b = lr = 1 and quantile 0.5, if all updates are within the bound.

    Longer updates are shortened before the client sees them, so that no client moves the share b.
    It is left out of the result.
    """
    updates, count = clipped(finite(messages), BOUND), len(messages)
    share = (count + rng.normal(0, 1)) / count
    multiplier, bound = (1 - 2**-2) ** -0.5, BOUND * np.exp(0.5 - share)
    noise = rng.normal(0, multiplier * bound, updates.shape[1])
    mean: np.ndarray = (updates.sum(axis=0) + noise) / count
    return mean


SERVER = "client_level_dp_fed_avg_server.py:119-151 prints epsilon and delta for the multiplier"
NOISE = "fl4health/strategies/noisy_aggregate.py"
ONE_ROUND = Claim(clients=CLIENTS, noise_multiplier=1, delta=DELTA, clip_norm=BOUND)
AUDITS = [
    Entry(
        title="unweighted, fixed bound, every client in every round",
        release=unweighted,
        claim=ONE_ROUND,
        source=f"{NOISE}:47-67",
        said=SERVER,
        remark="By hand: one client moves the mean by C / 10, the noise is z C / 10. Messages with "
        "NaN count as zeros here.",
    ),
    Entry(
        title="unweighted, fixed bound, Poisson sampling, a drawn client sends zeros or its update",
        release=unweighted,
        claim=Claim(clients=CLIENTS, noise_multiplier=1, delta=DELTA, sample_rate=0.5, rounds=5),
        source=f"{NOISE}:47-67",
        said=f"{SERVER}, with Poisson sampling (lines 132-136)",
        remark="The divisor is the number of clients that were drawn, which the size of the noise "
        "shows. By hand, the number of each round known: epsilon 7.79. Messages with NaN count as "
        "zeros here.",
    ),
    Entry(
        title="unweighted, fixed bound, Poisson sampling, a client that is there or not",
        release=unweighted,
        claim=Claim(
            clients=CLIENTS,
            noise_multiplier=1,
            delta=DELTA,
            sample_rate=0.5,
            rounds=5,
            adjacency="add_remove",
        ),
        source=f"{NOISE}:47-67",
        said=f"{SERVER}, with Poisson sampling (lines 132-136)",
        remark="These neighbours are those of its accountant (moments_accountant.py:40). The "
        "divisor is the number of clients that were drawn, not the expected one, so that the size "
        "of the noise shows how many there were, and a round without clients has no noise "
        "(client_dp_fedavgm.py:324-325). By hand: of ten clients all are drawn with probability "
        ".001, which is above delta, and never if one is missing. With thousands of clients the "
        "effect is small.",
        farther=math.inf,
    ),
    Entry(
        title="weighted, fixed bound, default cap, every client in every round",
        release=weighted,
        claim=ONE_ROUND,
        source=f"{NOISE}:70-122",
        said=SERVER,
        remark="The noise grows with the largest weight, so that one client with 91 % of the "
        "examples is covered too; the numbers of examples count as public. With a cap of one's own "
        "(per_client_example_cap) version 0.4.2 fails: total_client_weight is only set without "
        "(client_dp_fedavgm.py:332-343). Messages with NaN count as zeros here.",
    ),
    Entry(
        title="unweighted, adaptive bound, default settings, all updates within the bound",
        release=adaptive,
        claim=ONE_ROUND,
        source="fl4health/strategies/client_dp_fedavgm.py:349-371",
        said=SERVER,
        remark="The updates are clipped to C, but the noise is that of the next bound C'. Here C' "
        "is C exp(0.5 - 1) = .61 C on average, and the multiplier of the mean is 1.15 x .61 = .70 "
        "(.71 with the noise of the share), where the claim has 1.15 for the mean and 1 in all. If "
        "all updates are longer than C, C' is 1.65 C: more noise than needed. With "
        "clipping_learning_rate 0, or the noise before the new bound, the mean has its 1.15. The "
        "share itself is not tried.",
    ),
    Entry(
        title="unweighted, fixed bound, a message of NaN",
        release=with_nan,
        claim=ONE_ROUND,
        source="fl4health/clients/clipping_client.py:102-111",
        said=SERVER,
        remark="min(1, C / NaN) is 1 in Python: the client does not clip NaN, and the server adds "
        "it up.",
    ),
]
