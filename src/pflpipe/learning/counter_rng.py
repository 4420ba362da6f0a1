"""Random numbers as a pure function of an integer key: the same on every device, in a loop, under
vmap and after a resume.

The numbers of a generator depend on earlier draws. These numbers depend only on (key, stream,
position). A key belongs to one training step and a stream to one use of randomness in it, so that
one use never changes another.

Source: the hash is triple32, C. Wellons, "Prospecting for Hash Functions" (2018), public domain.
His faster lowbias32 is not used: a million consecutive numbers of it fail a chi-square test of
uniformity. Two given streams are equal with probability 2^-32, which would repeat the mask of a
step. Use this for training and for values that stay on a device, never for the noise of a release.
"""

import math

import torch
from torch import Tensor

# Streams: 0 to 15 are training transforms, from 16 on dropout layers, from 65536 on the random
# numbers of a method.
CROP, FLIP, ROTATE, DROPOUT, OWN = 0, 1, 2, 16, 2**16


def uniform(key: Tensor, stream: int, shape: tuple[int, ...]) -> Tensor:
    """Return float32 numbers in [0, 1), independent and uniform over (key, stream, position).

    Args:
        key: int64 scalar, on the device of the result; may be batched by ``torch.func.vmap``.
        stream: number of the use of the key.
        shape: shape of the result. Row b of ``[B, ...]`` does not depend on B, so the real rows of
            a padded batch have the same numbers.
    """
    # Both halves of the key and the stream are mixed in one after the other; a sum of the three
    # would make different (key, stream) equal.
    word = _hash(key.to(torch.int32) + _GOLDEN)
    word = _hash(word ^ (key >> 32).to(torch.int32))
    word = _hash(word + stream)
    bits = _hash(word ^ torch.arange(math.prod(shape), dtype=torch.int32, device=key.device))
    bits.bitwise_right_shift_(8).bitwise_and_(2**24 - 1)
    return bits.to(torch.float32).mul_(2.0**-24).view(shape)


def normal(key: Tensor, stream: int, like: Tensor) -> Tensor:
    """Return independent standard normal numbers with the shape, type and device of ``like``, by
    the method of Box and Muller. No number is larger than 5.8."""
    first, second = uniform(key, stream, (2, *like.shape)).to(like).unbind()
    return (-2 * torch.log1p(-first)).sqrt() * torch.cos(2 * math.pi * second)


def dropout(z: Tensor, rate: float, key: Tensor | None, stream: int) -> Tensor:
    """Return ``z [B, ...]`` with a fraction of about ``rate`` set to zero and the rest scaled to
    keep the mean; ``z`` itself without a key."""
    if key is None:
        return z
    keep = uniform(key, stream, tuple(z.shape)) >= rate
    return z * (keep.to(z.dtype) / (1 - rate))


_GOLDEN = 0x9E3779B9 - 2**32  # 2^32 / golden ratio; moves key 0 off the hash's fixed point 0


def _hash(bits: Tensor) -> Tensor:
    """Return triple32 of int32 numbers, in place. They represent unsigned numbers: products wrap,
    shifts are masked."""
    bits.bitwise_xor_((bits >> 17).bitwise_and_(2**15 - 1))
    bits.mul_(0xED5AD4BB - 2**32)
    bits.bitwise_xor_((bits >> 11).bitwise_and_(2**21 - 1))
    bits.mul_(0xAC4C1B51 - 2**32)
    bits.bitwise_xor_((bits >> 15).bitwise_and_(2**17 - 1))
    bits.mul_(0x31848BAB)
    return bits.bitwise_xor_((bits >> 14).bitwise_and_(2**18 - 1))
