"""MEDfl (PyPI: medfl): DP-SGD by Opacus in each client of its Flower simulation. It is read; here
Opacus itself takes the step.

``MEDfl/LearningManager/client.py``, lines 58-79: a client takes Opacus' multiplier that reaches
EPSILON in train_epochs epochs. ``server.py``, lines 131-148: Flower makes a client for every
message (flwr 1.18, ``client/message_handler/message_handler.py``, line 96), so that the accountant
of a round knows no other. ``client.py``, lines 141-149: the reply has its epsilon. ``model.py``,
lines 123-141: a step is left out if the gradient of its batch has NaN or infinity. The unit is an
example of one client.
"""

from __future__ import annotations

import numpy as np
from opacus.accountants import PRVAccountant
from opacus.accountants.utils import get_noise_multiplier

from audits import Entry
from audits._dp_sgd import dp_sgd
from pflpipe.auditing.claim import Claim

PROGRAM = "MEDfl"
VERSION = "2.0.10"

EPSILON, DELTA, BATCH, EPOCHS, ROUNDS = 5.0, 1e-5, 6, 1, 20
"""Of its ``params.yaml``."""
EXAMPLES = 60
"""Of one client."""
RATE, STEPS = BATCH / EXAMPLES, EPOCHS * EXAMPLES // BATCH
USED: float = get_noise_multiplier(
    target_epsilon=EPSILON,
    target_delta=DELTA,
    sample_rate=RATE,
    epochs=EPOCHS,
    accountant=PRVAccountant.mechanism(),
)
ONE_STEP = dp_sgd(USED, BATCH)


def left_out(messages: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the model after a step, or as it was if a gradient is not finite."""
    if not np.isfinite(messages).all():
        return np.zeros(messages.shape[1])
    return ONE_STEP(messages, weights, rng).numpy()


def claim(rounds: int) -> Claim:
    """Return the claim of EPSILON for all local steps of some rounds."""
    return Claim(
        clients=EXAMPLES,
        noise_multiplier=USED,
        epsilon=EPSILON,
        delta=DELTA,
        rounds=rounds * STEPS,
        sample_rate=RATE,
        adjacency="add_remove",
    )


SOURCE = "MEDfl/LearningManager/client.py:58-79"
SAID = (
    "https://pypi.org/project/medfl, Key Features: client updates are mathematically protected; "
    "params.yaml: EPSILON 5.0; the reply of every round (client.py:141-149) has this epsilon"
)

AUDITS = [
    Entry(
        title="EPSILON 5 in one round, finite gradients",
        release=ONE_STEP,
        claim=claim(1),
        source=SOURCE,
        said=SAID,
        remark="A client has 60 examples here, in batches of 6.",
        seconds=2.0,
    ),
    Entry(
        title="EPSILON 5, and the epsilon of every reply, read as that of its 20 rounds",
        release=ONE_STEP,
        claim=claim(ROUNDS),
        source=f"{SOURCE}, server.py:131-148",
        said=SAID,
        remark="Every round has a new client and a new accountant.",
        seconds=2.0,
    ),
    Entry(
        title="one step with all examples, any gradients",
        release=left_out,
        claim=Claim(clients=BATCH, noise_multiplier=USED, delta=DELTA),
        source="MEDfl/LearningManager/model.py:123-141",
        said=SAID,
        remark="A gradient with NaN leaves the step and its noise out.",
        seconds=2.0,
    ),
]
