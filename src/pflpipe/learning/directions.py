"""Steps along what is the gradient of no loss that one could write down, such as a gradient taken
at another point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from pflpipe.learning.gradients import differentiate
from pflpipe.learning.solvers import Batch
from pflpipe.trees import Tree

Loss = Callable[[Tree, Batch], Tensor]


def slope(loss: Loss, params: Tree, batch: Batch) -> tuple[Tree, Tensor]:
    """Return the gradient of a batch's loss at ``params``, and the loss: constants for whatever is
    differentiated around them."""

    def value(*tensors: Tensor) -> tuple[Tensor]:
        *point, x, y = tensors
        return (loss(dict(zip(params, point, strict=True)), replace(batch, x=x, y=y)),)

    found, (height,) = differentiate(value, list(params.values()), batch.x, batch.y)
    return dict(zip(params, found, strict=True)), height


def along(direction: Callable[[Tree, Batch], tuple[Tree, Tensor]]) -> Loss:
    """Return an objective with which any solver steps along a direction.

    Args:
        direction: ``(params, batch) -> (slope, value)``. Where the solver asks for the gradient of
            the objective it gets ``slope``, and ``value`` where it asks for the objective.
    """

    def objective(params: Tree, batch: Batch) -> Tensor:
        here = {name: value.detach() for name, value in params.items()}
        found, height = direction(here, batch)
        rise = [((params[name] - here[name]) * found[name]).sum() for name in params]
        return height + torch.stack(rise).sum()  # the height itself, since each rise is 0

    return objective
