"""What a study's table says at a glance, in the words of sentences.py, whatever its conditions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from pflpipe.report import comparison, sentences
from pflpipe.report.comparison import ALONE, Group, by_budget, of_claim
from pflpipe.study.settings import layout
from pflpipe.study.study_spec import Study

Budgets = Mapping[str, Sequence[Group]]
"""Groups by what was asked for."""


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
        (unreviewed, everything, "personal models, unreviewed ones among them,"),
    ):
        if own and baseline is not None:
            yield over(own, baseline, f"learning alone ({ALONE})")
        yield from leaders(rivals, whose)


def over(budgets: Budgets, baseline: Group, name: str) -> str:
    """Return which groups of each budget are better than a baseline."""
    differences = {
        budget: comparison.against(members, baseline) for budget, members in budgets.items()
    }
    return sentences.each_budget(
        {
            budget: sentences.against({group.name: one for group, one in found.items()}, name)
            for budget, found in differences.items()
        }
    )


def leaders(budgets: Budgets, whose: str = "certified personal models") -> Iterator[str]:
    """Yield which method may be the best at each budget, in one sentence about models that are
    ``whose``."""
    parts = {b: sentences.leader(members, whose) for b, members in budgets.items()}
    if parts:
        yield sentences.each_budget(parts)


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
