"""Gradients by plain autograd that ``torch.func.vmap`` can batch over clients."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

Function = Callable[..., tuple[Tensor, ...]]
"""A function of tensors whose results are tensors; ``below`` gives it a ``Lift`` first."""
Lift = Callable[[Callable[..., Any]], Callable[..., Any]]
"""A transformation from a function of one client's tensors to a function of all clients' tensors;
without vmap it returns the function unchanged."""


def below(function: Function, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return ``function(lift, *tensors)``, called below vmap, where autograd is ordinary.

    Under ``torch.func.vmap`` the function's tensors and results have an axis of clients in front.
    ``lift(f)(*args)`` enters vmap again for a function ``f`` of one client, which may close over
    the caller's tensors as for ``differentiate``. A loop of many gradients thus leaves vmap once.
    Between two gradients it computes for all clients without vmap, whose overhead per operation is
    larger than the arithmetic of a small model.
    """
    outputs: tuple[Tensor, ...] = _Below.apply(function, lambda inner: inner, *tensors)  # type: ignore[no-untyped-call]
    return outputs


def differentiate(
    function: Function, points: Sequence[Tensor], *data: Tensor
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the gradients of the scalar ``function(*points, *data)[0]`` with respect to each
    point, and all outputs of the function.

    Under vmap the gradients of all clients are one gradient, that of the sum of their values, which
    autograd takes below vmap. (torch.func.grad has the same result. But it also sends the backward
    pass through vmap and records it for second derivatives, and its first call imports
    torch._dynamo, which takes longer than many jobs.)

    Args:
        function: returns a tuple of tensors.
        points: tensors at which the gradient is taken.
        data: further arguments. The function may also close over the caller's tensors, but if one
            of these is batched, an argument must be batched too.
    """
    outputs: tuple[Tensor, ...] = _Gradient.apply(function, len(points), *points, *data)  # type: ignore[no-untyped-call]
    return outputs[: len(points)], outputs[len(points) :]


def saved_bytes(function: Function, points: Sequence[Tensor], *data: Tensor) -> int:
    """Return the number of bytes that ``differentiate`` keeps between its two passes, without the
    points. The function may use vmap."""
    excluded = {point.untyped_storage().data_ptr() for point in points}
    saved: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        # By storage: views of one tensor share its memory.
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in excluded:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        differentiate(function, points, *data)
    return sum(saved.values())


class _WithoutDerivatives(torch.autograd.Function):
    """An operation whose outputs are constants for differentiation."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep nothing."""
        ctx.mark_non_differentiable(*output)


class _Gradient(_WithoutDerivatives):
    """``differentiate`` as an operation with a rule for vmap.

    The rule enters vmap again at the depth from which it was called. torch.func identifies the
    batch of a tensor by this depth, so tensors in the function's closure keep their batch.
    """

    @staticmethod
    def forward(function: Function, number: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves = [point.detach().requires_grad_() for point in tensors[:number]]
        # The sum over clients: a client's value depends on its own leaves only, so the gradient of
        # the sum holds every client's gradient.
        with torch.enable_grad():
            outputs = function(*leaves, *tensors[number:])
            gradients = torch.autograd.grad(outputs[0].sum(), leaves)
        return *gradients, *(value.detach() for value in outputs)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], function: Function, number: int, *tensors: Tensor
    ) -> Any:
        dims = in_dims[2:]
        # Points are expanded to all clients even if they are shared: each client has a gradient.
        points = _in_front(info.batch_size, dims, tensors[:number])
        inner = vmap(function, in_dims=(*[0] * number, *dims[number:]))
        outputs = _Gradient.apply(inner, number, *points, *tensors[number:])  # type: ignore[no-untyped-call]
        return outputs, (0,) * len(outputs)


class _Below(_WithoutDerivatives):
    """``below`` as an operation with a rule for vmap, like ``_Gradient``."""

    @staticmethod
    def forward(function: Function, lift: Lift, *tensors: Tensor) -> tuple[Tensor, ...]:
        return function(lift, *tensors)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], function: Function, lift: Lift, *tensors: Tensor
    ) -> Any:
        tensors_in_front = _in_front(info.batch_size, in_dims[2:], tensors)
        outputs = _Below.apply(function, lambda inner: vmap(lift(inner)), *tensors_in_front)  # type: ignore[no-untyped-call]
        return outputs, (0,) * len(outputs)


def _in_front(clients: int, dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors with vmap's axis in front; tensors without this axis are expanded."""
    return [
        tensor.expand(clients, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, dims, strict=False)
    ]
