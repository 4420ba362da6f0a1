"""The dependencies of a row: the code and the values that its numbers follow from, each with a
digest.

The claim, the key of a run, its checkpoint and record, the ledger, the certificate and what is
published follow from this list (``methods.row_code`` makes it).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

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
"""Kind of a dependency -> what it may touch. What touches messages can break a guarantee: it could
let a message depend on another client's rows. What touches rows or scores runs before the first
message or after the last one."""

CLAIMS = ("certified", "unreviewed", "nominal", "none")
"""The claims of a row, strongest first (``privacy.ledger.Ledger.claim``)."""
WITHOUT_DEPARTURES = CLAIMS[:2]
"""Claims whose epsilon is ``epsilon_central``. If certified, it holds; if unreviewed, it holds only
if the code of ``unreviewed`` keeps the rules."""
PLACEBO = "placebo"
"""In tables, in place of the claim of a row with ``training.placebo``: it competes with no other.
Its ledger is that of the row with updates."""


@dataclass(frozen=True)
class Dependency:
    """Code or values that a row depends on.

    Attributes:
        kind: a key of ``TOUCHES``.
        name: a name of the package's; or ``file.py:name``, ``module:name`` or a file of the user's,
            or what an object of the calling program is called.
        sha256: 64 hexadecimal digits: of code, what it means (code/meaning.py), with the files that
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
    def of(cls, kind: str, name: str, sha256: str, *, package: bool = False) -> Dependency:
        """Return the dependency of a kind, with what that kind touches."""
        return cls(kind, name, sha256, package, TOUCHES[kind])

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def outside(given: Iterable[Dependency]) -> tuple[Dependency, ...]:
    """Return the dependencies that are not the package's."""
    return tuple(item for item in given if not item.package)


def unreviewed(given: Iterable[Dependency]) -> tuple[Dependency, ...]:
    """Return the code from outside the package that may touch a message: with it no row is
    certified. Initial weights are numbers, which keep nothing from one client for another; the
    ledger says whose word it is that they are public."""
    found = outside(given)
    return tuple(item for item in found if item.touches == "messages" and item.kind != START)


def listed(given: Iterable[Dependency]) -> str:
    """Return those from outside as one text: ``loss my_loss.py:balanced, data my.py:load``."""
    return ", ".join(map(str, outside(given)))


def claim_of(mechanism: str, departures: Collection[str], code: Iterable[Dependency]) -> str:
    """Return the claim, one of ``CLAIMS``, of a mechanism with these departures and of the
    dependencies of its row, of which those of the package may be left out."""
    if mechanism == "none":
        return "none"
    return "nominal" if departures else "unreviewed" if unreviewed(code) else "certified"
