"""Penalties on the distance of the parameters from an origin, and their gradients.

A penalty works on one flat vector: a few kernels instead of an autograd graph with nodes for every
tensor. It takes the vectors of many clients at once without vmap, whose overhead per call is larger
than these kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pflpipe.trees import Tree


@dataclass(frozen=True)
class DistancePenalty:
    """The penalty ``weight |D(w) - length|`` on the distance D of the trained parameters from an
    origin.

    If D is 0 or equals ``length`` the gradient is zero, as with autograd.

    Attributes:
        weight: a number >= 0.
        origin: parameters from which the distance is measured.
        mask: 0 / 1, the coordinates that count; ``None`` counts all.
        length: a number or a scalar.
        by_tensor: D is the sum of the tensors' L2 norms instead of the L2 norm over all of them.
    """

    weight: float
    origin: Tree
    mask: Tree | None = None
    length: float | Tensor = 0.0
    by_tensor: bool = False


@dataclass(frozen=True)
class VectorPenalty:
    """A distance penalty on parameters in one vector ``[P]``, or of many clients ``[..., P]``.

    Attributes:
        weight: weight of the penalty, > 0.
        below: minus the origin, 0 outside the mask, ``[..., P]``.
        mask: 1 for coordinates that count, ``[..., P]``; ``None`` counts all.
        length: a number, or ``[...]``.
        sizes: lengths of the parts whose norms are summed; together P.
    """

    weight: float
    below: Tensor
    mask: Tensor | None
    length: float | Tensor
    sizes: list[int]

    @classmethod
    def of(
        cls, penalty: DistancePenalty | None, names: Iterable[str], join: Callable[[Tree], Tensor]
    ) -> VectorPenalty | None:
        """Return the penalty on the parameters ``names`` in the order of ``join``; None if it has
        no weight."""
        if penalty is None or not penalty.weight:
            return None
        origin = {name: penalty.origin[name] for name in names}
        below, mask = -join(origin), None
        if penalty.mask is not None:
            mask = join({name: penalty.mask[name] for name in origin}).to(below)
            below = below * mask
        sizes = [value.numel() for value in origin.values()] if penalty.by_tensor else [len(below)]
        return cls(penalty.weight, below, mask, penalty.length, sizes)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> VectorPenalty:
        """Return the penalty with the function applied to each of its tensors."""
        return replace(
            self,
            below=function(self.below),
            mask=None if self.mask is None else function(self.mask),
            length=function(self.length) if isinstance(self.length, Tensor) else self.length,
        )

    def __call__(self, vector: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the penalty ``[...]`` at the vector, and two factors whose product is its
        gradient: gap ``[..., P]`` and slope, ``[..., 1]`` or ``[..., P]``."""
        # The two factors are not multiplied here: the caller adds the product to the loss gradient
        # in one fused kernel (addcmul).
        if self.mask is None:
            gap = vector + self.below
        else:
            gap = torch.addcmul(self.below, vector, self.mask)
        parts = torch.split(gap, self.sizes, dim=-1)
        norms = torch.stack([torch.linalg.vector_norm(part, dim=-1) for part in parts], dim=-1)
        excess = norms.sum(-1) - self.length
        pull = self.weight * excess.sign().unsqueeze(-1)
        # The gradient of |gap| is gap / |gap|, which has no value at 0.
        slope = torch.where(norms > 0, pull / norms, 0.0)
        if len(parts) > 1:
            each = zip(torch.split(slope, 1, dim=-1), parts, strict=True)
            slope = torch.cat([one.expand_as(part) for one, part in each], dim=-1)
        return self.weight * excess.abs(), gap, slope
