"""A block of config.yaml for a table that nobody has described yet (``pflpipe run table.csv``).

Classes, words and ranges are taken from the rows here, which no epsilon covers. So the file that
gets them says so, and its owner writes what is public in their place.
"""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pflpipe.data import columns, contract
from pflpipe.errors import check_known

ORIGIN = (
    "Classes, words and ranges were taken from the rows, and no epsilon covers that: write public "
    "ones into config.yaml."
)
_CLASSES = 20
"""Most values of a label that are classes, and of a column of words that are listed."""
_HASHED = 64
"""Features of a column of free text."""
_UNIT = re.compile(r"(?!dealt)[A-Za-z][A-Za-z -]{0,39}")


def block(table: pd.DataFrame, file: Path, user: str, label: str) -> dict[str, Any]:
    """Return the block of a table.

    Raises:
        ConfigError: there is no such column.
    """
    for name in (user, label):
        check_known(name, [*map(str, table.columns)], f"{file}: column")
    unit = user.replace("_", " ")
    found: dict[str, Any] = {"file": str(file), "user": user}
    found |= {"unit": unit} if _UNIT.fullmatch(unit) else {}
    ranges: dict[str, list[float]] = {}
    words = sorted(set(_known(table[label])))
    numbers = _numbers(words)
    if numbers is None or len(words) <= _CLASSES:
        found |= {"label": label, "classes": words}
    else:
        found["target"], ranges[label] = label, _range(numbers)
    more: dict[str, Any] = {"missing": {}, "vocabularies": {}, "dates": {}, "texts": {}}
    exclude = []
    for name in columns.of_features(table, (user, label)):
        known = _known(table[name])
        words, numbers = sorted(set(known)), _numbers(known)
        rule = columns.MEDIAN
        if not known or (len(words) == len(table) and contract.OF_ROWS.search(name)):
            exclude.append(name)
            continue
        if numbers is not None:
            ranges[name] = _range(numbers)
        elif all(map(columns.DATE.fullmatch, known)):
            more["dates"][name] = ["month", "weekday"]
        elif len(words) <= _CLASSES:
            more["vocabularies"][name], rule = words, columns.MOST_FREQUENT
        else:
            more["texts"][name] = _HASHED
            continue
        if len(known) < len(table):
            more["missing"][name] = rule
    found |= {"ranges": ranges, "exclude": exclude} | more
    return {key: value for key, value in found.items() if value not in ({}, [])}


def _known(values: pd.Series) -> list[str]:
    texts = (str(value).strip() for value in values if not pd.isna(value))
    return [text for text in texts if text.casefold() not in columns.NOTHING]


def _numbers(texts: list[str]) -> np.ndarray | None:
    found = pd.to_numeric(pd.Series(texts), errors="coerce").to_numpy(dtype=float)
    return found if np.isfinite(found).all() else None


def _range(numbers: np.ndarray) -> list[float]:
    """Return ends of two digits around the numbers, so that a single row seldom tells them."""
    low, high = float(numbers.min()), float(numbers.max())
    step = 10.0 ** (math.floor(math.log10(high - low or abs(high) or 1.0)) - 1)
    ends = math.floor(low / step) * step, (math.floor(high / step) + 1) * step
    return [float(f"{end:.12g}") for end in ends]
