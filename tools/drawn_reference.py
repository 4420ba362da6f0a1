"""What standardisation by drawn images is worth: the accuracies in docs/data.md, "Features".

    PYTHONPATH=src .venv/bin/python tools/drawn_reference.py data/cifar10.npz

One linear model, without privacy and without clients, learns from scattering features of 8,000
training images and is tested on 2,000 others: as they are, standardised by images that a program
draws, and standardised by the 8,000 themselves, which no epsilon covers. Each line has the best of
three learning rates, chosen on the test images, for all three alike.
"""

import dataclasses
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from pflpipe.cells import Features
from pflpipe.data import datasets, extraction
from pflpipe.facts.datasets import DRAWN

PLAIN = Features("scattering")
TRAINED, TESTED, EPOCHS, BATCH, RATES = 8000, 2000, 5, 20, (1.0, 3.0, 10.0)


def accuracy(train: np.ndarray, test: np.ndarray, labels: np.ndarray, truth: np.ndarray) -> float:
    """Return the best accuracy of the learning rates, in percent."""
    x, y, seen = torch.from_numpy(train), torch.from_numpy(labels), torch.from_numpy(test)
    found = []
    for rate in RATES:
        weight = torch.zeros(x.shape[1], int(labels.max()) + 1, requires_grad=True)
        bias = torch.zeros(weight.shape[1], requires_grad=True)
        for first in [*range(0, len(x), BATCH)] * EPOCHS:
            rows = slice(first, first + BATCH)
            loss = torch.nn.functional.cross_entropy(x[rows] @ weight + bias, y[rows])
            slopes = torch.autograd.grad(loss, (weight, bias))
            with torch.no_grad():
                weight -= rate * slopes[0]
                bias -= rate * slopes[1]
        found.append(float(((seen @ weight + bias).argmax(1).numpy() == truth).mean()))
    return 100 * max(found)


def main(file: Path) -> None:
    torch.set_num_threads(1)
    arrays = datasets.load_arrays(file)
    rng = np.random.default_rng(1)
    rows = rng.permutation(len(arrays.train_labels))[:TRAINED]
    others = rng.permutation(len(arrays.test_labels))[:TESTED]
    some = dataclasses.replace(
        arrays,
        train_images=arrays.train_images[rows],
        train_labels=arrays.train_labels[rows],
        test_images=arrays.test_images[others],
        test_labels=arrays.test_labels[others],
    )
    answers = some.train_labels.astype(np.int64), some.test_labels.astype(np.int64)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "some.npz"
        datasets.write("some", some, data)
        for name, features in (
            ("as they are", PLAIN),
            ("by drawn images", dataclasses.replace(PLAIN, reference=DRAWN)),
        ):
            target = Path(folder) / f"{name}.npz"
            extraction.make(features, data, target)
            made = datasets.load_arrays(target)
            if features is PLAIN:
                plain = made
            result = accuracy(made.train_images, made.test_images, *answers)
            print(f"{name}: {result:.1f} %", flush=True)
    public = plain.train_images
    train, test = (extraction.standardise(v, public, 5.0) for v in (public, plain.test_images))
    print(f"by their own statistics: {accuracy(train, test, *answers):.1f} %")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
