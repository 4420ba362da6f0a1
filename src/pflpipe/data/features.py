"""Checks of a study's features, their number, and features from a user's file.

extraction.py makes all other features. This module does not import torch, which takes seconds, so
that a study is checked without it.
"""

from pathlib import Path

import numpy as np

from pflpipe.cells import Features
from pflpipe.code import guard
from pflpipe.data import checks, datasets, pins
from pflpipe.data.checks import IMAGES
from pflpipe.errors import ConfigError, DataError, counted, located, nearest
from pflpipe.facts.datasets import DATASETS, DRAWN

ANGLES = 8
"""Orientations of the wavelets at each scale."""
GIVEN = ("train_features", "test_features")
PIN = "pin"
"""Arrays of a user's file: features of the training and test rows, and the text of the pin of the
data set from whose rows they were made."""
MODEL = "all-MiniLM-L6-v2"
"""The network that makes features of items' texts (minilm.py)."""
COMPONENTS = 16
"""Number of features of an item's text: of 8, 16, 32 and 99 principal components, 16 made learning
alone best on validation rows of Jester."""


def coefficients(scales: int) -> int:
    """Return the number of scattering coefficients of a channel at one place, for J ``scales``."""
    return 1 + ANGLES * scales + ANGLES**2 * scales * (scales - 1) // 2


def check(features: Features, dataset: str) -> None:
    """Raise ConfigError for a reference that is not public, or that may have images of the data
    set: statistics of the clients' own rows are a release that no epsilon covers."""
    reference, own = features.public, DATASETS.get(dataset)
    if reference is None:
        return
    if reference not in DATASETS:
        expected = f"a public data set that pflpipe knows, or {DRAWN}"
        do = nearest(reference, (*DATASETS, DRAWN))
        raise ConfigError("features.reference", got=reference, expected=expected, do=do)
    collection = DATASETS[reference].collection
    if reference == dataset or (own and collection and own.collection == collection):
        expected = f"a data set without images of {dataset}"
        do = "no epsilon covers means over the clients' own rows"
        raise ConfigError("features.reference", got=reference, expected=expected, do=do)


def shape(
    features: Features, image_shape: tuple[int, ...], public: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """Return the shape of one example, ``(D,)``; without features that of the data set. Of the
    user's file only headers are read.

    Args:
        features: their settings.
        image_shape: of the data set, ``(H, W, C)``; other shapes are no images.
        public: the same of the reference, if there is one.

    Raises:
        ConfigError: the examples are no images, their sides do not fit the scales, or the reference
            has other channels.
        DataError: the user's file has not the promised arrays.
    """
    if features.kind == "none":
        return image_shape
    if features.kind == "text":
        got, expected = (
            f"examples of shape {image_shape}",
            "people and items: (1,), an item's index",
        )
        ConfigError.unless(image_shape == (1,), "features.kind text", got, expected)
        return (COMPONENTS,)
    if features.file is not None:
        return _file_shape(Path(features.file))
    window = 2**features.scales
    for size in (image_shape, public or image_shape):
        got, expected = f"examples of shape {size}", "images, shape (H, W, C)"
        ConfigError.unless(len(size) == 3, "features", got, expected)
        least = window * max(2, features.pool)
        fits = all(side % window == 0 and side >= least for side in size[:2])
        what = f"features.scales {features.scales} and pool {features.pool}"
        got = f"images of {size[0]} x {size[1]} pixels"
        ConfigError.unless(fits, what, got, f"sides of at least {least}, multiples of {window}")
    if public and public[2] != image_shape[2]:
        expected = f"{image_shape[2]}, as the data set has"
        raise ConfigError("features.reference", got=f"{public[2]} channels", expected=expected)
    return (image_shape[2] * coefficients(features.scales) * features.pool**2,)


def read(file: Path, arrays: datasets.Arrays, data: Path) -> dict[str, np.ndarray]:
    """Return the features of the user's file, float32 ``[N, D]``, by the names of the images that
    they replace.

    A row of features has no id. Those of the same rows in another order, or of other rows, would
    belong to other people, so the file has the digest of the values from which they were made.

    Args:
        file: an .npz file with ``GIVEN`` and ``PIN``.
        arrays: the data set.
        data: its file, for messages.

    Raises:
        DataError: the arrays are not those promised, were made from other values, or are not
            finite.
    """
    _file_shape(file)
    raw = datasets.read_arrays(file, (*GIVEN, PIN))
    found, expected = str(raw[PIN]).strip(), pins.digest(datasets.values(arrays))
    if found != expected:
        expected = f"{expected}, the text of {data.with_suffix('.pin')}"
        do = f"make the features of the rows of {data}, in their order"
        raise DataError(f"{file}: {PIN}", got=found, expected=expected, do=do)
    named = dict(zip(GIVEN, IMAGES, strict=True))
    with located(str(file)):
        for key, images in named.items():
            got, count = len(raw[key]), len(getattr(arrays, images))
            DataError.unless(got == count, key, counted(got, "row"), f"{count}")
        return {images: checks.finite_images(key, raw[key]) for key, images in named.items()}


def texts(file: Path, items: np.ndarray) -> list[str]:
    """Return the lines of a file, the texts of the items 0, 1, ...

    Args:
        file: UTF-8, one line for each item.
        items: all indices that occur, ``[N, 1]``.

    Raises:
        DataError: the file cannot be read, a line is empty, there are too few lines, or the numbers
            are no indices of items.
    """
    expected = "a text with one line for each item"
    with guard.foreign(f"features.file {file}", expected=expected):
        lines = file.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    last = int(items.max())
    are_items = bool((items == np.floor(items)).all()) and items.min() >= 0
    DataError.unless(
        are_items, "features.kind text", "examples that are numbers", "indices of items"
    )
    least = max(last, COMPONENTS) + 1
    fits, expected = len(lines) >= least, f"at least {least}, one for each item"
    DataError.unless(fits, f"features.file {file}", f"{len(lines)} lines", expected)
    blank = next((number for number, line in enumerate(lines, 1) if not line.strip()), 0)
    DataError.unless(not blank, f"features.file {file}: line {blank}", "no text", "that of an item")
    return lines


def _file_shape(file: Path) -> tuple[int, ...]:
    """Return ``(D,)`` from the headers of the user's file, after checking them."""
    DataError.unless(file.is_file(), "features.file", str(file), "an .npz file")
    shapes = datasets.array_shapes(file)
    with located(str(file)):
        for key in (*GIVEN, PIN):
            shape, dtype = shapes.get(key, ((), None))
            rank, kind, wanted = (0, "U", "a text") if key == PIN else (2, "f", "floats [N, D]")
            if dtype is None or dtype.kind != kind or len(shape) != rank or 0 in shape:
                got = "no such array" if dtype is None else f"{dtype} {list(shape)}"
                raise DataError(key, got=got, expected=wanted)
        (_, width), (_, other) = (shapes[key][0] for key in GIVEN)
        DataError.unless(width == other, GIVEN[1], counted(other, "feature"), f"{width}")
    return (width,)
