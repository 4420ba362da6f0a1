"""for_each_client: the only file that knows how clients are batched or spread.

The same hook runs as a plain loop over clients or under ``torch.func.vmap`` over groups of clients;
ragged clients are padded and masked so that padding changes nothing. (The
one-contract-several-backends shape is FedJAX's ``for_each_client``.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from pflpipe.errors import ConfigError
from pflpipe.learning import solvers
from pflpipe.learning.solvers import Minimize, Schedule
from pflpipe.simulation.processes import ALONE, Processes
from pflpipe.trees import ClientState

Backend = Literal["loop", "vmap", "graphs"]
Hook = Callable[[ClientState, dict[str, Schedule], Tensor], Any]

# Under vmap a step of all clients costs a few kernels, in a loop a few for each client; above this
# many parameters the arithmetic, not the overhead, is what the device waits for, and the loop's
# layout wins. Measured: on an H100 vmap is 3 to 13 times as fast for networks of .3 million
# parameters, 0.7 to 2.1 times for ResNet18 (11 million); the border between them is a guess. On a
# CPU it takes 0.3 to 0.9 of the loop's time for a perceptron of 50,000 parameters, 0.4 to 1.1 of it
# for one of 100,000 (bench_rounds.py backends), and 1.8 times as long for convolutions.
VMAP_PARAMETERS = {"cpu": 60_000, "cuda": 4_000_000}
# Floats that one group of clients on a CPU may hold as parameters, gradients, moments and results;
# activations come on top.
GROUP_FLOATS = 2**26
# A group on a GPU: the part of the free memory to plan with, since the rest goes to fragments and
# libraries; copies of the parameters (float32) that a client of the group holds in a step, and that
# a client of the cohort holds from then until all results are joined; and bytes that a step takes
# for each byte that autograd keeps between its passes. On an H100 groups took half of what was
# planned for them; larger groups were no faster (docs/benchmarks.md).
PLANNED, HELD, RESULTS, PASSES = 0.8, 12, 6, 2
# What a step of a group costs on a CPU, measured on small networks, in the time that one example
# takes per parameter: so much whoever is in the group, and so much for each client besides its
# examples (moving the parameters).
GROUP_STEP, CLIENT_STEP = 2**22, 2**5


def minimizer(backend: Backend) -> Minimize:
    """Return the solver loop that runs under this backend."""
    if backend == "vmap":
        return solvers.minimize_functional
    if backend == "loop":
        return solvers.minimize_loop
    return functools.partial(solvers.minimize_loop, recorded=True)


def device_of(asked: str) -> torch.device:
    """Return the device for ``asked``: ``cpu``, ``cuda``, ``cuda:<index>``, or ``auto``, a GPU when
    there is one."""
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(asked)


def choose_backend(asked: str, device: str, parameters: int) -> Backend:
    """Return the backend for ``asked``.

    Args:
        asked: ``loop`` or ``vmap``; ``graphs``, the loop with recorded steps, which nobody gets who
            does not ask for it; or ``auto``.
        device: ``cpu`` or ``cuda``.
        parameters: scalars of one client's model.

    Raises:
        ConfigError: graphs are asked for where there is no GPU.
    """
    if asked == "graphs":
        if device != "cuda":
            raise ConfigError(
                "config.yaml: backend",
                got="graphs",
                expected="a GPU, which alone records CUDA graphs",
                do="use backend: auto, loop or vmap",
            )
        return "graphs"
    if asked == "auto":
        return "vmap" if parameters <= VMAP_PARAMETERS[device] else "loop"
    return "loop" if asked == "loop" else "vmap"


@dataclass(frozen=True)
class Rows:
    """One client's schedule on the host: ``index`` int64 ``[S, B]``, ``count`` int64 ``[S]`` (real
    rows of each step) and ``keys`` int64 ``[S]`` for the steps' dropout and transforms (``None``
    where nothing is random).
    """

    index: np.ndarray
    count: np.ndarray
    keys: np.ndarray | None = None

    @classmethod
    def epochs(
        cls,
        rows: np.ndarray,
        epochs: int,
        batch_size: int,
        rng: np.random.Generator | None = None,
        *,
        drop_last: bool = False,
    ) -> Rows:
        """Cut ``epochs`` passes over ``rows`` into steps, shuffled anew in each pass when ``rng``
        is given.

        The last step of a pass may be smaller; ``drop_last`` leaves it out then. ``batch_size=0``
        takes all rows in every step. A padded place repeats one of the client's own rows. A client
        without rows has no steps.
        """
        if not len(rows) or not epochs:
            return cls(np.zeros((0, 1), np.int64), np.zeros(0, np.int64))
        width = min(batch_size or len(rows), len(rows))
        steps = -(-len(rows) // width)
        index = np.full((epochs, steps * width), rows[0], np.int64)
        index[:, : len(rows)] = rows
        if rng is not None and steps > 1:
            for epoch in range(epochs):
                index[epoch, : len(rows)] = rng.permutation(rows)
        count = np.full((epochs, steps), width, np.int64)
        count[:, -1] = len(rows) - (steps - 1) * width
        whole = cls(index.reshape(-1, width), count.reshape(-1))
        return whole._where(whole.count == batch_size) if drop_last and batch_size else whole

    @classmethod
    def steps(
        cls,
        rows: np.ndarray,
        steps: int,
        batch_size: int,
        rng: np.random.Generator | None = None,
        *,
        drop_last: bool = False,
    ) -> Rows:
        """Cut so many steps from as many passes over ``rows`` as they take, the last one left
        unfinished."""
        each = len(cls.epochs(rows, 1, batch_size, drop_last=drop_last).count)
        passes = -(-steps // max(each, 1))
        found = cls.epochs(rows, passes, batch_size, rng, drop_last=drop_last)
        return found._where(np.arange(len(found.count)) < steps)

    def _where(self, kept: np.ndarray) -> Rows:
        return replace(self, index=self.index[kept], count=self.count[kept])

    def keyed(self, rng: np.random.Generator) -> Rows:
        """Return the same schedule with a key for each step."""
        return replace(self, keys=rng.integers(0, 2**31, len(self.count)))


@dataclass(frozen=True)
class Examples:
    """Examples of all clients on the device: ``x [N, ...]`` and ``y [N]``."""

    x: Tensor
    y: Tensor

    def schedule(self, rows: Rows) -> Schedule:
        """Return a schedule with true batch sizes, for one client or for rows that all clients
        share."""
        index = torch.from_numpy(rows.index).to(self.x.device)
        count = torch.from_numpy(rows.count).to(self.x.device)
        keys = None if rows.keys is None else torch.from_numpy(rows.keys).to(self.x.device)
        return Schedule(self.x, self.y, index, count, tuple(rows.count.tolist()), keys)


def for_each_client(
    hook: Hook,
    states: Callable[[Sequence[int]], ClientState],
    work: Sequence[Mapping[str, Rows]],
    sizes: Sequence[int],
    examples: Mapping[str, Examples],
    backend: Backend,
    parameters: int,
    processes: Processes = ALONE,
    example_bytes: Callable[[], int] = lambda: 0,
) -> Any:
    """Run ``hook(state, schedules, n)`` for every client and stack what it returns along a new
    leading axis.

    Args:
        hook: pure function of one client; returns tensors in nested dicts and tuples, the same
            structure for each client.
        states: ``[places in work] -> stacked states [K, ...]``, asked for the clients that run
            next; may be empty trees.
        work: for each client its named schedules; all clients have the same names.
        sizes: n, the number of training examples of each client.
        examples: for each schedule's name the data it points into.
        backend: ``vmap`` runs groups of clients, ``loop`` and ``graphs`` one after the other.
        parameters: scalars of one client's model, from which the size of a group follows.
        processes: share the clients; each of them gets all results.
        example_bytes: measures what autograd keeps of one client's example between the passes; only
            called on a GPU.

    Raises:
        ValueError: there is no client, so that nothing could be stacked.
        RuntimeError: a hook under vmap branches on data; the message says what to use instead.
        torch.cuda.OutOfMemoryError: the GPU's memory is too small for one client.
    """
    if not work:
        raise ValueError("Expected at least one client, got none.")
    device = next(iter(examples.values())).x.device
    shares = processes.shares([sum(part.index.size for part in parts.values()) for parts in work])
    own = shares[processes.rank] or [
        0
    ]  # a process without clients computes one for the shapes alone

    def run(group: Sequence[int]) -> Any:
        chosen = [own[i] for i in group]
        if backend == "vmap":
            return _vmapped(
                hook,
                states(chosen),
                [work[i] for i in chosen],
                [sizes[i] for i in chosen],
                examples,
                device,
            )
        (client,) = chosen
        state = ClientState({name: value[0] for name, value in states(chosen).items()})
        schedules = {name: examples[name].schedule(part) for name, part in work[client].items()}
        return _map(
            lambda value: value.unsqueeze(0),
            hook(state, schedules, torch.tensor(sizes[client], device=device)),
        )

    if backend == "vmap":
        groups = _groups([work[i] for i in own], parameters, device, example_bytes)
    else:
        groups = [[i] for i in range(len(own))]
    # one place for all results, not a list of them that is joined in the end and takes room twice
    computed: Any = None
    for group, found in _run_groups(run, groups):
        if computed is None:
            computed = _map(lambda value: value.new_empty(len(own), *value.shape[1:]), found)
        rows = torch.tensor(group, device=device)
        _map(lambda all, some, rows=rows: all.index_copy_(0, rows, some), computed, found)
    if processes.size == 1:
        return computed
    return _map(
        lambda value: processes.gather(value[: len(shares[processes.rank])], shares), computed
    )


def _groups(
    work: Sequence[Mapping[str, Rows]],
    parameters: int,
    device: torch.device,
    example_bytes: Callable[[], int] = lambda: 0,
) -> list[list[int]]:
    """Return the clients in groups to run together, those with most work first.

    All of a group take as many steps of as many examples as its first. A client begins a group when
    memory ends and, on a CPU, when padding the group would come to cost more than the steps of a
    further one.
    """
    if device.type == "cpu":
        largest = max(1, GROUP_FLOATS // (8 * parameters))
    else:
        width = max(part.index.shape[1] for parts in work for part in parts.values())
        largest = _largest(_free_bytes(device), len(work), 4 * parameters, width * example_bytes())
    steps = [sum(len(part.count) for part in parts.values()) for parts in work]
    costs = [
        sum(part.index.size + CLIENT_STEP * len(part.count) for part in parts.values())
        for parts in work
    ]
    groups: list[list[int]] = []
    wasted = 0
    for client in sorted(range(len(work)), key=lambda client: -costs[client]):
        if groups:
            wasted += costs[groups[-1][0]] - costs[client]
        dear = device.type == "cpu" and wasted * parameters > GROUP_STEP * (steps[client] + 1)
        if not groups or len(groups[-1]) == largest or dear:
            groups.append([])
            wasted = 0
        groups[-1].append(client)
    return groups


def _free_bytes(device: torch.device) -> int:
    """Return the GPU memory that is free, or that torch holds and can use again."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _largest(free: int, clients: int, parameters: int, kept: int) -> int:
    """Return how many of a cohort's clients a GPU can run together.

    Args:
        free: bytes of free memory.
        clients: size of the cohort, all of whose results are held until they are joined.
        parameters: bytes of one client's parameters.
        kept: bytes that autograd keeps of one client's batch.
    """
    room = PLANNED * free - RESULTS * clients * parameters
    return max(1, int(room // (HELD * parameters + PASSES * kept)))


def _run_groups(
    run: Callable[[list[int]], Any], groups: list[list[int]]
) -> Iterator[tuple[list[int], Any]]:
    """Yield every group that was run, with its result; where the memory of a GPU was too small,
    those left are halved."""
    waiting = list(groups)
    while waiting:
        try:
            found = run(waiting[0])
        except torch.cuda.OutOfMemoryError:
            if len(waiting[0]) == 1:
                raise
            half = (len(waiting[0]) + 1) // 2
            waiting = [
                group[at : at + half] for group in waiting for at in range(0, len(group), half)
            ]
        else:
            yield waiting.pop(0), found


def _vmapped(
    hook: Hook,
    states: ClientState,
    work: Sequence[Mapping[str, Rows]],
    sizes: Sequence[int],
    examples: Mapping[str, Examples],
    device: torch.device,
) -> Any:
    padded = {name: _pad([rows[name] for rows in work], device) for name in work[0]}
    common = {name: min(len(rows[name].count) for rows in work) for name in work[0]}

    def one(state: ClientState, rows: dict[str, tuple[Tensor, ...]], n: Tensor) -> Any:
        schedules = {
            name: Schedule(
                examples[name].x,
                examples[name].y,
                index,
                count,
                keys=keys[0] if keys else None,
                common=common[name],
            )
            for name, (index, count, *keys) in rows.items()
        }
        return hook(state, schedules, n)

    try:
        return vmap(one)(states, padded, torch.tensor(sizes, device=device))
    except RuntimeError as error:
        if "data-dependent control flow" in str(error):
            raise RuntimeError(
                f"{getattr(hook, '__qualname__', hook)} branches on data under vmap; use "
                "torch.where"
            ) from error
        raise


def _pad(parts: Sequence[Rows], device: torch.device) -> tuple[Tensor, ...]:
    """Return index ``[M, S, B]``, count ``[M, S]`` and, if the schedules have any, keys ``[M,
    S]``; where all steps are the same, one step's index and count, expanded."""
    steps, width = (max(part.index.shape[axis] for part in parts) for axis in (0, 1))
    index = np.zeros((len(parts), steps, width), np.int64)
    count = np.zeros((len(parts), steps), np.int64)
    keys = np.zeros((len(parts), steps), np.int64)
    for client, part in enumerate(parts):
        index[client] = part.index[0, 0] if part.index.size else 0
        index[client, : part.index.shape[0], : part.index.shape[1]] = part.index
        count[client, : len(part.count)] = part.count
        if part.keys is not None:
            keys[client, : len(part.keys)] = part.keys
    rows = torch.from_numpy(index).to(device), torch.from_numpy(count).to(device)
    if all((array == array[:, :1]).all() for array in (index, count)):
        rows = rows[0][:, :1].expand(index.shape), rows[1][:, :1].expand(count.shape)
    return rows if parts[0].keys is None else (*rows, torch.from_numpy(keys).to(device))


def _map(join: Callable[..., Tensor], *results: Any) -> Any:
    """Join the tensors at the same place of nested dicts and tuples."""
    first = results[0]
    if isinstance(first, dict):
        return {key: _map(join, *[result[key] for result in results]) for key in first}
    if isinstance(first, tuple):
        return tuple(_map(join, *parts) for parts in zip(*results, strict=True))
    return join(*results)
