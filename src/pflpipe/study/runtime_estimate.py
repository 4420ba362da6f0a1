"""What a study's training will take, estimated before anything runs: images times passes, over the
images that one thread of a CPU trains in a second.

A model for planning and no measurement: personal models made after training, heads, tests and the
start of a job are left out, and a GPU or another CPU has another speed. ``studies/README.md`` has
the papers' studies by hours of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `pflpipe status` is here for `words` alone, many times a minute
    from pflpipe.cells import Cell
    from pflpipe.data.datasets import Header

SPEED = {
    "mlp": 80_000,
    "cnn_cifar": 2_000,
    "cnn_femnist": 500,
    "cnn_svhn": 400,
    "resnet20": 250,
    "resnet18": 20,
}
"""Images that DP-FedAvg trains in a second on an Intel Xeon at 2.8 GHz, by network: the
quickstart's perceptron and the networks of docs/benchmarks.md. On an AMD EPYC of 2026 it was 3.5
times as many of the convolutional networks."""

ANY_NETWORK = 2_000
"""The same for a network that is not among them, such as a user's own."""


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
    passes = training.rounds * training.sample_rate * training.local_epochs
    return header.train_size * min(share, 1.0) * kept * passes


def seconds(cell: Cell, header: Header) -> float:
    """Return the estimate of a run in seconds of one CPU thread; arguments as for ``images``."""
    from pflpipe.methods import registry

    speed = SPEED.get(cell.model.name, ANY_NETWORK) / registry.of(cell).about.cost
    return images(cell, header) / speed


def total(cells: Iterable[Cell], header: Callable[[str], Header | None]) -> float | None:
    """Return the estimate of all runs together in seconds; None if the size of a data set is not
    known yet.

    Args:
        cells: the runs, each once.
        header: returns that of a data set by name, or None.
    """
    found = 0.0
    for cell in cells:
        if (known := header(cell.dataset)) is None:
            return None
        found += seconds(cell, known)
    return found


def words(found: float | None) -> str:
    """Return a duration in the unit that people would use: ``40 s``, ``12 min``, ``3.5 h``."""
    if found is None:
        return "unknown"
    if found < 99.5:
        return f"{found:.0f} s"
    if found < 99.5 * 60:
        return f"{found / 60:.0f} min"
    hours = found / 3600
    return f"{hours:.1f} h" if hours < 9.95 else f"{hours:.0f} h"
