"""A data set for pflpipe: one function that returns arrays. Here they are made up."""

import numpy as np


def load() -> dict[str, np.ndarray | int]:
    rng = np.random.default_rng(0)  # every call returns the same values
    users = rng.integers(0, 50, size=2000)  # who wrote which row
    labels = rng.integers(0, 4, size=2000)
    images = rng.integers(0, 64, size=(2000, 12, 12)) + 48 * labels[:, None, None]
    return {
        "train_images": images.astype(np.uint8),
        "train_labels": labels,
        "train_users": users,
        "classes": 4,  # declared, so that it does not follow from the labels
    }
