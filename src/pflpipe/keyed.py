"""Random numbers as a pure function of an integer key: the same on every device, in a loop, under vmap and after a resume.

A generator's numbers depend on what was drawn before; these depend on (key, place, position) alone. One key belongs to one
training step, a place to one use of randomness in that step, so that no use shifts another.

Source: the hash is lowbias32, C. Wellons, "Prospecting for Hash Functions" (2018), public domain.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Places: training transforms have 0 to 15, dropout layers 16 and above.
CROP, FLIP, ROTATE, DROPOUT = 0, 1, 2, 16


def uniform(key: Tensor, place: int, shape: tuple[int, ...]) -> Tensor:
    """Return float32 numbers in [0, 1), independent and uniform over (key, place, position).

    Args:
        key: int64 scalar, on the device of the result; may be batched by ``torch.func.vmap``.
        place: which use of the key's randomness this is.
        shape: of the result. Row b of ``[B, ...]`` does not depend on B: a padded batch repeats the numbers of its real rows.
    """
    word = _hash(key.to(torch.int32) + _GOLDEN)
    word = _hash(word ^ (key >> 32).to(torch.int32))
    word = _hash(word + place)
    bits = _hash(word ^ torch.arange(math.prod(shape), dtype=torch.int32, device=key.device))
    return bits.bitwise_right_shift_(8).bitwise_and_(2**24 - 1).to(torch.float32).mul_(2.0**-24).view(shape)


_GOLDEN = 0x9E3779B9 - 2**32  # 2^32 / golden ratio; moves key 0 off the hash's fixed point 0


def _hash(bits: Tensor) -> Tensor:
    """Return lowbias32 of int32 numbers, in place. They stand for unsigned ones: products wrap, shifts are masked."""
    bits.bitwise_xor_((bits >> 16).bitwise_and_(2**16 - 1))
    bits.mul_(0x7FEB352D)
    bits.bitwise_xor_((bits >> 15).bitwise_and_(2**17 - 1))
    bits.mul_(0x846CA68B - 2**32)
    return bits.bitwise_xor_((bits >> 16).bitwise_and_(2**16 - 1))
