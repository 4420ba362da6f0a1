"""JSON files in the layout of LEAF (Caldas et al., "LEAF: A Benchmark for Federated Settings",
2018): ``users``, and ``user_data`` with a list ``x`` of examples and ``y`` of labels for each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pflpipe.data import limits, outside, vocabulary
from pflpipe.data.blocks import Part
from pflpipe.errors import DataError, located


def read(path: Path, classes: int | Sequence[Any] | None = None) -> Part:
    """Return examples, labels and users of a file, and a line that says what was read.

    Args:
        path: the file.
        classes: all labels in the order of their numbers, or how many there are.

    Returns:
        float32 ``[N, D]`` or ``[N, T, C]``, int64 ``[N]``, text ``[N]``, the line.

    Raises:
        DataError: not a file of LEAF, or examples of text or of several lengths.
    """
    limits.check(path.stat().st_size, str(path))
    x: list[Any] = []
    y: list[str] = []
    users: list[str] = []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        for user in content["users"]:
            rows = content["user_data"][user]
            if len(rows["x"]) != len(rows["y"]):
                raise ValueError(f"user {user} has {len(rows['x'])} x and {len(rows['y'])} y")
            x += rows["x"]
            y += map(str, rows["y"])
            users += [str(user)] * len(rows["y"])
        if not x:
            raise ValueError("no row")
        examples = np.array(x, np.float32)
    except Exception as error:  # a missing key, or a value of another kind
        raise DataError(
            f"{path} cannot be read",
            got=outside.described(error),
            expected="LEAF's users, and user_data with x of equally many numbers and y for each",
            do="make numbers of text in a function, my_data.py:load",
        ) from None
    with located(str(path)):
        labels = vocabulary.number(np.array(y), classes, "classes")
    return examples, labels, np.array(users), "LEAF: each of users is a user"
