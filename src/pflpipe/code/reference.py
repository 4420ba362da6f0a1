"""The form ``file.py:name``, which names an object in a file of the user."""

import re

REFERENCE = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")


def is_reference(text: str) -> bool:
    """Return whether a text has the form ``file.py:name``."""
    return REFERENCE.fullmatch(text) is not None
