"""What a network scores that gets a run's noise and nothing else: the control without a signal.

    PYTHONPATH=src .venv/bin/python tools/noise_alone.py data/cifar10.npz STUDY... \
        > docs/reproduction/controls/noise_alone.csv

For every DP-FedAvg row of these studies a network starts as the run does and gets the noise of each
round on every parameter, N(0, (sigma C / (q M))^2). It is tested on all test rows as the released
model is: after every round where the study does so, otherwise after the last. No client trains.
"""

from __future__ import annotations

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


def scores(cell: cells.Cell, arrays: datasets.Arrays, seed: int) -> Iterator[float]:
    """Yield the accuracy after each round that is tested, in percent."""
    split = partition.make(arrays, cell.partition, seed)
    sizes = np.array([len(rows) for rows in split.train])
    plan = plans.plan_of(cell, sizes).plan
    assert plan.clip_norm is not None  # for mypy: DP-FedAvg clips
    deviation = plan.multiplier * plan.clip_norm / plan.expected_cohort
    images = torch.from_numpy(datasets.normalise(arrays.test_images, arrays.mean, arrays.std))
    labels = torch.from_numpy(arrays.test_labels.astype(np.int64))
    network = networks.build(cell.model, tuple(images.shape[1:]), int(labels.max()) + 1)
    start = torch.Generator().manual_seed(seeds.seed_for(seed, "init"))
    noise = torch.Generator().manual_seed(seeds.seed_for(seed, "noise alone"))
    params = network.init(start)
    for left in reversed(range(plan.rounds)):
        for value in params.values():
            value += deviation * torch.randn(value.shape, generator=noise)
        if left == 0 or cell.training.evaluate_every:
            outputs = [network.apply(params, part) for part in torch.split(images, BATCH)]
            yield 100 * float((torch.cat(outputs).argmax(1) == labels).double().mean())


@torch.no_grad()
def main() -> None:
    """Print the last and the best round of each row and seed."""
    torch.set_num_threads(1)
    arrays = datasets.load_arrays(Path(sys.argv[1]))
    print("study,variant,seed,last,best")
    for name in sys.argv[2:]:
        rows = [row for row in load_study(name).rows if row.cell.method == "dp_fedavg"]
        for variant, cell in {row.variant: row.cell for row in rows}.items():
            for seed in SEEDS:
                found = list(scores(cell, arrays, seed))
                best = f"{max(found):.2f}" if len(found) > 1 else ""
                print(f"{name},{variant},{seed},{found[-1]:.2f},{best}", flush=True)


if __name__ == "__main__":
    run_script(main)
