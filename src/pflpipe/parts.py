"""The parts of a row: the code and the values that its numbers follow from, each with a digest.

The claim, the key of a run, its checkpoint and record, the ledger, the certificate and what is
published follow from this list (``methods.row_code`` makes it).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

REFERENCE = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")
"""``file.py:name``, an object in a file of the user."""
START = "initial weights"
TOUCHES = {
    "method": "messages",
    "loss": "messages",
    "network": "messages",
    "transform": "messages",
    START: "messages",
    "data": "rows",
    "features": "rows",
    "metric": "scores",
}
"""Kind of a part -> what it may touch. What touches messages can break a guarantee: it could let a
message depend on another client's rows. What touches rows or scores runs before the first message
or after the last one."""


@dataclass(frozen=True)
class Part:
    """A part of a row.

    Attributes:
        kind: a key of ``TOUCHES``.
        name: a name of the package's; or ``file.py:name``, ``module:name`` or a file of the user's,
            or what an object of the calling program is called.
        sha256: 64 hexadecimal digits: of code, what it means (code_version.py), with the files that
            it imports; of numbers, their bytes.
        package: whether it belongs to the package.
        touches: ``messages``, ``rows`` or ``scores``.
    """

    kind: str
    name: str
    sha256: str
    package: bool
    touches: str

    @classmethod
    def of(cls, kind: str, name: str, sha256: str, *, package: bool = False) -> Part:
        """Return the part of a kind, with what that kind touches."""
        return cls(kind, name, sha256, package, TOUCHES[kind])

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def outside(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return the parts that are not the package's."""
    return tuple(part for part in parts if not part.package)


def unreviewed(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return the code from outside the package that may touch a message: with it no row is
    certified. Initial weights are numbers, which keep nothing from one client for another; the
    ledger says whose word it is that they are public."""
    return tuple(
        part for part in outside(parts) if part.touches == "messages" and part.kind != START
    )


def is_reference(text: str) -> bool:
    """Return whether a text has the form ``file.py:name``."""
    return REFERENCE.fullmatch(text) is not None


def named(parts: Iterable[Part]) -> str:
    """Return the parts from outside as one text: ``loss my_loss.py:balanced, data my.py:load``."""
    return ", ".join(map(str, outside(parts)))
