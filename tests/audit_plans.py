"""Plans on which the audit's tests release."""

import dataclasses

from pflpipe.seeds import derived_key
from releases import FEMNIST

KEY = derived_key("audit", "test", 0)
# mu = 2.602: epsilon 8 at delta 0.02 over 30 rounds.
REFERENCE = dataclasses.replace(FEMNIST, clip_norm=2.5, noise_multiplier=2.105, clients=4)
DRAWN = dataclasses.replace(
    REFERENCE, noise_multiplier=2.248, sample_rate=0.1, rounds=100, delta=1e-5, clients=24
)
LAPLACE = dataclasses.replace(
    REFERENCE, mechanism="laplace", norm=1, noise_multiplier=1.0, rounds=8, delta=0.0
)
