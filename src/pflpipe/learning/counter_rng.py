"""Random numbers as a pure function of an integer key: the same on every device, in a loop, under
vmap and after a resume.

A generator's numbers depend on what was drawn before; these depend on (key, stream, position)
alone. One key belongs to one training step, a stream to one use of randomness in that step, so that
no use shifts another.

Source: the hash is triple32, C. Wellons, "Prospecting for Hash Functions" (2018), public domain.
His faster lowbias32 is not used: a million of its numbers in a row are not uniform by a chi-square
test. Two given streams are the same with probability 2^-32, which would repeat one step's mask.
This is for training and for what stays on a device, never for the noise of a release.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Places: training transforms have 0 to 15, dropout layers 16 and above, a method's own draws 65536
# and above.
CROP, FLIP, ROTATE, DROPOUT, OWN = 0, 1, 2, 16, 2**16


def uniform(key: Tensor, stream: int, shape: tuple[int, ...]) -> Tensor:
    """Return float32 numbers in [0, 1), independent and uniform over (key, stream, position).

    Args:
        key: int64 scalar, on the device of the result; may be batched by ``torch.func.vmap``.
        stream: which use of the key's randomness this is.
        shape: of the result. Row b of ``[B, ...]`` does not depend on B: a padded batch repeats the
            numbers of its real rows.
    """
    word = _hash(key.to(torch.int32) + _GOLDEN)
    word = _hash(word ^ (key >> 32).to(torch.int32))
    word = _hash(word + stream)
    bits = _hash(word ^ torch.arange(math.prod(shape), dtype=torch.int32, device=key.device))
    bits.bitwise_right_shift_(8).bitwise_and_(2**24 - 1)
    return bits.to(torch.float32).mul_(2.0**-24).view(shape)


def normal(key: Tensor, stream: int, like: Tensor) -> Tensor:
    """Return independent standard normal numbers with the shape, type and device of ``like``, none
    longer than 5.8, by the method of Box and Muller."""
    first, second = uniform(key, stream, (2, *like.shape)).to(like).unbind()
    return (-2 * torch.log1p(-first)).sqrt() * torch.cos(2 * math.pi * second)


def dropout(z: Tensor, rate: float, key: Tensor | None, stream: int) -> Tensor:
    """Set about ``rate`` of ``z [B, ...]`` to zero and scale the rest so that the mean stays;
    without a key, return ``z``."""
    if key is None:
        return z
    keep = uniform(key, stream, tuple(z.shape)) >= rate
    return z * (keep.to(z.dtype) / (1 - rate))


_GOLDEN = 0x9E3779B9 - 2**32  # 2^32 / golden ratio; moves key 0 off the hash's fixed point 0


def _hash(bits: Tensor) -> Tensor:
    """Return triple32 of int32 numbers, in place. They stand for unsigned ones: products wrap,
    shifts are masked."""
    bits.bitwise_xor_((bits >> 17).bitwise_and_(2**15 - 1))
    bits.mul_(0xED5AD4BB - 2**32)
    bits.bitwise_xor_((bits >> 11).bitwise_and_(2**21 - 1))
    bits.mul_(0xAC4C1B51 - 2**32)
    bits.bitwise_xor_((bits >> 15).bitwise_and_(2**17 - 1))
    bits.mul_(0x31848BAB)
    return bits.bitwise_xor_((bits >> 14).bitwise_and_(2**18 - 1))
