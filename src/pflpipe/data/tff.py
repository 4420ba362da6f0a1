"""HDF5 files in the layout of TensorFlow Federated's simulation data (``tff.simulation.datasets``):
``examples/<client>/<key>``, each with a row for each example of this client."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pflpipe.code import guard
from pflpipe.data import limits, texts, vocabulary
from pflpipe.data.blocks import Part
from pflpipe.errors import located


def read(
    path: Path,
    *,
    example: str = "",
    label: str = "",
    classes: int | Sequence[Any] | None = None,
    text: str = "",
    stored: Callable[[np.ndarray], np.ndarray] = np.asarray,
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
        stored: what becomes of a client's examples, one client at a time.
        tokens: arguments of ``texts.Tokens``, with ``text``.

    Returns:
        uint8 or float32 ``[N, ...]``, or int32 ``[N, T]`` tokens; int64 ``[N]``, text ``[N]``, the
        line.

    Raises:
        DataError: not such a file, a client without these keys, or examples that are no numbers.
    """
    import h5py  # late: other files do not need it

    keys = [key for key in (text or example, label) if key]
    kinds, what = ("OS", "texts") if text else ("uif", "numbers")
    found, labelled = [], []
    expected = f"HDF5 with examples/<client>/{' and /'.join(keys)}, {what} of one shape"
    do = "for texts write text, tokens, vocabulary and length (docs/own_files.md)"
    with guard.foreign(f"{path} cannot be read", expected=expected, do=do):
        with h5py.File(path, "r") as file:
            clients = file["examples"]
            # A compressed file is smaller than what it holds.
            limits.check(sum(client[keys[0]].nbytes for client in clients.values()), str(path))
            for user, client in clients.items():
                given = client[keys[0]][()]
                if given.dtype.kind not in kinds:
                    raise ValueError(f"{keys[0]} holds {given.dtype}, no {what}")
                with located(f"{path}: examples/{user}"):
                    found.append(stored(given))
                for key in keys[1:]:
                    labelled.append(client[key][()])
                    counts = len(given), len(labelled[-1])
                    if counts[0] != counts[1]:  # those of others would take their place
                        raise ValueError(f"{user} has {counts[0]} {keys[0]} and {counts[1]} {key}")
            users = list(clients)
        examples = np.concatenate(found)
    names = np.repeat(users, list(map(len, found)))
    note = f"TFF: each of examples is a user; {', label '.join(keys)}"
    with located(str(path)):
        labels = None
        if label:
            words = np.concatenate(labelled)
            words = _decoded(words) if words.dtype.kind in "OS" else words.astype(str)
            labels = vocabulary.number(words, classes, "classes")
        if text:
            layout = texts.Tokens(**tokens)
            examples, labels, row = layout.examples(list(_decoded(examples)), labels)
            return Part(examples, labels, names[row], f"{note}; {layout}")
    assert labels is not None  # for mypy: without text a label is needed
    if examples.dtype != np.uint8:
        examples = examples.astype(np.float32)
    return Part(examples, labels, names, note)


def _decoded(words: np.ndarray) -> np.ndarray:
    with guard.foreign("text", expected="UTF-8"):
        return np.array([word.decode() for word in words])
