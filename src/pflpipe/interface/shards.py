"""Tensors of each client, joined: all examples, and the rows of each client."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from pflpipe.data import checks, per_client
from pflpipe.data.apportion import set_aside
from pflpipe.data.split import Split
from pflpipe.errors import ConfigError, DataError
from pflpipe.learning.losses import Loss

Shard = tuple[Tensor | np.ndarray, Tensor | np.ndarray] | Dataset[Any]
"""Examples of one client: ``x`` float ``[n, ...]`` (images channels last) and ``y`` integers
``[n]`` or, for a loss of real numbers, floats ``[n]`` or ``[n, K]``; or a Dataset of such rows."""


def joined(
    clients: Sequence[Shard],
    tests: Sequence[Shard] | None,
    loss: Loss,
    dtype: torch.dtype,
    test_fraction: float,
    seed: int,
) -> tuple[Tensor, Tensor, Split]:
    """Return the examples of all clients, and the rows of each for training and for its test:
    ``tests``, or without them a fraction that is drawn from the stream of the seed.

    Raises:
        DataError: no clients, or tensors of another form.
    """
    DataError.unless(bool(clients), "clients", "none", "one pair (x, y) for each client")
    fits, got = tests is None or len(tests) == len(clients), f"{len(tests or [])} pairs"
    DataError.unless(fits, "tests", got, f"{len(clients)}, as clients")
    shards = [
        _shard(f"{name}[{i}]", shard, dtype, loss)
        for name, given in (("clients", clients), ("tests", tests or []))
        for i, shard in enumerate(given)
    ]
    for what, values in (("an example", 0), ("a label", 1)):
        shapes = sorted({tuple(shard[values].shape[1:]) for shard in shards})
        DataError.unless(len(shapes) == 1, f"clients: shapes of {what}", shapes, "one")
    x, y = (torch.cat(tensors) for tensors in zip(*shards, strict=True))
    ends = np.cumsum([len(labels) for _, labels in shards])
    rows = np.split(np.arange(len(y)), ends[:-1])
    train, test = rows[: len(clients)], rows[len(clients) :]
    if tests is None:
        fits, expected = 0 <= test_fraction < 1, "0 <= fraction < 1"
        ConfigError.unless(fits, "test_fraction", test_fraction, expected)
        test, train = set_aside(train, test_fraction, seed, "own tests")
    return x, y, Split(train, [np.arange(0) for _ in clients], test, np.concatenate(test))


def _shard(name: str, shard: Shard, dtype: torch.dtype, loss: Loss) -> tuple[Tensor, Tensor]:
    """Return a client's tensors; raise DataError for another form. The check reads no values."""
    values, labels = per_client.pair(name, shard)
    x, y = as_tensor(f"{name}: x", values, "images"), as_tensor(f"{name}: y", labels, "labels")
    fits = x.ndim >= 2 and y.ndim in (1, 1 + loss.numbers) and len(x) == len(y)
    got = f"x {list(x.shape)}, y {list(y.shape)}"
    expected = "x [n, ...] and y [n]" + " or [n, K]" * loss.numbers
    DataError.unless(fits, name, got, expected)
    if loss.numbers:
        return x.to(dtype), y.to(dtype)
    fits = not y.is_floating_point()
    DataError.unless(fits, f"{name}: y", str(y.dtype), "whole numbers 0 to K - 1")
    return x.to(dtype), y.to(torch.int64)


def as_tensor(name: str, values: Tensor | np.ndarray, content: str) -> Tensor:
    """Return real numbers as a tensor; raise DataError for values that would lose something."""
    if isinstance(values, Tensor):
        DataError.unless(not values.is_complex(), name, str(values.dtype), "real numbers")
        return values
    values = checks.as_array(name, values, content)
    DataError.unless(values.dtype.kind in "biuf", name, str(values.dtype), "real numbers")
    # torch takes neither another byte order nor reversed rows.
    return torch.as_tensor(np.asarray(values, values.dtype.newbyteorder("="), order="C"))
