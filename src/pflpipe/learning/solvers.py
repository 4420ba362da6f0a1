"""Local solvers: SGD and Adam over a client's schedule of minibatches.

Both exist twice with the same meaning. ``loop`` works on one client with autograd on a flat
parameter vector, fused optimizers and batches of their true size: the fast way on a CPU for
anything with convolutions, and for large networks on a GPU, where its steps can be recorded as CUDA
graphs and replayed. ``functional`` is free of side effects and data-dependent shapes, so that
``torch.func.vmap`` can run many clients at once; a padded step is computed and then discarded. The
two agree to rounding (tested in float64 for every method).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pflpipe.learning import cuda_graphs
from pflpipe.learning.gradients import Lift, below, differentiate
from pflpipe.learning.penalties import DistancePenalty, VectorPenalty
from pflpipe.trees import Tree


@dataclass(frozen=True)
class Batch:
    """Examples of one step: ``x [B, ...]``, ``y [B]``, ``valid [B]`` (``None`` when every row is
    real) and the step's ``key``.

    The key is an integer from which dropout and training transforms follow; ``None`` means
    evaluation, without either.
    """

    x: Tensor
    y: Tensor
    valid: Tensor | None = None
    key: Tensor | None = None

    def mean(self, each: Tensor) -> Tensor:
        """Return the mean of ``each [B]`` over the real rows; 0 without any."""
        if self.valid is None:
            return each.mean()
        return each.where(self.valid, each.new_zeros(())).sum() / self.valid.sum().clamp(min=1)


@dataclass(frozen=True)
class Schedule:
    """Which of its own rows a client steps on.

    Attributes:
        x: the client's examples ``[n, ...]``, padded under vmap; y: labels ``[n]``.
        index: rows of each step ``[S, B]``, as places in ``x``.
        count: real rows of each step ``[S]``; the rest of a step is padding.
        sizes: the same as Python numbers when batches may have their true size (loop), ``None``
            under vmap.
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
        """Whether all steps use one place in memory for their rows, as those of full batches do."""
        return self.index.stride(0) == self.count.stride(0) == 0

    def __iter__(self) -> Iterator[Batch]:
        for step in range(len(self)):
            key = None if self.keys is None else self.keys[step]
            yield replace(Batch(*self.rows(step)), key=key)

    def rows(self, step: int) -> tuple[Tensor, ...]:
        """Return what a step's batch is made of besides its key: ``x``, ``y`` and, unless batches
        have their true size, ``valid``."""
        if self.sizes is not None:
            rows = self.index[step, : self.sizes[step]]
            return self.x[rows], self.y[rows]
        rows = self.index[step]
        places = torch.arange(len(rows), device=rows.device)
        return self.x[rows], self.y[rows], places < self.count[step]


@dataclass(frozen=True)
class Solver:
    """A first-order optimizer; its state lives for one call (papers' codes make a new one in every
    round).

    Attributes:
        optimizer: ``sgd`` or ``adam``.
        lr, momentum, weight_decay: as in torch.optim.
        rho: radius of sharpness-aware minimisation (Foret et al., ICLR 2021): each step uses the
            gradient at ``w + rho g / (|g|_2 + 1e-12)``, one norm over all trained parameters; 0 is
            the plain optimizer.
        step_bound: the change of each step is shortened to at most this length over all trained
            parameters.
        step_norm: 1 or 2, the norm in which that length is taken.
        low, high: after each step all trained coordinates are brought into [low, high], whatever an
            objective's mask (projected descent).
    """

    optimizer: str
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    rho: float = 0.0
    step_bound: float = math.inf
    step_norm: int = 1
    low: float = -math.inf
    high: float = math.inf

    @property
    def projects(self) -> bool:
        """Whether there are bounds to bring the coordinates into."""
        return self.low > -math.inf or self.high < math.inf


@dataclass(frozen=True)
class Objective:
    """What one optimizer minimises: ``loss(params, batch) -> scalar`` and ``penalty``, if there is
    one.

    Only the coordinates in ``mask`` (0 / 1) move. The loss is a function of its arguments and of
    tensors that do not change: on a GPU its Python runs once for many steps, under vmap once for
    many clients.
    """

    loss: Callable[[Tree, Batch], Tensor]
    mask: Tree | None = None
    penalty: DistancePenalty | None = None


# minimize(params, schedule, objectives, solver, names) -> (params, mean of the first objective over
# the steps; 0 without steps)
Minimize = Callable[
    [Tree, Schedule, Sequence[Objective], Solver, Sequence[str] | None], tuple[Tree, Tensor]
]


@dataclass(frozen=True)
class _Flat:
    """One flat vector whose slices are the parameters, and one whose slices are their gradients.

    Convolution kernels lie in memory as [out, height, width, in], the order in which CPU
    convolutions read them, and linear layers as ``_turned`` has them. With everything in one vector
    an optimizer step is a handful of kernels whatever the number of tensors.
    """

    vector: Tensor
    gradient: Tensor
    leaves: Tree = field(default_factory=dict)

    @classmethod
    def of(cls, params: Tree) -> _Flat:
        vector = cls.join(params)
        flat = cls(vector, torch.zeros_like(vector))
        for name, part, slope in zip(
            params, flat.split(vector, params), flat.split(flat.gradient, params), strict=True
        ):
            flat.leaves[name] = part.detach().requires_grad_()
            flat.leaves[name].grad = slope
        return flat

    def differentiate(
        self,
        loss: Callable[[Tree, Batch], Tensor],
        point: Tree,
        batch: Batch,
        penalty: VectorPenalty | None,
    ) -> Tensor:
        """Put the gradient of loss and penalty into ``gradient`` and return their sum."""
        self.gradient.zero_()
        value = loss(point, batch)
        value.backward()  # type: ignore[no-untyped-call]
        if penalty is None:
            return value.detach()
        extra, gap, slope = penalty(self.vector)
        self.gradient.addcmul_(gap, slope)
        return value.detach() + extra

    @staticmethod
    def join(tree: Tree) -> Tensor:
        """Return the tree's tensors in the order of ``vector``."""
        return torch.cat([_memory_order(value).reshape(-1) for value in tree.values()])

    @staticmethod
    def split(vector: Tensor, like: Tree) -> list[Tensor]:
        pieces = torch.split(vector, [value.numel() for value in like.values()])
        return [
            _named_order(piece, value) for piece, value in zip(pieces, like.values(), strict=True)
        ]


def _memory_order(value: Tensor) -> Tensor:
    return value.permute(0, 2, 3, 1) if value.dim() == 4 else _turned(value)


def _named_order(piece: Tensor, like: Tensor) -> Tensor:
    if like.dim() != 4:
        return _turned(piece.view(_turned(like).shape))
    out, channels, height, width = like.shape
    return piece.view(out, height, width, channels).permute(0, 3, 1, 2)


def minimize_loop(
    params: Tree,
    schedule: Schedule,
    objectives: Sequence[Objective],
    solver: Solver,
    names: Sequence[str] | None = None,
    *,
    recorded: bool = False,
) -> tuple[Tree, Tensor]:
    """Run the objectives in turn on every minibatch of one client, each with its own optimizer
    state.

    Args:
        params: start point, not modified.
        schedule: the minibatches.
        objectives: one or several losses; after each, only the coordinates in its mask move.
        solver: optimizer and its settings.
        names: the parameters to train; the others stay constants of the graph. ``None`` trains all.
        recorded: record the steps of a batch size that is frequent and replay them (a GPU only).

    Returns:
        The trained parameters and the mean of the first objective's values.
    """
    moving = {name: params[name] for name in (params if names is None else names)}
    flat = _Flat.of(moving)
    point = {**{name: value.detach() for name, value in params.items()}, **flat.leaves}
    masks = [
        _Flat.join({name: objective.mask[name] for name in moving}).to(flat.vector)
        if objective.mask
        else None
        for objective in objectives
    ]
    penalties = [VectorPenalty.of(one.penalty, moving, _Flat.join) for one in objectives]
    optimizers = [_fused(solver, flat) for _ in objectives]
    total = flat.vector.new_zeros(())
    keep = solver.rho > 0 or solver.step_bound < math.inf

    def step(batch: Batch) -> None:
        turns = zip(objectives, masks, penalties, optimizers, strict=True)
        for turn, (objective, mask, penalty, optimizer) in enumerate(turns):
            before = flat.vector.clone() if keep else flat.vector
            loss = flat.differentiate(objective.loss, point, batch, penalty)
            if solver.rho:
                flat.vector.add_(
                    flat.gradient * (solver.rho / (torch.linalg.vector_norm(flat.gradient) + 1e-12))
                )
                flat.differentiate(objective.loss, point, batch, penalty)
                flat.vector.copy_(before)
            if (
                solver.weight_decay
            ):  # before the mask: a coordinate outside it must not decay either
                flat.gradient.add_(flat.vector, alpha=solver.weight_decay)
            if mask is not None:
                flat.gradient.mul_(mask)
            optimizer()
            if solver.step_bound < math.inf:
                change = flat.vector - before
                flat.vector.copy_(before + _shortened(change, solver))
            if solver.projects:
                flat.vector.clamp_(solver.low, solver.high)
            if turn == 0:
                total.add_(loss)

    if recorded:
        _replay(schedule, step)
    else:
        for batch in schedule:
            step(batch)
    trained = _turned_back(dict(zip(moving, flat.split(flat.vector, moving), strict=True)))
    return {name: trained.get(name, value) for name, value in params.items()}, total / max(
        len(schedule), 1
    )


def _replay(schedule: Schedule, step: Callable[[Batch], None]) -> None:
    """Take every step of the schedule; those of a batch size that is frequent are recorded once and
    replayed."""
    counts = Counter(schedule.sizes or ())
    frequent = [size for size, times in counts.items() if times >= cuda_graphs.CALLS_TO_PAY]
    if not frequent:
        for batch in schedule:
            step(batch)
        return
    graphs = cuda_graphs.graphs(schedule.index.device)

    def gathered(rows: Tensor, *keys: Tensor) -> None:
        step(Batch(schedule.x[rows], schedule.y[rows], None, *keys))

    replayed = {size: cuda_graphs.Replayed(gathered, graphs.record) for size in frequent}
    with graphs.aside():
        for number, size in enumerate(schedule.sizes or ()):
            keys = () if schedule.keys is None else (schedule.keys[number],)
            replayed.get(size, gathered)(schedule.index[number, :size], *keys)


def _fused(solver: Solver, flat: _Flat) -> Callable[[], None]:
    """Return a function that takes a step along the gradient and keeps moments of its own.

    It calls the kernels of torch.optim's fused optimizers. The functions around these take a few
    percent of a small step, and the first object of an optimizer class imports torch._dynamo: more
    than a second.
    """
    vectors, gradients = [flat.vector], [flat.gradient]
    plain: dict[str, Any] = {
        "lr": solver.lr,
        "weight_decay": 0.0,
        "maximize": False,
        "grad_scale": None,
        "found_inf": None,
    }
    if solver.optimizer == "adam":
        first, second = [torch.zeros_like(flat.vector)], [torch.zeros_like(flat.vector)]
        steps = [torch.zeros((), device=flat.vector.device)]
        adams: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False}

        def step() -> None:
            steps[0].add_(1)
            torch._fused_adam_(vectors, gradients, first, second, [], steps, **adams, **plain)

        return step
    momentum = [torch.zeros_like(flat.vector)] if solver.momentum else []
    sgds: dict[str, Any] = {
        "momentum": solver.momentum,
        "dampening": 0.0,
        "nesterov": False,
        "is_first_step": False,
    }
    return lambda: torch._fused_sgd_(vectors, gradients, momentum, **sgds, **plain)


def _turned(value: Tensor) -> Tensor:
    """Return a matrix with its axes exchanged, anything else as it is.

    A linear layer's weights [out, in] lie in memory as [in, out]: its product with a small batch is
    up to four times as fast that way on a CPU, and their gradient comes out in this order. The
    first layer gains; behind it, the product that goes back reads the other order.
    """
    return value.mT if value.dim() == 2 else value


def _turned_back(tree: Tree) -> Tree:
    """Return the tree with its matrices in memory as they are named, in which the parameters of
    other models lie: sums of tensors in two orders are slow."""
    return {name: value.contiguous() if value.dim() == 2 else value for name, value in tree.items()}


def _joined(tree: Tree) -> Tensor:
    return torch.cat([_turned(value).reshape(-1) for value in tree.values()])


def _parted(vector: Tensor, like: Tree) -> Tree:
    pieces = torch.split(vector, [value.numel() for value in like.values()])
    return {
        name: _turned(piece.view(_turned(value).shape))
        for piece, (name, value) in zip(pieces, like.items(), strict=True)
    }


def minimize_functional(
    params: Tree,
    schedule: Schedule,
    objectives: Sequence[Objective],
    solver: Solver,
    names: Sequence[str] | None = None,
) -> tuple[Tree, Tensor]:
    """Do the same as ``minimize_loop`` as a pure function that ``torch.func.vmap`` can batch over
    clients.

    A client's steps without real rows come last. They are computed and discarded.
    """
    moving = {name: params[name] for name in (params if names is None else names)}
    masks = [
        _joined({name: objective.mask[name] for name in moving}) if objective.mask else None
        for objective in objectives
    ]
    penalties = [VectorPenalty.of(one.penalty, moving, _joined) for one in objectives]

    def descend(lift: Lift, vector: Tensor, *batched: Tensor) -> tuple[Tensor, Tensor]:
        def of_clients(function: Callable[..., Any], *arguments: Any) -> Any:
            return lift(lambda _: function(*arguments))(vector)

        def slope_at(at: Tensor, turn: int, step: int) -> tuple[Tensor, Tensor]:
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
            found: Tensor = of_clients(torch.clone, value)
            return found

        outside = [None if mask is None else of_all(mask) for mask in masks]
        pulls = [penalty and penalty.mapped(of_all) for penalty in penalties]
        count = of_all(schedule.count)
        common, needed = _real_steps(count)
        vector = vector.clone()  # the steps move it in place: what is new in memory costs more
        optimizers = [_in_place(solver, vector) for _ in objectives]
        total = vector.new_zeros(vector.shape[:-1])
        batch: tuple[Tensor, ...] = ()
        for step in range(needed):
            if not step or not schedule.repeated:
                batch = of_clients(schedule.rows, step)
            padded = step >= common
            for turn, mask in enumerate(outside):
                slope, value = slope_at(vector, turn, step)
                if solver.rho:
                    reach = solver.rho / (_norm(slope) + 1e-12)
                    slope, _ = slope_at(vector + reach * slope, turn, step)
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
    """Return how many first steps are real for all clients, and after how many steps none is.

    A step that is not real for a client is computed and discarded, or left out: its bits are the
    same, so that they do not follow from what others have to do.

    Args:
        count: real rows of each step ``[..., S]``.
    """
    real = (count > 0).reshape(math.prod(count.shape[:-1]), count.shape[-1])
    needed = real.any(0).nonzero()
    return int(real.all(0).cumprod(0).sum()), int(needed[-1]) + 1 if len(needed) else 0


def _shortened(change: Tensor, solver: Solver) -> Tensor:
    """Return the change of a step ``[..., P]``, brought to at most the solver's bound."""
    length = _norm(change, solver.step_norm)
    return change * torch.where(length > solver.step_bound, solver.step_bound / length, 1.0)


def _norm(vector: Tensor, order: int = 2) -> Tensor:
    """Return the length of a vector ``[..., P]``, ``[..., 1]``."""
    length: Tensor = torch.linalg.vector_norm(vector, order, dim=-1, keepdim=True)
    return length


def _in_place(solver: Solver, vector: Tensor) -> Callable[[Tensor], None]:
    """Return a function that moves ``vector [..., P]`` as torch.optim's optimizer does along a
    gradient of the same shape, and keeps moments of its own.

    SGD has momentum without dampening, Adam has betas .9 and .999 and eps 1e-8.
    """
    if solver.optimizer == "sgd":
        momentum = torch.zeros_like(vector) if solver.momentum else None

        def step(gradient: Tensor) -> None:
            if momentum is not None:
                gradient = momentum.mul_(solver.momentum).add_(gradient)
            vector.add_(gradient, alpha=-solver.lr)

        return step
    first, second = torch.zeros_like(vector), torch.zeros_like(vector)
    steps = itertools.count(1)

    def adapted_step(gradient: Tensor) -> None:
        count = next(steps)
        first.lerp_(gradient, 0.1)
        second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        root = (second / (1 - 0.999**count)).sqrt_().add_(1e-8)
        vector.addcdiv_(first, root, value=-solver.lr / (1 - 0.9**count))

    return adapted_step


def gradient(params: Tree, schedule: Schedule, loss: Callable[[Tree, Batch], Tensor]) -> Tree:
    """Return the gradient of the mean loss over all of the schedule's examples.

    Args:
        params: where the gradient is taken.
        schedule: one pass over the client's examples.
        loss: ``(params, batch) -> scalar``, a mean over the batch's real examples.
    """
    vector = _joined(params)
    total = torch.zeros_like(vector)
    for step, batch in enumerate(schedule):

        def value(point: Tensor, x: Tensor, y: Tensor, batch: Batch = batch) -> tuple[Tensor]:
            return (loss(_parted(point, params), replace(batch, x=x, y=y)),)

        (slope,), _ = differentiate(value, [vector], batch.x, batch.y)
        total = total + slope * schedule.count[step]
    return _turned_back(_parted(total / schedule.count.sum().clamp(min=1), params))
