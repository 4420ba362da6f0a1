"""Gradients that ``torch.func.vmap`` can batch over clients, taken by plain autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

Lift = Callable[[Callable[..., Any]], Callable[..., Any]]
"""What makes a function of one client's tensors one of all clients' at once, and leaves it as it is
where there is one client."""


def below(function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return ``function(lift, *tensors)``, called below vmap, where autograd is plain.

    Under ``torch.func.vmap`` its tensors, and those that it returns, have an axis of clients in
    front; ``lift(f)(*args)`` enters vmap again for what is written for one client, and ``f`` may
    close over the caller's tensors as for ``differentiate``. A loop of many gradients crosses the
    border once in this way, and what lies between two of them is computed for all clients without
    vmap, whose every operation costs more than the numbers of a small model.
    """
    found: tuple[Tensor, ...] = _Below.apply(function, _as_it_is, *tensors)  # type: ignore[no-untyped-call]
    return found


def differentiate(
    function: Callable[..., tuple[Tensor, ...]], points: Sequence[Tensor], *data: Tensor
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the gradients of ``function(*points, *data)[0]``, a scalar, in each of the points, and
    all the function returns.

    The gradients of all clients under vmap are one gradient, that of the sum of their values, which
    autograd takes below vmap. (torch.func.grad means the same. It also sends the backward pass
    through vmap and records it for second derivatives, and its first call imports torch._dynamo,
    which takes longer than many a job.)

    Args:
        function: returns a tuple of tensors.
        points: where the gradient is taken.
        data: further arguments. The function may also close over the caller's tensors, as long as
            there is a batched tensor among the arguments wherever there is one among those.
    """
    found: tuple[Tensor, ...] = _Gradient.apply(function, len(points), *points, *data)  # type: ignore[no-untyped-call]
    return found[: len(points)], found[len(points) :]


def saved_bytes(
    function: Callable[..., tuple[Tensor, ...]], points: Sequence[Tensor], *data: Tensor
) -> int:
    """Return how many bytes ``differentiate`` holds between the passes, the points aside; may be
    called with vmap inside."""
    own = {point.untyped_storage().data_ptr() for point in points}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        differentiate(function, points, *data)
    return sum(kept.values())


class _WithoutDerivatives(torch.autograd.Function):
    """An operation that nothing is differentiated through."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep nothing."""
        ctx.mark_non_differentiable(*output)


class _Gradient(_WithoutDerivatives):
    """``differentiate`` as an operation with a rule for vmap.

    The rule enters vmap again at the depth that it was called from. torch.func tells by the depth
    whose batch a tensor belongs to, so those that the function closes over keep their meaning.
    """

    @staticmethod
    def forward(
        function: Callable[..., tuple[Tensor, ...]], number: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        leaves = [point.detach().requires_grad_() for point in tensors[:number]]
        with torch.enable_grad():
            found = function(*leaves, *tensors[number:])
            gradients = torch.autograd.grad(found[0].sum(), leaves)
        return *gradients, *(value.detach() for value in found)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        function: Callable[..., Any],
        number: int,
        *tensors: Tensor,
    ) -> Any:
        dims = in_dims[2:]
        points = _in_front(info.batch_size, dims, tensors[:number])
        inner = vmap(function, in_dims=(*[0] * number, *dims[number:]))
        found = _Gradient.apply(inner, number, *points, *tensors[number:])  # type: ignore[no-untyped-call]
        return found, (0,) * len(found)


class _Below(_WithoutDerivatives):
    """``below`` as an operation with a rule for vmap, which enters it again like ``_Gradient``."""

    @staticmethod
    def forward(
        function: Callable[..., tuple[Tensor, ...]], lift: Lift, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        return function(lift, *tensors)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        function: Callable[..., tuple[Tensor, ...]],
        lift: Lift,
        *tensors: Tensor,
    ) -> Any:
        def one_more(inner: Callable[..., Any]) -> Callable[..., Any]:
            return vmap(lift(inner))

        found = _Below.apply(  # type: ignore[no-untyped-call]
            function, one_more, *_in_front(info.batch_size, in_dims[2:], tensors)
        )
        return found, (0,) * len(found)


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _in_front(clients: int, dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors with vmap's axis in front, those without one expanded."""
    return [
        tensor.expand(clients, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, dims, strict=False)
    ]
