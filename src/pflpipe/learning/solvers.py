"""Local solvers: SGD and Adam over a client's schedule of minibatches.

Each exists twice with the same meaning. ``loop`` trains one client with autograd on a flat
parameter vector, fused optimizers and batches of their true size. It is faster on a CPU for
networks with convolutions, and on a GPU for large networks. ``functional`` has no side effects and
no data-dependent shapes, so that ``torch.func.vmap`` can run many clients at once; padded steps are
computed and discarded. The two agree up to rounding (tested in float64 for every method).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pflpipe.learning.gradients import Lift, below, differentiate
from pflpipe.learning.penalties import DistancePenalty, VectorPenalty
from pflpipe.trees import Tree


@dataclass(frozen=True)
class Batch:
    """Examples of one step: ``x [B, ...]``, ``y [B]``, ``valid [B]`` (``None`` if every row is
    real) and the step's ``key``.

    The key is an integer that determines dropout and training transforms; ``None`` means
    evaluation, without both.
    """

    x: Tensor
    y: Tensor
    valid: Tensor | None = None
    key: Tensor | None = None

    def mean(self, each: Tensor) -> Tensor:
        """Return the mean of ``each [B]`` over the real rows; 0 if there are none."""
        if self.valid is None:
            return each.mean()
        return each.where(self.valid, each.new_zeros(())).sum() / self.valid.sum().clamp(min=1)


Loss = Callable[[Tree, Batch], Tensor]  # (params, batch) -> scalar


@dataclass(frozen=True)
class Schedule:
    """A client's examples and the rows of each of its S steps.

    Attributes:
        x: the client's examples ``[n, ...]``, padded under vmap; y: labels ``[n]``, or numbers
            ``[n, K]``.
        index: rows of each step ``[S, B]``, as indices into ``x``.
        count: number of real rows of each step ``[S]``; the rest of a step is padding.
        sizes: ``count`` as Python numbers if batches have their true size (loop), ``None`` under
            vmap.
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

    @property
    def repeated(self) -> bool:
        """Whether all steps share the memory of their rows, as steps on full batches do."""
        return self.index.stride(0) == self.count.stride(0) == 0

    def __iter__(self) -> Iterator[Batch]:
        for step in range(len(self)):
            key = None if self.keys is None else self.keys[step]
            yield replace(Batch(*self.rows(step)), key=key)

    def rows(self, step: int) -> tuple[Tensor, ...]:
        """Return ``x``, ``y`` and, unless batches have their true size, ``valid`` of a step."""
        if self.sizes is not None:
            rows = self.index[step, : self.sizes[step]]
            return self.x[rows], self.y[rows]
        rows = self.index[step]
        places = torch.arange(len(rows), device=rows.device)
        return self.x[rows], self.y[rows], places < self.count[step]


@dataclass(frozen=True)
class Solver:
    """A first-order optimizer. Its state lives for one call, as in the papers' codes, which create
    a new optimizer in every round.

    Attributes:
        optimizer: ``sgd`` or ``adam``; for ``Task.train_head`` also one of ``heads.EXACT``.
        lr, momentum, weight_decay: as in torch.optim.
        rho: radius of sharpness-aware minimisation (Foret et al., ICLR 2021): each step uses the
            gradient at ``w + rho g / (|g|_2 + 1e-12)``, one norm over all trained parameters; 0 is
            the plain optimizer.
        adaptive: whether the ascent is scaled by the weights (Kwon et al., "ASAM", ICML 2021):
            ``rho |w|^2 g / (| |w| g |_2 + 1e-12)``, products by coordinate.
        step_bound: largest length of the change of a step, over all trained parameters; longer
            changes are shortened.
        step_norm: 1 or 2, the norm of that length.
        low, high: after each step all trained coordinates are clamped to [low, high], also those
            outside an objective's mask (projected descent).
    """

    optimizer: str
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    rho: float = 0.0
    adaptive: bool = False
    step_bound: float = math.inf
    step_norm: int = 1
    low: float = -math.inf
    high: float = math.inf

    @property
    def projects(self) -> bool:
        """Whether the coordinates are clamped."""
        return self.low > -math.inf or self.high < math.inf


@dataclass(frozen=True)
class Objective:
    """The function that one optimizer minimises: ``loss(params, batch) -> scalar`` plus
    ``penalty``.

    Only the coordinates in ``mask`` (0 / 1) move. The loss may depend only on its arguments and on
    constant tensors: its Python code runs once for many steps on a GPU, and once for many clients
    under vmap.
    """

    loss: Loss
    mask: Tree | None = None
    penalty: DistancePenalty | None = None


# minimize(params, schedule, objectives, solver, names) -> (params, mean of the first objective over
# the steps; 0 without steps)
Minimize = Callable[
    [Tree, Schedule, Sequence[Objective], Solver, Sequence[str] | None], tuple[Tree, Tensor]
]


_Axes = Callable[[Tensor], tuple[int, ...]]
"""Tensor -> the order of its axes in a vector of all parameters."""


@dataclass(frozen=True)
class _Flat:
    """One flat vector whose slices are the parameters, and one whose slices are their gradients.

    An optimizer step on one vector is a few kernels for any number of tensors. Convolution kernels
    are stored as [out, height, width, in], the order that CPU convolutions read, and matrices as in
    ``_matrices_turned``.
    """

    vector: Tensor
    gradient: Tensor
    leaves: Tree = field(default_factory=dict)

    @classmethod
    def of(cls, params: Tree) -> _Flat:
        vector = _joined(params, _channels_last)
        flat = cls(vector, torch.zeros_like(vector))
        slopes = _parted(flat.gradient, params, _channels_last)
        for name, part in _parted(vector, params, _channels_last).items():
            flat.leaves[name] = part.detach().requires_grad_()
            flat.leaves[name].grad = slopes[name]
        return flat

    def differentiate(
        self, loss: Loss, point: Tree, batch: Batch, penalty: VectorPenalty | None
    ) -> Tensor:
        """Write the gradient of loss plus penalty into ``gradient`` and return their sum."""
        # ``backward`` accumulates into the leaves' gradients, which are slices of the vector.
        self.gradient.zero_()
        value = loss(point, batch)
        value.backward()  # type: ignore[no-untyped-call]
        if penalty is None:
            return value.detach()
        extra, gap, slope = penalty(self.vector)
        self.gradient.addcmul_(gap, slope)
        return value.detach() + extra


def minimize_loop(
    params: Tree,
    schedule: Schedule,
    objectives: Sequence[Objective],
    solver: Solver,
    names: Sequence[str] | None = None,
) -> tuple[Tree, Tensor]:
    """Minimise the objectives in turn on every minibatch of one client, each with its own optimizer
    state. Steps without real rows are left out.

    Args:
        params: start point, not modified.
        schedule: the minibatches.
        objectives: one or several losses; a step on one moves only the coordinates in its mask.
        solver: optimizer and its settings.
        names: the parameters to train; the others are constants. ``None`` trains all.

    Returns:
        The trained parameters and the mean of the first objective's values.
    """
    moving = {name: params[name] for name in (params if names is None else names)}
    flat = _Flat.of(moving)
    point = {**{name: value.detach() for name, value in params.items()}, **flat.leaves}
    trees = ({name: one.mask[name] for name in moving} if one.mask else {} for one in objectives)
    join = functools.partial(_joined, axes=_channels_last)
    masks = [join(tree).to(flat.vector) if tree else None for tree in trees]
    penalties = [VectorPenalty.of(one.penalty, moving, join) for one in objectives]
    optimizers = [_fused(solver, flat) for _ in objectives]
    total = flat.vector.new_zeros(())
    copies = solver.rho > 0 or solver.step_bound < math.inf

    def step(batch: Batch) -> None:
        in_turn = zip(objectives, masks, penalties, optimizers, strict=True)
        for number, (objective, mask, penalty, optimizer) in enumerate(in_turn):
            before = flat.vector.clone() if copies else flat.vector
            loss = flat.differentiate(objective.loss, point, batch, penalty)
            if solver.rho:
                # Ascend in place, take the gradient there, go back: the leaves are slices of this
                # vector, so no second set of parameters is needed.
                flat.vector.add_(_ascent(flat.vector, flat.gradient, solver))
                flat.differentiate(objective.loss, point, batch, penalty)
                flat.vector.copy_(before)
            # Before the mask: a coordinate outside the mask must not decay either.
            if solver.weight_decay:
                flat.gradient.add_(flat.vector, alpha=solver.weight_decay)
            if mask is not None:
                flat.gradient.mul_(mask)
            optimizer()
            # After the optimizer: the bound is on the change of the weights, which includes
            # learning rate and momentum.
            if solver.step_bound < math.inf:
                change = flat.vector - before
                flat.vector.copy_(before + _shortened(change, solver))
            if solver.projects:
                flat.vector.clamp_(solver.low, solver.high)
            if number == 0:
                total.add_(loss)

    taken = 0
    for batch in schedule:
        if batch.valid is None or batch.valid.any():
            step(batch)
            taken += 1
    trained = _turned_back(_parted(flat.vector, moving, _channels_last))
    end = {name: trained.get(name, value) for name, value in params.items()}
    return end, total / max(taken, 1)


def _fused(solver: Solver, flat: _Flat) -> Callable[[], None]:
    """Return a function that takes a step along ``flat.gradient`` and keeps its moments.

    It calls the kernels of torch.optim's fused optimizers directly. The Python code around them
    takes a few percent of a small step, and the first object of an optimizer class imports
    torch._dynamo, which takes more than a second.
    """
    vectors, gradients = [flat.vector], [flat.gradient]
    # The decay of weights is applied by ``step``, before the mask.
    plain: dict[str, Any] = {"lr": solver.lr, "weight_decay": 0.0, "maximize": False}
    plain |= {"grad_scale": None, "found_inf": None}
    if solver.optimizer == "adam":
        first, second = [torch.zeros_like(flat.vector)], [torch.zeros_like(flat.vector)]
        steps = [torch.zeros((), device=flat.vector.device)]
        adams: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False}

        def step() -> None:
            steps[0].add_(1)
            torch._fused_adam_(vectors, gradients, first, second, [], steps, **adams, **plain)

        return step
    momentum = [torch.zeros_like(flat.vector)] if solver.momentum else []
    sgds: dict[str, Any] = {"momentum": solver.momentum, "dampening": 0.0}
    sgds |= {"nesterov": False, "is_first_step": False}
    return lambda: torch._fused_sgd_(vectors, gradients, momentum, **sgds, **plain)


def _matrices_turned(value: Tensor) -> tuple[int, ...]:
    """Return the order of a tensor's axes in a vector: exchanged for a matrix, else unchanged.

    The weights [out, in] of a linear layer are stored as [in, out]. The product with a small batch
    is then up to four times as fast on a CPU, and the gradient has this order too. The first layer
    gains; for later layers the backward product reads the other order.
    """
    return (1, 0) if value.dim() == 2 else tuple(range(value.dim()))


def _channels_last(value: Tensor) -> tuple[int, ...]:
    """Return the same, but [out, height, width, in] for a convolution kernel; see ``_Flat``."""
    return (0, 2, 3, 1) if value.dim() == 4 else _matrices_turned(value)


def _turned_back(tree: Tree) -> Tree:
    """Return the tree with its matrices stored as [out, in], like the parameters of all other
    trees: arithmetic on tensors of two orders is slow."""
    return {name: value.contiguous() if value.dim() == 2 else value for name, value in tree.items()}


def _joined(tree: Tree, axes: _Axes = _matrices_turned) -> Tensor:
    """Return a tree's numbers in one vector, each tensor with its axes in this order."""
    return torch.cat([value.permute(axes(value)).reshape(-1) for value in tree.values()])


def _parted(vector: Tensor, like: Tree, axes: _Axes = _matrices_turned) -> Tree:
    """Return the slices of a vector of ``_joined`` as views in the shapes of ``like``."""
    pieces = torch.split(vector, [value.numel() for value in like.values()])
    parts = {}
    for piece, (name, value) in zip(pieces, like.items(), strict=True):
        order = axes(value)
        in_this_order = piece.view([value.shape[axis] for axis in order])
        back = [order.index(axis) for axis in range(len(order))]
        parts[name] = in_this_order.permute(back)
    return parts


def minimize_functional(
    params: Tree,
    schedule: Schedule,
    objectives: Sequence[Objective],
    solver: Solver,
    names: Sequence[str] | None = None,
) -> tuple[Tree, Tensor]:
    """Return the same as ``minimize_loop``, as a pure function that ``torch.func.vmap`` can batch
    over clients.

    Steps without real rows are computed and discarded.
    """
    moving = {name: params[name] for name in (params if names is None else names)}
    masks = [
        _joined({name: objective.mask[name] for name in moving}) if objective.mask else None
        for objective in objectives
    ]
    penalties = [VectorPenalty.of(one.penalty, moving, _joined) for one in objectives]

    # Below vmap: the loop crosses the border of vmap once, and optimizer steps are plain operations
    # on vectors [clients, P] (gradients.below).
    def descend(lift: Lift, vector: Tensor, *batched: Tensor) -> tuple[Tensor, Tensor]:
        # The lifted function needs a batched argument to know the clients; it ignores its value.
        def of_clients(function: Callable[..., Any], *arguments: Any) -> Any:
            return lift(lambda _: function(*arguments))(vector)

        def slope_at(at: Tensor, turn: int, step: int) -> tuple[Tensor, Tensor]:
            """Return the gradient of an objective at ``at [..., P]``, and its value ``[...]``."""

            def loss(point: Tensor, *tensors: Tensor) -> Tensor:
                key = None if schedule.keys is None else schedule.keys[step]
                tree = {**params, **_parted(point, moving)}
                return objectives[turn].loss(tree, replace(Batch(*tensors), key=key))

            leaf = at.detach().requires_grad_()
            with torch.enable_grad():
                value = lift(loss)(leaf, *batch)
                (slope,) = torch.autograd.grad(value.sum(), leaf)
            value = value.detach()
            if (penalty := pulls[turn]) is None:
                return slope, value
            extra, gap, factor = penalty(at)
            return torch.addcmul(slope, factor, gap), value + extra

        def of_all(value: Tensor) -> Tensor:
            unwrapped: Tensor = of_clients(torch.clone, value)
            return unwrapped

        all_masks = [None if mask is None else of_all(mask) for mask in masks]
        pulls = [penalty and penalty.mapped(of_all) for penalty in penalties]
        count = of_all(schedule.count)
        common, needed = _real_steps(count)
        vector = vector.clone()  # moved in place below, since new memory in every step costs more
        optimizers = [_in_place(solver, vector) for _ in objectives]
        total = vector.new_zeros(vector.shape[:-1])
        batch: tuple[Tensor, ...] = ()
        for step in range(needed):
            if not step or not schedule.repeated:
                batch = of_clients(schedule.rows, step)
            # Steps before ``common`` are real for all clients and need no copy.
            padded = step >= common
            for turn, mask in enumerate(all_masks):
                slope, value = slope_at(vector, turn, step)
                if solver.rho:
                    slope, _ = slope_at(vector + _ascent(vector, slope, solver), turn, step)
                if solver.weight_decay:
                    slope = slope + solver.weight_decay * vector
                if mask is not None:
                    slope = slope * mask
                before = vector.clone() if padded or solver.step_bound < math.inf else vector
                optimizers[turn](slope)
                if solver.step_bound < math.inf:
                    torch.add(before, _shortened(vector - before, solver), out=vector)
                if solver.projects:
                    vector.clamp_(solver.low, solver.high)
                if padded:
                    real = count[..., step] > 0
                    torch.where(real.unsqueeze(-1), vector, before, out=vector)
                    value = torch.where(real, value, 0.0)
                if turn == 0:
                    total = total + value
        return vector, total

    vector, total = below(descend, _joined(moving), schedule.index, schedule.count)
    trained = _turned_back(_parted(vector, moving))
    return {**params, **trained}, total / (schedule.count > 0).sum().clamp(min=1)


def _real_steps(count: Tensor) -> tuple[int, int]:
    """Return (a, b): steps before a are real for every client; from b on, every step is padding.

    A padded step is computed and discarded, or left out. Both give the same bits, so a client's
    bits do not depend on the work of others.

    Args:
        count: real rows of each step ``[..., S]``.
    """
    real = (count > 0).reshape(math.prod(count.shape[:-1]), count.shape[-1])
    needed = real.any(0).nonzero()
    return int(real.all(0).cumprod(0).sum()), int(needed[-1]) + 1 if len(needed) else 0


def _ascent(vector: Tensor, slope: Tensor, solver: Solver) -> Tensor:
    """Return the ascent ``[..., P]`` from points ``vector [..., P]`` along their gradients."""
    # Where ASAM's paper has |w| + eta, DP-FedSAM's code has |w|, also for biases.
    scale = vector.abs() if solver.adaptive else 1.0
    scaled = scale * slope
    return scale * scaled * (solver.rho / (_norm(scaled) + 1e-12))


def _shortened(change: Tensor, solver: Solver) -> Tensor:
    """Return the change of a step ``[..., P]``, shortened to at most the solver's bound."""
    length = _norm(change, solver.step_norm)
    return change * torch.where(length > solver.step_bound, solver.step_bound / length, 1.0)


def _norm(vector: Tensor, order: int = 2) -> Tensor:
    """Return the lengths ``[..., 1]`` of vectors ``[..., P]``."""
    length: Tensor = torch.linalg.vector_norm(vector, order, dim=-1, keepdim=True)
    return length


def _in_place(solver: Solver, vector: Tensor) -> Callable[[Tensor], None]:
    """Return a function that moves ``vector [..., P]`` in place along a gradient of the same shape,
    as torch.optim does, and keeps its moments.

    SGD has momentum without dampening. Adam has betas .9 and .999 and eps 1e-8.
    """
    if solver.optimizer == "sgd":
        momentum = torch.zeros_like(vector) if solver.momentum else None

        def step(gradient: Tensor) -> None:
            if momentum is not None:
                gradient = momentum.mul_(solver.momentum).add_(gradient)
            vector.add_(gradient, alpha=-solver.lr)

        return step
    # One step count for all clients. Padded steps move the moments too, so with moments a client's
    # padded steps must come last.
    first, second = torch.zeros_like(vector), torch.zeros_like(vector)
    steps = itertools.count(1)

    def adapted_step(gradient: Tensor) -> None:
        count = next(steps)
        first.lerp_(gradient, 0.1)
        second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        root = (second / (1 - 0.999**count)).sqrt_().add_(1e-8)
        vector.addcdiv_(first, root, value=-solver.lr / (1 - 0.9**count))

    return adapted_step


def gradient(params: Tree, schedule: Schedule, loss: Loss) -> Tree:
    """Return the gradient of the mean loss over all examples of the schedule.

    Args:
        params: point of the gradient.
        schedule: one pass over the client's examples.
        loss: ``(params, batch) -> scalar``, a mean over the batch's real examples.
    """
    # A mean of minibatches of different sizes: each counts with its number of real examples.
    vector = _joined(params)
    total = torch.zeros_like(vector)
    for step, batch in enumerate(schedule):

        def value(point: Tensor, x: Tensor, y: Tensor, batch: Batch = batch) -> tuple[Tensor]:
            return (loss(_parted(point, params), replace(batch, x=x, y=y)),)

        (slope,), _ = differentiate(value, [vector], batch.x, batch.y)
        total = total + slope * schedule.count[step]
    return _turned_back(_parted(total / schedule.count.sum().clamp(min=1), params))
