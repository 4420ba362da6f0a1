"""A simulation: one cell made concrete, with its data on a device and every client's schedules
drawn from named streams."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from pflpipe import cells, trees
from pflpipe.data.partition import Split
from pflpipe.errors import ConfigError
from pflpipe.learning.gradients import saved_bytes
from pflpipe.learning.networks import Network
from pflpipe.learning.solvers import Batch, Schedule, Solver
from pflpipe.learning.task import Batches, Task, Transform
from pflpipe.methods.base import Method
from pflpipe.privacy import adaptive, mechanism
from pflpipe.privacy.mechanism import Released
from pflpipe.privacy.plan import Plan
from pflpipe.seeds import numpy_rng
from pflpipe.simulation.clients import (
    PLACES,
    PLACES_UNREVIEWED,
    Backend,
    Engine,
    Examples,
    Rows,
    for_each_client,
    least_rows,
    minimizer,
)
from pflpipe.simulation.processes import ALONE, Processes
from pflpipe.simulation.server_check import ServerCheck
from pflpipe.simulation.states import States
from pflpipe.trees import ClientState, Tree, Update

# Examples of the full pass whose separate gradients (Fisher information) or features are held at
# once.
EXAMPLES_OF_FULL_PASS = 32
# Examples classified at once: measured best for the papers' networks on a CPU.
EXAMPLES_AT_ONCE = 256

SEEN_BY_METHODS = ("train", "head", "all")


def batches(n: Tensor, schedules: Mapping[str, Schedule]) -> Batches:
    """Return what a method sees of a client with n training examples; its schedules are those of
    ``Simulation.work``."""
    train, head, all = (schedules[name] for name in SEEN_BY_METHODS)
    # The head phase's rows count features that do not exist yet, so it is given no data at all.
    return Batches(n, train, dataclasses.replace(head, x=head.x[:0], y=head.y[:0]), all)


@dataclass(frozen=True)
class Simulation:
    """One cell, made concrete: the method, the network, the plan and the clients' data on a device.

    ``seed`` names what all runs of a seed share, ``key`` what this run alone draws: its cohorts and
    its noise (seeds.py). ``processes`` share the clients of every round.
    ``release`` is mechanism.release; an attack wraps it to see what the world sees (attacks/).
    ``name`` is the method's, for errors; ``reviewed`` says that method and network are the
    package's own. A method in a file from outside has a ``server_check``.
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
    reviewed: bool = True
    server_check: ServerCheck | None = None

    def named(self, hook: str) -> str:
        """Return what an error calls one of the method's hooks."""
        return f"method {self.name}: hook {hook}"

    @property
    def task(self) -> Task:
        """What all clients share in the first round."""
        return self.task_in(0)

    def task_in(self, round: int, bound: float | None = None) -> Task:
        """Return what all clients share in a round, counted from 0, from which its learning rate
        may follow; its plan is that of the round's updates.

        Args:
            bound: C_t of an adaptive plan; None for that of the first round.
        """
        training = self.training
        lr = training.lr * training.lr_decay**round
        solver = Solver(training.optimizer, lr, training.momentum, training.weight_decay)
        minimize = minimizer(self.backend)
        return Task(
            self.network,
            adaptive.of_updates(self.plan, bound),
            solver,
            training.local_epochs,
            self.departures,
            minimize,
            self.augment,
            training.precision,
        )

    @cached_property
    def least_rows(self) -> int:
        """The least number of rows to which a client's data are padded under vmap; public."""
        return least_rows(self.network.parameters, self.plan.expected_cohort)

    @property
    def engine(self) -> Engine:
        """How the clients are computed."""
        return Engine(
            self.backend,
            self.network.parameters,
            self.plan.expected_cohort / self.processes.size,
            PLACES if self.reviewed else PLACES_UNREVIEWED,
            self.processes,
            lambda: self.example_bytes,
        )

    @cached_property
    def keeps_apart(self) -> bool:
        """Whether on this machine, under vmap, the bits of a client follow neither from its place
        in a group nor from who else is there.

        Tried with invented rows of the same shape: some clients train among others, at other
        places, in groups of other sizes, and alone, as isolation.py computes them again. The
        kernels of some convolutions follow from the size of a group, the smallest above all.
        """
        count, size = 16, self.least_rows
        x, network = self.train.x, self.network
        draw = torch.Generator().manual_seed(0)
        invented = Examples(
            torch.randn(count * size, *x.shape[1:], generator=draw, dtype=x.dtype).to(x.device),
            torch.randint(network.shapes["head.weight"][0], (count * size,), generator=draw).to(
                x.device
            ),
        )
        params = {name: v.to(x.device) for name, v in network.init(draw, self.dtype).items()}
        task = dataclasses.replace(self.task, minimize_on=minimizer("vmap"))
        engine = dataclasses.replace(self.engine, backend="vmap", processes=ALONE)

        def trained(clients: Sequence[int]) -> Tree:
            rows = [np.arange(size * client, size * (client + 1)) for client in clients]
            work = [{"train": Rows.epochs(own, 2, 0, least=size)} for own in rows]
            found: Tree = for_each_client(
                lambda _, schedules, n: task.minimize(params, schedules["train"], task.loss)[0],
                lambda _: ClientState({}),
                work,
                [size] * len(clients),
                {"train": invented},
                engine,
            )
            return found

        among = trained(range(count))
        some = list(range(3, count, 3))[::-1]
        return all(
            trees.same_bits(among[name][group], apart[name])
            for group in (some, some[:2], some[:1])
            for apart in [trained(group)]
            for name in self.network.shapes
        )

    def isolated(self, asked: str) -> Simulation:
        """Return the simulation on a backend that keeps clients apart, if its release is certified.

        Args:
            asked: the backend that was asked for.

        Raises:
            ConfigError: vmap was asked for by name where it does not.
        """
        certified = self.plan.mechanism != "none" and not self.departures
        if self.backend != "vmap" or not certified or self.keeps_apart:
            return self
        if asked == "auto":
            return dataclasses.replace(self, backend="loop")
        raise ConfigError(
            "config.yaml: backend",
            got="vmap",
            expected="a backend that keeps clients apart; on this machine a client's rounding under"
            " vmap follows from other clients",
            do="use backend: auto or loop",
        )

    @cached_property
    def example_bytes(self) -> int:
        """Bytes that autograd keeps between the passes for one more example of a client, as
        measured for two under vmap."""
        params, x = self.network.init(torch.Generator(), self.dtype), self.train.x
        points = [value.to(x.device).expand(2, *value.shape).clone() for value in params.values()]

        def loss(x: Tensor, y: Tensor, *values: Tensor) -> Tensor:
            return self.task.loss(dict(zip(params, values, strict=True)), Batch(x, y))

        def losses(*tensors: Tensor) -> tuple[Tensor]:
            return (vmap(loss)(*tensors[-2:], *tensors[:-2]),)

        few, more = (
            saved_bytes(
                losses,
                points,
                x.new_zeros(2, count, *x.shape[1:]),
                self.train.y.new_zeros(2, count),
            )
            for count in (1, 3)
        )
        return (more - few) // 4

    @cached_property
    def draws(self) -> bool:
        """Whether steps need keys: for transforms, dropout, or what a client draws for itself."""
        return self.augment is not None or self.network.keyed or self.method.draws

    @cached_property
    def _undrawn(self) -> dict[int, dict[str, Rows]]:
        """Client -> schedules in which nothing is drawn, so that every round has the same."""
        return {}

    def work(self, client: int, round: int) -> dict[str, Rows]:
        """Return one client's schedules of one round, drawn from the stream named by round and
        client."""
        is_shuffled = 0 < self.training.batch_size < len(self.split.train[client])
        if not is_shuffled and not self.draws:
            if client not in self._undrawn:
                self._undrawn[client] = self._schedules(client, None, None)
            return self._undrawn[client]
        # A generator takes as long to make as a schedule.
        head = is_shuffled and self.method.head_epochs
        return self._schedules(
            client,
            numpy_rng(self.seed, "batches", "train", round, client),
            numpy_rng(self.seed, "batches", "head", round, client) if head else None,
        )

    def _schedules(
        self, client: int, stream: np.random.Generator | None, head: np.random.Generator | None
    ) -> dict[str, Rows]:
        """Return one client's schedules, the batches of training and of the head phase drawn from
        these streams.

        The head phase works on features that are computed in the order of ``all``.
        """
        own, size, method = self.split.train[client], self.training.batch_size, self.method
        least, drop_last = self.least_rows, self.training.drop_last
        cut, length = (
            (Rows.steps, method.local_steps)
            if method.local_steps
            else (Rows.epochs, self.training.local_epochs)
        )
        train = cut(own, length, size, stream, drop_last=drop_last, least=least)
        passes = int(method.full_pass or method.head_epochs > 0)
        return {
            "train": train.keyed(stream) if self.draws and stream is not None else train,
            "head": Rows.epochs(own, method.head_epochs, size, head, least=least),
            "all": Rows.epochs(own, passes, EXAMPLES_OF_FULL_PASS, least=least),
        }

    def in_order(self, own: np.ndarray) -> Rows:
        """Return one ordered pass over some of a client's rows, for evaluation."""
        return Rows.epochs(own, 1, EXAMPLES_AT_ONCE, least=self.least_rows)

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
        work: Sequence[Mapping[str, Rows]],
        what: str = "hook",
    ) -> Any:
        """Run ``hook(state, batches, others)`` for clients whose schedules are ``work``, and stack
        the results ``[K, ...]``.

        ``states`` are those of all clients, of which only the wanted ones are read; ``None`` gives
        each an empty state. ``others`` holds the schedules that a method must not see (a client's
        own test and validation). ``what`` names the hook in an error.
        """
        sources = {name: self.examples(name) for name in work[0]}
        sizes = [len(self.split.train[client]) for client in clients]

        def one(state: ClientState, schedules: dict[str, Schedule], n: Tensor) -> Any:
            others = {
                name: schedule
                for name, schedule in schedules.items()
                if name not in SEEN_BY_METHODS
            }
            return hook(state, batches(n, schedules), others)

        def states_of(indices: Sequence[int]) -> ClientState:
            if states is None:
                return ClientState({})
            return ClientState(states.of([clients[index] for index in indices]))

        return for_each_client(one, states_of, work, sizes, sources, self.engine, what)

    def absorb(self, states: Tree, messages: Tree) -> Tree:
        """Show clients their own noised messages, both stacked ``[M, ...]``, and return their new
        states."""
        hook = self.method.absorb
        if hook is None or not messages:
            return states
        pairs = [
            (
                ClientState({name: value[client] for name, value in states.items()}),
                Update({name: value[client] for name, value in messages.items()}),
            )
            for client in range(len(next(iter(messages.values()))))
        ]
        new = [hook(state, message, self.task) for state, message in pairs]
        return {name: torch.stack([state[name] for state in new]) for name in states}
