r"""What heads learn on an extractor that is noise: a surrogate for DP-pFedDSU's Table II, CIFAR-10.

    PYTHONPATH=src .venv/bin/python tools/noise_features.py data/cifar10.npz \
        > docs/reproduction/controls/noise_features.csv

The printed settings (studies/papers/dp_pfeddsu_table2.yaml) put more noise on the extractor than
its updates are long. Instead of 100 rounds, which need a GPU, a ResNet20 gets the noise of all of
them at once, N(0, T (sigma C / M)^2) on every parameter, and the first clients train their heads on
its features as the study says. The updates themselves are left out: of length C at most, their mean
moves the extractor by T C = 1, the noise by about 100. It is normalised by groups, as in the study,
or by BatchNorm with the averages of the client's own training rows, which stay with the client.
Each row has the accuracy on the clients' own test rows, mean over clients, after 15 epochs (the
paper's) and after 150. Another seed draws another extractor and other clients. The control is the
same program with noise zero: what it does not change, the noise does not explain.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, conv1x1

from pflpipe import cells
from pflpipe.data import datasets, partition
from pflpipe.privacy import accounting

CLIENTS, ROUNDS, CLIP, TESTED, SEEDS = 20, 100, 0.01, 8, (0, 1)
BATCH, EPOCHS, RATE, MOMENTUM, DECAY = 100, (15, 150), 0.01, 0.9, 1e-4
PRINTED = {2: 85.11, 5: 53.92, 10: 41.06}
"""Classes per client -> CENTAUR in the paper's Table II."""
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "GroupNorm": functools.partial(nn.GroupNorm, 8),
    "BatchNorm": functools.partial(nn.BatchNorm2d, momentum=None),
}


def extractor(norm: Callable[[int], nn.Module], deviation: float, seed: int) -> nn.Module:
    """Return a ResNet20 without its head, with noise of this deviation on every parameter."""
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 16, 3, padding=1, bias=False), norm(16), nn.ReLU()]
    width = 16
    for channels in [16] * 3 + [32] * 3 + [64] * 3:
        stride, shortcut = 1, None
        if channels != width:
            stride = 2
            shortcut = nn.Sequential(conv1x1(width, channels, stride), norm(channels))
        layers.append(BasicBlock(width, channels, stride, shortcut, norm_layer=norm))
        width = channels
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with torch.no_grad():
        for value in network.parameters():
            value.add_(deviation * torch.randn_like(value))
    return network


def features(network: nn.Module, *images: Tensor) -> list[Tensor]:
    """Return the features ``[N, 64]`` of training and test images, with BatchNorm's averages over
    the training images."""
    averaging = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]
    for layer in averaging:
        layer.reset_running_stats()
    with torch.no_grad():
        network.train()
        for batch in torch.split(images[0], BATCH) if averaging else ():
            network(batch)
        network.eval()
        return [torch.cat([network(batch) for batch in torch.split(x, BATCH)]) for x in images]


def trained(head: nn.Linear, x: Tensor, labels: Tensor) -> Iterator[None]:
    """Train a head on features ``[N, 64]``; yield after each epoch, for ever."""
    solver = torch.optim.SGD(head.parameters(), RATE, MOMENTUM, weight_decay=DECAY)
    while True:
        for rows in torch.split(torch.randperm(len(x)), BATCH):
            solver.zero_grad()
            loss = nn.functional.cross_entropy(head(x[rows]), labels[rows])
            torch.autograd.backward(loss)
            solver.step()
        yield


def accuracy(head: nn.Linear, x: Tensor, labels: Tensor) -> float:
    """Return the accuracy of a head on these features, in percent."""
    return 100 * float((head(x).argmax(1) == labels).double().mean())


def accuracies(train: Tensor, test: Tensor, labels: Tensor, truth: Tensor) -> list[float]:
    """Return the accuracy of a head on ``test`` after each of ``EPOCHS``, in percent."""
    head, found = nn.Linear(train.shape[1], 10), []
    epochs = zip(range(1, max(EPOCHS) + 1), trained(head, train, labels), strict=False)
    for epoch, _ in epochs:
        if epoch in EPOCHS:
            found.append(accuracy(head, test, truth))
    return found


def multiplier() -> float:
    """Return the noise multiplier of the printed settings."""
    privacy = cells.Privacy(
        mechanism="gaussian", epsilon=1.0, delta=1e-5, clip_norm=CLIP, accountant="rdp"
    )
    plan = accounting.make_plan(privacy, rounds=ROUNDS, sample_rate=1.0, clients=CLIENTS)
    return plan.multiplier


def inputs(arrays: datasets.Arrays, images: np.ndarray) -> Tensor:
    """Return pictures as the extractor takes them, ``[N, 3, 32, 32]``."""
    scaled = datasets.normalise(images, arrays.mean, arrays.std)
    return torch.from_numpy(scaled).permute(0, 3, 1, 2)


def main(file: Path) -> None:
    """Print a row for each normalisation, number of classes per client, seed, and with or without
    noise."""
    torch.set_num_threads(1)
    arrays = datasets.load_arrays(file)
    deviation = math.sqrt(ROUNDS) * multiplier() * CLIP / CLIENTS
    print("normalisation,classes,seed,noise,after_15,after_150,printed")

    for (name, norm), (classes, printed), seed, noise in itertools.product(
        NORMS.items(), PRINTED.items(), SEEDS, (deviation, 0.0)
    ):
        kind = cells.Partition(
            "pathological", CLIENTS, classes_per_client=classes, validation_fraction=0
        )
        split = partition.make(arrays, kind, seed)
        network, found = extractor(norm, noise, seed), []
        for own, tests in zip(split.train[:TESTED], split.test[:TESTED], strict=True):
            images = [
                inputs(arrays, arrays.train_images[own]),
                inputs(arrays, arrays.test_images[tests]),
            ]
            labels, truth = arrays.train_labels[own], arrays.test_labels[tests]
            answers = (torch.from_numpy(value.astype(np.int64)) for value in (labels, truth))
            found.append(accuracies(*features(network, *images), *answers))
        means = ",".join(f"{value:.1f}" for value in np.mean(found, axis=0))
        print(f"{name},{classes},{seed},{noise:.4f},{means},{printed}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
