"""DynamicPFL, the official code of FedDPA (Yang, Huang, Ye, NeurIPS 2023).

https://github.com/xiyuanyang45/DynamicPFL is read, not copied. ``ours.py``, lines 229-258, and
``main_base.py``, lines 156-185, aggregate in the same way: the update of each client is divided by
max(1, its length / C), all layers together. Gaussian noise of standard deviation C z / sqrt(n) is
added to it, where n is ``num_clients``, the number of all clients. The noised updates are averaged
with the numbers of examples as weights. Multipliers come from ``utils.py``, lines 9-22.

By hand: with equal weights 1 / n, the n noises add up to C z / sqrt(n) / sqrt(n) = C z / n on the
average, and one client moves it by C / n: the multiplier is z. With weights w the noise is
C z / sqrt(n) times sqrt(sum w^2), and client k moves the average by w_k C.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from opacus.accountants.utils import get_noise_multiplier

from audits import Entry, finite
from pflpipe.auditing.claim import Claim

PROGRAM = "DynamicPFL (official code of FedDPA)"
VERSION = "commit 4461ecb of 2023-10-09"

CLIENTS, ROUNDS, LOCAL_EPOCHS, BATCH, EPSILON, DELTA, BOUND = 10, 15, 2, 16, 1.0, 0.1, 0.5
"""Defaults of ``options.py``, lines 6-15."""
EXAMPLES = 73_257
"""Training examples of SVHN, its default data set."""


def aggregate(
    multiplier: float, clients: int = CLIENTS, equal: bool = False
) -> Callable[..., np.ndarray]:
    """Return the aggregation of one round.

    Args:
        multiplier: z.
        clients: the number of all clients, by which the code scales its noise.
        equal: whether all clients have equally many examples, whatever the weights say.
    """

    def release(messages: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        updates = finite(messages).astype(np.float64)
        lengths = np.linalg.norm(updates, axis=1, keepdims=True)
        clipped = updates / np.maximum(1.0, lengths / BOUND)
        noised = clipped + rng.normal(0, BOUND * multiplier / np.sqrt(clients), clipped.shape)
        rows = np.ones(len(updates)) if equal else weights
        return rows / rows.sum() @ noised

    return release


def multiplier_of_the_code() -> float:
    """Return z as ``compute_noise_multiplier`` finds it with all defaults: that of DP-SGD with
    batches of 16 out of the examples of all clients together, for all their local steps."""
    found: float = get_noise_multiplier(
        target_epsilon=EPSILON,
        target_delta=DELTA,
        sample_rate=BATCH / EXAMPLES,
        steps=int(ROUNDS * LOCAL_EPOCHS * EXAMPLES / BATCH),
        accountant="rdp",
    )
    return found


USED = multiplier_of_the_code()
NOISE = "ours.py:229-258"
PAPER = "section 3.1 of the paper, equation 3: noise of variance C^2 sigma^2 / |M_t| on each update"
ONE_ROUND = Claim(clients=CLIENTS, noise_multiplier=1, delta=1e-5, clip_norm=BOUND)
AUDITS = [
    Entry(
        title="noise of one round, equal numbers of examples, every client in every round",
        release=aggregate(1.0, equal=True),
        claim=ONE_ROUND,
        source=NOISE,
        said=f"{PAPER}, sigma being the noise multiplier",
        remark="The sum of ten noises is exactly what the multiplier asks for: C z / 10 on the "
        "average, which one client moves by C / 10. Messages with NaN count as zeros here; the "
        "code lets them through.",
    ),
    Entry(
        title="noise of one round, numbers of examples as weights",
        release=aggregate(1.0),
        claim=ONE_ROUND,
        source=NOISE,
        said=f"{PAPER}, sigma being the noise multiplier",
        remark="By hand, for a client with 91 % of the examples: noise C z / sqrt(10) times "
        "sqrt(.91^2 + 9 (.01)^2) = .288 C z, movement .91 C, multiplier .316 z. With its default "
        "partition (dir_alpha 100) the numbers of examples are nearly equal.",
        farther=0.91 / math.sqrt((0.91**2 + 9 * 0.01**2) / 10),
    ),
    Entry(
        title="noise of one round, five of ten clients (user_sample_rate 0.5), equal numbers",
        release=aggregate(1.0, equal=True),
        claim=Claim(clients=5, noise_multiplier=1, delta=1e-5, clip_norm=BOUND),
        source="ours.py:240",
        said=f"{PAPER}; |M_t| is the number of clients in the round",
        remark="The code divides by the number of all clients, 10, where the equation has those of "
        "the round, 5: the multiplier is z sqrt(5 / 10) = .71 z. The default rate is 1.",
        farther=math.sqrt(2),
    ),
    Entry(
        title="epsilon 1 of a run with all defaults on SVHN",
        release=aggregate(USED, equal=True),
        claim=Claim(
            clients=CLIENTS,
            noise_multiplier=USED,
            epsilon=EPSILON,
            delta=DELTA,
            rounds=ROUNDS,
            clip_norm=BOUND,
        ),
        source="utils.py:9-22, called in ours.py:203",
        said="options.py:13-14: target_epsilon 1 and target_delta 0.1, the target privacy budget; "
        "sections 1 and 3.1 of the paper: user-level differential privacy",
        remark=f"The code finds z = {USED:.3f} as for DP-SGD: batches of 16 out of the 73,257 "
        "examples of all clients together, 137,000 steps. It then adds this noise once a round to "
        "whole updates, in each of 15 rounds and without any sampling. Fifteen Gaussian releases "
        "with this multiplier are counted here.",
    ),
]
