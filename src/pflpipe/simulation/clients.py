"""``for_each_client`` runs one hook for many clients. Only this file knows how clients are batched
and distributed.

The same hook runs as a plain loop over clients or under ``torch.func.vmap`` over groups of clients.
(One contract with several backends is the design of FedJAX's ``for_each_client``.)

Isolation: the output of a client's hook is, to the last bit, a function of the hook's inputs. No
other client changes a bit of it, neither by its data nor by its presence. Training amplifies the
rounding of one sum to a movement larger than the clip bound, so the guarantee needs all bits. In a
loop it holds because clients share nothing. Under vmap it holds because

- every shape in which a client is computed follows from the client's number of rows
  (``padded_size``); a group has only clients of equal shapes;
- on a CPU the last place of a group is empty, because the numbers left over at the end of a tensor
  are rounded differently; on a GPU all groups have the same number of places. An empty place
  computes a copy of the group's first client, which is dropped;
- kernels then do the same work at every place. ``Simulation.keeps_apart`` tests this on the machine
  before training, and isolation.py computes some clients of every private run again, alone.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from pflpipe import trees
from pflpipe.errors import PrivacyError
from pflpipe.learning import solvers
from pflpipe.learning.solvers import Minimize, Schedule
from pflpipe.simulation.processes import ALONE, Processes
from pflpipe.trees import ClientState, Tensors

Backend = Literal["loop", "vmap", "devices"]
Hook = Callable[[ClientState, dict[str, Schedule], Tensor], Any]

# A step of all clients is a few kernels under vmap, and a few kernels per client in a loop. Above
# this many parameters arithmetic dominates the overhead, and the memory layout of the loop is
# faster. Measured: on an H100 vmap is 3 to 13 times as fast for networks of .3 million parameters,
# 0.7 to 2.1 times for ResNet18 (11 million); the limit between them is a guess. On a CPU it takes
# 0.3 to 0.9 of the loop's time for a perceptron of 50,000 parameters, 0.4 to 1.1 of it for one of
# 100,000 (bench_rounds.py backends), and 1.8 times as long for convolutions.
VMAP_PARAMETERS = {"cpu": 60_000, "cuda": 4_000_000}
# Largest number of floats of one group of clients on a CPU in parameters, gradients, moments and
# results, without activations.
GROUP_FLOATS = 2**26
# A group on a GPU. PLANNED: usable part of the memory; the rest is for data, fragments and
# libraries. HELD: float32 copies of the parameters per client of the group during a step. RESULTS:
# copies per client of the cohort until all results are joined. PASSES: bytes of a step per byte
# that autograd keeps between its passes. On an H100 groups took half of the planned memory; larger
# groups were no faster (docs/benchmarks.md).
PLANNED, HELD, RESULTS, PASSES = 0.6, 12, 6, 2
# Fixed cost of a group's step on a CPU, in units of the time for one example and one parameter.
# Measured on a perceptron of 2,410 parameters: 4 million (DP-FedAvg) to 8 million (FedRep).
GROUP_STEP = 6_000_000
# Cost of a client in a step besides its examples, in the same unit (moving the parameters).
CLIENT_STEP = 2**5
# Bounds of ``least_rows``: the smallest padded size is between these numbers of rows.
LEAST_ROWS, MOST_ROWS = 16, 128
# The number of places of a group on a CPU is a multiple of this, and the last place is empty. An
# operation processes a tensor in steps of two vector registers (at most 32 float32) and the rest
# number by number, with different rounding for some functions, such as the sigmoid. If a tensor has
# at least 32 numbers per client, the rest lies in the last place. The package's methods apply no
# such function to smaller tensors.
PLACES = 1
# With this many places no tensor has a rest, not even a scalar per client: for methods and networks
# from outside the package, whose operations are unknown.
PLACES_UNREVIEWED = 32


def minimizer(backend: Backend) -> Minimize:
    """Return the solver loop that runs under this backend."""
    return solvers.minimize_functional if backend == "vmap" else solvers.minimize_loop


def device_of(name: str) -> torch.device:
    """Return the device ``cpu``, ``cuda``, ``cuda:<index>``, or for ``auto`` a GPU if there is
    one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def choose_backend(asked: str, device: str, parameters: int) -> Backend:
    """Return the backend for ``asked``.

    Args:
        asked: ``loop``, ``vmap`` or ``auto``.
        device: ``cpu`` or ``cuda``.
        parameters: scalars of one client's model.
    """
    if asked == "auto":
        return "vmap" if parameters <= VMAP_PARAMETERS[device] else "loop"
    return "loop" if asked == "loop" else "vmap"


def padded_size(size: int, least: int) -> int:
    """Return the number of rows to which a client's ``size`` rows are padded under vmap.

    The padded sizes are 1, 2, 3, 4, 6, 8, 12, 16 ... times ``least``. More sizes would waste less
    on padding, fewer sizes make fewer groups.

    Args:
        size: a client's number of rows; 0 stays 0.
        least: ``least_rows``.
    """
    if not size:
        return 0
    units = math.ceil(size / least)
    power = 1 << (units - 1).bit_length()
    between = 3 * power // 4
    return least * (between if power > 2 and between >= units else power)


def least_rows(parameters: int, cohort: float) -> int:
    """Return the least padded size: the size at which the rows of a whole cohort cost as much as
    the fixed cost of a group's step.

    Args:
        parameters: scalars of one client's model.
        cohort: expected number of clients in a round; a public number, so that no shape follows
            from the draw.
    """
    rows = 4 * math.ceil(GROUP_STEP / (4 * parameters * cohort))
    return min(max(rows, LEAST_ROWS), MOST_ROWS)


class Padded(NamedTuple):
    """The shapes of a schedule padded for vmap. They follow from the client's number of rows and
    from public settings. Clients with equal shapes may run together.

    Attributes:
        steps, width: number of steps, and rows of each step.
        rows: number of the client's rows.
        repeated: whether all steps have the same rows.
    """

    steps: int
    width: int
    rows: int
    repeated: bool = True


@dataclass(frozen=True)
class Rows:
    """One client's schedule on the host.

    Attributes:
        row_indices: the client's rows in the data, int64 ``[n]``.
        index: rows of each step as indices into ``row_indices``, int64 ``[S, B]``.
        count: number of real rows of each step, int64 ``[S]``; the rest of a step is padding.
        padded: its shapes under vmap.
        keys: int64 ``[S]`` for dropout and transforms of the steps; ``None`` if nothing is random.
    """

    row_indices: np.ndarray
    index: np.ndarray
    count: np.ndarray
    padded: Padded
    keys: np.ndarray | None = None

    @classmethod
    def epochs(
        cls,
        row_indices: np.ndarray,
        epochs: int,
        batch_size: int,
        rng: np.random.Generator | None = None,
        *,
        drop_last: bool = False,
        least: int = LEAST_ROWS,
    ) -> Rows:
        """Return the steps of ``epochs`` passes over the rows, shuffled in each pass if ``rng`` is
        given.

        The last step of a pass may be smaller; ``drop_last`` then leaves it out. ``batch_size=0``
        takes all rows in every step. A padded place repeats the client's first row. A client
        without rows has no steps. ``least`` is that of ``padded_size``.
        """
        size, rows = len(row_indices), padded_size(len(row_indices), least)
        if not size or not epochs:
            empty = np.zeros((0, 1), np.int64)
            return cls(row_indices, empty, empty[:, 0], Padded(0, 1, rows))
        width = min(batch_size or size, size)
        steps = -(-size // width)
        index = np.zeros((epochs, steps * width), np.int64)
        index[:, :size] = np.arange(size)
        if rng is not None and steps > 1:
            for epoch in range(epochs):
                index[epoch, :size] = rng.permutation(size)
        count = np.full((epochs, steps), width, np.int64)
        count[:, -1] = size - (steps - 1) * width
        # The padded shapes come from the padded number of rows, so that clients with different
        # numbers of rows can share a group. Widths are multiples of 4.
        wide = min(batch_size or rows, rows)
        pieces = math.ceil(rows / wide)
        padded = Padded(epochs * pieces, 4 * math.ceil(wide / 4), rows, pieces == 1)
        whole = cls(row_indices, index.reshape(-1, width), count.reshape(-1), padded)
        return whole._where(whole.count == batch_size) if drop_last and batch_size else whole

    @classmethod
    def steps(
        cls,
        row_indices: np.ndarray,
        steps: int,
        batch_size: int,
        rng: np.random.Generator | None = None,
        *,
        drop_last: bool = False,
        least: int = LEAST_ROWS,
    ) -> Rows:
        """Return ``steps`` steps of repeated passes over the rows; the last pass may be
        unfinished."""
        each = len(cls.epochs(row_indices, 1, batch_size, drop_last=drop_last).count)
        passes = -(-steps // max(each, 1))
        whole = cls.epochs(row_indices, passes, batch_size, rng, drop_last=drop_last, least=least)
        first = whole._where(np.arange(len(whole.count)) < steps)
        return replace(first, padded=whole.padded._replace(steps=min(whole.padded.steps, steps)))

    def _where(self, kept: np.ndarray) -> Rows:
        return replace(self, index=self.index[kept], count=self.count[kept])

    def keyed(self, rng: np.random.Generator) -> Rows:
        """Return the same schedule with a key for each step."""
        return replace(self, keys=rng.integers(0, 2**31, len(self.count)))


@dataclass(frozen=True)
class Examples:
    """Examples of all clients on the device: ``x [N, ...]`` and ``y [N]`` or ``[N, K]``."""

    x: Tensor
    y: Tensor

    def of(self, row_indices: np.ndarray) -> Examples:
        """Return a copy of these rows, ``[n]`` or, for several clients, ``[M, n]``."""
        rows = torch.from_numpy(row_indices.reshape(-1)).to(self.x.device)
        x, y = self.x.index_select(0, rows), self.y.index_select(0, rows)
        shape = row_indices.shape
        return Examples(x.view(*shape, *x.shape[1:]), y.view(*shape, *y.shape[1:]))

    def schedule(self, rows: Rows) -> Schedule:
        """Return a schedule with true batch sizes and a copy of its rows."""
        return self.of(rows.row_indices).stepped(rows)

    def stepped(self, rows: Rows) -> Schedule:
        """Return a schedule on these examples, which must be exactly the rows of one client."""
        index = torch.from_numpy(rows.index).to(self.x.device)
        count = torch.from_numpy(rows.count).to(self.x.device)
        keys = None if rows.keys is None else torch.from_numpy(rows.keys).to(self.x.device)
        return Schedule(self.x, self.y, index, count, tuple(rows.count.tolist()), keys)


Work = Mapping[str, Rows]
"""One client's schedules by name."""


@dataclass(frozen=True)
class Engine:
    """Settings for computing the clients of a run: public settings and the machine, no data.

    Attributes:
        backend: ``vmap`` runs groups of clients, ``loop`` runs one client at a time.
        parameters: scalars of one client's model.
        cohort: expected number of clients in a round.
        places: the number of places in a group is a multiple of this.
        processes: the processes that share the clients; each gets all results.
        example_bytes: returns the bytes that autograd keeps of one example between the passes; only
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
    work: Sequence[Work],
    sizes: Sequence[int],
    examples: Mapping[str, Examples],
    engine: Engine,
    what: str = "hook",
) -> Any:
    """Return ``hook(state, schedules, n)`` of every client, stacked along a new leading axis.

    Args:
        hook: pure function of one client; returns tensors in nested dicts and tuples, with the same
            structure for each client.
        states: ``[indices into work] -> stacked states [K, ...]``, called for the clients that run
            next; may return empty trees.
        work: for each client its schedules by name; all clients have the same names.
        sizes: n, the number of training examples of each client.
        examples: for the name of each schedule the data that it indexes. A hook receives a copy of
            its client's rows only.
        engine: settings for the computation.
        what: name of the hook, for errors.

    Raises:
        ValueError: there is no client, so there is nothing to stack.
        RuntimeError: a hook under vmap branches on data; the message names an alternative.
        PrivacyError: a hook changed an input in place.
        torch.cuda.OutOfMemoryError: the GPU's memory is too small for a group.
    """
    if not work:
        raise ValueError("Expected at least one client, got none.")
    device, processes = next(iter(examples.values())).x.device, engine.processes
    shares = processes.shares([sum(part.index.size for part in parts.values()) for parts in work])
    # A process without a client computes client 0, to know the shapes for ``gather``.
    clients = shares[processes.rank] or [0]

    def run(group: Sequence[int]) -> Any:
        if engine.backend == "vmap":
            filled = [clients[i] for i in group]
            missing = _places(len(filled), device, engine, work[filled[0]]) - len(filled)
            filled += filled[:1] * missing
            rows = [work[i] for i in filled]
            numbers = torch.tensor([sizes[i] for i in filled], device=device)
            results = _vmapped(hook, states(filled), rows, numbers, examples, what)
            return _map(lambda value: value[: len(group)], results)
        client = clients[group[0]]
        state = ClientState({name: value[0] for name, value in states([client]).items()})
        schedules = _schedules(work[client], examples)
        with untouched(what, state, *(_tensors(one) for one in schedules.values())):
            results = hook(state, schedules, torch.tensor(sizes[client], device=device))
        return _map(lambda value: value.unsqueeze(0), results)

    if engine.backend == "vmap":
        groups = _groups([work[i] for i in clients], device, engine)
    else:
        groups = [[i] for i in range(len(clients))]
    # Results are written into one tensor: joining a list at the end would need the memory twice.
    computed: Any = None
    threads = one_thread() if engine.backend == "vmap" else contextlib.nullcontext()
    with threads, repeatable_kernels():
        for group in groups:
            results = run(group)
            if computed is None:
                computed = _map(
                    lambda value: value.new_empty(len(clients), *value.shape[1:]), results
                )
            rows = torch.tensor(group, device=device)
            _map(lambda all, some, rows=rows: all.index_copy_(0, rows, some), computed, results)
    if processes.size == 1:
        return computed
    own = len(shares[processes.rank])
    return _map(lambda value: processes.gather(value[:own], shares), computed)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one CPU thread.

    Several threads split a tensor at places that depend on its size, and a client's numbers may be
    rounded differently next to a split.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def repeatable_kernels() -> Iterator[None]:
    """Compute with kernels of cuDNN that give the same bits for the same inputs.

    Others add numbers in the order in which threads of the GPU finish, which depends on what else
    the GPU does: gradients of a convolution differed from call to call on an H100, for one client
    alone too.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


@contextlib.contextmanager
def untouched(what: str, *given: Tensors) -> Iterator[None]:
    """Compare the inputs of a hook before and after its call.

    Args:
        what: name of the hook.
        given: its inputs, trees of tensors.

    Raises:
        PrivacyError: a bit has changed. A hook that writes into the released model or into another
            client's rows publishes values without noise.
    """
    before = [{name: value.clone() for name, value in tree.items()} for tree in given]
    yield
    for tree, kept in zip(given, before, strict=True):
        for name, value in tree.items():
            if not trees.same_bits(value, kept[name]):
                do = "compute a new tensor, or change a copy: value.clone()"
                got, expected = "changed in place", "unchanged inputs"
                raise PrivacyError(f"{what}: {name}", got=got, expected=expected, do=do)


def _groups(work: Sequence[Work], device: torch.device, engine: Engine) -> list[list[int]]:
    """Return groups of clients to run together, the clients with most steps first.

    Clients of a group have the same shapes and take as many steps as the first one. A new group
    begins when the memory is full and, on a CPU, when padded steps would cost more than the steps
    of a further group. The grouping of clients with equal shapes changes no bit.
    """
    same_shapes: dict[Any, list[int]] = {}
    for client, parts in enumerate(work):
        same_shapes.setdefault(tuple(part.padded for part in parts.values()), []).append(client)
    steps = [sum(len(part.count) for part in parts.values()) for parts in work]
    costs = [
        sum((part.padded.width + CLIENT_STEP) * len(part.count) for part in parts.values())
        for parts in work
    ]
    groups: list[list[int]] = []
    for clients in same_shapes.values():
        # Most expensive first: all clients of a group take as many steps as its first one.
        clients.sort(key=lambda client: -costs[client])
        most = _most(device, engine, work[clients[0]]) - 1  # the last place is empty
        groups.append([])
        wasted = 0
        for client in clients:
            if groups[-1]:
                wasted += costs[groups[-1][0]] - costs[client]
            expensive = wasted * engine.parameters > GROUP_STEP * (steps[client] + 1)
            if len(groups[-1]) == most or (expensive and device.type == "cpu"):
                groups.append([])
                wasted = 0
            groups[-1].append(client)
    return groups


def _most(device: torch.device, engine: Engine, parts: Work) -> int:
    """Return the largest number of places in a group of clients with these shapes, by memory. It
    depends only on the network, the shapes and the kind of device."""
    if device.type == "cpu":
        fit = GROUP_FLOATS // (8 * engine.parameters)
    else:
        width = max(part.padded.width for part in parts.values())
        # Total and not free memory: the size of a group must not depend on what else is allocated.
        memory = torch.cuda.get_device_properties(device).total_memory
        kept = width * engine.example_bytes()
        fit = _fitting(memory, math.ceil(engine.cohort), 4 * engine.parameters, kept)
        fit = min(fit, math.ceil(engine.cohort) + engine.places)
    return max(2, engine.places, fit // engine.places * engine.places)


def _places(clients: int, device: torch.device, engine: Engine, parts: Work) -> int:
    """Return the number of places of a group of ``clients`` clients.

    On a CPU it is the next multiple of ``engine.places`` above the number of clients. A GPU may
    choose an algorithm by this number, so there it is the same for all groups.
    """
    if device.type == "cpu":
        return (clients // engine.places + 1) * engine.places
    return _most(device, engine, parts)


def _fitting(memory: int, cohort: int, parameters: int, kept: int) -> int:
    """Return the number of clients that fit on a GPU together.

    Args:
        memory: bytes of the GPU.
        cohort: expected clients of a round, whose results are all held until they are joined.
        parameters: bytes of one client's parameters.
        kept: bytes that autograd keeps of one client's batch.
    """
    available = PLANNED * memory - RESULTS * cohort * parameters
    return max(1, int(available // (HELD * parameters + PASSES * kept)))


def _schedules(work: Work, examples: Mapping[str, Examples]) -> dict[str, Schedule]:
    """Return one client's schedules; schedules on the same rows share one copy of them."""
    copies: dict[tuple[int, int], Examples] = {}
    schedules = {}
    for name, rows in work.items():
        key = id(examples[name]), id(rows.row_indices)
        if key not in copies:
            copies[key] = examples[name].of(rows.row_indices)
        schedules[name] = copies[key].stepped(rows)
    return schedules


def _tensors(schedule: Schedule) -> dict[str, Tensor]:
    tensors = {"x": schedule.x, "y": schedule.y, "index": schedule.index, "count": schedule.count}
    return tensors if schedule.keys is None else {**tensors, "keys": schedule.keys}


def _vmapped(
    hook: Hook,
    states: ClientState,
    work: Sequence[Work],
    sizes: Tensor,
    examples: Mapping[str, Examples],
    what: str,
) -> Any:
    """Return the results of the hook for clients with equal shapes, ``[M, ...]``."""
    copies: dict[tuple[int, ...], Examples] = {}
    padded: dict[str, dict[str, Any]] = {}
    for name in work[0]:
        parts = [parts[name] for parts in work]
        key = (id(examples[name]), *(id(part.row_indices) for part in parts))
        if key not in copies:
            copies[key] = examples[name].of(_padded_indices(parts))
        x, y = copies[key].x, copies[key].y
        padded[name] = {"x": x, "y": y, **_padded_steps(parts, x.device)}

    def one(state: ClientState, given: dict[str, dict[str, Any]], n: Tensor) -> Any:
        return hook(state, {name: Schedule(**part) for name, part in given.items()}, n)

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


def _padded_indices(parts: Sequence[Rows]) -> np.ndarray:
    """Return the clients' rows ``[M, n]``, each padded by its first row."""
    sizes, rows = np.array([len(part.row_indices) for part in parts]), parts[0].padded.rows
    if not rows:
        return np.zeros((len(parts), 0), np.int64)
    # A client's padding repeats its own first row, never a row of another client.
    starts = np.cumsum(sizes) - sizes
    places = starts[:, None] + _first_places(sizes, rows)
    return np.asarray(np.concatenate([part.row_indices for part in parts])[places])


def _first_places(sizes: np.ndarray, width: int) -> np.ndarray:
    """Return 0, 1 ... size - 1 for each of the sizes ``[M]``, padded by 0, int64 ``[M,
    width]``."""
    places = np.arange(width)
    return np.where(places < sizes[:, None], places, 0)


def _padded_steps(parts: Sequence[Rows], device: torch.device) -> dict[str, Tensor]:
    """Return index ``[M, S, B]``, count ``[M, S]`` and, if the schedules have keys, keys ``[M,
    S]``. If all steps have the same rows, index and count are those of one step, expanded."""
    shape, clients = parts[0].padded, len(parts)
    if shape.repeated:  # all rows in order, unless ``drop_last`` drops the only step
        sizes = np.array([part.count[0] if len(part.count) else 0 for part in parts])
        index, count = _first_places(sizes, shape.width)[:, None], sizes[:, None]
    else:
        index = np.zeros((clients, shape.steps, shape.width), np.int64)
        count = np.zeros((clients, shape.steps), np.int64)
        for client, part in enumerate(parts):
            index[client, : part.index.shape[0], : part.index.shape[1]] = part.index
            count[client, : len(part.count)] = part.count
    steps = {
        "index": torch.from_numpy(index).to(device).expand(clients, shape.steps, shape.width),
        "count": torch.from_numpy(count).to(device).expand(clients, shape.steps),
    }
    if parts[0].keys is None:
        return steps
    keys = np.zeros((clients, shape.steps), np.int64)
    for client, part in enumerate(parts):
        if part.keys is not None:
            keys[client, : len(part.keys)] = part.keys
    return {**steps, "keys": torch.from_numpy(keys).to(device)}


def _map(join: Callable[..., Tensor], *results: Any) -> Any:
    """Return ``join`` of the tensors at the same place of nested dicts and tuples."""
    first = results[0]
    if isinstance(first, dict):
        return {key: _map(join, *[result[key] for result in results]) for key in first}
    if isinstance(first, tuple):
        return tuple(_map(join, *parts) for parts in zip(*results, strict=True))
    return join(*results)
