"""A simulation: one cell with its data on a device and every client's schedules, which are drawn
from named streams."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from pflpipe import cells, trees
from pflpipe.code import dependencies, guard
from pflpipe.code.dependencies import Dependency
from pflpipe.data.split import Split
from pflpipe.errors import ConfigError, PrivacyError
from pflpipe.learning.gradients import saved_bytes
from pflpipe.learning.losses import Loss, find
from pflpipe.learning.networks import Network
from pflpipe.learning.solvers import Batch, Schedule, Solver
from pflpipe.learning.task import Batches, Task, Transform
from pflpipe.methods.base import Method
from pflpipe.privacy import adaptive, mechanism, secure
from pflpipe.privacy.correlated import Correlated, Drawn
from pflpipe.privacy.mechanism import Released
from pflpipe.privacy.plan import Plan
from pflpipe.seeds import numpy_rng, release_rng
from pflpipe.simulation.clients import (
    PLACES,
    PLACES_UNREVIEWED,
    Backend,
    Engine,
    Examples,
    Rows,
    Work,
    for_each_client,
    least_rows,
    minimizer,
    untouched,
)
from pflpipe.simulation.processes import ALONE, Processes
from pflpipe.simulation.states import States
from pflpipe.trees import ClientState, Tensors, Tree, Update

# Batch size of the full pass, whose per-example gradients (Fisher information) or features are held
# in memory at once.
EXAMPLES_OF_FULL_PASS = 32
# Batch size of evaluation: measured as the fastest for the papers' networks on a CPU.
EXAMPLES_AT_ONCE = 256

# Largest number of clients whose schedules are kept for further rounds, at some kB each.
SCHEDULES_KEPT = 2**14

SEEN_BY_METHODS = ("train", "head", "all")


def batches(n: Tensor, schedules: Mapping[str, Schedule]) -> Batches:
    """Return the batches that a method receives for a client with n training examples, from the
    schedules of ``Simulation.work``."""
    # The rows of the head phase index features that do not exist yet, so it holds no data.
    head = schedules["head"]
    head = dataclasses.replace(head, x=head.x[:0], y=head.y[:0])
    return Batches(n, schedules["train"], head, schedules.get("all"))


@dataclass(frozen=True)
class Recipe:
    """What a fresh process makes a method and a network of (witness.py).

    Attributes:
        method, source, hyperparameters: name, place and settings of a method (registry.py).
        model: the settings of a network.
        server: the server optimizer.
        objects: instead of ``method`` or ``model``, the objects of these names of the program that
            calls, ``witness.pickled``, as they were before anything called them.
    """

    server: cells.Server
    method: str = ""
    source: str = ""
    hyperparameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    model: cells.Model | None = None
    objects: bytes = b""


@dataclass(frozen=True)
class Simulation:
    """One cell with its method, network, plan and the clients' data on a device.

    Attributes:
        seed: names the streams that all runs of a seed share (seeds.py).
        key: names the streams of this run alone, its cohorts and its noise.
        processes: the processes that share the clients of every round.
        release: ``mechanism.release``. An attack replaces it by a function around it, which sees
            every release (attacks/).
        name: name of the method, for errors.
        code: the parts from outside the package.
        recipe: for a private run with code from outside the package.
        scale: mean and standard deviation of ``datasets.normalise``.
        loss: that of ``training.loss``, if it is found already.
        has_global_model: whether the method makes a model for everybody.
    """

    method: Method
    network: Network
    plan: Plan
    training: cells.Training
    departures: frozenset[str]
    split: Split
    train: Examples
    test: Examples
    seed: int
    key: str
    backend: Backend
    dtype: torch.dtype = torch.float32
    augment: Transform | None = None
    processes: Processes = ALONE
    release: Callable[..., Released] = mechanism.release
    name: str = ""
    code: tuple[Dependency, ...] = ()
    recipe: Recipe | None = None
    scale: tuple[Sequence[float], Sequence[float]] = ((), ())
    loss: Loss | None = None
    has_global_model: bool = True

    @property
    def reviewed(self) -> bool:
        """Whether all code that may touch a message belongs to the package."""
        return not dependencies.unreviewed(self.code)

    @contextlib.contextmanager
    def calls(self, hook: str, *given: Tensors) -> Iterator[str]:
        """Call one of the method's hooks in the block, which receives its name for errors.

        Raises:
            PrivacyError: it changes what it is ``given`` in place (``untouched``), or uses a tensor
                of an earlier call.
            ConfigError: it ends the program.
        """
        name = f"method {self.name}: hook {hook}"
        try:
            with guard.restored(), guard.without_kept_tensors(name), untouched(name, *given):
                yield name
        except SystemExit as end:
            raise ConfigError(f"{name}: {guard.described(end)}") from end

    @property
    def task(self) -> Task:
        """The task of the first round."""
        return self.task_in(0)

    def task_in(self, round: int, bound: float | None = None) -> Task:
        """Return the task of a round, which is counted from 0. The round determines the learning
        rate, and the plan is that of the round's updates.

        Args:
            bound: C_t of an adaptive plan; None for that of the first round.
        """
        training = self.training
        lr = training.lr * training.lr_decay**round
        solver = Solver(training.optimizer, lr, training.momentum, training.weight_decay)
        plan, minimize = adaptive.of_updates(self.plan, bound), minimizer(self.backend)
        public = self.network, plan, solver, training.local_epochs, self.departures
        return Task(*public, minimize, self.augment, training.precision, self.loss_function)

    @cached_property
    def loss_function(self) -> Loss:
        """The loss of one example."""
        return self.loss or find(self.training.loss)

    @cached_property
    def correlated(self) -> Correlated:
        """The noise of a plan with a band."""
        generator_of = functools.partial(release_rng, self.key, "noise")
        return Correlated(generator_of, self.plan.noise_law)

    def fresh(self, round: int, update: Tree) -> Drawn:
        """Return the secure noise of a round, counted from 0, for an update ``[K, *shape]``. The
        first process draws it for all.

        Raises:
            PrivacyError: it was drawn before: another draw would be a second release.
        """
        assert self.plan.grid is not None
        what, do = f"round {round + 1}: secure noise", "a new run costs its epsilon again"
        PrivacyError.unless(round not in self._drawn, what, "drawn before", "one draw", do)
        self._drawn.add(round)
        numbers = torch.zeros(sum(rows[0].numel() for rows in update.values()), dtype=torch.int64)
        if self.processes.is_first:
            numbers = torch.from_numpy(secure.draw(self.plan.grid.scale, len(numbers)))
        return secure.drawn(self.processes.from_first(numbers).numpy())

    @cached_property
    def _drawn(self) -> set[int]:
        return set()

    @cached_property
    def least_rows(self) -> int:
        """The least padded number of rows of a client under vmap; public."""
        return least_rows(self.network.parameters, self.plan.expected_cohort)

    @property
    def engine(self) -> Engine:
        """The settings of ``for_each_client``."""
        cohort = self.plan.expected_cohort / self.processes.size
        places = PLACES if self.reviewed else PLACES_UNREVIEWED
        sizes = self.network.parameters, cohort, places
        return Engine(self.backend, *sizes, self.processes, lambda: self.example_bytes)

    @cached_property
    def keeps_apart(self) -> bool:
        """Whether on this machine, under vmap, the bits of a client are independent of its place in
        a group and of the other clients.

        It is tested with random rows of the same shape: some clients train among others, at other
        places, in groups of other sizes, and alone, as in isolation.py. The kernels of some
        convolutions depend on the size of a group, most of all for the smallest groups.
        """
        count, size = 16, self.least_rows
        x, network = self.train.x, self.network
        generator = torch.Generator().manual_seed(0)
        shape, classes = (count * size, *x.shape[1:]), network.shapes["head.weight"][0]
        # Random examples and not the clients': the choice of the backend is public.
        # Below 1: a network of tokens may take each for the index 0.
        inputs = torch.rand(shape, generator=generator, dtype=x.dtype)
        labels = torch.randint(classes, shape[:1], generator=generator)
        if self.loss_function.numbers:
            labels = torch.randn(shape[0], classes, generator=generator, dtype=x.dtype)
        examples = Examples(inputs.to(x.device), labels.to(x.device))
        params = {name: v.to(x.device) for name, v in network.init(generator, self.dtype).items()}
        task = dataclasses.replace(self.task, minimize_on=minimizer("vmap"))
        engine = dataclasses.replace(self.engine, backend="vmap", processes=ALONE)

        def trained(clients: Sequence[int]) -> Tree:
            rows = [np.arange(size * client, size * (client + 1)) for client in clients]
            work = [{"train": Rows.epochs(indices, 2, 0, least=size)} for indices in rows]
            results: Tree = for_each_client(
                lambda _, schedules, n: task.minimize(params, schedules["train"], task.loss)[0],
                lambda _: ClientState({}),
                work,
                [size] * len(clients),
                {"train": examples},
                engine,
            )
            return results

        among = trained(range(count))
        sample = list(range(3, count, 3))[::-1]
        return all(
            trees.same_bits(among[name][group], apart[name])
            for group in (sample, sample[:2], sample[:1])
            for apart in [trained(group)]
            for name in self.network.shapes
        )

    @guard.restored()  # the user's network is called
    @guard.without_kept_tensors("loss or network of your own")
    def isolated(self, asked: str) -> Simulation:
        """Return the simulation on a backend that keeps clients apart, if it releases with noise,
        and that has no padded rows, if the network averages over a batch.

        Args:
            asked: the requested backend.

        Raises:
            ConfigError: vmap was requested by name and is not such a backend.
            PrivacyError: code from outside uses a tensor of an earlier call.
        """
        if self.backend != "vmap":
            return self
        expected = "loop, as BatchNorm would average over the rows that pad a batch under vmap"
        if self.network.averages is None:
            if self.plan.mechanism == "none" or self.keeps_apart:
                return self
            expected = (
                "a backend that keeps clients apart; on this machine a client's rounding under"
                " vmap depends on other clients"
            )
        if asked == "auto":
            return dataclasses.replace(self, backend="loop")
        do = "use backend: auto or loop"
        raise ConfigError("config.yaml: backend", got="vmap", expected=expected, do=do)

    @cached_property
    def example_bytes(self) -> int:
        """Bytes that autograd keeps between the passes for one more example of a client, measured
        for two clients under vmap."""
        params, x = self.network.init(torch.Generator(), self.dtype), self.train.x
        points = [value.to(x.device).expand(2, *value.shape).clone() for value in params.values()]

        def loss(x: Tensor, y: Tensor, *values: Tensor) -> Tensor:
            return self.task.loss(dict(zip(params, values, strict=True)), Batch(x, y))

        def losses(*tensors: Tensor) -> tuple[Tensor]:
            return (vmap(loss)(*tensors[-2:], *tensors[:-2]),)

        def kept(count: int) -> int:
            y = self.train.y
            data = x.new_zeros(2, count, *x.shape[1:]), y.new_zeros(2, count, *y.shape[1:])
            return saved_bytes(losses, points, *data)

        # Two clients with two more examples each; the difference cancels the fixed part.
        return (kept(3) - kept(1)) // 4

    @cached_property
    def draws(self) -> bool:
        """Whether steps need keys: for transforms, dropout, or random numbers of a client."""
        return self.augment is not None or self.network.keyed or self.method.draws

    @cached_property
    def _undrawn(self) -> dict[int, dict[str, Rows]]:
        """Client -> schedules without random numbers, which are the same in every round."""
        return {}

    def work(self, client: int, round: int) -> dict[str, Rows]:
        """Return one client's schedules of one round, drawn from the stream named by round and
        client."""
        is_shuffled = 0 < self.training.batch_size < len(self.split.train[client])
        if not is_shuffled and not self.draws:
            work = self._undrawn.get(client) or self._schedules(client, None, None)
            if len(self._undrawn) < SCHEDULES_KEPT:
                self._undrawn[client] = work
            return work
        # Only if needed: creating a generator takes as long as a schedule.
        head = is_shuffled and self.method.head_epochs
        stream = numpy_rng(self.seed, "batches", "train", round, client)
        heads = numpy_rng(self.seed, "batches", "head", round, client) if head else None
        return self._schedules(client, stream, heads)

    def _schedules(
        self, client: int, stream: np.random.Generator | None, head: np.random.Generator | None
    ) -> dict[str, Rows]:
        """Return one client's schedules, with the batches of training and of the head phase drawn
        from these streams."""
        rows, size, method = self.split.train[client], self.training.batch_size, self.method
        least, drop_last = self.least_rows, self.training.drop_last
        cut, length = (
            (Rows.steps, method.local_steps)
            if method.local_steps
            else (Rows.epochs, self.training.local_epochs)
        )
        train = cut(rows, length, size, stream, drop_last=drop_last, least=least)
        work = {
            "train": train.keyed(stream) if self.draws and stream is not None else train,
            "head": Rows.epochs(rows, method.head_epochs, size, head, least=least),
        }
        if method.full_pass or method.head_epochs or self.network.averages:
            work["all"] = Rows.epochs(rows, 1, EXAMPLES_OF_FULL_PASS, least=least)
        return work

    def in_order(self, rows: np.ndarray) -> Rows:
        """Return one ordered pass over some of a client's rows, for evaluation."""
        return Rows.epochs(rows, 1, EXAMPLES_AT_ONCE, least=self.least_rows)

    def examples(self, name: str) -> Examples:
        """Return the data into which a client's rows of this name point: ``own`` is its own test,
        ``new`` that of a client who took no part."""
        is_test = name in ("own", "new") and not self.split.own_from_train
        return self.test if is_test else self.train

    def run_clients(
        self,
        hook: Callable[[ClientState, Batches, Mapping[str, Schedule]], Any],
        states: States | None,
        clients: Sequence[int],
        work: Sequence[Work],
        what: str = "hook",
    ) -> Any:
        """Return ``hook(state, batches, others)`` of K clients, stacked ``[K, ...]``.

        Args:
            hook: ``others`` holds the schedules that a method must not see, such as test rows.
            states: states of all clients, read for these clients only; ``None`` gives each an empty
                state.
            clients: indices of the K clients.
            work: their schedules.
            what: name of the hook, for errors.
        """
        sources = {name: self.examples(name) for name in work[0]}
        sizes = [len(self.split.train[client]) for client in clients]

        def one(state: ClientState, schedules: dict[str, Schedule], n: Tensor) -> Any:
            others = {name: one for name, one in schedules.items() if name not in SEEN_BY_METHODS}
            return hook(state, batches(n, schedules), others)

        def states_of(indices: Sequence[int]) -> ClientState:
            if states is None:
                return ClientState({})
            return ClientState(states.of([clients[index] for index in indices]))

        return for_each_client(one, states_of, work, sizes, sources, self.engine, what)

    def absorb(self, states: Tree, messages: Tree) -> Tree:
        """Return the clients' states after each has seen its own noised message, both stacked
        ``[K, ...]``."""
        hook = self.method.absorb
        if hook is None or not messages:
            return states
        new = []
        for client in range(len(next(iter(messages.values())))):
            state = ClientState({name: value[client] for name, value in states.items()})
            message = Update({name: value[client] for name, value in messages.items()})
            with self.calls("absorb", state, message):
                new.append(hook(state, message, self.task))
        return {name: torch.stack([state[name] for state in new]) for name in states}
