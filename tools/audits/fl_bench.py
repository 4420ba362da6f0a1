"""FL-bench's DP-FedAvg (https://github.com/KarhouTam/FL-bench/pull/200, merged in January 2026).

Read, not copied; here Opacus itself takes the step. ``src/client/dpfedavg.py``,
``DPFedAvgClient._setup_dp_training`` and ``fit``: in every round each client trains with a new
``opacus.PrivacyEngine``. ``src/server/dpfedavg.py``, ``DPFedAvgServer.package``, and
``src/utils/dp_manager.py``, ``DPManager.get_dp_config_for_client``: without a given multiplier the
server takes Opacus' multiplier that reaches the target epsilon in the local steps of one round.
``DPManager.update_privacy_stats`` adds up the epsilons of a client's rounds and reports the largest
sum. The unit is an example of one client.
"""

from __future__ import annotations

from opacus.accountants import RDPAccountant
from opacus.accountants.utils import get_noise_multiplier

from audits import Entry
from audits._dp_sgd import dp_sgd
from pflpipe.auditing.claim import Claim

PROGRAM = "FL-bench"
VERSION = "pull request 200, merged 2026-01"

EPSILON, DELTA, BATCH, EPOCHS = 1.0, 1e-5, 32, 5
"""Defaults of ``DPFedAvgServer.get_hyperparams`` and of FL-bench."""
EXAMPLES, ROUNDS = 320, 10
"""Examples of one client, and the rounds that it takes part in: 100 rounds, join_ratio 0.1."""
RATE, STEPS = BATCH / EXAMPLES, EPOCHS * EXAMPLES // BATCH
USED: float = get_noise_multiplier(
    target_epsilon=EPSILON, target_delta=DELTA, sample_rate=RATE, steps=STEPS
)


def reported(rounds: int) -> float:
    """Return the epsilon that the server reports: the sum of the accountants of the rounds."""
    accountant = RDPAccountant()
    for _ in range(STEPS):
        accountant.step(noise_multiplier=USED, sample_rate=RATE)
    epsilon: float = rounds * accountant.get_epsilon(delta=DELTA)
    return epsilon


def claim(rounds: int, epsilon: float) -> Claim:
    """Return the claim of an epsilon for all local steps of some rounds."""
    return Claim(
        clients=EXAMPLES,
        noise_multiplier=USED,
        epsilon=epsilon,
        delta=DELTA,
        rounds=rounds * STEPS,
        sample_rate=RATE,
        adjacency="add_remove",
    )


STEP = "src/client/dpfedavg.py, _setup_dp_training and fit"
TARGET = "src/server/dpfedavg.py, --epsilon, 1.0 by default: the privacy budget parameter"
AUDITS = [
    Entry(
        title="target epsilon 1 in the first round of a client, of its examples",
        release=dp_sgd(USED, BATCH),
        claim=claim(1, EPSILON),
        source=STEP,
        said=TARGET,
        remark="One round is five epochs of Opacus' DP-SGD. Messages with NaN count as zeros here.",
    ),
    Entry(
        title="epsilon that the server reports after ten rounds of a client",
        release=dp_sgd(USED, BATCH),
        claim=claim(ROUNDS, reported(ROUNDS)),
        source="src/utils/dp_manager.py, update_privacy_stats",
        said='the log, "Privacy: epsilon=.../1.0", after every round',
        remark="The sum over rounds is more than a joint accountant would count: it holds, and is "
        f"{reported(ROUNDS):.1f} for ten rounds of target 1.",
    ),
    Entry(
        title="target epsilon 1, read as that of a run in which a client has ten rounds",
        release=dp_sgd(USED, BATCH),
        claim=claim(ROUNDS, EPSILON),
        source="src/utils/dp_manager.py, get_dp_config_for_client",
        said=TARGET,
        remark="The multiplier is that of one round. The log says so: from the first round on it "
        'shows "BUDGET EXHAUSTED", and training goes on.',
    ),
]
