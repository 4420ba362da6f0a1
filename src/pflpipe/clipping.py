"""Clipping: an update is shortened to a bound on its length over all tensors together, whatever numbers it holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


@torch.no_grad()
def clip(
    tree: Mapping[str, Tensor], bound: float | Tensor, scale: Mapping[str, Tensor] | None = None, norm: int = 2, lead: int = 1
) -> tuple[dict[str, Tensor], Tensor]:
    """Shorten each client's update, all tensors taken together, to a scaled norm of at most ``bound``.

    Args:
        tree: name -> ``[..., M, *shape]``, float32 or float64; not modified.
        bound: C > 0, or one bound >= 0 for each client ``[..., M]``; infinity never shortens.
        scale: name -> s >= 0, broadcastable to ``[*shape]`` or, with repeats, ``[..., *shape]``; a missing name means 1. The
            norm is that of update / s, and a coordinate with s = 0 is not sent: it becomes 0 and does not count.
        norm: 2 or 1.
        lead: number of leading axes, repeats and clients together (1 for ``[M, *shape]``).

    Returns:
        The clipped tree (same shapes), its scaled norm at most C (1 + 1e-6), an update within the bound unchanged to the bit;
        and float64 norms ``[..., M]`` before clipping. A non-finite update becomes zero and has norm inf.
    """
    scale = scale or {}
    flat: dict[str, Tensor] = {}
    scales: dict[str, Tensor] = {}
    for name, tensor in tree.items():
        shape = tensor.shape[lead:]
        if name in scale:
            scales[name] = for_clients(scale[name].to(tensor), len(shape))
            tensor = torch.where(scales[name] > 0, tensor / scales[name], 0)
        flat[name] = tensor.reshape(*tensor.shape[:lead], math.prod(shape))

    # The length is taken relative to the largest entry: x / peak lies in [-1, 1], so no square overflows or vanishes.
    first = next(iter(flat.values()))
    peak = torch.zeros(first.shape[:lead], dtype=first.dtype, device=first.device)
    for rows in flat.values():
        low, high = torch.aminmax(rows, dim=-1)  # one pass over the rows; a norm of infinite order takes ten times as long
        peak = torch.maximum(peak, torch.maximum(-low, high))
    divisor = torch.where((peak > 0) & torch.isfinite(peak), peak, 1).unsqueeze(-1)
    units = {name: rows / divisor for name, rows in flat.items()}
    power = torch.zeros(peak.shape, dtype=torch.float64, device=peak.device)
    for rows in units.values():
        power += power_sum(rows, norm)
    length = power ** (1 / norm)
    norms = peak.double() * length
    finite = torch.isfinite(norms)
    norms = torch.where(finite, norms, math.inf)

    shorten = finite & (norms > bound)
    factor = bound / length
    all_short, all_finite = bool(shorten.all()), bool(finite.all())
    clipped = {}
    for name, tensor in tree.items():
        per_client = (*peak.shape, *[1] * (tensor.ndim - lead))
        short = units[name].mul_(factor.to(tensor).unsqueeze(-1)).reshape(tensor.shape)
        if name in scales:
            short = short * scales[name]
        # What follows makes no difference where every client is shortened, which is usual, and a pass over all updates costs.
        if not all_short:
            kept = torch.where(scales[name] > 0, tensor, 0) if name in scales else tensor
            short = torch.where(shorten.reshape(per_client), short, kept)
        if not all_finite:
            short = torch.where(finite.reshape(per_client), short, 0)
        clipped[name] = short
    return clipped, norms


def for_clients(scale: Tensor, axes: int) -> Tensor:
    """Return a scale ``[*shape]`` or ``[..., *shape]`` of a tensor with so many axes such that it fits ``[..., M, *shape]``."""
    return scale.unsqueeze(-axes - 1) if scale.ndim > axes else scale


@torch.no_grad()
def clip_groups(
    tree: Mapping[str, Tensor], groups: Sequence[Sequence[str]], bounds: Tensor, lead: int = 1
) -> tuple[dict[str, Tensor], Tensor]:
    """Shorten each group of tensors by itself in the L2 norm, as published codes do by tensor or by layer.

    Args:
        tree: name -> ``[..., M, *shape]``, finite; not modified.
        groups: names of each of the G groups; together all of the tree.
        bounds: ``[..., M, G]``, each at least 0.
        lead: number of leading axes, repeats and clients together.

    Returns:
        The clipped tree and bool ``[..., M]``: which clients had a group shortened.
    """
    clipped: dict[str, Tensor] = {}
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

    Blocks of 32 are summed in the rows' own dtype: one rounding error per block of about 1e-7, where a long float32 sum would
    lose the promised 1e-6, at an eighth of the time of float64 throughout.
    """
    blocks = rows.shape[-1] // 32
    whole = rows[..., : 32 * blocks].reshape(*rows.shape[:-1], blocks, 32)
    rest = rows[..., 32 * blocks :]
    lengths: Tensor = torch.linalg.vector_norm(whole, ord=norm, dim=-1).double()
    last: Tensor = torch.linalg.vector_norm(rest, ord=norm, dim=-1).double()
    return lengths.pow(norm).sum(dim=-1) + last.pow(norm)
