"""HDF5 files in the layout of TensorFlow Federated's simulation data (``tff.simulation.datasets``):
``examples/<client>/<key>``, each with a row for each example of this client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pflpipe.data import limits, outside, vocabulary
from pflpipe.data.blocks import Part
from pflpipe.errors import DataError, located


def read(
    path: Path, *, example: str, label: str, classes: int | Sequence[Any] | None = None
) -> Part:
    """Return examples, labels and users of a file, and a line that says what was read.

    Args:
        path: the file.
        example, label: keys of a client's examples and of their labels: ``image`` and ``label`` of
            fed_cifar100, ``pixels`` and ``label`` of fed_emnist.
        classes: all labels in the order of their numbers, or how many there are.

    Returns:
        uint8 or float32 ``[N, ...]``, int64 ``[N]``, text ``[N]``, the line.

    Raises:
        DataError: not such a file, a client without these keys, or examples that are no numbers.
    """
    import h5py  # late: other files do not need it

    limits.check(path.stat().st_size, str(path))
    try:
        with h5py.File(path, "r") as file:
            clients = file["examples"]
            parts = [
                (user, clients[user][example][()], clients[user][label][()]) for user in clients
            ]
        users, x, y = zip(*parts, strict=True)
        examples = np.concatenate(x)
        if examples.dtype.kind not in "uif":
            raise ValueError(f"{example} holds {examples.dtype}, no numbers")
    except Exception as error:  # of h5py or a missing key
        raise DataError(
            f"{path} cannot be read",
            got=outside.described(error),
            expected=f"HDF5 with examples/<client>/{example} and /{label}, numbers of one shape",
            do="make numbers of text in a function, my_data.py:load",
        ) from None
    with located(str(path)):
        labels = vocabulary.number(np.concatenate(y).astype(str), classes, "classes")
    if examples.dtype != np.uint8:
        examples = examples.astype(np.float32)
    names = np.repeat(users, [len(part) for part in y])
    return examples, labels, names, f"TFF: each of examples is a user; {example}, label {label}"
