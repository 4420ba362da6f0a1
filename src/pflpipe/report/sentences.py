"""Sentences about a comparison, in a vocabulary that follows from intervals.

"Better" and "worse" are said of a line whose adjusted interval excludes 0, "best" of one that
nobody else may be; everything else is "not distinguishable", or a number without a word. Whatever
generates text that compares takes its words from here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pflpipe.report import comparison
from pflpipe.report.comparison import Group
from pflpipe.report.statistics import MIN_SEEDS, Difference

NAMED = 5
"""Of a longer list as many are named; the others are counted."""
FEW = 3
"""A longer list of lines that a sentence is not about is only counted."""


def names(labels: Sequence[str]) -> str:
    """Return ``a``, ``a and b``, ``a, b and c``, or ``a, b, c, d, e and 3 more``."""
    shown = (
        list(labels) if len(labels) <= NAMED else [*labels[:NAMED], f"{len(labels) - NAMED} more"]
    )
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


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


def against(found: Mapping[str, Difference], baseline: str) -> str:
    """Return which lines are better than a baseline, or that the seeds show none that is, and how
    many are worse or not told from it: part of a sentence, without its budget."""
    ranked = sorted(found, key=lambda label: -found[label].mean)
    better, same, worse = (
        [label for label in ranked if found[label].sign == sign] for sign in (1, 0, -1)
    )
    if better:
        said = f"{names(better)} {are(better)} better than {baseline}, "
    else:
        said = f"the seeds show no gain over {baseline} by any method: "
    rest = [
        f"{_few(labels)} {are(labels)} {word}"
        for labels, word in ((same, "not distinguishable from it"), (worse, "worse"))
        if labels
    ]
    return f"{said}{' and '.join(rest)}".rstrip(", ")


def _few(labels: Sequence[str]) -> str:
    return names(labels) if len(labels) <= FEW else f"{len(labels)} methods"


def are(labels: Sequence[str]) -> str:
    """Return the verb of a sentence about these lines."""
    return "is" if len(labels) == 1 else "are"


def joined(parts: Sequence[str]) -> str:
    """Return the parts of one sentence, with a capital and without its full stop."""
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}"


def each_budget(parts: Mapping[str, str]) -> str:
    """Return a sentence of a part for every budget; empty without any."""
    text = joined([f"at {budget}, {part}" for budget, part in parts.items()])
    return f"{text}." if text else ""


def escaped(text: str) -> str:
    """Return text for Markdown, where an underscore is a mark."""
    return text.replace("_", "\\_")


def leader(members: Sequence[Group], whose: str) -> str:
    """Return which method is or may be the best: part of a sentence, without its budget.

    Args:
        members: groups of one budget.
        whose: what is compared, such as ``certified personal models``.
    """
    found = comparison.contest(members)
    if found is None:
        first = max(members, key=Group.mean)
        few = f"fewer than {MIN_SEEDS} common seeds, so nobody is ranked"
        reason = "nothing to compare it with" if len(members) == 1 else few
        return f"the largest mean of the {whose} is {first.mean():.1f}, of {first.name} ({reason})"
    top = found.leader
    if found.decided:
        return f"the best {whose} are those of {top.name}, {top.mean():.1f}"
    others = sorted(found.kept - {top}, key=lambda group: (-group.mean(), group.label))
    return (
        f"the largest mean of the {whose} is {top.mean():.1f}, of {top.name}, not distinguishable "
        f"from {names([group.name for group in others])}"
    )
