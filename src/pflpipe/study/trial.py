"""A method from outside the package is tried before a job starts: each hook once, on random rows,
so that what it raises or returns wrongly is one line."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pflpipe import trees
from pflpipe.cells import Cell
from pflpipe.code import guard
from pflpipe.data.datasets import Header
from pflpipe.errors import ConfigError, located
from pflpipe.learning.architectures import Shapes
from pflpipe.learning.solvers import Schedule
from pflpipe.learning.task import Batches
from pflpipe.methods import registry
from pflpipe.methods.base import Upload
from pflpipe.privacy.plan import Plan
from pflpipe.study import forecast
from pflpipe.trees import Tree, Update

ROWS = 4
"""Number of random rows of the client."""


def check(cell: Cell, header: Header) -> None:
    """Call the hooks of a cell's method for one client with random rows.

    Args:
        cell: of a method from outside the package.
        header: the header of its data set, with the shape that its network gets.

    Raises:
        PflpipeError: a hook raises, or returns what no run can use.
    """
    training, clip, clients = cell.training, cell.privacy.clip_norm, cell.partition.clients
    # Any noise will do: nothing is released.
    of_rounds = training.sample_rate, training.rounds
    plan = Plan("gaussian", 2, clip or 1.0, 1.0, *of_rounds, 1e-5, clients or 2)
    image_shape, outputs = header.image_shape, forecast.outputs_of(cell, header)
    method, task = forecast.before_training(cell, image_shape, outputs, plan)
    task = dataclasses.replace(task, departures=frozenset(cell.departures))
    generator = torch.Generator().manual_seed(0)
    params, shapes = task.network.init(generator), task.network.shapes
    x = torch.rand(ROWS, *image_shape, generator=generator)  # below 1: tokens are 0
    y = torch.arange(ROWS) % header.classes
    if header.numbers:
        y = torch.randn(ROWS, header.classes, generator=generator)

    def steps(count: int, **keys: Tensor) -> Schedule:
        index, sizes = torch.arange(ROWS).expand(count, ROWS), (ROWS,) * count
        return Schedule(x, y, index, torch.tensor(sizes, dtype=torch.int64), sizes, **keys)

    count = method.local_steps or training.local_epochs
    drawn = {"keys": torch.arange(count)} if method.draws or task.network.keyed else {}
    full = steps(1) if method.full_pass or method.head_epochs else None
    head = dataclasses.replace(steps(method.head_epochs), x=x[:0], y=y[:0])
    batches = Batches(torch.tensor(ROWS), steps(count, **drawn), head, full)

    @contextlib.contextmanager
    def hook(name: str) -> Iterator[Callable[..., Any]]:
        file = registry.of(cell).factory.__code__.co_filename
        where = f"{cell.source}: {cell.method}: hook {name}"
        with located(where), guard.in_one_line(cell.source, file):
            yield getattr(method, name)

    def tree(name: str, what: str, wanted: Shapes | None, *given: Any) -> Tree:
        with hook(name) as called:
            return _tree(called(*given, task), what, wanted)

    server = tree("init_server", "a server state", None, params)
    state = tree("init_client", "a client state", None, params)
    with hook("sends") as called:
        sent = {name: shapes[name] for name in called(task)}
    with hook("parts") as called:
        sent |= called(task)
    with hook("local_update") as called:
        result = called(params, server, state, batches, task)
        upload, new = _pair(result, Upload, "(Upload, state)")
        update = Update(_tree(upload.update, "an update", sent))
        fits, got = isinstance(upload.loss, Tensor) and not upload.loss.ndim, _kind(upload.loss)
        ConfigError.unless(fits, "returns a loss", got, "a scalar tensor")
        state = _tree(new, "a client state", trees.shapes(state))
    if update:
        tree("scale", "a scale", None, params, server)
        with hook("aggregate") as called:
            result = called(params, update, server, task)
            stepped, after = _pair(result, dict, "(params, server)")
            params, server = _tree(stepped, "a model", shapes), _tree(after, "a server state")
    if method.absorb is not None:
        state = tree("absorb", "a client state", trees.shapes(state), state, update)
    tree("personalize", "a personal model", shapes, params, server, state, batches)


def _kind(value: Any) -> str:
    return f"a tensor {[*value.shape]}" if isinstance(value, Tensor) else type(value).__name__


def _tree(value: Any, what: str, wanted: Shapes | None = None) -> Tree:
    """Return the tree that a hook returned; raise ConfigError for anything else."""
    if not isinstance(value, dict) or not all(isinstance(one, Tensor) for one in value.values()):
        raise ConfigError(f"returns {what}", got=_kind(value), expected="a dict of tensors")
    got = trees.shapes(value)
    shapes = got if wanted is None else wanted
    for name in sorted(got | shapes):
        found, expected = (of.get(name, "nothing") for of in (got, shapes))
        ConfigError.unless(found == expected, f"returns {what}: {name}", found, str(expected))
    return value


def _pair(value: Any, kind: type, expected: str) -> Any:
    """Return the two parts of a pair that a hook returned, the first of this type."""
    fits = isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], kind)
    ConfigError.unless(fits, "returns", _kind(value), expected)
    return value
