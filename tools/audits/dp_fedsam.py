"""DP-FedSAM, official code (Shi et al., CVPR 2023).

https://github.com/YMJS-Irfan/DP-FedSAM is read, not copied. ``fedml_api/dpfedsam/dpfedsam_api.py``,
lines 71-77: every tensor of a client's update is multiplied by min(1, C / its own length), then
Gaussian noise of standard deviation sigma C / sqrt(m) is added, for m clients in the round. Lines
148-163: the server averages with the numbers of examples as weights.

By hand: L tensors of length C each make an update of length C sqrt(L). With equal weights, the
noise of the average is sigma C / m and one client moves it by up to C sqrt(L) / m: the multiplier
is sigma / sqrt(L). The paper clips whole updates (L = 1). ``cnn_emnist``
(``fedml_api/model/cv/cnn.py``, lines 74-82) has 8 tensors; ResNet-18 with GroupNorm, its network
for CIFAR-10, has 62.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from audits import Entry, finite
from pflpipe.auditing.claim import Claim

PROGRAM = "DP-FedSAM (official code)"
VERSION = "commit 016bd7f of 2023-08-11"

SIGMA = 0.95
"""Default of ``main_dpfedsam.py``, line 104, and in all commands of its README."""
BOUND = 0.2
FAR = 40 * BOUND
"""Length of the auditor's messages: every tensor of them is longer than C."""


def average(tensors: int, equal: bool = True) -> Callable[..., np.ndarray]:
    """Return the release of one round.

    Args:
        tensors: L, in which a message is split.
        equal: whether all clients have equally many examples, whatever the weights say.

    A round without clients, which the code does not have, releases nothing.
    """

    def release(messages: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if len(messages) == 0:
            return np.zeros(messages.shape[1])
        updates = finite(messages).astype(np.float64)
        for part in np.array_split(np.arange(updates.shape[1]), tensors):
            lengths = np.linalg.norm(updates[:, part], axis=1, keepdims=True)
            updates[:, part] *= np.minimum(1.0, BOUND / np.maximum(lengths, 1e-12))
        noised = updates + rng.normal(0, SIGMA * BOUND / np.sqrt(len(updates)), updates.shape)
        rows = np.ones(len(updates)) if equal else weights
        return rows / rows.sum() @ noised

    return release


def one_round(dimension: int = 40) -> Claim:
    """Return the claim of the multiplier for one round of ten clients."""
    return Claim(clients=10, noise_multiplier=SIGMA, delta=1e-5, clip_norm=FAR, dimension=dimension)


NOISE = "fedml_api/dpfedsam/dpfedsam_api.py:71-77"
SAID = (
    "eps_computer.py:331: sigma 0.95 is the noise multiplier, the ratio of the noise to the "
    "sensitivity (lines 231-234)"
)
AUDITS = [
    Entry(
        title="one round, a network of a single tensor, equal numbers of examples",
        release=average(1),
        claim=one_round(),
        source=NOISE,
        said=SAID,
        remark="The noise of the clients adds up to what sigma asks for: sigma C / 10 on the "
        "average of ten. Messages with NaN count as zeros here; the code lets them through.",
    ),
    Entry(
        title="one round, the 8 tensors of its EMNIST network, equal numbers of examples",
        release=average(8),
        claim=one_round(),
        source=NOISE,
        said=SAID,
        remark="Each tensor is clipped to C, so an update may be C sqrt(8) long. By hand: "
        ".95 / sqrt(8) = .34.",
        farther=math.sqrt(8),
    ),
    Entry(
        title="one round, 62 tensors as in its ResNet-18, equal numbers of examples",
        release=average(62),
        claim=one_round(dimension=124),
        source=NOISE,
        said=SAID,
        remark="By hand: .95 / sqrt(62) = .12.",
        farther=math.sqrt(62),
    ),
    Entry(
        title="one round, 8 tensors, numbers of examples as weights",
        release=average(8, equal=False),
        claim=one_round(),
        source=f"{NOISE} and 148-163",
        said=SAID,
        remark="By hand, for a client with 91 % of the examples: noise .95 C / sqrt(10) times "
        "sqrt(.91^2 + 9 (.01)^2), movement .91 C sqrt(8): .95 / 8.94 = .11.",
        farther=0.91 * math.sqrt(8) / math.sqrt((0.91**2 + 9 * 0.01**2) / 10),
    ),
    Entry(
        title="200 rounds of its EMNIST command: 50 of 500 clients a round, 8 tensors",
        release=average(8),
        claim=Claim(
            clients=500,
            noise_multiplier=SIGMA,
            epsilon=7.774,
            delta=5e-3,
            rounds=200,
            sample_rate=0.1,
            clip_norm=FAR,
        ),
        source="eps_computer.py:294-337",
        said="eps_computer.py:331-333, to which the README refers, prints epsilon 7.77 for sigma "
        "0.95, 200 rounds, rate 0.1 and delta 5e-3",
        remark="With updates of one tensor and secret Poisson sampling the printed epsilon is "
        "right (dp-accounting: 6.5). The code clips by tensor. It also seeds the choice of clients "
        "with the round number (dpfedsam_api.py:143), so that everybody knows who takes part; the "
        "audit leaves that out.",
        farther=math.sqrt(8),
    ),
]
