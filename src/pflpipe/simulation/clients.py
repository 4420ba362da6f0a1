"""for_each_client: the only file that knows how clients are batched or spread.

The same hook runs as a plain loop over clients or under ``torch.func.vmap`` over groups of clients.
(The one-contract-several-backends shape is FedJAX's ``for_each_client``.)

Isolation: what a client's hook returns is, to the last bit, a function of what the hook is given.
No other client changes a bit of it, neither by its data nor by being there. Training amplifies the
rounding of one sum to a movement larger than the clip bound, so less than all bits is no guarantee.
In a loop this holds because clients share nothing. Under vmap it holds because

- every shape that a client's numbers are computed in follows from its own number of rows
  (``padded_size``); a group has clients of the same shapes only;
- on a CPU the last place of a group is nobody's, since numbers that are left over at the end of a
  tensor are rounded otherwise; on a GPU all groups have the same number of places. A place without
  a client computes a copy of the group's first one, which is dropped;
- kernels then do the same work at every place. Whether they do on this machine is tried before
  training (``Simulation.keeps_apart``), and isolation.py computes some clients of every private run
  again by themselves.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from pflpipe import trees
from pflpipe.errors import ConfigError, PrivacyError
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
# A group on a GPU: the part of the memory to plan with, since the rest goes to the data, fragments
# and libraries; copies of the parameters (float32) that a client of the group holds in a step, and
# that a client of the cohort holds from then until all results are joined; and bytes that a step
# takes for each byte that autograd keeps between its passes. On an H100 groups took half of what
# was planned for them; larger groups were no faster (docs/benchmarks.md).
PLANNED, HELD, RESULTS, PASSES = 0.6, 12, 6, 2
# What a step of a group costs on a CPU, whoever is in the group, in the time that one example takes
# per parameter. Measured on a perceptron of 2,410 parameters: 4 million (DP-FedAvg) to 8 million
# (FedRep).
GROUP_STEP = 6_000_000
# What each client costs in a step besides its examples, in the same unit (moving the parameters).
CLIENT_STEP = 2**5
# Data are padded to at least and at most so many rows before the sizes start to grow.
LEAST_ROWS, MOST_ROWS = 16, 128
# The number of places in a group on a CPU is a multiple of this, and the last place is nobody's. An
# operation takes the numbers of a tensor in steps of two vector registers (32 float32 at most) and
# those that are left one by one, with other roundings for some functions, such as the sigmoid. What
# is left of a tensor with 32 numbers or more for each client lies in the last place. The package's
# methods apply no such function to smaller ones.
PLACES = 1
# With so many places nothing is left of any tensor, a scalar for each client included: for methods
# and networks whose operations nobody here has read.
PLACES_UNREVIEWED = 32


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


def padded_size(size: int, least: int) -> int:
    """Return to how many rows a client's ``size`` rows are padded under vmap.

    The sizes are 1, 2, 3, 4, 6, 8, 12, 16 ... times ``least``: a finer ladder wastes less on
    padding, a coarser one makes fewer groups.

    Args:
        size: a client's own number of rows; 0 stays 0.
        least: ``least_rows``.
    """
    if not size:
        return 0
    units = math.ceil(size / least)
    power = 1 << (units - 1).bit_length()
    between = 3 * power // 4
    return least * (between if power > 2 and between >= units else power)


def least_rows(parameters: int, cohort: float) -> int:
    """Return the least size to which data are padded: where the rows of a whole cohort cost as
    much as one step of a group costs besides its rows.

    Args:
        parameters: scalars of one client's model.
        cohort: expected number of clients in a round; a public number, so that no shape follows
            from who was drawn.
    """
    rows = 4 * math.ceil(GROUP_STEP / (4 * parameters * cohort))
    return min(max(rows, LEAST_ROWS), MOST_ROWS)


class Room(NamedTuple):
    """The shapes of a schedule as padded under vmap. They follow from the client's number of rows
    and from public settings, and clients of equal ones may run together.

    Attributes:
        steps, width: number of steps, and rows of each.
        rows: number of own rows.
        repeated: whether every step has the same rows.
    """

    steps: int
    width: int
    rows: int
    repeated: bool = True


@dataclass(frozen=True)
class Rows:
    """One client's schedule on the host.

    Attributes:
        own: the client's rows in the data, int64 ``[n]``.
        index: rows of each step as places in ``own``, int64 ``[S, B]``.
        count: real rows of each step, int64 ``[S]``; the rest of a step is padding.
        room: its shapes as padded under vmap.
        keys: int64 ``[S]`` for the steps' dropout and transforms; ``None`` where nothing is random.
    """

    own: np.ndarray
    index: np.ndarray
    count: np.ndarray
    room: Room
    keys: np.ndarray | None = None

    @classmethod
    def epochs(
        cls,
        own: np.ndarray,
        epochs: int,
        batch_size: int,
        rng: np.random.Generator | None = None,
        *,
        drop_last: bool = False,
        least: int = LEAST_ROWS,
    ) -> Rows:
        """Cut ``epochs`` passes over ``own`` into steps, shuffled anew in each pass when ``rng`` is
        given.

        The last step of a pass may be smaller; ``drop_last`` leaves it out then. ``batch_size=0``
        takes all rows in every step. A padded place repeats the client's first row. A client
        without rows has no steps. ``least`` is that of ``padded_size``.
        """
        size, padded = len(own), padded_size(len(own), least)
        if not size or not epochs:
            nothing = np.zeros((0, 1), np.int64)
            return cls(own, nothing, nothing[:, 0], Room(0, 1, padded))
        width = min(batch_size or size, size)
        steps = -(-size // width)
        index = np.zeros((epochs, steps * width), np.int64)
        index[:, :size] = np.arange(size)
        if rng is not None and steps > 1:
            for epoch in range(epochs):
                index[epoch, :size] = rng.permutation(size)
        count = np.full((epochs, steps), width, np.int64)
        count[:, -1] = size - (steps - 1) * width
        wide = min(batch_size or padded, padded)
        pieces = math.ceil(padded / wide)
        room = Room(epochs * pieces, 4 * math.ceil(wide / 4), padded, pieces == 1)
        whole = cls(own, index.reshape(-1, width), count.reshape(-1), room)
        return whole._where(whole.count == batch_size) if drop_last and batch_size else whole

    @classmethod
    def steps(
        cls,
        own: np.ndarray,
        steps: int,
        batch_size: int,
        rng: np.random.Generator | None = None,
        *,
        drop_last: bool = False,
        least: int = LEAST_ROWS,
    ) -> Rows:
        """Cut so many steps from as many passes over ``own`` as they take, the last one left
        unfinished."""
        each = len(cls.epochs(own, 1, batch_size, drop_last=drop_last).count)
        passes = -(-steps // max(each, 1))
        found = cls.epochs(own, passes, batch_size, rng, drop_last=drop_last, least=least)
        first = found._where(np.arange(len(found.count)) < steps)
        return replace(first, room=found.room._replace(steps=min(found.room.steps, steps)))

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

    def of(self, own: np.ndarray) -> Examples:
        """Return a copy of these rows: ``own`` is ``[n]`` or, for several clients, ``[M, n]``."""
        rows = torch.from_numpy(own.reshape(-1)).to(self.x.device)
        x, y = self.x.index_select(0, rows), self.y.index_select(0, rows)
        return Examples(x.view(*own.shape, *x.shape[1:]), y.view(own.shape))

    def schedule(self, rows: Rows) -> Schedule:
        """Return the schedule of one client, or of rows that all clients share, with true batch
        sizes and a copy of its own rows."""
        return self.of(rows.own).stepped(rows)

    def stepped(self, rows: Rows) -> Schedule:
        """Return the schedule of a client whose rows alone these are."""
        index = torch.from_numpy(rows.index).to(self.x.device)
        count = torch.from_numpy(rows.count).to(self.x.device)
        keys = None if rows.keys is None else torch.from_numpy(rows.keys).to(self.x.device)
        return Schedule(self.x, self.y, index, count, tuple(rows.count.tolist()), keys)


@dataclass(frozen=True)
class Engine:
    """How the clients of a run are computed: public settings and the machine, no data.

    Attributes:
        backend: ``vmap`` runs groups of clients, ``loop`` and ``graphs`` one after the other.
        parameters: scalars of one client's model.
        cohort: expected number of clients in a round.
        places: of which the number of places in a group is a multiple.
        processes: share the clients; each of them gets all results.
        example_bytes: measures what autograd keeps of one client's example between the passes; only
            called on a GPU.
    """

    backend: Backend
    parameters: int
    cohort: float = 1.0
    places: int = PLACES
    processes: Processes = ALONE
    example_bytes: Callable[[], int] = lambda: 0


def for_each_client(
    hook: Hook,
    states: Callable[[Sequence[int]], ClientState],
    work: Sequence[Mapping[str, Rows]],
    sizes: Sequence[int],
    examples: Mapping[str, Examples],
    engine: Engine,
    what: str = "hook",
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
        examples: for each schedule's name the data it points into. A hook is given its own
            client's rows only.
        engine: how the clients are computed.
        what: name of the hook, for an error.

    Raises:
        ValueError: there is no client, so that nothing could be stacked.
        RuntimeError: a hook under vmap branches on data; the message says what to use instead.
        PrivacyError: a hook changed what it was given.
        torch.cuda.OutOfMemoryError: the GPU's memory is too small for a group.
    """
    if not work:
        raise ValueError("Expected at least one client, got none.")
    device, processes = next(iter(examples.values())).x.device, engine.processes
    shares = processes.shares([sum(part.index.size for part in parts.values()) for parts in work])
    own = shares[processes.rank] or [
        0
    ]  # a process without clients computes one for the shapes alone

    def run(group: Sequence[int]) -> Any:
        if engine.backend == "vmap":
            filled = [own[i] for i in group]
            missing = _places(len(filled), device, engine, work[filled[0]]) - len(filled)
            filled += filled[:1] * missing
            found = _vmapped(
                hook,
                states(filled),
                [work[i] for i in filled],
                torch.tensor([sizes[i] for i in filled], device=device),
                examples,
                what,
            )
            return _map(lambda value: value[: len(group)], found)
        client = own[group[0]]
        state = ClientState({name: value[0] for name, value in states([client]).items()})
        schedules = _schedules(work[client], examples)
        with untouched(what, state, *(_tensors(one) for one in schedules.values())):
            found = hook(state, schedules, torch.tensor(sizes[client], device=device))
        return _map(lambda value: value.unsqueeze(0), found)

    if engine.backend == "vmap":
        groups = _groups([work[i] for i in own], device, engine)
    else:
        groups = [[i] for i in range(len(own))]
    # one place for all results, not a list of them that is joined in the end and takes room twice
    computed: Any = None
    with one_thread() if engine.backend == "vmap" else contextlib.nullcontext():
        for group in groups:
            found = run(group)
            if computed is None:
                computed = _map(lambda value: value.new_empty(len(own), *value.shape[1:]), found)
            rows = torch.tensor(group, device=device)
            _map(lambda all, some, rows=rows: all.index_copy_(0, rows, some), computed, found)
    if processes.size == 1:
        return computed
    return _map(
        lambda value: processes.gather(value[: len(shares[processes.rank])], shares), computed
    )


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread of the CPU.

    Several threads cut a tensor where its size says, and a client's numbers may be rounded
    otherwise on the two sides of a cut.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def untouched(what: str, *given: Mapping[str, Tensor]) -> Iterator[None]:
    """Compare what a hook is given before and after its call.

    Args:
        what: names the hook.
        given: trees of tensors.

    Raises:
        PrivacyError: a bit has changed. A hook that writes into the released model or into another
            client's rows publishes what no noise covers.
    """
    before = [{name: value.clone() for name, value in tree.items()} for tree in given]
    yield
    for tree, kept in zip(given, before, strict=True):
        for name, value in tree.items():
            if not trees.same_bits(value, kept[name]):
                raise PrivacyError(
                    f"{what}: {name}",
                    got="changed in place",
                    expected="every input left as it is",
                    do="compute a new tensor, or change a copy: value.clone()",
                )


def _groups(
    work: Sequence[Mapping[str, Rows]], device: torch.device, engine: Engine
) -> list[list[int]]:
    """Return the clients in groups to run together, those with most steps first.

    Clients of a group have the same shapes and take as many steps as its first. A client begins a
    group when memory ends and, on a CPU, when the steps that are padded would come to cost more
    than those of a further group. How clients of the same shapes are grouped changes no bit.
    """
    alike: dict[Any, list[int]] = {}
    for client, parts in enumerate(work):
        alike.setdefault(tuple(part.room for part in parts.values()), []).append(client)
    steps = [sum(len(part.count) for part in parts.values()) for parts in work]
    costs = [
        sum((part.room.width + CLIENT_STEP) * len(part.count) for part in parts.values())
        for parts in work
    ]
    groups: list[list[int]] = []
    for clients in alike.values():
        clients.sort(key=lambda client: -costs[client])
        most = _most(device, engine, work[clients[0]]) - 1  # the last place is nobody's
        groups.append([])
        wasted = 0
        for client in clients:
            if groups[-1]:
                wasted += costs[groups[-1][0]] - costs[client]
            dear = wasted * engine.parameters > GROUP_STEP * (steps[client] + 1)
            if len(groups[-1]) == most or (dear and device.type == "cpu"):
                groups.append([])
                wasted = 0
            groups[-1].append(client)
    return groups


def _most(device: torch.device, engine: Engine, parts: Mapping[str, Rows]) -> int:
    """Return the largest number of places in a group of clients with these shapes, by the memory;
    it follows from the network, the shapes and the kind of device."""
    if device.type == "cpu":
        fit = GROUP_FLOATS // (8 * engine.parameters)
    else:
        width = max(part.room.width for part in parts.values())
        free = torch.cuda.get_device_properties(device).total_memory
        kept = width * engine.example_bytes()
        fit = _fitting(free, math.ceil(engine.cohort), 4 * engine.parameters, kept)
        fit = min(fit, math.ceil(engine.cohort) + engine.places)
    return max(2, engine.places, fit // engine.places * engine.places)


def _places(clients: int, device: torch.device, engine: Engine, parts: Mapping[str, Rows]) -> int:
    """Return the number of places of a group: on a CPU the next multiple above the number of
    clients, on a GPU, where an algorithm may follow from it, one and the same for all groups."""
    if device.type == "cpu":
        return (clients // engine.places + 1) * engine.places
    return _most(device, engine, parts)


def _fitting(memory: int, cohort: int, parameters: int, kept: int) -> int:
    """Return how many of a cohort's clients a GPU can run together.

    Args:
        memory: bytes of the GPU.
        cohort: expected clients of a round, all of whose results are held until they are joined.
        parameters: bytes of one client's parameters.
        kept: bytes that autograd keeps of one client's batch.
    """
    room = PLANNED * memory - RESULTS * cohort * parameters
    return max(1, int(room // (HELD * parameters + PASSES * kept)))


def _schedules(work: Mapping[str, Rows], examples: Mapping[str, Examples]) -> dict[str, Schedule]:
    """Return one client's schedules; those of the same rows share one copy of them."""
    copies: dict[tuple[int, int], Examples] = {}
    schedules = {}
    for name, rows in work.items():
        key = id(examples[name]), id(rows.own)
        if key not in copies:
            copies[key] = examples[name].of(rows.own)
        schedules[name] = copies[key].stepped(rows)
    return schedules


def _tensors(schedule: Schedule) -> dict[str, Tensor]:
    found = {"x": schedule.x, "y": schedule.y, "index": schedule.index, "count": schedule.count}
    return found if schedule.keys is None else {**found, "keys": schedule.keys}


def _vmapped(
    hook: Hook,
    states: ClientState,
    work: Sequence[Mapping[str, Rows]],
    sizes: Tensor,
    examples: Mapping[str, Examples],
    what: str,
) -> Any:
    """Run the hook for clients of the same shapes."""
    copies: dict[tuple[int, ...], Examples] = {}
    padded: dict[str, dict[str, Tensor]] = {}
    for name in work[0]:
        parts = [parts[name] for parts in work]
        key = (id(examples[name]), *(id(part.own) for part in parts))
        if key not in copies:
            copies[key] = examples[name].of(_padded_own(parts))
        x, y = copies[key].x, copies[key].y
        padded[name] = {"x": x, "y": y, **_padded_steps(parts, x.device)}

    def one(state: ClientState, given: dict[str, dict[str, Tensor]], n: Tensor) -> Any:
        schedules = {
            name: Schedule(own["x"], own["y"], own["index"], own["count"], keys=own.get("keys"))
            for name, own in given.items()
        }
        return hook(state, schedules, n)

    try:
        with untouched(what, states, *padded.values()):
            return vmap(one)(states, padded, sizes)
    except RuntimeError as error:
        if "data-dependent control flow" in str(error):
            raise RuntimeError(
                f"{getattr(hook, '__qualname__', hook)} branches on data under vmap; use "
                "torch.where"
            ) from error
        raise


def _padded_own(parts: Sequence[Rows]) -> np.ndarray:
    """Return the clients' own rows ``[M, n]``, each padded by its first one."""
    sizes, rows = np.array([len(part.own) for part in parts]), parts[0].room.rows
    if not rows:
        return np.zeros((len(parts), 0), np.int64)
    starts = np.cumsum(sizes) - sizes
    places = starts[:, None] + _first_places(sizes, rows)
    own: np.ndarray = np.concatenate([part.own for part in parts])[places]
    return own


def _first_places(sizes: np.ndarray, width: int) -> np.ndarray:
    """Return 0, 1 ... size - 1 for each size ``[M]``, padded by 0, int64 ``[M, width]``."""
    places = np.arange(width)
    return np.where(places < sizes[:, None], places, 0)


def _padded_steps(parts: Sequence[Rows], device: torch.device) -> dict[str, Tensor]:
    """Return index ``[M, S, B]``, count ``[M, S]`` and, if the schedules have any, keys ``[M,
    S]``; where all steps have the same rows, one step's index and count, expanded."""
    room, clients = parts[0].room, len(parts)
    if room.repeated:  # all own rows in order, unless a step that is not full is dropped
        sizes = np.array([part.count[0] if len(part.count) else 0 for part in parts])
        index, count = _first_places(sizes, room.width)[:, None], sizes[:, None]
    else:
        index = np.zeros((clients, room.steps, room.width), np.int64)
        count = np.zeros((clients, room.steps), np.int64)
        for client, part in enumerate(parts):
            index[client, : part.index.shape[0], : part.index.shape[1]] = part.index
            count[client, : len(part.count)] = part.count
    found = {
        "index": torch.from_numpy(index).to(device).expand(clients, room.steps, room.width),
        "count": torch.from_numpy(count).to(device).expand(clients, room.steps),
    }
    if parts[0].keys is None:
        return found
    keys = np.zeros((clients, room.steps), np.int64)
    for client, part in enumerate(parts):
        if part.keys is not None:
            keys[client, : len(part.keys)] = part.keys
    return {**found, "keys": torch.from_numpy(keys).to(device)}


def _map(join: Callable[..., Tensor], *results: Any) -> Any:
    """Join the tensors at the same place of nested dicts and tuples."""
    first = results[0]
    if isinstance(first, dict):
        return {key: _map(join, *[result[key] for result in results]) for key in first}
    if isinstance(first, tuple):
        return tuple(_map(join, *parts) for parts in zip(*results, strict=True))
    return join(*results)
