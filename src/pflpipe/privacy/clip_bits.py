"""The bits of adaptive clipping as tensors, and the next bound that follows from their sum
(adaptive.py)."""

import torch
from torch import Tensor

from pflpipe.errors import PrivacyError
from pflpipe.privacy.adaptive import HALF
from pflpipe.privacy.mechanism import Released, Uploads
from pflpipe.privacy.plan import LARGEST, LEAST, Plan
from pflpipe.trees import Tree

BITS = "bits"
"""Name of the only tensor of the second part of a release."""


def bits(released: Released) -> Uploads:
    """Return the centred bits b_i - 1/2 of all clients ``[..., M]``, 0 for an update that is not
    finite. The release ignores the bits of clients that are not drawn.

    Args:
        released: the release of the round's updates. Its field ``clipped`` is private; the bits
            are public only after noise.
    """
    below = torch.where(released.clipped, -HALF, HALF).double()
    return Uploads({BITS: torch.where(released.nonfinite, 0.0, below)})


def next_bound(plan: Plan, bound: float | Tensor, released: Tree) -> Tensor:
    """Return C_{t+1}, ``[...]`` for repeats, in float64.

    Args:
        plan: an adaptive plan.
        bound: C_t.
        released: the released sum of the bits.

    Raises:
        PrivacyError: the next bound is out of the range of a plan. This follows from the release
            alone, so stopping reveals nothing more.
    """
    assert plan.adaptive is not None
    below = released[BITS] + HALF
    following = bound * torch.exp(-plan.adaptive.lr * (below - plan.adaptive.quantile))
    fits = bool(((following >= LEAST) & (following <= LARGEST)).all())
    got = f"{following.flatten()[0].item():g} after {torch.as_tensor(bound).min().item():g}"
    expected = f"a number from {LEAST:g} to {LARGEST:g}"
    do = "take a smaller clip_lr, or less clip_bit_noise: noise alone moves the bound so far"
    what = "privacy.clip_quantile: the next clip bound"
    PrivacyError.unless(fits, what, got, expected, do)
    return following
