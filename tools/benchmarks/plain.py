"""Federated learning as a paper's code writes it, for comparison: ``nn.Module``, ``DataLoader``,
``torch.optim.Adam``, one client after the other, Fisher information one example at a time.

Written for these benchmarks from the papers' algorithms. Batches, learning rate and optimizer are
those of FedDPA's official code, and so is the evaluation: after its training every client
classifies the shared test set in batches of 256.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, Dataset

LR, CLIP_NORM, NOISE_MULTIPLIER = 1e-3, 0.5, 1.0
TAU, LAMBDA_1, LAMBDA_2 = 0.4, 0.05, 0.1
TEST_BATCH = 256


def network() -> nn.Module:
    """Return FedDPA's CIFAR-10 network."""
    layers: list[nn.Module] = []
    for wide, narrow in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(wide, narrow, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [
        nn.Flatten(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    ]
    return nn.Sequential(*layers)


class Images(Dataset[tuple[Tensor, int]]):
    """PIL images that go through a transform each time they are read, as torchvision's data sets
    do."""

    def __init__(
        self, images: list[object], labels: list[int], transform: Callable[[object], Tensor]
    ) -> None:
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.images[index]), self.labels[index]


def accuracy(module: nn.Module, loader: DataLoader[tuple[Tensor, Tensor]]) -> float:
    """Return the fraction of a loader's examples that are classified rightly."""
    right = total = 0
    module.eval()
    with torch.no_grad():
        for x, y in loader:
            right += (module(x).argmax(1) == y).sum().item()
            total += len(y)
    module.train()
    return right / total


def train(module: nn.Module, loader: DataLoader[tuple[Tensor, Tensor]]) -> None:
    """Train one epoch."""
    optimizer = torch.optim.Adam(module.parameters(), lr=LR)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()


class Federation:
    """Clients with a loader each, one global model, one shared test loader."""

    def __init__(
        self,
        loaders: list[DataLoader[tuple[Tensor, Tensor]]],
        test: DataLoader[tuple[Tensor, Tensor]],
    ) -> None:
        self.loaders, self.test = loaders, test
        self.module = network()
        self.shared = parameters_to_vector(self.module.parameters()).detach()
        self.locals = [self.shared.clone() for _ in loaders]

    def dp_fedavg(self) -> None:
        """One round of DP-FedAvg in which every client tests the model that it has trained."""
        updates = []
        for loader in self.loaders:
            vector_to_parameters(self.shared.clone(), self.module.parameters())
            train(self.module, loader)
            accuracy(self.module, self.test)
            updates.append(parameters_to_vector(self.module.parameters()).detach() - self.shared)
        self._release(updates)

    def feddpa(
        self, fisher: Callable[[nn.Module, Tensor, Tensor], Iterator[tuple[Tensor, ...]]]
    ) -> None:
        """One round of FedDPA in which every client tests the model that it has trained; ``fisher``
        yields each gradient."""
        updates = []
        for client, loader in enumerate(self.loaders):
            vector_to_parameters(self.locals[client].clone(), self.module.parameters())
            total = [torch.zeros_like(p) for p in self.module.parameters()]
            for x, y in loader:
                for gradients in fisher(self.module, x, y):
                    for sum_, gradient in zip(total, gradients, strict=True):
                        sum_ += gradient**2
            personal = [((t - t.min()) / (t.max() - t.min()) >= TAU).float() for t in total]
            mixed = torch.where(
                parameters_to_vector(personal) > 0, self.locals[client], self.shared
            )
            vector_to_parameters(mixed.clone(), self.module.parameters())
            self._train_both(loader, personal)
            self.locals[client] = parameters_to_vector(self.module.parameters()).detach().clone()
            accuracy(self.module, self.test)
            updates.append(self.locals[client] - mixed)
        self._release(updates)

    def _train_both(
        self, loader: DataLoader[tuple[Tensor, Tensor]], personal: list[Tensor]
    ) -> None:
        start = [p.detach().clone() for p in self.module.parameters()]
        shared = [1 - mask for mask in personal]
        optimizers = [torch.optim.Adam(self.module.parameters(), lr=LR) for _ in range(2)]
        for x, y in loader:
            for turn, (mask, optimizer) in enumerate(
                zip((personal, shared), optimizers, strict=True)
            ):
                optimizer.zero_grad()
                parts = zip(self.module.parameters(), start, mask, strict=True)
                length = torch.stack(
                    [torch.linalg.vector_norm((p - s) * m) for p, s, m in parts]
                ).norm()
                penalty = (
                    LAMBDA_1 / 2 * length
                    if turn == 0
                    else LAMBDA_2 / 2 * (length - CLIP_NORM).abs()
                )
                (F.cross_entropy(self.module(x), y) + penalty).backward()
                for p, m in zip(self.module.parameters(), mask, strict=True):
                    p.grad *= m
                optimizer.step()

    def _release(self, updates: list[Tensor]) -> None:
        total = sum(update * (CLIP_NORM / update.norm()).clamp(max=1) for update in updates)
        noise = CLIP_NORM * NOISE_MULTIPLIER * torch.randn_like(self.shared)
        self.shared = self.shared + (total + noise) / len(updates)


def gradients_of_one_forward(
    module: nn.Module, x: Tensor, y: Tensor
) -> Iterator[tuple[Tensor, ...]]:
    """Yield each example's gradient from one forward pass of the batch, as FedDPA's official code
    takes them."""
    each = F.log_softmax(module(x), dim=1)[torch.arange(len(y)), y]
    for value in each:
        yield torch.autograd.grad(value, list(module.parameters()), retain_graph=True)


def gradients_one_by_one(module: nn.Module, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield each example's gradient from a forward pass of its own."""
    for example, label in zip(x, y, strict=True):
        value = F.log_softmax(module(example[None]), dim=1)[0, label]
        yield torch.autograd.grad(value, list(module.parameters()))
