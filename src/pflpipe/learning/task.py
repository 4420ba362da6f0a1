"""The task: the part of a run that all clients share, and the functions that a method may call.

A method is written for ONE client. It receives parameters, the client's state and the client's
``Batches``. It never sees the client axis, the device, a random generator or the backend. The
solvers that it calls are those of the backend that runs it (clients.py).
"""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from pflpipe.errors import ConfigError
from pflpipe.learning import fisher, heads, losses, solvers
from pflpipe.learning.architectures import norm_names
from pflpipe.learning.losses import CROSS_ENTROPY
from pflpipe.learning.networks import HEAD, Network
from pflpipe.learning.solvers import Batch, Loss, Minimize, Objective, Schedule, Solver
from pflpipe.privacy.plan import Plan
from pflpipe.trees import AnyTree, Params, Tree

__all__ = ["HEAD", "Batch", "Batches", "Loss", "Objective", "Schedule", "Solver", "Task"]
"""What a method file imports."""

Transform = Callable[[Tensor, Tensor], Tensor]  # (x [B, ...], key []) -> x


@dataclass(frozen=True)
class Batches:
    """One client's examples and its schedules of minibatches.

    Attributes:
        n: number of training examples, a scalar tensor.
        train: E local epochs of minibatches.
        head: epochs of the head phase, for methods that have one. Its rows count the client's
            examples in the order of ``all``; use it through ``Task.features``.
        full: the pass that is read as ``all``; ``None`` if the method does not declare it.
    """

    n: Tensor
    train: Schedule
    head: Schedule
    full: Schedule | None

    @property
    def all(self) -> Schedule:
        """One ordered pass over the training examples.

        Raises:
            ConfigError: the method declares neither ``full_pass`` nor ``head_epochs``.
        """
        if self.full is None:
            do = "add full_pass=True to Method(...)"
            raise ConfigError("batches.all is for methods that declare it", do=do)
        return self.full

    @property
    def key(self) -> Tensor:
        """Key of the client's random numbers in this round, for the places ``counter_rng.OWN`` and
        above: that of its first step, or 0 for a client without steps.

        Like the order of its batches, it comes from the stream named by the round and the client.
        It shares nothing with the noise of a release.

        Raises:
            ConfigError: the method does not declare ``draws``, so there are no keys.
        """
        keys = self.train.keys
        if keys is None:
            do = "add draws=True to Method(...)"
            raise ConfigError("batches.key is for methods that declare it", do=do)
        return keys[0] if len(keys) else self.n.new_zeros(())


@dataclass(frozen=True)
class Task:
    """Network, loss, plan and solvers of a run, the same for all clients.

    Attributes:
        plan: sampling, clip, noise and rounds: public values.
        solver: the study's local optimizer.
        local_epochs: E, passes over a client's examples in one round.
        departures: names of the steps that the certified mechanism lacks.
        minimize_on: the backend's solver loop (``solvers.minimize_loop`` or
            ``solvers.minimize_functional``).
        augment: the training transforms of the study, or ``None``.
        precision: precision of matrix products, see cells.Training; only ``bf16`` changes the task.
        loss_function: the study's loss of one example (losses.py).
    """

    network: Network
    plan: Plan
    solver: Solver
    local_epochs: int
    departures: frozenset[str]
    minimize_on: Minimize
    augment: Transform | None = None
    precision: str = "float32"
    loss_function: losses.Loss = CROSS_ENTROPY

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
        """Names of all parameters except the head's: the feature extractor."""
        return tuple(name for name in self.network.shapes if name not in HEAD)

    @property
    def norm_names(self) -> tuple[str, ...]:
        """Names of the parameters of normalisation layers."""
        return norm_names(self.network.shapes)

    def loss(self, params: Tree, batch: Batch, *, dropout: bool = True) -> Tensor:
        """Return the mean loss over the real examples of a batch. A batch with a key has training
        transforms and, unless ``dropout`` is false, dropout."""
        return self.logits_loss(self.forward(params, batch, dropout=dropout)[1], batch)

    def forward(self, params: Tree, batch: Batch, *, dropout: bool = True) -> tuple[Tensor, Tensor]:
        """Return the features ``[B, F]`` and the logits ``[B, K]`` of a batch. A batch with a key
        has training transforms and, unless ``dropout`` is false, dropout."""
        x, key = batch.x, batch.key if dropout else None
        if not len(x):  # view(len(x), -1), say, fails in a network of the user's own
            outputs, features = params["head.weight"].shape
            return x.new_zeros(0, features), x.new_zeros(0, outputs)
        if batch.key is not None and self.augment is not None:
            x = self.augment(x, batch.key)
        precision = (
            torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False)
            if self.precision == "bf16"
            else contextlib.nullcontext()
        )
        with precision:
            z = self.network.body(params, x, key)
            logits = self.network.head(params, z)
        # Back to the dtype of the run: losses, gradients and updates never are bfloat16.
        return z.to(x.dtype), logits.to(x.dtype)

    def head_loss(self, head: Tree, batch: Batch) -> Tensor:
        """Return the mean loss of the linear head on a batch of ``features``."""
        return self.logits_loss(self.network.head(head, batch.x), batch)

    def logits_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss of ``logits [B, K]`` over the real examples of a batch."""
        if batch.valid is None and self.loss_function is CROSS_ENTROPY:
            return F.cross_entropy(logits, batch.y)
        return batch.mean(self.loss_function.of(logits, batch.y))

    def minimize(
        self,
        params: AnyTree,
        schedule: Schedule,
        *objectives: Loss | Objective,
        solver: Solver | None = None,
        names: Sequence[str] | None = None,
    ) -> tuple[AnyTree, Tensor]:
        """Return the end point of the schedule's steps from ``params``, and the mean value of the
        first objective.

        Args:
            params: start point, not modified.
            schedule: the examples of each step.
            objectives: losses ``(params, batch) -> scalar``, or ``Objective`` for a loss with a
                mask or a distance penalty. With several objectives each minibatch is used by every
                objective in turn; each has its own optimizer state.
            solver: optimizer, by default the study's.
            names: train only these parameters.
        """
        parts = [part if isinstance(part, Objective) else Objective(part) for part in objectives]
        end, value = self.minimize_on(params, schedule, parts, solver or self.solver, names)
        return cast(AnyTree, end), value

    def features(self, params: Params, batches: Batches) -> Schedule:
        """Return the head phase's schedule over features ``[n, F]``, which the frozen body computes
        once, in evaluation mode."""
        if not len(batches.all):
            return batches.head
        params = self.for_tests(params, batches)
        passes = [self.network.body(params, batch.x, None) for batch in batches.all]
        labels = torch.cat([batch.y for batch in batches.all])
        return dataclasses.replace(batches.head, x=torch.cat(passes).detach(), y=labels)

    def for_tests(self, params: Params, batches: Batches) -> Params:
        """Return the parameters with which the network computes a client's examples in evaluation:
        of a network with BatchNorm with the averages of its training rows."""
        if self.network.averages is None:
            return params
        return Params(params | self.network.averages(params, batches.all))

    def train_head(self, params: Params, batches: Batches, solver: Solver) -> Params:
        """Return ``params`` with the head trained for the epochs of the head phase, or solved
        exactly (heads.py), and all other parameters unchanged. Without rows the head stays."""
        head = {name: params[name] for name in HEAD}
        features = self.features(params, batches)
        if solver.optimizer in heads.EXACT and len(batches.all):
            solve = heads.ridge if solver.optimizer == "ridge" else heads.newton
            classes, penalty = len(head["head.bias"]), solver.weight_decay
            return Params(params | solve(features.x, features.y, batches.n, classes, penalty))
        return Params(params | self.minimize(head, features, self.head_loss, solver=solver)[0])

    def gradient(self, params: Tree, schedule: Schedule) -> Tree:
        """Return the gradient of the mean loss over the schedule's examples."""
        return solvers.gradient(params, schedule, self.loss)

    def fisher(self, params: Tree, schedule: Schedule) -> Tree:
        """Return the diagonal empirical Fisher information of ``log p(y | x; params)``, which is
        minus the loss, over the schedule's examples."""

        def log_likelihoods(tree: Tree, batch: Batch) -> Tensor:
            return -self.loss_function.of(self.network.apply(tree, batch.x), batch.y)

        compute = fisher.fisher if self.network.known_layers else fisher.one_by_one
        return compute(params, schedule, log_likelihoods)

    def score(self, params: Params, schedule: Schedule) -> Tensor:
        """Return the sum over the schedule's examples of the metric of the loss: 1 for an example
        that is classified correctly, int64, or its error, float64. An output that is not finite is
        never correct, and its error is infinite."""
        total = schedule.count.new_zeros(())
        for batch in schedule:
            outputs = self.network.apply(params, batch.x)
            is_finite = outputs.isfinite().all(-1)
            if self.loss_function.numbers:
                error = losses.ERRORS[self.loss_function.metric](outputs.double(), batch.y.double())
                each = error.where(is_finite, torch.inf)
            else:
                one_logit = self.loss_function.one_logit
                guess = outputs.squeeze(-1) > 0 if one_logit else outputs.argmax(-1)
                each = ((guess == batch.y) & is_finite).long()
            total = total + (each if batch.valid is None else each.where(batch.valid, 0)).sum()
        return total

    def logits(self, params: Params, schedule: Schedule, rows: int) -> Tensor:
        """Return the logits ``[rows, K]`` of the examples of one pass, in order; rows after the
        last example are arbitrary."""
        nothing = params["head.weight"].new_zeros(0, params["head.weight"].shape[0])
        found = torch.cat([nothing, *(self.network.apply(params, batch.x) for batch in schedule)])
        return F.pad(found[:rows], (0, 0, 0, max(rows - len(found), 0)))
