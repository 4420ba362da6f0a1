"""What is the same for every system of `make bench-peers`: examples, clients, network,
hyper-parameters, and taking turns.

Needs torch and numpy alone, so that it runs in pflpipe's environment and in that of the peers. A
system is a program that is started with ``--work cifar10|spi --examples FILE --evaluation
none|central|each --rounds T --processes N`` and runs T rounds of DP-FedAvg. Before each it waits
for a line on its standard input; after each it prints a line of JSON (Turns).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

CLIP_NORM = 1.0
NOISE_MULTIPLIER = 0.01
"""Noise costs the same whatever its size; with so little the model learns, and its accuracy shows
that the work was done."""
EVALUATED_AT_ONCE = 256
EVALUATIONS = {
    "none": "no evaluation",
    "central": "the new global model on the common test set, once a round",
    "each": "every client, on the common test set, the model that it trained",
}


class Net(nn.Module):
    """FedDPA's CIFAR-10 network (343,946 parameters) as a plain module: NCHW, ReLU, then
    pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 32, 3, padding=1)
        self.fc1 = nn.Linear(512, 512)
        self.fc2 = nn.Linear(512, 128)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits ``[B, 10]`` of images ``[B, 3, 32, 32]``."""
        for convolution in (self.conv1, self.conv2, self.conv3):
            x = F.max_pool2d(F.relu(convolution(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.head(F.relu(self.fc2(x)))


class Answers(nn.Module):
    """The network of people_spi (1,098 parameters): 8 numbers for each of 135 statements, then a
    linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(135, 8)
        nn.init.uniform_(self.embedding.weight, -(135**-0.5), 135**-0.5)  # as of a linear layer
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits ``[B, 2]`` of statements ``[B]``."""
        return self.head(self.embedding(x))


@dataclass(frozen=True)
class Work:
    """One federation.

    Attributes:
        title: for people.
        net: the peers' network.
        clients, cohort: all, and those of a round. pflpipe draws each with probability cohort /
            clients, the peers draw exactly so many.
        epochs, batch_size, optimizer, learning_rate: of local training; batch size 0 takes all
            examples of a client in every step.
        examples: what the peers' network reads, from examples as pflpipe's network reads them.
    """

    title: str
    net: type[nn.Module]
    clients: int
    cohort: int
    epochs: int
    batch_size: int
    optimizer: type[torch.optim.Optimizer]
    learning_rate: float
    examples: Callable[[Tensor], Tensor]

    @functools.cache  # noqa: B019 - a client of Flower asks in every round
    def shares(self, count: int) -> list[np.ndarray]:
        """Return the rows of each client: equal parts, in order."""
        return np.array_split(np.arange(count), self.clients)

    @functools.cache  # noqa: B019 - a work lives as long as the program
    def data(self, path: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the peers' training examples and labels [N], and those of the common test set."""
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: torch.from_numpy(file[name]) for name in file.files}
        train, test = (self.examples(arrays[name]) for name in ("train_x", "test_x"))
        return train, arrays["train_y"], test, arrays["test_y"]


WORKS = {
    "cifar10": Work(
        "CIFAR-10 CNN, 10 clients, one local epoch of Adam in batches of 16",
        *(Net, 10, 10, 1, 16, torch.optim.Adam, 1e-3),
        lambda x: x.permute(0, 3, 1, 2).contiguous(),
    ),
    "spi": Work(
        "people_spi: 320 of 3,200 people, five full-batch steps of SGD",
        *(Answers, 3200, 320, 5, 0, torch.optim.SGD, 5.0),
        lambda x: x[:, 0].long(),
    ),
}


@torch.inference_mode()
def accuracy(module: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the percentage of examples that the module classifies rightly."""
    parts = zip(x.split(EVALUATED_AT_ONCE), y.split(EVALUATED_AT_ONCE), strict=True)
    return (
        100 * sum(int((module(part).argmax(-1) == labels).sum()) for part, labels in parts) / len(y)
    )


class Turns:
    """A system's side of the taking of turns: it waits to be asked for a round and tells what the
    round took.

    Every process of a system that torchrun started tells its own CPU seconds; the first one is
    asked.

    Args:
        versions: of the system's packages.
        cpu: CPU seconds that the system has used so far, those of its other processes included.
    """

    def __init__(
        self, versions: Mapping[str, str], cpu: Callable[[], float] = time.process_time
    ) -> None:
        self.versions = {"torch": torch.__version__, **versions}
        self.cpu = cpu
        self.started = (0.0, 0.0)

    def wait(self) -> None:
        """Wait until a round is asked for, and note its start."""
        if os.environ.get("RANK", "0") == "0" and not sys.stdin.readline():
            sys.exit("nobody asks for more rounds")
        if dist.is_initialized():
            dist.barrier()
        self.started = (time.perf_counter(), self.cpu())

    def tell(self, accuracy: float | None) -> None:
        """Tell that the round is done, with the accuracy (percent) that its evaluation found."""
        seconds, cpu = (
            now - start
            for now, start in zip((time.perf_counter(), self.cpu()), self.started, strict=True)
        )
        line = {
            "seconds": seconds,
            "cpu_seconds": cpu,
            "accuracy": accuracy,
            "versions": self.versions,
        }
        os.write(
            sys.stdout.fileno(), f"\n{json.dumps(line)}\n".encode()
        )  # at once: others may write to the same place


def arguments() -> argparse.Namespace:
    """Read what bench_peers.py asks of a system; from here on torch computes with one thread."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", choices=WORKS, required=True)
    parser.add_argument("--examples", required=True)
    parser.add_argument("--evaluation", choices=EVALUATIONS, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--processes", type=int, required=True)
    torch.set_num_threads(1)
    return parser.parse_args()
