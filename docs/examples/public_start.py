"""A public start for pflpipe: the weights of a network that learned from public rows, and the rows
of the clients, which it has not seen. Both are parts of scikit-learn's digits."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import nn

PUBLIC = 300  # rows


def rows() -> tuple[np.ndarray, np.ndarray]:
    digits = load_digits()
    return np.rint(digits.images * (255 / 16)).astype(np.uint8), digits.target


def load() -> dict[str, np.ndarray | int]:
    images, labels = rows()
    return {"train_images": images[PUBLIC:], "train_labels": labels[PUBLIC:], "classes": 10}


def start(images: np.ndarray, labels: np.ndarray) -> nn.Module:
    torch.manual_seed(0)
    # The layers and names of `model: {name: mlp, hidden: [32]}`.
    network = nn.Sequential()
    network.add_module("fc1", nn.Linear(64, 32))
    network.add_module("relu", nn.ReLU())
    network.add_module("head", nn.Linear(32, 10))
    # The inputs of training: pflpipe brings images of your own data to -1 ... 1.
    x = torch.from_numpy(images.reshape(-1, 64) / np.float32(255) * 2 - 1)
    y = torch.from_numpy(labels)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network


if __name__ == "__main__":
    images, labels = (part[:PUBLIC] for part in rows())
    for name, given in (("alike", images), ("mirrored", np.flip(images, 2))):
        file = Path(__file__).with_name(f"{name}.safetensors")
        save_file(start(given.copy(), labels).state_dict(), file)
