"""NVIDIA FLARE (PyPI: nvflare): its filters for privacy.

``nvflare/app_common/filters/svt_privacy.py``, lines 258-472: coordinates are offered in random
passes, accepted if their noised absolute value, at most gamma, exceeds a noised threshold, until
there are c = ceil(fraction d) of them; c accepted ones are drawn, and their values, clipped to
[-gamma, gamma], are sent with Laplace noise of scale 2 gamma c / epsilon_release. Everything else
is 0.

By hand: the offers have noise of scale 2 gamma c / epsilon_query and a sensitivity of gamma, so
that the odds of one coordinate against another change by a factor of at most
exp(epsilon_query / 2 c) when a message is exchanged; for the c that are drawn, and for the number
of accepted ones from which they are drawn, that is epsilon_query. The values change by 2 gamma
each, 2 gamma c in all: epsilon_release. Both are what its accountant counts (lines 212-235), and
docs/user_guide/admin_guide/security/differential_privacy.rst, lines 52-93, promises their sum. The
number of passes, which the message also carries, is covered: a threshold that is gamma higher makes
every pass accept less, and each of c acceptances is likelier by the same factor as before.
"""

from __future__ import annotations

import logging
from importlib.metadata import version

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

from audits import Entry, Untried, finite
from pflpipe import Claim

logging.disable(logging.CRITICAL)  # of every message, which the filter counts

PROGRAM, VERSION = "NVFlare", version("nvflare")
GAMMA, SIZE, PER_VALUE, CHOICE = 1e-5, 6, 0.1, 0.1
"""Its defaults of gamma, noise_var and epsilon, and the coordinates of a message."""
TOTAL = CHOICE + SIZE * PER_VALUE


def all_values(messages: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return messages of which the filter sends every coordinate, each in a call of its own."""
    sent = []
    for message in finite(messages):
        asked = DXO(DataKind.WEIGHT_DIFF, data={"layer": message})
        SVTPrivacy(fraction=1, replace=False).process_dxo(asked, Shareable(), FLContext())
        sent.append(asked.data["layer"])
    return np.stack(sent)


FILTER = "nvflare/app_common/filters/svt_privacy.py:258-472"
AUDITS = [
    Entry(
        title="SVTPrivacy, the values that it sends: fraction 1, replace False, else defaults",
        release=all_values,
        claim=Claim(
            clients=1,
            mechanism="laplace",
            epsilon=TOTAL,
            adjacency="replace_one",
            trust="local",
            clip_norm=GAMMA * SIZE,
            dimension=SIZE,
        ),
        source=FILTER,
        said="differential_privacy.rst:61-79 and the accountant in the message (lines 212-235): "
        "epsilon_call = epsilon_threshold + epsilon_query + epsilon_release",
        remark="The argument epsilon=0.1 is the budget of the choice alone; each of c sent values "
        "adds 0.1. For 7,033,300 parameters its accountant says 70,333, as FLIP issue 1145 does.",
        seconds=0.3,
    ),
    Untried(
        title="SVTPrivacy, the choice of what is sent",
        source=FILTER,
        reason="Of a random choice only the attacker of runs says something; it proved epsilon .3 "
        "of 4. By hand we find nothing wrong with what the accountant counts. A message whose "
        "coordinates are mostly NaN makes the filter loop for ever.",
    ),
    Untried(
        title="PercentilePrivacy",
        source="nvflare/app_common/filters/percentile_privacy.py:47-94",
        reason="It makes no claim that can be tried: no epsilon and no noise. It sets small "
        "changes to 0 and clips the others, so that equal messages give equal results; its "
        "documentation lists it under differential privacy of model updates "
        "(differential_privacy.rst, Privacy-Preserving Filters).",
    ),
]
