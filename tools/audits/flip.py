"""FLIP (londonaicentre/FLIP): its local differential privacy for Flower and NVFlare. Read, not run.

flip-utils needs Python 3.12, and the project runs on 3.11; on 3.12 its own mod, with the defaults
and the same generator, returned the statement below up to rounding in float32 (6e-8).

``flip/flower/privacy.py`` (pull request 833), lines 106-109 and 155-164: the defaults are clip 1,
sensitivity 1e-4, epsilon 10 and delta 1e-5, and the noise has the standard deviation
sensitivity sqrt(2 ln(1.25 / delta)) / epsilon, 4.845e-5. Lines 260-264: Flower's functions clip the
update of a trust as a whole and add this noise. ``flip/nvflare/components/local_dp.py`` of pull
request 1146 (open, commit 456509a) has the same defaults, the same noise and the same clip.

What FLIP claims:

- https://github.com/londonaicentre/FLIP/pull/833 and ``component-fl-nodes.rst``, "Privacy filters
  on shared model updates": a formal (epsilon, delta) guarantee.
- ``LocalDpConfig`` (lines 80-104): the sensitivity is how much one training example can move the
  update; for an average of examples it is 2 clip / |D|. The defaults are no defensible budget, and
  every round spends it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from audits import Entry, finite
from pflpipe.auditing.claim import Claim

PROGRAM = "FLIP"
VERSION = "flip-utils 0.13.1"

CLIP, SENSITIVITY, EPSILON, DELTA = 1.0, 1e-4, 10.0, 1e-5
EXAMPLES = 10
"""|D|, of one trust."""


def noise(sensitivity: float, epsilon: float) -> float:
    """Return the standard deviation of its noise."""
    return sensitivity * math.sqrt(2 * math.log(1.25 / DELTA)) / epsilon


def clipped(updates: np.ndarray, bound: float) -> np.ndarray:
    """Return updates ``[m, d]`` of length at most ``bound``; NaN and infinity are 0."""
    updates = finite(updates).astype(np.float64)
    lengths = np.linalg.norm(updates, axis=1, keepdims=True)
    return updates * np.minimum(1.0, bound / np.maximum(lengths, 1e-300))


def of_updates(deviation: float, granted: float = CLIP) -> Callable[..., np.ndarray]:
    """Return the release of updates, each of a trust of its own. They are at most ``granted`` long,
    whatever the auditor sends."""

    def release(messages: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        sent = clipped(clipped(messages, granted), CLIP)
        return sent + rng.normal(0, deviation, sent.shape)

    return release


def of_examples(deviation: float, bound: float = math.inf) -> Callable[..., np.ndarray]:
    """Return the release of one trust, whose update is the average of what its examples ask for, of
    length at most ``bound`` each."""

    def release(messages: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        average = clipped(messages, bound).mean(axis=0, keepdims=True)
        return clipped(average, CLIP)[0] + rng.normal(0, deviation, messages.shape[1])

    return release


def claim(epsilon: float, length: float, **fields: object) -> Claim:
    """Return the claim of an epsilon for messages that are replaced."""
    fields = {"clients": 2, "trust": "local", "clip_norm": length} | fields
    return Claim(epsilon=epsilon, delta=DELTA, adjacency="replace_one", **fields)


DEFAULTS = noise(SENSITIVITY, EPSILON)
OF_TEN = noise(2 * CLIP / EXAMPLES, 1.0)
ANY = claim(EPSILON, CLIP)
TEN = claim(1.0, CLIP, clients=EXAMPLES, trust="central")
SOURCE = "flip/flower/privacy.py:155-164 and 260-264"
SAID = (
    "component-fl-nodes.rst, Privacy filters on shared model updates, and pull request 833: "
    "calibrated Gaussian noise for a formal (epsilon, delta) guarantee"
)
AVERAGED = "LocalDpConfig, lines 86-90: 2 clipping_norm / |D| for an average-of-examples update"

AUDITS = [
    Entry(
        title="defaults, any updates",
        release=of_updates(DEFAULTS),
        claim=ANY,
        source=SOURCE,
        said=SAID,
        remark="Only the clip bounds an update: two are up to 2 apart, the noise is 4.8e-5. By "
        "hand, epsilon is 8.5e8; accounting ends at 5e7. FLIP calls the defaults no defensible "
        "budget, and the sensitivity a parameter. Pull request 1146 has the same for NVFlare.",
        farther=ANY.plan.multiplier / DEFAULTS,
    ),
    Entry(
        title="defaults, updates that one example moves by 1e-4 at most",
        release=of_updates(DEFAULTS, SENSITIVITY / 2),
        claim=claim(EPSILON, SENSITIVITY / 2),
        source=SOURCE,
        said=SAID,
        remark="The classical formula, as in Flower's LocalDpMod, is proved for epsilon below 1.",
        farther=claim(EPSILON, SENSITIVITY / 2).plan.multiplier / (2 * DEFAULTS / SENSITIVITY),
    ),
    Entry(
        title="epsilon 1, sensitivity 2 clip / |D|, average of ten examples",
        release=of_examples(OF_TEN),
        claim=TEN,
        source=SOURCE,
        said=AVERAGED,
        remark="The average is clipped, its examples are not: one of them can turn it from C to "
        "-C, whatever |D| is.",
        farther=TEN.plan.multiplier / (EXAMPLES * OF_TEN / CLIP) * EXAMPLES,
    ),
    Entry(
        title="the same, every example clipped to C before the average",
        release=of_examples(OF_TEN, CLIP),
        claim=TEN,
        source=SOURCE,
        said=AVERAGED,
        remark="FLIP's code does not clip examples.",
    ),
]
