"""What is known of features before any is made: which are refused, and how many there are.

extraction.py makes them. This module does not import torch, which takes seconds, so that a study is
checked without it.
"""

from __future__ import annotations

from pflpipe.cells import Features
from pflpipe.errors import ConfigError, nearest
from pflpipe.named import DATASETS

ANGLES = 8
"""Orientations of the wavelets at each scale."""


def coefficients(scales: int) -> int:
    """Return the number of scattering coefficients of a channel at one place, for J ``scales``."""
    return 1 + ANGLES * scales + ANGLES**2 * scales * (scales - 1) // 2


def check(features: Features, dataset: str) -> None:
    """Raise ConfigError for a reference that is not public, or that may have images of the data
    set: statistics of the clients' own rows are a release that no epsilon covers."""
    reference, own = features.reference, DATASETS.get(dataset)
    if reference is None:
        return
    if reference not in DATASETS:
        raise ConfigError(
            "features.reference",
            got=reference,
            expected="a public data set that pflpipe knows",
            do=nearest(reference, DATASETS),
        )
    collection = DATASETS[reference].collection
    if reference == dataset or (own and collection and own.collection == collection):
        raise ConfigError(
            "features.reference",
            got=reference,
            expected=f"a data set without images of {dataset}",
            do="no epsilon covers means over the clients' own rows",
        )


def shape(
    features: Features, image_shape: tuple[int, ...], public: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """Return the shape of one example, ``(D,)``; without features that of the data set.

    Args:
        features: their settings.
        image_shape: of the data set, ``(H, W, C)``; other shapes are no images.
        public: the same of the reference, if there is one.

    Raises:
        ConfigError: the examples are no images, their sides do not fit the scales, or the reference
            has other channels.
    """
    if features.kind == "none":
        return image_shape
    window = 2**features.scales
    for size in (image_shape, public or image_shape):
        if len(size) != 3:
            raise ConfigError(
                "features", got=f"examples of shape {size}", expected="images, shape (H, W, C)"
            )
        least = window * max(2, features.pool)
        if any(side % window or side < least for side in size[:2]):
            raise ConfigError(
                f"features.scales {features.scales} and pool {features.pool}",
                got=f"images of {size[0]} x {size[1]} pixels",
                expected=f"sides of at least {least}, multiples of {window}",
            )
    if public and public[2] != image_shape[2]:
        raise ConfigError(
            "features.reference",
            got=f"{public[2]} channels",
            expected=f"{image_shape[2]}, as the data set has",
        )
    return (image_shape[2] * coefficients(features.scales) * features.pool**2,)
