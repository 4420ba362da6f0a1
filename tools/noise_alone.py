"""What a network scores that gets a run's noise and nothing else: the control without a signal.

    PYTHONPATH=src .venv/bin/python tools/noise_alone.py data/cifar10.npz STUDY... \
        > docs/reproduction/controls/noise_alone.csv

For every DP-FedAvg row of these studies a network starts as the run does and gets the noise of each
round on every parameter, N(0, (sigma C / (q M))^2). It is tested on all test rows as the released
model is: after every round where the study does so, otherwise after the last. No client trains. A
study without DP-FedAvg is one of DP-FedSim, whose published noise is the same. A second data set is
a second command, whose rows are put below.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from pflpipe import cells, seeds
from pflpipe.data import datasets, partition
from pflpipe.learning import networks
from pflpipe.program import run_script
from pflpipe.study import plans
from pflpipe.study.load import load_study

SEEDS = (0, 1)
BATCH = 500


def deviation(cell: cells.Cell, arrays: datasets.Arrays, seed: int) -> float:
    """Return the standard deviation of a round's noise on every parameter."""
    split = partition.make(arrays, cell.partition, seed)
    plan = plans.plan_of(cell, np.array([len(rows) for rows in split.train])).plan
    assert plan.clip_norm is not None  # for mypy: both methods clip
    return plan.multiplier * plan.clip_norm / plan.expected_cohort


def scores(
    cell: cells.Cell, arrays: datasets.Arrays, seed: int, deviation: float
) -> Iterator[float]:
    """Yield the accuracy after each round that is tested, in percent."""
    images = torch.from_numpy(datasets.normalise(arrays.test_images, arrays.mean, arrays.std))
    labels = torch.from_numpy(arrays.test_labels.astype(np.int64))
    network = networks.build(cell.model, tuple(images.shape[1:]), int(labels.max()) + 1)
    start = torch.Generator().manual_seed(seeds.seed_for(seed, "init"))
    noise = torch.Generator().manual_seed(seeds.seed_for(seed, "noise alone"))
    params = network.init(start)
    for left in reversed(range(cell.training.rounds)):
        for value in params.values():
            value += deviation * torch.randn(value.shape, generator=noise)
        if left == 0 or cell.training.evaluate_every:
            outputs = [network.apply(params, part) for part in torch.split(images, BATCH)]
            yield 100 * float((torch.cat(outputs).argmax(1) == labels).double().mean())


def rows_of(name: str) -> Iterator[tuple[str, cells.Cell]]:
    """Yield each variant of the study's DP-FedAvg, or without one of its DP-FedSim, and a cell."""
    rows = load_study(name).rows
    method = min({row.cell.method for row in rows} & {"dp_fedavg", "dp_fedsim"})
    yield from {row.variant: row.cell for row in rows if row.cell.method == method}.items()


@torch.no_grad()
def main() -> None:
    """Print the last and the best round of each row and seed."""
    torch.set_num_threads(1)
    arrays = datasets.load_arrays(Path(sys.argv[1]))
    print("study,variant,seed,last,best")
    for name in sys.argv[2:]:
        known: dict[tuple[str, int, float], list[float]] = {}
        for (variant, cell), seed in itertools.product(rows_of(name), SEEDS):
            noise = deviation(cell, arrays, seed)
            key = str(cell.model), seed, noise
            if key not in known:
                known[key] = list(scores(cell, arrays, seed, noise))
            found = known[key]
            best = f"{max(found):.2f}" if len(found) > 1 else ""
            print(f"{name},{variant},{seed},{found[-1]:.2f},{best}", flush=True)


if __name__ == "__main__":
    run_script(main)
