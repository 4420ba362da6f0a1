"""Sentences about a comparison, in a vocabulary that follows from intervals.

"Better" and "worse" are said of a group whose adjusted interval excludes 0, "best" of one that no
other group may be; everything else is "not distinguishable", or a number without a word. Whatever
generates text that compares takes its words from here: the verdict of a study's report, and the
pages in tools/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pandas as pd

from pflpipe.report import comparison
from pflpipe.report.comparison import ALONE, Group, by_budget, of_claim
from pflpipe.report.statistics import MIN_SEEDS, Difference
from pflpipe.study.settings import layout
from pflpipe.study.study_spec import Study

NAMED = 5
"""Of a longer list as many are named; the others are counted."""
FEW = 3
"""A longer list of lines that a sentence is not about is only counted."""
Budgets = Mapping[str, Sequence[Group]]
"""Groups by what was asked for."""


# ---------------------------------------------------------------- of a study


def of_study(study: Study, frame: pd.DataFrame) -> Iterator[str]:
    """Yield the sentences of a study, one panel of its conditions after the other: which method is
    better than learning alone, which may be the best, the references, what a nominal epsilon is
    worth.

    Args:
        frame: what ``tidy`` made of the study.
    """
    groups = comparison.groups(study, frame)
    for facet in layout(study).facets:
        where = ", ".join(f"{name} = {value}" for name, value in facet.items())
        panel = [group for group in groups if group.belongs(facet)]
        for sentence in (*compared(panel), *references(panel), *claims_that_fail(panel)):
            yield f"{where}: {sentence}" if where else sentence


def compared(groups: Sequence[Group]) -> Iterator[str]:
    """Yield which method is better than learning alone and which may be the best: certified groups
    among themselves, then unreviewed ones, with this word after their names, beside the
    certified."""
    baseline = comparison.find(of_claim(groups, "none"), ALONE)
    certified, unreviewed = (by_budget(of_claim(groups, c)) for c in ("certified", "unreviewed"))
    everything = {budget: [*certified.get(budget, ()), *own] for budget, own in unreviewed.items()}
    for own, rivals, whose in (
        (certified, certified, "certified personal models"),
        (unreviewed, everything, "personal models, unreviewed ones included"),
    ):
        alone = over(own, lambda budget: baseline, f"learning alone ({ALONE})")
        yield from filter(None, [alone])
        yield from leaders(rivals, whose)


def over(budgets: Budgets, baseline: Callable[[str], Group | None], name: str) -> str:
    """Return which groups of each budget are better than the baseline at it; nothing for budgets
    without one."""
    parts = {}
    for budget, members in budgets.items():
        differences = comparison.against(members, baseline(budget))
        if differences:
            named = {group.name: difference for group, difference in differences.items()}
            parts[budget] = against(named, name)
    return each_budget(parts)


def leaders(budgets: Budgets, whose: str = "certified personal models") -> Iterator[str]:
    """Yield which method may be the best at each budget, in one sentence about models that are
    ``whose``."""
    parts = {b: leader(members, whose) for b, members in budgets.items()}
    if parts:
        yield each_budget(parts)


def references(groups: Sequence[Group]) -> Iterator[str]:
    """Yield what is reached without privacy."""
    words = [f"{group.label} {group.mean():.1f}" for group in of_claim(groups, "none")]
    if words:
        yield f"Without privacy: {', '.join(words)}."


def claims_that_fail(groups: Sequence[Group]) -> Iterator[str]:
    """Yield what the nominal epsilons of each method are worth."""
    nominal = comparison.by(of_claim(groups, "nominal"), lambda group: group.label)
    for label, budgets in nominal.items():
        worth = ", and ".join(
            f"what it calls ε = {group.worst('epsilon_nominal')} is "
            f"{group.worst('epsilon_central')}"
            for group in budgets
        )
        yield f"The claim of {label} does not hold: {worth} for a client."


# ---------------------------------------------------------------- parts of sentences


def names(labels: Sequence[str]) -> str:
    """Return ``a``, ``a and b``, ``a, b and c``, or ``a, b, c, d, e and 3 more``."""
    shown = (
        list(labels) if len(labels) <= NAMED else [*labels[:NAMED], f"{len(labels) - NAMED} more"]
    )
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


def against(differences: Mapping[str, Difference], baseline: str) -> str:
    """Return which lines are better than a baseline, or that the seeds show none that is, and how
    many are worse or not told from it: part of a sentence, without its budget."""
    ranked = sorted(differences, key=lambda label: -differences[label].mean)
    better, same, worse = (
        [label for label in ranked if differences[label].sign == sign] for sign in (1, 0, -1)
    )
    if better:
        text = f"{names(better)} {are(better)} better than {baseline}, "
    else:
        text = f"the seeds show no gain over {baseline} by any method: "
    rest = [
        f"{_few(labels)} {are(labels)} {word}"
        for labels, word in ((same, "not distinguishable from it"), (worse, "worse"))
        if labels
    ]
    return f"{text}{' and '.join(rest)}".rstrip(", ")


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


def leader(members: Sequence[Group], whose: str) -> str:
    """Return which method is or may be the best: part of a sentence, without its budget.

    Args:
        members: groups of one budget.
        whose: what is compared, such as ``certified personal models``.
    """
    outcome = comparison.contest(members)
    top = outcome.leader if outcome else max(members, key=Group.mean)
    place = f"of the {whose} ({top.mean():.1f} %)"
    if outcome is None:
        alone = "there is nothing to compare it with"
        few = f"fewer than {MIN_SEEDS} common seeds rank no method"
        reason = alone if len(members) == 1 else few
        return f"{top.name} has the highest mean {place}, but {reason}"
    if outcome.decided:
        return f"{top.name} is the best {place}"
    if not outcome.bold:
        seeds = max(difference.seeds for difference in outcome.behind.values())
        return (
            f"{top.name} has the highest mean {place}, but {seeds} seeds separate none of the "
            f"{len(outcome.kept)} methods"
        )
    others = sorted(outcome.kept - {top}, key=lambda group: (-group.mean(), group.label))
    rivals = names([group.name for group in others])
    return (
        f"{top.name} has the highest mean {place}, but the seeds do not separate it from {rivals}"
    )
