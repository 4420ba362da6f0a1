"""NVIDIA FLARE (PyPI: nvflare): its filters for privacy, which no audit of arrays can try.

``nvflare/app_common/filters/svt_privacy.py``, lines 258-472: coordinates are offered in random
passes, accepted if their noised absolute value, at most gamma, exceeds a noised threshold, until
there are c = ceil(fraction d) of them; c accepted ones are drawn, and their values, clipped to
[-gamma, gamma], are sent with Laplace noise of scale 2 gamma c / epsilon_release. Everything else
is 0.

By hand: the offers have noise of scale 2 gamma c / epsilon_query and a sensitivity of gamma, so
that the odds of one coordinate against another change by a factor of at most
exp(epsilon_query / 2 c) when a message is exchanged; for the c that are drawn, and for the number
of accepted ones from which they are drawn, that is epsilon_query. The values change by 2 gamma
each, 2 gamma c in all: epsilon_release. Both are what its accountant counts (lines 212-235).
"""

from __future__ import annotations

from audits import Untried

PROGRAM = "NVFlare"
VERSION = "2.9.0"

AUDITS = [
    Untried(
        title="SVTPrivacy",
        source="nvflare/app_common/filters/svt_privacy.py:258-472",
        reason="It draws the coordinates that it sends, and the audit measures noise that is added "
        "to what is sent: for a random choice it reports a violation, right or wrong. Whole runs "
        "alone, which need no additive noise, proved no more than epsilon .3 of the 4 that its "
        "accountant reports (40 coordinates, two opposite messages), and by hand we find nothing "
        "wrong with that number. By the same accountant the defaults (fraction 0.1, noise_var "
        "0.1) spend 0.1 + 0.1 c per message, 10,000 for a model of a million parameters: the "
        "argument epsilon=0.1 is the budget of the choice alone. A message whose coordinates are "
        "mostly NaN makes the filter loop for ever.",
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
