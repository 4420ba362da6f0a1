"""Adaptive clipping: the bound follows a quantile of the clients' norms, estimated from one bit of
each client.

Source: Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private Learning with Adaptive
Clipping", NeurIPS 2021, Algorithm 1. In round t every present client sends its update clipped to
C_t and the bit b_i = [its norm was at most C_t]. With b~ the noised mean of the bits, gamma the
quantile and eta_C the learning rate

    C_{t+1} = C_t exp(-eta_C (b~ - gamma)),        C_0 = the study's ``clip_norm``.

A round is one release of two parts. The sum of the updates has noise of C_t z_Delta, the sum of the
bits noise of sigma_b. Bits are sent as b_i - 1/2, so that an absent client, which sends 0 for both,
moves their sum by 1/2. In units of the noise, a client moves the first part by at most 1 / z_Delta
and the second by at most 1 / (2 sigma_b). The two noises are independent and Gaussian, so a client
moves both parts together by at most 1 / z, with

    z^-2 = z_Delta^-2 + (2 sigma_b)^-2                                                (Theorem 1)

where z is the multiplier of the plan. The plan keeps z and the accounting is unchanged; the cost of
the bits is that z_Delta > z.

This also holds under Poisson sampling: one draw decides over both parts of a client's message.
With each coordinate in units of its noise, the round is one sampled Gaussian release of a vector of
length at most 1, with noise z. Rounds compose although their bounds depend on each other: C_t
follows from earlier releases alone, and the round has this multiplier for every C_t.

Reading: b~ is the noised sum of the b_i - 1/2 over q M, plus 1/2. The paper draws a fixed number of
clients and divides by it; here that number is secret, and its mean q M is public. A client whose
update is not finite sends 0 for both parts, as if it were absent. For a method with a public scale
the norm is that of the scaled update (``mechanism.release``).

Here are the multipliers; clip_bits.py has the tensors.
"""

import dataclasses
import math

from pflpipe.errors import PrivacyError
from pflpipe.privacy.plan import Plan

HALF = 0.5
"""Absolute value of a centred bit."""


def multiplier_of_updates(plan: Plan) -> float:
    """Return z_Delta, the noise multiplier of the updates' part of an adaptive plan.

    Raises:
        PrivacyError: the bits alone use up the whole budget of the plan.
    """
    assert plan.adaptive is not None
    share = plan.multiplier / (2 * plan.adaptive.bit_noise)
    expected = f"above {plan.multiplier / 2:.6g}, half the noise multiplier"
    do = "with less noise the bits alone cost more than the whole budget"
    noise = plan.adaptive.bit_noise
    PrivacyError.unless(share < 1, "privacy.clip_bit_noise", noise, expected, do)
    return plan.multiplier / math.sqrt(1 - share**2)


def of_updates(plan: Plan, bound: float | None) -> Plan:
    """Return the plan that releases the updates of a round: with C_t and z_Delta for an adaptive
    plan, unchanged for any other.

    Args:
        bound: C_t; None for the first round.
    """
    if plan.adaptive is None:
        return plan
    # Each part is released by an ordinary plan; together the two have the multiplier z.
    clip_norm, multiplier = plan.clip_norm if bound is None else bound, multiplier_of_updates(plan)
    return dataclasses.replace(
        plan, clip_norm=clip_norm, noise_multiplier=multiplier, adaptive=None
    )


def of_bits(plan: Plan) -> Plan:
    """Return the plan that releases the bits of a round: noise of sigma_b on a sum of numbers of at
    most 1/2."""
    # The multiplier is noise over clip norm, sigma_b / (1/2). The clip changes nothing.
    assert plan.adaptive is not None
    multiplier = plan.adaptive.bit_noise / HALF
    return dataclasses.replace(plan, clip_norm=HALF, noise_multiplier=multiplier, adaptive=None)
