"""Objectives with a prescribed gradient, for steps along a direction that is not the gradient of a
loss, such as a gradient taken at another point."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from pflpipe.learning.gradients import differentiate
from pflpipe.learning.solvers import Batch, Loss
from pflpipe.trees import Tree


def batch_gradient(loss: Loss, params: Tree, batch: Batch) -> tuple[Tree, Tensor]:
    """Return the gradient of a batch's loss at ``params``, and the loss. Both are constants for any
    differentiation around this call."""

    def value(*tensors: Tensor) -> tuple[Tensor]:
        *point, x, y = tensors
        return (loss(dict(zip(params, point, strict=True)), replace(batch, x=x, y=y)),)

    gradients, (loss_value,) = differentiate(value, list(params.values()), batch.x, batch.y)
    return dict(zip(params, gradients, strict=True)), loss_value


def surrogate(direction: Callable[[Tree, Batch], tuple[Tree, Tensor]]) -> Loss:
    """Return an objective whose gradient is a given direction, so that any solver steps along it.

    Args:
        direction: ``(params, batch) -> (gradient, value)``. The objective has this value and this
            gradient at ``params``.
    """

    def objective(params: Tree, batch: Batch) -> Tensor:
        here = {name: value.detach() for name, value in params.items()}
        gradient, value = direction(here, batch)
        # <params - here, gradient> is 0, and its derivative by params is the gradient.
        terms = [((params[name] - here[name]) * gradient[name]).sum() for name in params]
        return value + torch.stack(terms).sum()

    return objective
