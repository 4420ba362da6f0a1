"""Local solvers: SGD and Adam over a client's schedule of minibatches, and the diagonal Fisher information.

Each exists twice with the same meaning. ``loop`` works on one client with autograd on a flat parameter vector, fused
optimizers and batches of their true size: the fast way on a CPU for anything with convolutions. ``functional`` is free of
side effects and data-dependent shapes, so that ``torch.func.vmap`` can run many clients at once; a padded step is computed
and then discarded. Both agree to rounding (tested in float64 for every method).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import grad, grad_and_value, vmap

from pflpipe import trees
from pflpipe.trees import Tree


@dataclass(frozen=True)
class Batch:
    """Examples of one step: ``x [B, ...]``, ``y [B]``, ``valid [B]`` (``None`` when every row is real) and the step's ``key``.

    The key is an integer from which dropout and training transforms follow; ``None`` means evaluation, without either.
    """

    x: Tensor
    y: Tensor
    valid: Tensor | None = None
    key: Tensor | None = None


@dataclass(frozen=True)
class Schedule:
    """Which rows of the shared data a client steps on.

    Attributes:
        x: all examples ``[N, ...]``, shared by the clients; y: labels ``[N]``.
        index: rows of each step ``[S, B]``.
        count: real rows of each step ``[S]``; the rest of a step is padding.
        sizes: the same as Python numbers when batches may have their true size (loop), ``None`` under vmap.
        keys: int64 ``[S]``, one key per training step; ``None`` where nothing is random.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    count: Tensor
    sizes: tuple[int, ...] | None = None
    keys: Tensor | None = None

    def __len__(self) -> int:
        return self.index.shape[0]

    def __iter__(self) -> Iterator[Batch]:
        for step in range(len(self)):
            key = None if self.keys is None else self.keys[step]
            if self.sizes is not None:
                rows = self.index[step, : self.sizes[step]]
                yield Batch(self.x[rows], self.y[rows], None, key)
            else:
                rows = self.index[step]
                places = torch.arange(rows.shape[-1], device=rows.device)
                yield Batch(self.x[rows], self.y[rows], places < self.count[step], key)


@dataclass(frozen=True)
class Solver:
    """A first-order optimizer; its state lives for one call (papers' codes make a new one in every round).

    Attributes:
        optimizer: ``sgd`` or ``adam``.
        lr, momentum, weight_decay: as in torch.optim.
        rho: radius of sharpness-aware minimisation (Foret et al., ICLR 2021): each step uses the gradient at
            ``w + rho g / (|g|_2 + 1e-12)``, one norm over all trained parameters; 0 is the plain optimizer.
        step_bound: the change of each step is shortened to at most this L1 length over all trained parameters.
    """

    optimizer: str
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    rho: float = 0.0
    step_bound: float = math.inf


@dataclass(frozen=True)
class Objective:
    """What one optimizer minimises: ``loss(params, batch) -> scalar``, moving only the coordinates in ``mask`` (0 / 1)."""

    loss: Callable[[Tree, Batch], Tensor]
    mask: Tree | None = None


# minimize(params, schedule, objectives, solver, names) -> (params, mean of the first objective over the steps; 0 without steps)
Minimize = Callable[[Tree, Schedule, Sequence[Objective], Solver, Sequence[str] | None], tuple[Tree, Tensor]]


@dataclass(frozen=True)
class _Flat:
    """One flat vector whose slices are the parameters, and one whose slices are their gradients.

    Convolution kernels lie in memory as [out, height, width, in], the order in which CPU convolutions read them. With
    everything in one vector an optimizer step is a handful of kernels whatever the number of tensors.
    """

    vector: Tensor
    gradient: Tensor
    leaves: Tree = field(default_factory=dict)

    @classmethod
    def of(cls, params: Tree) -> _Flat:
        vector = torch.cat([_memory_order(value).reshape(-1) for value in params.values()])
        flat = cls(vector, torch.zeros_like(vector))
        for name, part, slope in zip(params, flat.split(vector, params), flat.split(flat.gradient, params), strict=True):
            flat.leaves[name] = part.detach().requires_grad_()
            flat.leaves[name].grad = slope
        return flat

    def differentiate(self, loss: Callable[[Tree, Batch], Tensor], point: Tree, batch: Batch) -> Tensor:
        """Put the loss's gradient into ``gradient`` and return the loss."""
        self.gradient.zero_()
        value = loss(point, batch)
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()

    @staticmethod
    def split(vector: Tensor, like: Tree) -> list[Tensor]:
        pieces = torch.split(vector, [value.numel() for value in like.values()])
        return [_named_order(piece, value) for piece, value in zip(pieces, like.values(), strict=True)]


def _memory_order(value: Tensor) -> Tensor:
    return value.permute(0, 2, 3, 1) if value.dim() == 4 else value


def _named_order(piece: Tensor, like: Tensor) -> Tensor:
    if like.dim() != 4:
        return piece.view(like.shape)
    out, channels, height, width = like.shape
    return piece.view(out, height, width, channels).permute(0, 3, 1, 2)


def minimize_loop(
    params: Tree, schedule: Schedule, objectives: Sequence[Objective], solver: Solver, names: Sequence[str] | None = None
) -> tuple[Tree, Tensor]:
    """Run the objectives in turn on every minibatch of one client, each with its own optimizer state.

    Args:
        params: start point, not modified.
        schedule: the minibatches.
        objectives: one or several losses; after each, only the coordinates in its mask move.
        solver: optimizer and its settings.
        names: the parameters to train; the others stay constants of the graph. ``None`` trains all.

    Returns:
        The trained parameters and the mean of the first objective's values.
    """
    moving = {name: params[name] for name in (params if names is None else names)}
    flat = _Flat.of(moving)
    point = {**{name: value.detach() for name, value in params.items()}, **flat.leaves}
    masks = [
        torch.cat([_memory_order(objective.mask[name]).reshape(-1) for name in moving]).to(flat.vector)
        if objective.mask
        else None
        for objective in objectives
    ]
    optimizers = [_torch_optimizer(solver, flat.vector) for _ in objectives]
    total = flat.vector.new_zeros(())
    keep = solver.rho > 0 or solver.step_bound < math.inf
    for batch in schedule:
        for turn, (objective, mask, optimizer) in enumerate(zip(objectives, masks, optimizers, strict=True)):
            before = flat.vector.clone() if keep else flat.vector
            loss = flat.differentiate(objective.loss, point, batch)
            if solver.rho:
                flat.vector.add_(flat.gradient * (solver.rho / (torch.linalg.vector_norm(flat.gradient) + 1e-12)))
                flat.differentiate(objective.loss, point, batch)
                flat.vector.copy_(before)
            if solver.weight_decay:  # before the mask: a coordinate outside it must not decay either
                flat.gradient.add_(flat.vector, alpha=solver.weight_decay)
            if mask is not None:
                flat.gradient.mul_(mask)
            flat.vector.grad = flat.gradient
            optimizer.step()
            if solver.step_bound < math.inf:
                change = flat.vector - before
                flat.vector.copy_(before + change * _shorten(change.abs().sum(), solver.step_bound))
            if turn == 0:
                total += loss
    trained = dict(zip(moving, flat.split(flat.vector, moving), strict=True))
    return {name: trained.get(name, value) for name, value in params.items()}, total / max(len(schedule), 1)


def _torch_optimizer(solver: Solver, vector: Tensor) -> torch.optim.Optimizer:
    if solver.optimizer == "adam":
        return torch.optim.Adam([vector], lr=solver.lr, fused=True)
    return torch.optim.SGD([vector], lr=solver.lr, momentum=solver.momentum, fused=True)


def minimize_functional(
    params: Tree, schedule: Schedule, objectives: Sequence[Objective], solver: Solver, names: Sequence[str] | None = None
) -> tuple[Tree, Tensor]:
    """Do the same as ``minimize_loop`` as a pure function that ``torch.func.vmap`` can batch over clients."""
    moving = {name: params[name] for name in (params if names is None else names)}
    some = next(iter(moving.values()))
    total, steps = some.new_zeros(()), some.new_zeros(())
    zeros = {name: torch.zeros_like(value) for name, value in moving.items()}
    moments = [(zeros, zeros) for _ in objectives]
    for step, batch in enumerate(schedule):
        real = schedule.count[step] > 0
        for turn, objective in enumerate(objectives):

            def value(tree: Tree, objective: Objective = objective, batch: Batch = batch) -> Tensor:
                return objective.loss({**params, **tree}, batch)

            slope, loss = grad_and_value(value)(moving)
            if solver.rho:
                reach = solver.rho / (trees.norm(slope) + 1e-12)
                slope = grad(value)({name: w + reach * slope[name] for name, w in moving.items()})
            slope = {name: g + solver.weight_decay * moving[name] for name, g in slope.items()}
            if objective.mask is not None:
                slope = {name: g * objective.mask[name] for name, g in slope.items()}
            ahead, (first, second) = _step(solver, moving, slope, moments[turn], steps + 1)
            if solver.step_bound < math.inf:
                change = trees.sub(ahead, moving)
                factor = _shorten(torch.stack([part.abs().sum() for part in change.values()]).sum(), solver.step_bound)
                ahead = {name: w + factor * change[name] for name, w in moving.items()}
            moving = {name: torch.where(real, ahead[name], old) for name, old in moving.items()}
            moments[turn] = (
                {name: torch.where(real, first[name], old) for name, old in moments[turn][0].items()},
                {name: torch.where(real, second[name], old) for name, old in moments[turn][1].items()},
            )
            if turn == 0:
                total = total + torch.where(real, loss.detach(), 0.0)
        steps = steps + real
    return {name: moving.get(name, value) for name, value in params.items()}, total / steps.clamp(min=1)


def _shorten(length: Tensor, bound: float) -> Tensor:
    """Return the factor that brings a vector of this length to at most ``bound``."""
    return torch.where(length > bound, bound / length, 1.0)


def _step(
    solver: Solver, params: Tree, slope: Tree, moments: tuple[Tree, Tree], count: Tensor
) -> tuple[Tree, tuple[Tree, Tree]]:
    """One step of torch.optim's SGD (momentum without dampening) or Adam (betas .9, .999, eps 1e-8)."""
    first, second = moments
    if solver.optimizer == "sgd":
        first = {name: solver.momentum * first[name] + g for name, g in slope.items()}
        return {name: value - solver.lr * first[name] for name, value in params.items()}, (first, second)
    first = {name: 0.9 * first[name] + 0.1 * g for name, g in slope.items()}
    second = {name: 0.999 * second[name] + 0.001 * g * g for name, g in slope.items()}
    # expm1 keeps the digits that 1 - 0.999**count loses in float32.
    size = solver.lr / -torch.expm1(count * math.log(0.9))
    root = (-torch.expm1(count * math.log(0.999))).sqrt()
    return {name: value - size * first[name] / (second[name].sqrt() / root + 1e-8) for name, value in params.items()}, (
        first,
        second,
    )


def fisher(params: Tree, schedule: Schedule, log_likelihood: Callable[[Tree, Tensor, Tensor], Tensor]) -> Tree:
    """Return the diagonal empirical Fisher information: the mean over examples of the squared per-example gradient.

    Args:
        params: where the gradient is taken.
        schedule: one pass over the client's examples.
        log_likelihood: ``(params, x [...], y []) -> scalar`` of ONE example.

    Source: FedDPA (Yang et al., NeurIPS 2023), Eq. 4, read per example as in its official code.
    """
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    for batch in schedule:
        slopes = vmap(grad(log_likelihood), in_dims=(None, 0, 0))(params, batch.x, batch.y)
        for name, slope in slopes.items():
            square = slope.square()
            if batch.valid is not None:
                square = torch.where(batch.valid.view(-1, *[1] * (square.dim() - 1)), square, 0.0)
            total[name] = total[name] + square.sum(0)
    return {name: value / schedule.count.sum().clamp(min=1) for name, value in total.items()}


def gradient(params: Tree, schedule: Schedule, loss: Callable[[Tree, Batch], Tensor]) -> Tree:
    """Return the gradient of the mean loss over all of the schedule's examples.

    Args:
        params: where the gradient is taken.
        schedule: one pass over the client's examples.
        loss: ``(params, batch) -> scalar``, a mean over the batch's real examples.
    """
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    for step, batch in enumerate(schedule):
        slope = grad(loss)(params, batch)
        total = {name: value + slope[name] * schedule.count[step] for name, value in total.items()}
    return {name: value / schedule.count.sum().clamp(min=1) for name, value in total.items()}
