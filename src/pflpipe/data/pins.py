"""Pins: digests that tie the name of a data set to the values that it was first used with.

A run's noise follows from its configuration, in which a data set is a name. Other values under the
same name would get the same noise, and the difference of the two releases would have none.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pflpipe.errors import DataError
from pflpipe.files import write_text

COPIED = 2**24
"""Bytes of an array that are copied at once for the digest, because a data set may have half of the
memory's size."""


def keep(dataset: str, arrays: Mapping[str, np.ndarray], pin: Path) -> None:
    """Write the pin of a new name, or compare the values with the pin of an old one. Call it before
    the data are written.

    The pin is written before the data, so that no run can use data without it. It is no output of a
    rule, because Snakemake deletes the outputs of a job before it starts.

    Args:
        dataset: the name.
        arrays: all arrays of the data set that a run reads.
        pin: the file.

    Raises:
        DataError: the values are not those of the pin, or it is damaged.
    """
    if not pin.exists():
        write_text(pin, f"{digest(arrays)}\n")
    elif not fits(arrays, pin):
        what = f"data set {dataset!r} has other values than when it was first used"
        do = (
            "give the new values a name of their own in config.yaml (runs of both under one name "
            "would share their noise, and their difference would have none), or, if no result of "
            f"the old values was ever shown to anyone, delete {pin}"
        )
        raise DataError(what, expected=f"the values of {pin}", do=do)


def fits(arrays: Mapping[str, np.ndarray], pin: Path) -> bool:
    """Return whether these are the values of the pin."""
    return pin.read_bytes().split() == [digest(arrays).encode()]


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of names, dtypes, shapes and values, whatever the arrays' layout in memory
    or in a file."""
    total = hashlib.sha256()
    for name, values in sorted(arrays.items()):
        total.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
        rows = np.atleast_1d(values)
        step = max(1, COPIED // max(1, rows[:1].nbytes))
        for start in range(0, len(rows), step):
            total.update(rows[start : start + step].tobytes())
    return total.hexdigest()
