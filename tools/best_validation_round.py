r"""CENTAUR's rule "test accuracy in the round of the best validation accuracy", on the surrogate of
``noise_features``, round by round, for DP-pFedDSU's Table II, CIFAR-10, s = 10.

    PYTHONPATH=src .venv/bin/python tools/best_validation_round.py data/cifar10.npz \
        > docs/reproduction/controls/best_validation_round.csv

CENTAUR's code (71e092e) keeps a tenth of the training rows for validation (options.py:116) and
reports the test accuracy in the round of the best validation accuracy (main.py:169-176). A round
trains the head, tests, and trains the extractor after that (methods/DP_FedRep.py:17-33), so the
extractor of round 0 has no noise. Heads are kept from round to round, 15 epochs in each, as its
documented scripts do (methods/DP_FedRep.py:57-62).

As in ``noise_features`` the updates are left out: after each round the extractor gets that round's
noise, N(0, (sigma C / M)^2) on every parameter. Each row has the means over the first clients. The
control is the same program with noise zero.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from noise_features import (
    CLIENTS,
    CLIP,
    NORMS,
    ROUNDS,
    accuracy,
    extractor,
    features,
    inputs,
    multiplier,
    trained,
)
from pflpipe import cells
from pflpipe.data import datasets, partition

NORM, CLASSES, VALIDATION, EPOCHS, TESTED, SEED = "GroupNorm", 10, 0.1, 15, 3, 0


@dataclass(frozen=True)
class Client:
    """Rows of one client, for training, validation and test: images ``[N, 3, 32, 32]`` and labels
    ``[N]``; and its head."""

    images: Sequence[Tensor]
    labels: Sequence[Tensor]
    head: nn.Linear

    def step(self, train: Tensor, *others: Tensor) -> tuple[float, float]:
        """Train the head on its features of the training rows; return its accuracies on those of
        validation and test rows, in percent."""
        for _ in itertools.islice(trained(self.head, train, self.labels[0]), EPOCHS):
            pass
        pairs = zip(others, self.labels[1:], strict=True)
        validation, test = (accuracy(self.head, x, truth) for x, truth in pairs)
        return validation, test


def make_clients(arrays: datasets.Arrays) -> list[Client]:
    """Return the first clients, as the study divides the rows, each with a head of its own."""
    kind = cells.Partition(
        "pathological", CLIENTS, classes_per_client=CLASSES, validation_fraction=VALIDATION
    )
    split = partition.make(arrays, kind, SEED)

    def client(train: np.ndarray, validation: np.ndarray, test: np.ndarray) -> Client:
        own = [
            (arrays.train_images[rows], arrays.train_labels[rows]) for rows in (train, validation)
        ]
        own.append((arrays.test_images[test], arrays.test_labels[test]))
        labels = [torch.from_numpy(truth.astype(np.int64)) for _, truth in own]
        return Client([inputs(arrays, values) for values, _ in own], labels, nn.Linear(64, 10))

    parts = zip(split.train[:TESTED], split.validation, split.test, strict=False)
    return [client(*rows) for rows in parts]


def rounds(
    network: nn.Module, clients: Sequence[Client], deviation: float
) -> Iterator[tuple[float, float]]:
    """Yield validation and test accuracy of each round, means over clients, in percent."""
    seen = [features(network, *client.images) for client in clients]
    for number in range(ROUNDS):
        if number and deviation:
            with torch.no_grad():
                for value in network.parameters():
                    value.add_(deviation * torch.randn_like(value))
            seen = [features(network, *client.images) for client in clients]
        pairs = zip(clients, seen, strict=True)
        validation, test = np.mean([client.step(*found) for client, found in pairs], axis=0)
        yield float(validation), float(test)


def main(file: Path) -> None:
    """Print a row for each round, with and without noise."""
    torch.set_num_threads(1)
    arrays = datasets.load_arrays(file)
    print("normalisation,noise,round,validation,test")
    for noise in (multiplier() * CLIP / CLIENTS, 0.0):
        network = extractor(NORMS[NORM], 0.0, SEED)
        for number, (validation, test) in enumerate(rounds(network, make_clients(arrays), noise)):
            print(f"{NORM},{noise:.4f},{number},{validation:.2f},{test:.2f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
