"""The largest size of data from outside, checked before they are read.

An archive of a few megabytes may unpack to more than any memory holds, and the header of an array
may state any size.
"""

import os

from pflpipe.errors import DataError


def most() -> int:
    """Return the largest size of a data set in bytes: half of the machine's memory, because
    training holds the images and the floats that ``normalise`` makes of them."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def check(size: int, location: str) -> None:
    """Raise DataError if a size is above ``most()``.

    Args:
        size: bytes.
        location: names the file in the message.
    """
    if size > most():
        what, do = f"{location} is too large", "take fewer examples, or a machine with more memory"
        expected = f"at most half of this machine's memory, {most() / 1e9:.1f} GB"
        raise DataError(what, got=f"{size / 1e9:.1f} GB", expected=expected, do=do)
