"""Examples that come client by client: a pair (x, y) or a torch Dataset for each."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pflpipe.errors import DataError

EXPECTED = "a pair (x, y), or a Dataset of such pairs, for each client"
DO = "join the batches of a DataLoader; of a dict, give list(clients.values())"


def pair(name: str, client: Any) -> tuple[Any, Any]:
    """Return a client's examples ``[n, ...]`` and labels ``[n, ...]``. The items of a Dataset are
    read in order, as a DataLoader would join them.

    Raises:
        DataError: neither a pair nor a Dataset with a length, or a Dataset without items.
    """
    items = client
    if not isinstance(client, tuple | list) and hasattr(client, "__getitem__"):
        from torch.utils.data import Dataset, default_collate  # late: data need no torch

        if isinstance(client, Dataset) and hasattr(client, "__len__"):
            rows = [client[row] for row in range(len(client))]
            do = "give a pair of empty tensors, x [0, ...] and y [0]"
            DataError.unless(bool(rows), name, "a Dataset without items", do=do)
            items = default_collate(rows)
    is_list = isinstance(items, tuple | list)
    DataError.unless(is_list, name, type(client).__name__, EXPECTED, DO)
    DataError.unless(len(items) == 2, name, f"{len(items)} items", EXPECTED, DO)
    x, y = items
    return x, y


def arrays(clients: Sequence[Any]) -> dict[str, np.ndarray]:
    """Return the rows of all clients as ``train_images``, ``train_labels`` and ``train_users``, the
    client's place in the list.

    Raises:
        DataError: as ``pair``; or no client, or examples of several shapes.
    """
    DataError.unless(bool(clients), "clients", "none", EXPECTED)
    pairs = [pair(f"client {place}", client) for place, client in enumerate(clients)]
    x, y = ([np.asarray(values) for values in part] for part in zip(*pairs, strict=True))
    for place, (images, labels) in enumerate(zip(x, y, strict=True)):
        form, label = (part[0].shape[1:] for part in (x, y))
        fits = (images.shape[1:], labels.shape[1:]) == (form, label) and len(images) == len(labels)
        got = f"x {list(images.shape)}, y {list(labels.shape)}"
        expected = f"x {['n', *form]} and y {['n', *label]}"
        DataError.unless(fits, f"client {place}", got, expected)
    users = np.repeat(np.arange(len(y)), [len(labels) for labels in y])
    images, labels = np.concatenate(x), np.concatenate(y)
    return {"train_images": images, "train_labels": labels, "train_users": users}
