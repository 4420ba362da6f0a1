"""HDF5 files in the layout of TensorFlow Federated's simulation data (``tff.simulation.datasets``):
``examples/<client>/<key>``, each with a row for each example of this client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pflpipe.code import guard
from pflpipe.data import limits, texts, vocabulary
from pflpipe.data.blocks import Part
from pflpipe.errors import DataError, located


def read(
    path: Path,
    *,
    example: str = "",
    label: str = "",
    classes: int | Sequence[Any] | None = None,
    text: str = "",
    **tokens: Any,
) -> Part:
    """Return examples, labels and users of a file, and a line that says what was read.

    Args:
        path: the file.
        example, label: keys of a client's examples and of their labels: ``image`` and ``label`` of
            fed_cifar100, ``pixels`` and ``label`` of fed_emnist.
        classes: all labels in the order of their numbers, or how many there are.
        text: instead of ``example``, the key of a client's texts: ``snippets`` of shakespeare,
            ``tokens`` of stackoverflow. Without ``label`` every token that follows is one.
        tokens: arguments of ``texts.Tokens``, with ``text``.

    Returns:
        uint8 or float32 ``[N, ...]``, or int32 ``[N, T]`` tokens; int64 ``[N]``, text ``[N]``, the
        line.

    Raises:
        DataError: not such a file, a client without these keys, or examples that are no numbers.
    """
    import h5py  # late: other files do not need it

    limits.check(path.stat().st_size, str(path))
    keys = [key for key in (text or example, label) if key]
    kinds, what = ("OS", "texts") if text else ("uif", "numbers")
    try:
        with h5py.File(path, "r") as file:
            clients = file["examples"]
            users = list(clients)
            columns = [[clients[user][key][()] for user in users] for key in keys]
        examples = np.concatenate(columns[0])
        if examples.dtype.kind not in kinds:
            raise ValueError(f"{keys[0]} holds {examples.dtype}, no {what}")
    except Exception as error:  # of h5py or a missing key
        raise DataError(
            f"{path} cannot be read",
            got=guard.described(error),
            expected=f"HDF5 with examples/<client>/{' and /'.join(keys)}, {what} of one shape",
            do="for texts write text, tokens, vocabulary and length (docs/own_files.md)",
        ) from None
    names = np.repeat(users, [len(part) for part in columns[0]])
    note = f"TFF: each of examples is a user; {', label '.join(keys)}"
    with located(str(path)):
        labels = None
        if label:
            words = np.concatenate(columns[1])
            words = words.astype(str) if words.dtype.kind != "O" else _decoded(words)
            labels = vocabulary.number(words, classes, "classes")
        if text:
            layout = texts.Tokens(**tokens)
            examples, labels, row = layout.examples(list(_decoded(examples)), labels)
            return examples, labels, names[row], f"{note}; {layout}"
    assert labels is not None  # for mypy: without text a label is needed
    if examples.dtype != np.uint8:
        examples = examples.astype(np.float32)
    return examples, labels, names, note


def _decoded(words: np.ndarray) -> np.ndarray:
    return np.array([word.decode() for word in words])
