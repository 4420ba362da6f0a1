"""PFLlib's option for differential privacy, which it had until June 2024.

https://github.com/TsingZ0/PFLlib, ``system/utils/privacy.py``, lines 20-37, and
``system/flcore/clients/clientavg.py``, lines 35-39 and 70-77: in every round each client makes a
new ``opacus.PrivacyEngine`` with max_grad_norm 1 and the noise multiplier ``dp_sigma``, trains with
it, and prints the epsilon of this engine at delta 1e-5. The unit is an example of one client. Here
Opacus itself takes the step.
"""

from __future__ import annotations

from audits import Entry, Untried
from audits._dp_sgd import dp_sgd
from pflpipe.auditing.claim import Claim

PROGRAM = "PFLlib"
VERSION = "commit 5012fce of 2024-06-03, the last one with DP"

BATCH, EXAMPLES, STEPS, ROUNDS, DELTA = 10, 100, 10, 20, 1e-5
"""A client of 100 examples, batches of 10, one epoch a round."""
ROUND = Claim(
    clients=EXAMPLES,
    noise_multiplier=1,
    delta=DELTA,
    rounds=STEPS,
    sample_rate=BATCH / EXAMPLES,
    adjacency="add_remove",
)
SOURCE = "system/utils/privacy.py:23-33, system/flcore/clients/clientavg.py:35-72"
SAID = 'clientavg.py:71-72 prints "Client 0 epsilon = ..." after every round'
AUDITS = [
    Entry(
        title="epsilon that a client prints in a round, of its examples",
        release=dp_sgd(1.0, BATCH),
        claim=ROUND,
        source=SOURCE,
        said=SAID,
        remark="One epoch of Opacus' DP-SGD. Messages with NaN count as zeros here. The line also "
        'prints delta under the name "sigma". dp_sigma is 0 by default, which is no noise.',
    ),
    Entry(
        title="epsilon that a client prints in its last round, read as that of 20 rounds",
        release=dp_sgd(1.0, BATCH),
        claim=Claim(
            clients=EXAMPLES,
            noise_multiplier=1,
            epsilon=ROUND.epsilon_of(1.0),
            delta=DELTA,
            rounds=ROUNDS * STEPS,
            sample_rate=BATCH / EXAMPLES,
            adjacency="add_remove",
        ),
        source=SOURCE,
        said=SAID,
        remark="The engine, and with it the accountant, is a new one in every round. The line does "
        "not say that its epsilon is of one round; the sum over the rounds is printed nowhere.",
    ),
    Untried(
        title="PFLlib today",
        source="commit 004a405 of 2024-06-03",
        reason="It removed differential privacy, and its README makes no claim any more.",
    ),
]
