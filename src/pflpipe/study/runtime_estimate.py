"""The estimated training time of a study: images times passes, divided by the images that one CPU
thread trains per second.

This is a model for planning, not a measurement. It ignores personal models made after training,
heads, tests and the start of a job; a GPU or another CPU has another speed. ``studies/README.md``
lists the papers' studies with the same estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `pflpipe status` needs only `duration_text`
    from pflpipe.cells import Cell
    from pflpipe.data.datasets import Header

SPEED = {
    "mlp": 80_000,
    "embedding": 1_000_000,
    "linear": 500_000,
    "cnn_cifar": 2_000,
    "cnn_femnist": 500,
    "cnn_svhn": 400,
    "resnet20": 250,
    "resnet18": 20,
}
"""Network -> images that DP-FedAvg trains per second on an Intel Xeon at 2.8 GHz: the quickstart's
perceptron and the networks of docs/benchmarks.md. An AMD EPYC of 2026 trains 3.5 times as many with
the convolutional networks."""

ANY_NETWORK = 2_000
"""The same for any other network, such as a user's own."""

GPU_SPEED = {"cnn_cifar": 22_000, "resnet20": 5_000, "resnet18": 1_200}
"""The same on one NVIDIA H100, of the networks that tools/benchmarks/bench_gpu.py measured: 10
clients, batches of 16, float32, the faster of loop and vmap. More clients a round and larger
batches train up to ten times as many."""


def images(cell: Cell, header: Header) -> float:
    """Return the expected number of images that a run trains on, over all rounds and clients.

    Args:
        cell: the run.
        header: of its data set.
    """
    split, training = cell.partition, cell.training
    everybody = header.users if split.kind == "natural" else split.clients + split.new_clients
    share = split.clients / everybody if everybody and split.clients else 1.0
    kept = (1 - (split.test_fraction or 0.0)) * (1 - split.validation_fraction)
    rate = training.sample_rate / training.groups
    passes = training.rounds * rate * training.local_epochs
    return header.train_size * min(share, 1.0) * kept * passes


def seconds(cell: Cell, header: Header, speeds: Mapping[str, float] = SPEED) -> float:
    """Return the estimate of a run in seconds of one CPU thread; arguments as for ``images``.

    Args:
        speeds: ``GPU_SPEED`` for seconds of a GPU.
    """
    from pflpipe.methods import registry

    speed = speeds.get(cell.model.name, ANY_NETWORK) / registry.of(cell).about.cost
    return images(cell, header) / speed


def total(
    cells: Iterable[Cell],
    header: Callable[[str], Header | None],
    speeds: Mapping[str, float] = SPEED,
    often: Iterable[float] = repeat(1.0),
) -> float | None:
    """Return the estimate of all runs together in seconds; None if the size of a data set is not
    known yet.

    Args:
        cells: the runs, each once.
        header: returns the header of a data set by name, or None.
        speeds: as in ``seconds``.
        often: how often each run is expected.
    """
    result = 0.0
    for cell, times in zip(cells, often, strict=False):
        if (known := header(cell.dataset)) is None:
            return None
        result += times * seconds(cell, known, speeds)
    return result


def duration_text(seconds: float | None) -> str:
    """Return a duration in a readable unit: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds is None:
        return "unknown"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 9.95 else f"{hours:.0f} h"
