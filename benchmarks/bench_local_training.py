"""Local training of one federated round against a plain PyTorch loop, interleaved in one process, one thread.

    python benchmarks/bench_local_training.py [--data cifar10.npz] [--examples 2000] [--batch-size 64] [--repeats 5]

The work: CIFAR-10 CNN (343,946 parameters), 10 clients of equal size, one local epoch of Adam per client and round. The peer is
what a paper's code does: an ``nn.Module``, a ``DataLoader`` over each client's tensors, ``torch.optim.Adam``. Ours is the whole
round of DP-FedAvg: local training, clipping, noise, aggregation and the diary. Both see the same pictures in the same number of
steps. Prints images/s of each (medians over the repeats) and the median of the paired ratios; without ``--data`` the pictures
are random, which costs the same.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pflpipe import cells, data, federated, methods, models
from pflpipe.clients import Examples
from pflpipe.partition import Split
from pflpipe.privacy import Plan
from pflpipe.simulation import Simulation

CLIENTS = 10


def pictures(path: str | None, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``count`` normalised pictures [N, 32, 32, 3] and their labels."""
    rng = np.random.default_rng(0)
    if path is None:
        images, labels = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, count)
    else:
        with np.load(path, allow_pickle=False) as file:
            rows = rng.permutation(len(file["train_labels"]))[:count]
            images, labels = file["train_images"][rows], file["train_labels"][rows].astype(np.int64)
    return torch.from_numpy(data.normalise(images, "cifar10")), torch.from_numpy(labels)


def plain_round(module: nn.Module, loaders: list[DataLoader], weights: dict[str, torch.Tensor]) -> None:
    """Train every client from the same weights, as a paper's code does."""
    for loader in loaders:
        module.load_state_dict(weights)
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()


def plain_module() -> nn.Module:
    """The official CIFAR-10 network as modules."""
    layers: list[nn.Module] = []
    for wide, narrow in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(wide, narrow, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers)


def simulation(x: torch.Tensor, y: torch.Tensor, batch_size: int) -> Simulation:
    """DP-FedAvg on the same pictures with the engine's own choice of backend for this network on a CPU."""
    shares = np.array_split(np.arange(len(y)), CLIENTS)
    nothing = [np.arange(0)] * CLIENTS
    return Simulation(
        method=methods.info("dp_fedavg").factory(),
        network=models.build(cells.Model("cnn_cifar"), (32, 32, 3), 10),
        plan=Plan("gaussian", 2, 0.5, 1.0, 1.0, 10**6, 1e-3, CLIENTS),
        training=cells.Training(10**6, 1, batch_size, "adam", 1e-3),
        departures=frozenset(),
        split=Split(shares, nothing, nothing, np.arange(0)),
        train=Examples(x, y),
        test=Examples(x, y),
        seed=0,
        backend="loop",
    )


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data")
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    x, y = pictures(args.data, args.examples)
    chw = x.permute(0, 3, 1, 2).contiguous()
    shares = np.array_split(np.arange(len(y)), CLIENTS)
    loaders = [DataLoader(TensorDataset(chw[rows], y[rows]), batch_size=args.batch_size, shuffle=True) for rows in shares]
    module = plain_module()
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    ours = simulation(x, y, args.batch_size)
    progress = federated.start(ours)
    rates: dict[str, list[float]] = {"plain": [], "pflpipe": []}
    for repeat in range(args.repeats + 1):  # the first pair warms up
        for name in rates:
            began = time.perf_counter()
            if name == "plain":
                plain_round(module, loaders, weights)
            else:
                federated.one_round(ours, progress)
            if repeat:
                rates[name].append(len(y) / (time.perf_counter() - began))
    ratios = [mine / peer for mine, peer in zip(rates["pflpipe"], rates["plain"], strict=True)]
    result = {
        "work": f"cnn_cifar, Adam, batch {args.batch_size}, {CLIENTS} clients, {len(y)} pictures, 1 thread",
        "plain_images_per_second": round(statistics.median(rates["plain"])),
        "pflpipe_images_per_second": round(statistics.median(rates["pflpipe"])),
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in ratios],
        "torch": torch.__version__,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
