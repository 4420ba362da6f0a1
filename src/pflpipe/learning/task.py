"""The task: what every client of a run shares, and all that a method may use.

A method is written for ONE client. It sees parameters, its own state and its own ``Batches``; it
never sees the client axis, the device, a random generator or the backend. The solvers it calls are
those of the backend that runs it (clients.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from pflpipe.learning import fisher, solvers
from pflpipe.learning.architectures import norm_names
from pflpipe.learning.networks import HEAD, Network
from pflpipe.learning.solvers import Batch, Minimize, Objective, Schedule, Solver
from pflpipe.privacy.plan import Plan
from pflpipe.trees import AnyTree, Params, Tree

Loss = Callable[[Tree, Batch], Tensor]
Transform = Callable[[Tensor, Tensor], Tensor]  # (x [B, ...], key []) -> x
VECTOR = 16
"""Numbers of float32 that the widest vector register of a CPU holds."""


@dataclass(frozen=True)
class Batches:
    """One client's own examples, ready to step on.

    Attributes:
        n: number of training examples, a scalar tensor.
        train: E local epochs of minibatches.
        head: the head phase's epochs, for methods that have one; it counts the client's own
            examples in the order of ``all`` and is stepped on through ``Task.features``.
        all: one ordered pass over the training examples.
    """

    n: Tensor
    train: Schedule
    head: Schedule
    all: Schedule

    @property
    def key(self) -> Tensor:
        """Key of what a client draws for itself in this round, under the places
        ``counter_rng.OWN`` and above: that of its first step, or 0 for a client without steps.

        It follows from the stream named by the round and the client, as the order of its batches
        does, and shares nothing with the noise of a release.

        Raises:
            RuntimeError: the method does not say that it draws, so there are no keys.
        """
        keys = self.train.keys
        if keys is None:
            raise RuntimeError("batches.key is for methods that say so: Method(..., draws=True)")
        return keys[0] if len(keys) else self.n.new_zeros(())


@dataclass(frozen=True)
class Task:
    """Network, loss, public numbers of the plan and solvers of the current backend; the same for
    all clients.

    Attributes:
        plan: sampling, clip, noise and rounds: public values.
        solver: the study's local optimizer.
        local_epochs: E, passes over a client's own examples in one round.
        departures: names of the steps that the certified mechanism lacks.
        minimize_on: the backend's solver loop (``solvers.minimize_loop`` or
            ``solvers.minimize_functional``).
        augment: the training transforms of the study, or ``None``.
        precision: of products, that of cells.Training; only ``bf16`` concerns the task.
    """

    network: Network
    plan: Plan
    solver: Solver
    local_epochs: int
    departures: frozenset[str]
    minimize_on: Minimize
    augment: Transform | None = None
    precision: str = "float32"

    @property
    def clip_norm(self) -> float:
        """Clip bound C of the plan; infinite when nothing is clipped."""
        return float("inf") if self.plan.clip_norm is None else self.plan.clip_norm

    @property
    def head_names(self) -> tuple[str, ...]:
        """Names of the parameters of the last linear layer."""
        return HEAD

    @property
    def body_names(self) -> tuple[str, ...]:
        """Names of all parameters but the head's: the feature extractor."""
        return tuple(name for name in self.network.shapes if name not in HEAD)

    @property
    def norm_names(self) -> tuple[str, ...]:
        """Names of the parameters of normalisation layers."""
        return norm_names(self.network.shapes)

    def loss(self, params: Tree, batch: Batch, *, dropout: bool = True) -> Tensor:
        """Return the mean cross-entropy over the real examples of a batch, with dropout (unless it
        is declined) and transforms if it has a key."""
        return self.logits_loss(self.forward(params, batch, dropout=dropout)[1], batch)

    def forward(self, params: Tree, batch: Batch, *, dropout: bool = True) -> tuple[Tensor, Tensor]:
        """Return the features ``[B, F]`` and the logits ``[B, K]`` of a batch, with dropout (unless
        it is declined) and transforms if it has a key."""
        x = (
            batch.x
            if batch.key is None or self.augment is None
            else self.augment(batch.x, batch.key)
        )
        key = batch.key if dropout else None
        narrow = (
            torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False)
            if self.precision == "bf16"
            else contextlib.nullcontext()
        )
        with narrow:
            z = self.network.body(params, x, key)
            logits = self.network.head(params, z)
        return z.to(x.dtype), logits.to(x.dtype)

    def head_loss(self, head: Tree, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of the linear head on a batch of ``features``."""
        return self.logits_loss(self.network.head(head, batch.x), batch)

    def logits_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of ``logits [B, K]`` over the real examples of a batch."""
        if batch.valid is None:
            return F.cross_entropy(logits, batch.y)
        return batch.mean(_cross_entropies(logits, batch.y))

    def minimize(
        self,
        params: AnyTree,
        schedule: Schedule,
        *objectives: Loss | Objective,
        solver: Solver | None = None,
        names: Sequence[str] | None = None,
    ) -> tuple[AnyTree, Tensor]:
        """Take the schedule's steps from ``params``; return the end point and the mean value of the
        first objective.

        Args:
            params: start point, not modified.
            schedule: which examples each step uses.
            objectives: losses ``(params, batch) -> scalar``, or with a mask of what moves and a
                distance penalty as ``Objective``. With several, each minibatch is used by every
                objective in turn, each with its own optimizer state.
            solver: another optimizer than the study's.
            names: train only these parameters.
        """
        parts = [part if isinstance(part, Objective) else Objective(part) for part in objectives]
        end, value = self.minimize_on(params, schedule, parts, solver or self.solver, names)
        return cast(AnyTree, end), value

    def features(self, params: Params, batches: Batches) -> Schedule:
        """Return the head phase's schedule over features ``[n, F]`` that the frozen body computes
        once, in evaluation mode."""
        passes = [self.network.body(params, batch.x, None) for batch in batches.all]
        if not passes:
            return batches.head
        labels = torch.cat([batch.y for batch in batches.all])
        return dataclasses.replace(batches.head, x=torch.cat(passes).detach(), y=labels)

    def train_head(self, params: Params, batches: Batches, solver: Solver) -> Params:
        """Return ``params`` with the head trained for the head phase's epochs; everything else is
        frozen."""
        head = {name: params[name] for name in HEAD}
        features = self.features(params, batches)
        return Params(params | self.minimize(head, features, self.head_loss, solver=solver)[0])

    def gradient(self, params: Tree, schedule: Schedule) -> Tree:
        """Return the gradient of the mean cross-entropy over the schedule's examples."""
        return solvers.gradient(params, schedule, self.loss)

    def fisher(self, params: Tree, schedule: Schedule) -> Tree:
        """Return the diagonal empirical Fisher information of ``log p(y | x; params)`` over the
        schedule's examples."""

        def log_likelihoods(tree: Tree, batch: Batch) -> Tensor:
            return -_cross_entropies(self.network.apply(tree, batch.x), batch.y)

        of = fisher.fisher if self.network.known_layers else fisher.one_by_one
        return of(params, schedule, log_likelihoods)

    def correct(self, params: Params, schedule: Schedule) -> Tensor:
        """Return how many of the schedule's examples are classified rightly; logits that are not
        finite are never right."""
        right = schedule.count.new_zeros(())
        for batch in schedule:
            logits = self.network.apply(params, batch.x)
            hit = (logits.argmax(-1) == batch.y) & logits.isfinite().all(-1)
            right = right + (hit if batch.valid is None else hit & batch.valid).sum()
        return right


def _cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each example ``[B]``, of ``logits [B, K]``.

    Under torch.func this is a fifth faster than F.cross_entropy, which goes through a decomposition
    in Python there.
    """
    # Torch takes the softmax of a row that is shorter than a vector register number by number: two
    # to six times as long as with the classes in front, a quarter of a step of a small network.
    axis = -2 if logits.shape[-1] < VECTOR else -1
    scores = logits.mT if axis == -2 else logits
    return -scores.log_softmax(axis).gather(axis, labels.unsqueeze(axis)).squeeze(axis)
