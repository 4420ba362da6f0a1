"""What a data set holds (``pflpipe data NAME``), before anything trains: what was understood of its
source, shapes, rows of each user and class, ranges of features."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from pflpipe.data import datasets, pins, sources
from pflpipe.data.datasets import Arrays
from pflpipe.errors import located
from pflpipe.study.config import Config

_BINS = 10
_WIDTH = 40
_MOST_CLASSES = 30
_LARGE = 10
"""Features beyond this are called large."""


def lines(dataset: str, settings: Config) -> Iterator[str]:
    """Yield the text. The user's own source is read anew, and no pin is written: the block may
    still change before the first run.

    Raises:
        DataError: the name is unknown, or the data set is not in order.
    """
    source = settings.datasets.get(dataset)
    if source is None:
        datasets.info(dataset, settings.datasets)
    made = settings.data_dir / f"{dataset}.npz"
    with tempfile.TemporaryDirectory() as folder:
        read = made if source is None and made.exists() else Path(folder) / made.name
        if read is not made:
            downloads = settings.data_dir / "downloads"
            with located("" if source is None else f"{settings.source}: datasets.{dataset}"):
                yield sources.prepare(dataset, source, downloads, read)
        arrays = datasets.load_arrays(read)
    if read is made:
        yield f"{dataset}: {arrays}"
    classes = source.get("classes") if isinstance(source, dict) else None
    yield from _of(arrays, classes if isinstance(classes, list) else range(arrays.classes))
    pin = made.with_suffix(".pin")
    if pin.exists():
        same = "" if pins.fits(datasets.values(arrays), pin) else "not "
        yield f"These are {same}the values with which the name was first used ({pin})."
    yield "All numbers here are diagnostics of the rows: no epsilon covers them."


def _of(arrays: Arrays, names: Sequence[object]) -> Iterator[str]:
    """Yield shapes, rows of each user and class, and what to mind."""
    train, test = arrays.train_images, arrays.test_images
    yield f"training {train.dtype} {list(train.shape)}, test {list(test.shape)}"
    if train.dtype != np.uint8:
        low, high = float(train.min()), float(train.max())
        yield f"features from {low:g} to {high:g}" + (
            ": large values train badly, so scale them by constants (ranges)"
            if max(-low, high) > _LARGE
            else ""
        )
    if arrays.train_users is not None and arrays.test_users is not None:
        users = np.concatenate([arrays.train_users, arrays.test_users])
        sizes = np.unique(users, return_counts=True)[1]
        quantiles = np.quantile(sizes, (0, 0.25, 0.5, 0.75, 1))
        yield "rows of a user: {:g} at least, quartiles {:g}, {:g} and {:g}, {:g} at most".format(
            *quantiles
        )
        if few := int((sizes < 3).sum()):
            yield f"{few} users have fewer than 3 rows, too few for a test of their own"
        counts, edges = np.histogram(sizes, min(_BINS, sizes.max() - sizes.min() + 1))
        firsts = np.ceil(edges).astype(int)
        lasts = [*(firsts[1:-1] - 1), sizes.max()]
        spans = [
            f"{first} to {last}" if first < last else f"{first}"
            for first, last in zip(firsts, lasts, strict=False)
        ]
        yield "users by their rows:"
        yield from _bars(spans, counts)
    else:
        yield "no users: partition.kind natural needs them"
    labels = np.concatenate([arrays.train_labels, arrays.test_labels])
    counts = np.bincount(labels, minlength=arrays.classes)
    yield "rows by class:" + (f" (the first {_MOST_CLASSES})" * (len(counts) > _MOST_CLASSES))
    yield from _bars(map(str, names), counts[:_MOST_CLASSES])


def _bars(names: Iterable[str], counts: np.ndarray) -> Iterator[str]:
    """Yield a line with a bar for each count."""
    shown = [(name, int(count)) for name, count in zip(names, counts, strict=False)]
    width = max(len(name) for name, _ in shown)
    for name, count in shown:
        bar = "█" * -(-_WIDTH * count // int(counts.max()))
        yield f"  {name:>{width}} {bar}{' ' * bool(bar)}{count:,}"
