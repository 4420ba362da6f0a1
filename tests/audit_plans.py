"""Plans on which the audit's tests release."""

from __future__ import annotations

import dataclasses

from pflpipe.privacy.plan import Plan
from pflpipe.seeds import derived_key

KEY = derived_key("audit", "test", 0)
# mu = 2.602: epsilon 8 at delta 0.02 over 30 rounds.
REFERENCE = Plan(
    "gaussian",
    2,
    clip_norm=2.5,
    noise_multiplier=2.105,
    sample_rate=1.0,
    rounds=30,
    delta=0.02,
    clients=4,
)
DRAWN = dataclasses.replace(
    REFERENCE, noise_multiplier=2.248, sample_rate=0.1, rounds=100, delta=1e-5, clients=24
)
LAPLACE = Plan(
    "laplace",
    1,
    clip_norm=2.5,
    noise_multiplier=1.0,
    sample_rate=1.0,
    rounds=8,
    delta=0.0,
    clients=4,
)
