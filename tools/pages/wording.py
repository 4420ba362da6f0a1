"""How the pages print a difference and call its sign, in the words of pflpipe's own sentences."""

from __future__ import annotations

import math

from pflpipe.report.statistics import Difference


def number(difference: Difference, digits: int = 1) -> str:
    """Return ``+3.2 (0.5 to 5.9)``; the mean alone where there is no interval, ``–`` where nothing
    is known.

    An end that is not 0 is never printed as 0, so that what is printed excludes 0 where the
    interval does.
    """
    if math.isnan(difference.mean):
        return "–"
    mean = f"{difference.mean:+.{digits}f}"
    if not math.isfinite(difference.low):
        return mean
    low, high = (_end(value, digits) for value in (difference.low, difference.high))
    return f"{mean} ({low} to {high})"


def _end(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text if float(text) or not value else f"{value:.1g}"


def verdict(difference: Difference) -> str:
    """Return ``better than``, ``worse than`` or ``not distinguishable from``."""
    return ("not distinguishable from", "better than", "worse than")[difference.sign]


def stand(difference: Difference) -> str:
    """Return ``better off than``, ``worse off than`` or ``not distinguishable from``, of people."""
    return verdict(difference).replace(" than", " off than")


def escaped(text: str) -> str:
    """Return text for Markdown, where an underscore is a mark."""
    return text.replace("_", "\\_")
