"""The exact diagonal Fisher information of a network, without one backward pass per example.

The gradient of one example with respect to a layer's weights is the product of the layer's input
and the gradient at its output, summed over the positions of an image. One pass over a batch,
differentiated with respect to the outputs of all layers, gives both factors for every example. The
products are then squared and summed.

Sources: Goodfellow, "Efficient Per-Example Gradient Computations" (2015), for linear layers;
Rochette, Manoel, Tramel, "Efficient Per-Example Gradient Computations in Convolutional Neural
Networks" (2019).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pflpipe.learning.directions import batch_gradient
from pflpipe.learning.gradients import differentiate
from pflpipe.learning.solvers import Batch, Schedule
from pflpipe.trees import Tree

LogLikelihoods = Callable[[Tree, Batch], Tensor]


def fisher(params: Tree, schedule: Schedule, log_likelihoods: LogLikelihoods) -> Tree:
    """Return the diagonal empirical Fisher information: the mean over examples of the squared
    per-example gradient.

    Args:
        params: where the gradient is taken.
        schedule: one pass over the client's examples.
        log_likelihoods: ``(params, batch) -> [B]``, one number per example, independent of the
            other examples.

    Raises:
        ValueError: a parameter does not belong to exactly one linear, convolutional or GroupNorm
            layer.

    Source: FedDPA (Yang et al., NeurIPS 2023), Eq. 4, read per example as in its official code.
    """
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    names = {id(value): name for name, value in params.items()}
    layers: list[_Layer] = []
    for batch in schedule:
        if not layers:
            layers = _layers(params, batch, log_likelihoods)
        for parameter, squares in _sums_of_squares(params, batch, log_likelihoods, layers):
            name = names[id(parameter)]
            total[name] = total[name] + squares
    return {name: value / schedule.count.sum().clamp(min=1) for name, value in total.items()}


def one_by_one(params: Tree, schedule: Schedule, log_likelihoods: LogLikelihoods) -> Tree:
    """Return the same by one gradient per example, for networks with other layers than linear,
    convolutional and GroupNorm."""
    total = {name: torch.zeros_like(value) for name, value in params.items()}

    def value(params: Tree, one: Batch) -> Tensor:
        return log_likelihoods(params, one).sum()

    for batch in schedule:
        for row in range(len(batch.y)):
            one = Batch(batch.x[row : row + 1], batch.y[row : row + 1])
            for name, gradient in batch_gradient(value, params, one)[0].items():
                squares = gradient.square()
                if batch.valid is not None:
                    squares = squares.where(batch.valid[row], 0.0)
                total[name] = total[name] + squares
    return {name: value / schedule.count.sum().clamp(min=1) for name, value in total.items()}


@dataclass(frozen=True)
class _Layer:
    """A recorded call of a layer: the function, its input, its further arguments, and the output
    shape of one example."""

    kind: Any
    x: Tensor
    settings: tuple[Any, ...]
    shape: tuple[int, ...]


class _Tap(TorchFunctionMode):
    """Records the calls of layers with parameters.

    Args:
        shifts: zeros that are added to each layer's output. The gradient with respect to them is
            the gradient at the output.
    """

    def __init__(self, shifts: Sequence[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shifts = shifts
        self.layers: list[_Layer] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        # Intercepted at torch's functions, because the networks are pure functions and have no
        # modules to hook.
        if func in _SQUARES:
            if self.shifts:
                output = output + self.shifts[len(self.layers)]
            settings = (*args[1:], *kwargs.values())
            self.layers.append(_Layer(func, args[0], settings, tuple(output.shape[1:])))
        return output


def _layers(params: Tree, batch: Batch, log_likelihoods: LogLikelihoods) -> list[_Layer]:
    """Return the layers in the order of the forward pass of one example."""
    tap = _Tap()
    with tap:
        log_likelihoods(params, Batch(batch.x[:1], batch.y[:1]))
    # A parameter of two layers has the gradient of a sum, whose square is not the sum of squares.
    used = [id(value) for layer in tap.layers for value in layer.settings]
    unsupported = [name for name, value in params.items() if used.count(id(value)) != 1]
    if unsupported:
        raise ValueError(
            "Fisher information: expected one layer for each parameter, got none or several for "
            f"{unsupported}."
        )
    return tap.layers


def _sums_of_squares(
    params: Tree, batch: Batch, log_likelihoods: LogLikelihoods, layers: Sequence[_Layer]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield every parameter with the sum of its squared gradients over the batch's real
    examples."""

    def value(*tensors: Tensor) -> tuple[Tensor, ...]:
        *shifts, x, y = tensors
        tap = _Tap(shifts)
        with tap:
            each = log_likelihoods(params, Batch(x, y))
        total = each.sum() if batch.valid is None else each.where(batch.valid, 0.0).sum()
        return total, *(layer.x for layer in tap.layers)

    # The examples' log likelihoods are summed. An example's output influences its own term only, so
    # the gradient at its output is that of its own log likelihood.
    zero = batch.x.new_zeros(())
    shifts = [zero.expand(len(batch.y), *layer.shape) for layer in layers]
    gradients, (_, *inputs) = differentiate(value, shifts, batch.x, batch.y)
    for layer, x, at in zip(layers, inputs, gradients, strict=True):
        yield from _SQUARES[layer.kind](x, at, *layer.settings)


def _of_linear(
    x: Tensor, at: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter of a linear layer with its sum of squared gradients, from the input ``x
    [B, I]`` and the gradients at the output ``at [B, O]``."""
    # (at_o x_i)^2 = at_o^2 x_i^2, so the sum over examples is a matrix product of squares.
    yield weight, at.square().mT @ x.square()
    if bias is not None:
        yield bias, at.square().sum(0)


def _of_convolution(
    x: Tensor, at: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the same for a convolution with ``x [B, I, H, W]`` and ``at [B, O, h, w]``."""
    # Positions share the kernel: their products are summed first (the matrix product over
    # patches), then squared per example.
    out, channels, *sides = weight.shape
    around = F.pad(x, (padding, padding, padding, padding))
    windows = around.unfold(2, sides[0], stride).unfold(3, sides[1], stride)
    patches = windows.permute(0, 2, 3, 4, 5, 1)
    each = at.permute(0, 2, 3, 1).flatten(1, 2).mT @ patches.flatten(1, 2).flatten(2)
    yield weight, each.square().sum(0).view(out, *sides, channels).permute(0, 3, 1, 2)
    if bias is not None:
        yield bias, at.sum((2, 3)).square().sum(0)


def _of_norm(
    x: Tensor, at: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the same for a GroupNorm layer."""
    # The factor of the scale is the normalised input, which the layer does not return.
    yield weight, (at * F.group_norm(x, groups, eps=eps)).sum((2, 3)).square().sum(0)
    yield bias, at.sum((2, 3)).square().sum(0)


_SQUARES: dict[Any, Callable[..., Iterator[tuple[Tensor, Tensor]]]] = {
    F.linear: _of_linear,
    F.conv2d: _of_convolution,
    F.group_norm: _of_norm,
}
