"""Audits of other people's releases: what a file of this folder holds.

``NAME.py`` adapts the mechanisms of one program to releases of arrays and names the claim that the
program itself makes for each. It defines ``PROGRAM`` (its name), ``VERSION`` (the release
or commit that is audited) and ``AUDITS``, a list of ``Entry`` and ``Untried``. If the program can
be installed, its own functions are imported, and ``requirements/NAME.txt`` pins it: the
audits then run in an environment of their own. If there is no such file, they run in the project's.
Official code that cannot be installed is read, not copied: the file states the mechanism in our
words, with file and line of theirs.

``make audits`` runs all of them, ``make audits AUDITS=NAME`` one (``__main__``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pflpipe.auditing.claim import Claim


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One audit of a mechanism of another program.

    Attributes:
        title: the mechanism and its setting, by their names: "FedAvg with server-side fixed
            clipping, equal numbers of rows".
        release: what ``pflpipe.audit`` takes: a function, a class, or an object with ``start`` and
            ``step``.
        claim: what the program claims of it, and no more.
        source: file and lines of the mechanism in the program's source, "dp/fixed.py:107-185".
        said: one sentence: where the program makes the claim, and in which words.
        remark: what a reader must know to judge it fairly, such as an assumption that the program's
            documentation states.
        farther: how many times as far as the claimed noise covers one client moves the result, by
            the arithmetic that ``remark`` states, which no measurement may exceed; 0 if it is only
            measured.
        seconds: the ``seconds`` of ``pflpipe.audit``, which assumes a call of a tenth of a
            millisecond: less for a release that is slow to call.
    """

    title: str
    release: Any
    claim: Claim
    source: str
    said: str
    remark: str = ""
    farther: float = 0.0
    seconds: float = 5.0


@dataclass(frozen=True, kw_only=True)
class Untried:
    """A mechanism of another program that is listed but not attacked.

    Attributes:
        title, source: as in ``Entry``.
        reason: one sentence: why it is not tried.
    """

    title: str
    source: str
    reason: str


def finite(messages: np.ndarray) -> np.ndarray:
    """Return messages ``[m, d]`` in which NaN and infinity are 0.

    A program that lets NaN through fails every audit for that reason alone. An entry with finite
    messages shows what its noise covers; another one, without this, shows what NaN does.
    """
    return np.nan_to_num(messages, nan=0.0, posinf=0.0, neginf=0.0)
