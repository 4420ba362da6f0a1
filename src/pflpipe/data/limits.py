"""How large what comes from elsewhere may be, said before any of it is read.

An archive of a few megabytes may unpack to more than any memory has, and the header of an array may
promise anything.
"""

from __future__ import annotations

import os

from pflpipe.errors import DataError


def most() -> int:
    """Return how many bytes the arrays of a data set may have: half of the machine's memory, as
    training holds them twice (``normalise`` makes floats of them)."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def check(size: int, location: str) -> None:
    """Raise DataError if so many bytes have no room.

    Args:
        size: bytes.
        location: names the file in the message.
    """
    if size > most():
        raise DataError(
            f"{location} is too large",
            got=f"{size / 1e9:.1f} GB",
            expected=f"at most half of this machine's memory, {most() / 1e9:.1f} GB",
            do="take fewer examples, or a machine with more memory",
        )
