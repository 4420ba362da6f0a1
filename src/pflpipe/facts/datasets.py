"""Named data sets: what is known of each before anything is read (datasets.json)."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a named data set before reading it.

    Attributes:
        classes: number of classes K.
        train_size: number of training examples.
        image_shape: (H, W, C), or (D,) of float features.
        mean, std: per-channel (or one for all) constants of ``normalise``, on the scale 0..1: of
            CIFAR-10, SVHN and FEMNIST as the compared papers' codes have them; otherwise they map
            [0, 1] to [-1, 1].
        needs_network: whether the files must be fetched, if nobody laid them out.
        users: number of user ids, or None.
        collection: what its images were taken from, where other named data sets may have the same.
    """

    classes: int
    train_size: int
    image_shape: tuple[int, ...]
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    needs_network: bool = True
    users: int | None = None
    collection: str = ""


DRAWN = "dead_leaves"
"""The reference of features that no data are needed for: images that a program draws."""


def _info(known: dict[str, Any]) -> DatasetInfo:
    lists = {key: tuple(value) for key, value in known.items() if isinstance(value, list)}
    return DatasetInfo(**known | lists)


_KNOWN: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("datasets.json").read_text(encoding="utf-8")
)
DATASETS = {name: _info(known) for name, known in _KNOWN.items()}
"""Name -> what is known."""
