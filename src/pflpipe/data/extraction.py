"""Features of a data set: those of a file (features.py), of the texts of items, or of images, each
image's from this image alone.

Of each channel: pixels / 255, scattering coefficients, their averages over pool x pool parts of the
image, square roots. All channels of an image are then divided by their common length, the group
normalisation of Tramer and Boneh (ICLR 2021) with one group. With a reference each feature becomes
(x - mean) / deviation over the training images of a public data set, is clipped, and divided by the
square root of the number of features: the length of an example is about 1 with and without one.
Where no public data set is like the images, the reference may be images that a program draws.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import adaptive_avg_pool2d, normalize

from pflpipe.cells import Features
from pflpipe.data import datasets, dead_leaves, minilm
from pflpipe.data.checks import IMAGES, example_shape
from pflpipe.data.features import COMPONENTS, read, shape, texts
from pflpipe.data.scattering import scatter
from pflpipe.errors import DataError
from pflpipe.facts.datasets import DRAWN

BATCH = 256
"""Images that are transformed at once."""
DRAWN_BATCHES = 20
"""Batches of drawn images that serve as a reference: about 5,000 images."""
LOGGED = 40
"""Batches between two lines of the log."""


def make(features: Features, data: Path, target: Path, reference: Path | None = None) -> str:
    """Make the file of a data set's features, in the form of a data set, and return a line that
    says what it has.

    Args:
        features: their settings.
        data: ``data/<dataset>.npz``.
        target: the file to make; its pin is next to it.
        reference: with ``features.reference``: its file of features, which have no reference.

    Raises:
        ConfigError: the examples are no images that the settings fit.
        DataError: as ``datasets.load_arrays``, ``datasets.write`` and ``features.read``, or the
            reference has other features.
    """
    arrays = datasets.load_arrays(data)
    images = arrays.train_images
    made: dict[str, Any]
    shape(features, example_shape(images.shape, images.dtype))
    if features.kind == "text":
        made = of_texts(features, data, {key: getattr(arrays, key) for key in IMAGES})
    elif features.file:
        made = read(Path(features.file), arrays, data)
    else:
        made = {key: extract(features, getattr(arrays, key)) for key in IMAGES}
    public = None
    if features.reference == DRAWN:
        public = _drawn(features, example_shape(images.shape, images.dtype))
    elif reference is not None:
        public = datasets.load_arrays(reference).train_images
        got, expected = public.shape[1:], made[IMAGES[0]].shape[1:]
        DataError.unless(got == expected, f"{reference}: features", got, str(expected))
    if public is not None:
        made = {key: standardise(values, public, features.clip) for key, values in made.items()}
    featured = dataclasses.replace(arrays, **made, mean=(0.0,), std=(1.0,))
    return datasets.write(target.stem, featured, target)


def of_texts(features: Features, data: Path, items: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the features of each row's item, ``COMPONENTS`` principal components of what the
    frozen network makes of all items' texts, with a mean square length of 1.

    Args:
        features: their settings.
        data: ``data/<dataset>.npz``, beside which downloads lie.
        items: the index of each row's item, ``[N, 1]``, by the name of the part.
    """
    lines = texts(Path(str(features.file)), np.concatenate(list(items.values())))
    vectors = minilm.encoded(lines, data.parent / "downloads")
    left, sizes, right = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    turned = np.where(np.abs(right.min(1)) > right.max(1), -1, 1)  # a sign is nobody's choice
    components = (left * sizes * turned)[:, :COMPONENTS]
    components /= np.sqrt(np.square(components).sum(1).mean())
    rows = components.astype(np.float32)
    return {key: rows[index[:, 0].astype(int)] for key, index in items.items()}


def _drawn(features: Features, image_shape: tuple[int, ...]) -> np.ndarray:
    """Return the features of images that a program draws, ``[N, D]``."""
    parts = [dead_leaves.images(BATCH, image_shape, part) for part in range(DRAWN_BATCHES)]
    return extract(features, np.concatenate(parts))


def extract(features: Features, images: np.ndarray) -> np.ndarray:
    """Return features of length 1 an image, float32 ``[N, D]``, in the order of channels,
    coefficients and places.

    Args:
        features: their settings.
        images: uint8 ``[N, H, W]`` or ``[N, H, W, C]``.
    """
    height, width, channels = example_shape(images.shape, images.dtype)
    pixels = torch.from_numpy(images).reshape(-1, height, width, channels)
    made = torch.empty(len(images), *shape(features, (height, width, channels)))
    for number, start in enumerate(range(0, len(images), BATCH)):
        if number and number % LOGGED == 0:
            print(f"{start:,} of {len(images):,} images", flush=True)
        batch = pixels[start : start + BATCH].permute(0, 3, 1, 2).flatten(0, 1) / 255
        averages = adaptive_avg_pool2d(scatter(batch, features.scales), features.pool)
        # Averages of moduli; rounding may take one below 0.
        roots = averages.clamp(min=0).sqrt().reshape(-1, made.shape[1])
        made[start : start + BATCH] = normalize(roots, dim=1)
    result: np.ndarray = made.numpy()
    return result


def standardise(values: np.ndarray, public: np.ndarray, clip: float) -> np.ndarray:
    """Return features ``[N, D]`` in deviations of public ones from their mean, clipped, over the
    square root of D. A feature that is constant in public images only loses its mean."""
    mean, deviation = public.mean(0, dtype=np.float64), public.std(0, dtype=np.float64)
    deviation[deviation == 0] = 1
    standard = (values - mean.astype(np.float32)) / deviation.astype(np.float32)
    clipped: np.ndarray = np.clip(standard, -clip, clip) / np.float32(math.sqrt(len(mean)))
    return clipped
