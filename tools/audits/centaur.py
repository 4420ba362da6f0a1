"""CENTAUR, official code (Shen et al., "Share Your Representation Only", ICLR 2023).

https://github.com/shenzebang/CENTAUR-Privacy-Federated-Representation-Learning is read, not copied.
``utils/common_utils.py``, lines 339-375: with ``user-level-DP`` the server multiplies each client's
change of the representation by min(1, C / its length), all layers together, takes the plain mean
of the n clients and adds Gaussian noise of standard deviation C z / n. Numbers of examples are not
used. Heads never leave the clients. ``methods/api.py``, lines 252-262: z is Opacus' multiplier for
the target epsilon, with all rounds counted.

By hand: one client moves the mean by C / n, and the noise is C z / n: the multiplier is z.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from opacus.accountants.utils import get_noise_multiplier

from audits import Entry, Untried, finite
from pflpipe.auditing.claim import Claim

PROGRAM = "CENTAUR (official code)"
VERSION = "commit 71e092e of 2023-03-03"

BOUND, EPOCHS, EPSILON, DELTA = 1.0, 200, 1.0, 1e-5


def aggregate(multiplier: float) -> Callable[..., np.ndarray]:
    """Return the release of one round, ``server_update_with_clip`` with global_lr 1."""

    def release(messages: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        changes = finite(messages).astype(np.float64)
        lengths = np.linalg.norm(changes, axis=1, keepdims=True)
        clipped = changes * np.minimum(1.0, BOUND / np.maximum(lengths, 1e-12))
        noise = rng.normal(0, BOUND * multiplier, changes.shape[1])
        return (clipped.sum(axis=0) + noise) / len(changes)

    return release


USED: float = get_noise_multiplier(
    target_epsilon=EPSILON, target_delta=DELTA, sample_rate=1.0, epochs=EPOCHS
)
NOISE = "utils/common_utils.py:339-375"
NAN = "Messages with NaN count as zeros here; the code lets them through."
AUDITS = [
    Entry(
        title="user-level DP, noise of one round",
        release=aggregate(1.0),
        claim=Claim(clients=10, noise_multiplier=1, delta=DELTA),
        source=NOISE,
        said="README, args.global_lr: noise sigma C_g / |S^t| on the mean of the clipped changes, "
        "sigma being the noise multiplier",
        remark=NAN,
    ),
    Entry(
        title="user-level DP, epsilon 1 of 200 rounds with all clients",
        release=aggregate(USED),
        claim=Claim(
            clients=10,
            noise_multiplier=USED,
            epsilon=EPSILON,
            delta=DELTA,
            rounds=EPOCHS,
        ),
        source=f"methods/api.py:252-262 and {NOISE}",
        said='methods/api.py:262 prints "To achieve (epsilon, delta) user-level DP, the noise '
        'multiplier is set to"; epsilon 1 and delta 1e-5 as in its scripts',
        remark=f"z = {USED:.1f} by Opacus' RDP accountant, which is a little more than needed. "
        + NAN,
    ),
    Untried(
        title="user-level DP, frac_participate below 1",
        source="methods/api.py:386-403, accounted in methods/DP_FedRep.py:79-82",
        reason="The code visits disjoint groups, so that each client takes part exactly once in "
        "each pass, but accounts for Poisson sampling; an audit of arrays draws cohorts by Poisson "
        "sampling and cannot tell the difference.",
    ),
    Untried(
        title="local-level DP",
        source="utils/common_utils.py:41-60",
        reason="Opacus inside each client, whose step is audited under Opacus.",
    ),
]
