"""JSON files in the layout of LEAF (Caldas et al., "LEAF: A Benchmark for Federated Settings",
2018): ``users``, and ``user_data`` with a list ``x`` of examples and ``y`` of labels for each."""

import dataclasses
import json
from collections import Counter
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
    classes: int | Sequence[Any] | None = None,
    stored: Callable[[np.ndarray], np.ndarray] = np.asarray,
    **tokens: Any,
) -> Part:
    """Return examples, labels and users of a file, and a line that says what was read.

    Args:
        path: the file.
        classes: all labels in the order of their numbers, or how many there are. None, with texts:
            the label is the token that follows, and rows with another label are left out.
        stored: what becomes of the numbers of all examples.
        tokens: arguments of ``texts.Tokens``, if the examples are texts.

    Returns:
        float32 ``[N, D]`` or ``[N, T, C]``, or int32 ``[N, T]`` tokens; int64 ``[N]``, text
        ``[N]``, the line.

    Raises:
        DataError: not a file of LEAF, or examples of text without ``tokens``, or of several
            lengths.
    """
    limits.check(path.stat().st_size, str(path))
    x: list[Any] = []
    y: list[str] = []
    users: list[str] = []
    expected = "LEAF's users, and user_data with x of equally many numbers and y for each"
    do = "for x of text write tokens, vocabulary and length (docs/own_files.md)"
    with guard.foreign(f"{path} cannot be read", expected=expected, do=do):
        text = path.read_text(encoding="utf-8-sig")
        content = json.loads(text, object_pairs_hook=_once)
        _once([(str(user), ()) for user in content["users"]])
        for user in content["users"]:
            rows = content["user_data"][user]
            if len(rows["x"]) != len(rows["y"]):
                raise ValueError(f"user {user} has {len(rows['x'])} x and {len(rows['y'])} y")
            x += rows["x"]
            y += map(str, rows["y"])
            users += [str(user)] * len(rows["y"])
        if not x:
            raise ValueError("no row")
        if not tokens:
            examples = np.array(x, np.float32)
        elif not all(isinstance(text, str) for text in x):
            raise ValueError("x is no text")
    note, names, row = "LEAF: each of users is a user", np.array(users), np.arange(len(y))
    if left_out := content["user_data"].keys() - set(content["users"]):
        note = f"{note}; {len(left_out)} more in user_data were not read"
    with located(str(path)):
        if tokens:
            layout = texts.Tokens(**tokens)
            examples, note = layout.rows(x), f"{note}; {layout}"
        else:
            examples = stored(examples)
        if tokens and classes is None:
            following = dataclasses.replace(layout, length=1).rows(y)[:, 0]
            row = np.flatnonzero(following >= texts.FIRST)
            labels = following[row].astype(np.int64)
        else:
            labels = vocabulary.number(np.array(y), classes, "classes")
    return Part(examples[row], labels, names[row], note)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return pairs as a dict; JSON would keep the last of several with one key without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        [(name, count)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name!r} stands {count} times")
    return found
