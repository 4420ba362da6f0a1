"""A sum that nobody sees but modulo 2^b: what clients send under secure aggregation, simulated.

Sources: Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning
with Secure Aggregation", ICML 2021 (rotation, conditional rounding, modulus); Agarwal, Kairouz,
Liu, NeurIPS 2021 (shares of Skellam noise). In a round, with C the clip norm and L a whole number,

1. **each client** clips its message to ``room`` steps of C / sqrt(L); rotates it by random signs
   and a Hadamard matrix, which spreads any message evenly over ``width`` numbers; rounds each one
   up or down at random so that the mean stays, again until the vector k of whole numbers has |k|^2
   <= L (conditional randomized rounding); adds its share of Skellam noise; and sends the result
   modulo 2^b.
2. **the server** sees the sum modulo 2^b alone. It takes the remainder around 0, rotates it back,
   and divides by M.

So a message moves the sum by at most sqrt(L) steps, which is C, and the privacy is that of the plan
(mechanisms/skellam.py): the modulus, the rotation back and the division follow from the noisy sum,
and whatever the rounding draws, |k|^2 <= L. The clip and the rotation are not relied upon, since
|k|^2 is compared exactly.

**Drop-outs.** If ``dropout`` is f, at least S = ceil((1 - f) M) clients stay, and each adds noise
of variance mu / S. Any S shares have the variance mu = sigma^2 L that the plan counts; the shares
of further clients only add independent noise. A round with fewer must not be opened. The same
share covers clients that tell their noise. In a simulation all clients stay, and the noise is that
of M shares, mu M / S. On other machines every client makes its ``share`` (remote.py).

**The modulus by rule.** The numbers of a sum are around 0 with a variance of at most M^2 c^2 / D of
the messages (c = ``room``, D = ``width``; all of them equal), M / 4 of the rounding, and the noise.
L is the largest with ``DEVIATIONS`` of their deviations within half the modulus. A number beyond
it wraps, which costs accuracy and no privacy, and is counted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pflpipe import trees
from pflpipe.errors import PrivacyError
from pflpipe.privacy.clipping import clip
from pflpipe.privacy.mechanisms.skellam import LEAST, skellam
from pflpipe.privacy.plan import Plan
from pflpipe.trees import Tensors, Tree

DEVIATIONS = 4
FINEST = 2**40
"""The largest L: sums of squares are exact in float64 far beyond it."""
MOST_BITS = 32
ATTEMPTS = 200
"""Draws of a rounding, each of which fits with a chance of at least 1 - e^-1/2 (their theorem 1);
a message that none fits is rounded towards zero."""


@dataclass(frozen=True)
class Rule:
    """How the messages of a model become whole numbers.

    Attributes:
        width: D, the numbers of a message after the rotation, a power of two.
        length: L.
        step: of a message, C / sqrt(L).
        room: length of a message in steps before it is rounded.
        variance: of the noise on a sum of which no client failed.
        modulus: 2^b.
    """

    width: int
    length: int
    step: float
    room: float
    variance: float
    modulus: int


def rule(plan: Plan, numbers: int) -> Rule:
    """Return the rule of a plan for messages of so many numbers.

    Raises:
        PrivacyError: the modulus is too small for the clients and their noise.
    """
    found = _rule(plan, numbers, plan.bits)
    if found is None:
        enough = (bits for bits in range(plan.bits, MOST_BITS + 1) if _rule(plan, numbers, bits))
        expected = f"at least {next(enough, 'fewer clients or less noise')}"
        what = f"privacy.bits for {plan.clients} clients and {numbers} numbers"
        do = "else most sums would wrap around the modulus"
        raise PrivacyError(what, got=plan.bits, expected=expected, do=do)
    return found


def _rule(plan: Plan, numbers: int, bits: int) -> Rule | None:
    assert plan.clip_norm is not None
    width = 1 << max(0, numbers - 1).bit_length()
    staying = plan.staying

    def at(length: int) -> tuple[float, float, bool]:
        """Return the room, the variance, and whether sums fit."""
        rest = 1 + 4 * (length - width / 4 - math.sqrt(width) / 2)
        room = max((math.sqrt(max(rest, 0)) - 1) / 2, math.sqrt(length) - math.sqrt(width))
        variance = plan.multiplier**2 * length * plan.clients / staying
        spread = plan.clients**2 * max(room, 0) ** 2 / width + plan.clients / 4 + variance
        return room, variance, DEVIATIONS * math.sqrt(spread) <= 2 ** (bits - 1)

    low, high = 0, FINEST
    while low < high:  # the largest length that fits
        middle = (low + high + 1) // 2
        low, high = (middle, high) if at(middle)[2] else (low, middle - 1)
    room, variance, _ = at(low)
    if room <= 0 or plan.multiplier**2 * low < LEAST:
        return None
    return Rule(width, low, plan.clip_norm / math.sqrt(low), room, variance, 2**bits)


def noise_and_signs(
    generator: np.random.Generator, of: Rule, lead: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the noise of a round on the rotated sum, ``[..., D]``, and the signs of its rotation,
    ``[D]``. Both come before what depends on the clients."""
    noise = skellam(generator, of.variance, (*lead, of.width)).astype(np.float64)
    return torch.from_numpy(noise), signs(generator, of)


def signs(generator: np.random.Generator, of: Rule) -> Tensor:
    """Return the signs of a rotation, float64 ``[D]``."""
    return torch.from_numpy(1.0 - 2.0 * generator.integers(0, 2, of.width))


def share(
    generator: np.random.Generator, update: Tensors, turn: Tensor, of: Rule, clients: int
) -> Tensor:
    """Return what one client hands to secure aggregation: its message in whole numbers and its
    share of the noise, modulo 2^b, int64 ``[D]``.

    Args:
        generator: the client's own; nobody else may know it.
        update: name -> ``[*shape]``, before the clip.
        turn: the ``signs`` of the round, which are public.
        of: the rule of the plan.
        clients: M.
    """
    rows = {name: value.unsqueeze(0) for name, value in update.items()}
    clipped, _ = clip(rows, of.room * of.step, {}, 2, 1)
    whole = rounded(generator, clipped, turn, of, 1)[0].long()
    noise = torch.from_numpy(skellam(generator, of.variance / clients, (of.width,)))
    return torch.remainder(whole + noise, of.modulus)


def rounded(
    generator: np.random.Generator, update: Tensors, signs: Tensor, of: Rule, lead: int
) -> Tensor:
    """Return the clients' rotated messages in whole numbers, float64 ``[..., M, D]``.

    Args:
        update: name -> ``[..., M, *shape]``, clipped to ``room`` steps.
        lead: number of leading axes, repeats and clients together.
    """
    parts = [rows.double().reshape(*rows.shape[:lead], -1) for rows in update.values()]
    flat = torch.cat(parts, dim=-1).cpu()
    padded = torch.nn.functional.pad(flat, (0, of.width - flat.shape[-1]))
    turned = hadamard(padded * signs) / of.step
    result = torch.trunc(turned)
    missing = torch.ones(turned.shape[:-1], dtype=torch.bool)
    for _ in range(ATTEMPTS):
        if not missing.any():
            break
        # A draw for every client: whether one has finished tells the others nothing.
        up = torch.from_numpy(generator.random(turned.shape)) < turned - turned.floor()
        drawn = turned.floor() + up
        fits = missing & (drawn.square().sum(dim=-1) <= of.length)
        result[fits] = drawn[fits]
        missing &= ~fits
    return torch.where((result.square().sum(dim=-1) <= of.length).unsqueeze(-1), result, 0)


def opened(
    sums: Tensor, signs: Tensor, of: Rule, clients: int, shapes: Mapping[str, torch.Size]
) -> tuple[Tree, Tensor]:
    """Return the mean that follows from rotated sums ``[..., D]``, name -> float64 ``[...,
    *shape]``, and how many numbers wrapped around the modulus, ``[...]``."""
    half = of.modulus / 2
    seen = torch.remainder(sums + half, of.modulus) - half
    flat = hadamard(seen) * signs * (of.step / clients)
    numbers = sum(map(math.prod, shapes.values()))
    return trees.parted(flat[..., :numbers], shapes), (seen != sums).sum(dim=-1)


def hadamard(rows: Tensor) -> Tensor:
    """Return the last axis, of a power of two, times the orthonormal Hadamard matrix, which is its
    own inverse."""
    lead, width = rows.shape[:-1], rows.shape[-1]
    half = 1
    while half < width:
        pairs = rows.reshape(*lead, width // (2 * half), 2, half)
        first, second = pairs.unbind(dim=-2)
        rows = torch.stack([first + second, first - second], dim=-2).reshape(*lead, width)
        half *= 2
    return rows / math.sqrt(width)
