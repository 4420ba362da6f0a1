"""What a data set holds (``pflpipe data NAME``), before anything trains: what was understood of its
source, shapes, rows of each user and class, ranges of features."""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from pflpipe.data import datasets, pins, sources, texts
from pflpipe.data.blocks import Source
from pflpipe.data.datasets import Arrays
from pflpipe.errors import counted, located
from pflpipe.study.config import Config

_BINS = 10
_WIDTH = 40
_MOST_CLASSES = 30
_LARGE = 10


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
    if source is None and made.exists():
        arrays = datasets.load_arrays(made)
        yield f"{dataset}: {arrays}"
    else:
        with located(f"{settings.source}: datasets.{dataset}" if source is not None else ""):
            arrays, note = read(dataset, source, settings.data_dir / "downloads")
        yield note
    train, test = arrays.train_images, arrays.test_images
    yield f"training {train.dtype} {list(train.shape)}, test {list(test.shape)}"
    if train.dtype.kind == "f":
        advice = ": scale large ones by constants" * bool(abs(train).max() > _LARGE)
        yield f"features from {train.min():g} to {train.max():g}{advice}"
    yield from _users(arrays)
    labels = np.concatenate([arrays.train_labels, arrays.test_labels])
    if arrays.numbers:
        yield f"labels from {labels.min():g} to {labels.max():g}, mean {labels.mean():g}"
    else:
        named = source.get("classes") if isinstance(source, dict) else None
        if isinstance(source, dict) and "vocabulary" in source and named is None:
            named = texts.Tokens(source["vocabulary"], source["length"]).names
        names = named if isinstance(named, list) else range(arrays.classes)
        counts = np.bincount(labels, minlength=arrays.classes)
        yield f"rows by class{', the first' * (len(counts) > _MOST_CLASSES)}:"
        yield from _bars(map(str, names), counts[:_MOST_CLASSES])
    yield from arrays.contract.lines
    pin = made.with_suffix(".pin")
    if pin.exists():
        same = "" if pins.fits(datasets.values(arrays), pin) else "not "
        yield f"These are {same}the values with which the name was first used ({pin})."
    yield "All numbers here are diagnostics of the rows: no epsilon covers them."
    yield from (f"warning: {warning}" for warning in arrays.contract.warnings)


def read(dataset: str, source: Source | None, downloads: Path) -> tuple[Arrays, str]:
    """Return the rows of a source, read anew, and what it was taken for. The data of a study are
    made by Snakemake."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / f"{dataset}.npz"
        note = sources.prepare(dataset, source, downloads, made)
        return datasets.load_arrays(made), note


def _users(arrays: Arrays) -> Iterator[str]:
    """Yield the quantiles and the histogram of the rows of a user."""
    if arrays.train_users is None or arrays.test_users is None:
        yield "no users: partition.kind natural needs them"
        return
    users = np.concatenate([arrays.train_users, arrays.test_users])
    sizes = np.unique(users, return_counts=True)[1]
    low, *quartiles, high = (f"{q:g}" for q in np.quantile(sizes, (0, 0.25, 0.5, 0.75, 1)))
    yield f"rows of a user: {low} at least, quartiles {', '.join(quartiles)}, {high} at most"
    if few := (sizes < 3).sum():
        yield f"{counted(few, 'user')} with fewer than 3 rows, too few for test rows of their own"
    counts, edges = np.histogram(sizes, min(_BINS, int(np.ptp(sizes)) + 1))
    firsts = np.ceil(edges[:-1]).astype(int)
    yield "users by their rows, from:"
    yield from _bars(map(str, firsts), counts)


def _bars(names: Iterable[str], counts: np.ndarray) -> Iterator[str]:
    """Yield a line with a bar for each count."""
    shown = list(zip(names, counts.tolist(), strict=False))
    width = max(len(name) for name, _ in shown)
    for name, count in shown:
        bar = "█" * -(-_WIDTH * count // max(counts))
        yield f"  {name:>{width}} {bar}{' ' * bool(bar)}{count:,}"
