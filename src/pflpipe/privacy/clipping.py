"""Clipping of updates to a bound on their joint length over all tensors, for any input numbers."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pflpipe.trees import Tensors, Tree

# Worst-case rounding in epsilons of the dtype: half an epsilon for each sum, product, quotient or
# conversion.
SPARE = 3
"""Epsilons by which a shortened update aims below its bound.

The length of a block may be 8.5 epsilons too small (see ``power_sum``); the factor, s and the two
products with them add half an epsilon each. The promised 1e-6 covers 8 of these 10.5 in float32. A
target this low never exceeds the update itself, so no entry overflows.
"""
DOUBT = 10
"""Epsilons around its bound within which a length is measured again: 8.5 of the block and the two
divisions before it."""
ROUNDING = 1e-13
"""Relative error of a length in float64: below 2e-14 for a million entries."""


@torch.no_grad()
def clip(
    tree: Tensors, bound: float | Tensor, scale: Tensors | None = None, norm: int = 2, lead: int = 1
) -> tuple[Tree, Tensor]:
    """Return each client's update, shortened to a joint scaled norm of at most ``bound``.

    Args:
        tree: name -> ``[..., M, *shape]``, float32 or float64; not modified.
        bound: C > 0, or one bound >= 0 for each client ``[..., M]``. Infinity never shortens. A
            bound too small to leave room for smaller numbers (below 1e-31 in float32, 1e-292 in
            float64) counts as 0.
        scale: name -> s >= 0, broadcastable to ``[*shape]`` or, with repeats, ``[..., *shape]``; a
            missing name means 1. The norm is that of update / s. A coordinate with s = 0 is not
            sent: it becomes 0 and does not count.
        norm: 2 or 1.
        lead: number of leading axes, repeats and clients together (1 for ``[M, *shape]``).

    Returns:
        The clipped tree (same shapes), of scaled norm at most C (1 + 1e-6). An update within the
            bound keeps its bits.
        The norms before clipping, float64 ``[..., M]``. A non-finite update becomes zero and has
            norm inf. All of this also holds for crafted updates whose sums are all rounded in the
            same direction.
    """
    digits = max((torch.finfo(tensor.dtype) for tensor in tree.values()), key=lambda kind: kind.eps)
    scales = {
        name: for_clients(scale[name].to(tensor), tensor.ndim - lead)
        for name, tensor in tree.items()
        if scale is not None and name in scale
    }
    units, peak, length = measure(tree, scales, norm, lead)
    norms = peak * length
    finite = torch.isfinite(norms)
    norms = torch.where(finite, norms, math.inf)
    bound = torch.as_tensor(bound, dtype=torch.float64, device=peak.device)
    bound = torch.where(bound >= digits.tiny / digits.eps, bound, 0)

    # Where rounding of the fast length could decide, it is measured again in float64.
    doubtful = (norms - bound).abs() < DOUBT * digits.eps * bound
    if bool(doubtful.any()):
        exact = exact_norms(tree, scales, norm, doubtful)
        norms = torch.where(doubtful, exact, norms)
        length = torch.where(doubtful, exact / peak, length)
    # The remaining error is the rounding of float64. An update exactly as long as its bound must
    # not count as longer.
    norms = torch.where((norms - bound).abs() < ROUNDING * bound, bound, norms)

    # A bound of 0 also shortens updates that became 0 in the division by s.
    shorten = finite & ((norms > bound) | (bound == 0))
    # The relative length is 0 or, since it contains the largest entry, at least 1.
    factor = bound / length.clamp(min=1) * (1 - SPARE * digits.eps)
    all_short, all_finite = bool(shorten.all()), bool(finite.all())
    clipped = {}
    for name, tensor in tree.items():
        per_client = (*peak.shape, *[1] * (tensor.ndim - lead))
        short = units[name].mul_(factor.to(tensor).unsqueeze(-1)).reshape(tensor.shape)
        if name in scales:
            # A subnormal product has lost digits. Divided by s again it could be far longer than
            # before, so it becomes 0.
            torch.hardshrink(short.mul_(scales[name]), digits.tiny, out=short)
        # Each of these two passes over all updates is skipped if it changes nothing. Usually all
        # updates are shortened and finite.
        if not all_short:
            kept = torch.where(scales[name] > 0, tensor, 0) if name in scales else tensor
            short = torch.where(shorten.reshape(per_client), short, kept)
        if not all_finite:
            short = torch.where(finite.reshape(per_client), short, 0)
        clipped[name] = short
    return clipped, norms


@torch.no_grad()
def in_steps(tree: Tensors, step: float, most: int, lead: int) -> Tree:
    """Return each client's update in whole numbers of steps, rounded towards zero, float64; zero
    for a client whose sum of squares is above ``most``, which is below 2^53, or not a number.

    The comparison is exact in any order of addition. Whole numbers below 2^53 are float64 numbers,
    and rounding keeps order, so a sum that passes 2^53 stays there.

    Args:
        tree: name -> ``[..., M, *shape]``; not modified.
        lead: number of leading axes, repeats and clients together.
    """
    whole = {name: torch.trunc(rows.double() / step) for name, rows in tree.items()}
    squares: Any = sum(
        rows.square().reshape(*rows.shape[:lead], math.prod(rows.shape[lead:])).sum(dim=-1)
        for rows in whole.values()
    )
    kept = squares <= most
    return {
        name: torch.where(kept.reshape(*kept.shape, *[1] * (rows.ndim - lead)), rows, 0)
        for name, rows in whole.items()
    }


def measure(tree: Tensors, scales: Tensors, norm: int, lead: int) -> tuple[Tree, Tensor, Tensor]:
    """Return each client's scaled update divided by its largest entry, that entry, and the length
    divided by that entry.

    After the division all entries lie in [-1, 1], so no square overflows.

    Args:
        tree: see ``clip``.
        scales: name -> s >= 0, broadcastable to that tensor of the tree.
        norm: 2 or 1.
        lead: number of leading axes.

    Returns:
        name -> ``[..., M, n]``, in new memory; and two tensors of float64 ``[..., M]``.
    """
    flat: Tree = {}
    for name, tensor in tree.items():
        shape = tensor.shape[lead:]
        if name in scales:
            tensor = (tensor / scales[name]).masked_fill_(scales[name] == 0, 0)
        flat[name] = tensor.reshape(*tensor.shape[:lead], math.prod(shape))
    first = next(iter(flat.values()))
    peak = torch.zeros(first.shape[:lead], dtype=first.dtype, device=first.device)
    for rows in flat.values():
        # One pass over the rows; a norm of infinite order takes ten times as long.
        low, high = torch.aminmax(rows, dim=-1)
        peak = torch.maximum(peak, torch.maximum(-low, high))
    divisor = torch.where((peak > 0) & torch.isfinite(peak), peak, 1).unsqueeze(-1)
    units = {
        name: rows.div_(divisor) if name in scales else rows / divisor
        for name, rows in flat.items()
    }
    power = torch.zeros(peak.shape, dtype=torch.float64, device=peak.device)
    for rows in units.values():
        power += power_sum(rows, norm)
    return units, peak.double(), power ** (1 / norm)


def exact_norms(tree: Tensors, scales: Tensors, norm: int, wanted: Tensor) -> Tensor:
    """Return the scaled norms in float64, ``[..., M]``. Norms that are not ``wanted``, bool ``[...,
    M]``, may be 0.

    The first axis is processed in parts of about a million numbers, since float64 for all at once
    would double a round's memory.
    """
    norms = torch.zeros(wanted.shape, dtype=torch.float64, device=wanted.device)
    numbers = sum(tensor[0].numel() for tensor in tree.values())
    step = max(1, 2**20 // numbers)
    for start in range(0, len(wanted), step):
        part = slice(start, start + step)
        if bool(wanted[part].any()):
            updates = {name: tensor[part].double() for name, tensor in tree.items()}
            scales_of_part = {
                name: scale.expand_as(tree[name])[part].double() for name, scale in scales.items()
            }
            _, peak, length = measure(updates, scales_of_part, norm, wanted.ndim)
            norms[part] = peak * length
    return norms


def for_clients(scale: Tensor, axes: int) -> Tensor:
    """Return a scale ``[*shape]`` or ``[..., *shape]``, where ``*shape`` has ``axes`` axes, as a
    view that broadcasts to ``[..., M, *shape]``."""
    return scale.unsqueeze(-axes - 1) if scale.ndim > axes else scale


@torch.no_grad()
def clip_groups(
    tree: Tensors, groups: Sequence[Sequence[str]], bounds: Tensor, lead: int = 1
) -> tuple[Tree, Tensor]:
    """Return the updates with each group of tensors shortened separately in the L2 norm, as
    published codes do by tensor or by layer.

    Args:
        tree: name -> ``[..., M, *shape]``, finite; not modified.
        groups: names of each of the G groups; together all of the tree.
        bounds: ``[..., M, G]``, each at least 0.
        lead: number of leading axes, repeats and clients together.

    Returns:
        The clipped tree and bool ``[..., M]``: which clients had a group shortened.
    """
    clipped: Tree = {}
    shortened = torch.zeros(bounds.shape[:-1], dtype=torch.bool, device=bounds.device)
    for place, names in enumerate(groups):
        bound = bounds[..., place].double()
        part, norms = clip({name: tree[name] for name in names}, bound, lead=lead)
        clipped |= part
        shortened |= norms > bound
    return {name: clipped[name] for name in tree}, shortened


def squares(tensor: Tensor, repeats: int) -> Tensor:
    """Return the sum of squares over all axes but the first ``repeats``, in float64."""
    return power_sum(tensor.reshape(*tensor.shape[:repeats], math.prod(tensor.shape[repeats:])), 2)


def power_sum(rows: Tensor, norm: int) -> Tensor:
    """Return ``sum |x|^norm`` over the last axis in float64.

    Blocks are summed in the dtype of the rows and the blocks in float64. This takes an eighth of
    the time of float64 throughout, and a long float32 sum would lose the promised 1e-6. The error
    of a sum of n numbers is at most n - 1 half epsilons, in any order of addition; only a crafted
    vector comes near that in all blocks. Squares get blocks twice as long, since the root halves
    the error: with one rounding for the square and one for the root, the length of 32 numbers is
    off by 17 half epsilons, the sum of 16 by 15.
    """
    size = 16 * norm
    blocks = rows.shape[-1] // size
    whole = rows[..., : size * blocks].reshape(*rows.shape[:-1], blocks, size)
    rest = rows[..., size * blocks :]
    if norm == 1:  # vector_norm takes three times as long for this order
        return whole.abs().sum(dim=-1).double().sum(dim=-1) + rest.abs().sum(dim=-1).double()
    lengths: Tensor = torch.linalg.vector_norm(whole, dim=-1).double()
    last: Tensor = torch.linalg.vector_norm(rest, dim=-1).double()
    return lengths.square().sum(dim=-1) + last.square()
