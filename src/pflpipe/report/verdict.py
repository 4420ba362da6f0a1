"""What a study's table says at a glance, in the words of sentences.py, whatever its conditions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from pflpipe.cells import WITHOUT_DEPARTURES
from pflpipe.report import sentences
from pflpipe.report.statistics import against, by_seed, contest
from pflpipe.report.summary import largest, over_seeds, round_up
from pflpipe.study.settings import NO_PRIVACY, Setting, layout
from pflpipe.study.study_spec import Study

ALONE = "local_only"
METRIC = "personal_own"

Lines = Mapping[str, pd.DataFrame]
"""Rows of the tidy table, one for each seed, by the line's label."""


def of_study(study: Study, frame: pd.DataFrame) -> Iterator[str]:
    """Yield the sentences of a study, one panel of its conditions after the other: who is better
    than learning alone, who may be the best, the references, what a nominal epsilon is worth.

    Args:
        frame: what ``tidy`` made of the study.
    """
    plan = layout(study)
    for facet in plan.facets:
        where = ", ".join(f"{name} = {value}" for name, value in facet.items())
        for sentence in _of_panel([s for s in plan.settings if s.belongs(facet)], frame):
            yield f"{where}: {sentence}" if where else sentence


def _of_panel(settings: Sequence[Setting], frame: pd.DataFrame) -> Iterator[str]:
    found: dict[str, dict[str, dict[str, pd.DataFrame]]] = {}
    for setting in settings:
        rows = frame.iloc[list(setting.indices)]
        claims = found.setdefault(str(rows["claim"].iloc[0]), {})
        claims.setdefault(setting.budget, {})[setting.label] = rows
    plain = found.get("none", {}).get(NO_PRIVACY, {})
    certified, unreviewed = (found.get(claim, {}) for claim in WITHOUT_DEPARTURES)
    yield from compared(certified, unreviewed, plain.get(ALONE))
    yield from references(plain)
    nominal: dict[str, list[pd.DataFrame]] = {}
    for lines in found.get("nominal", {}).values():
        for label, rows in lines.items():
            nominal.setdefault(label, []).append(rows)
    yield from claims_that_fail(nominal)


def compared(
    certified: Mapping[str, Lines], unreviewed: Mapping[str, Lines], baseline: pd.DataFrame | None
) -> Iterator[str]:
    """Yield who is better than learning alone and who may be the best: certified lines among
    themselves, then unreviewed ones, with this word after their names, beside the certified.

    Args:
        certified, unreviewed: lines by budget.
        baseline: the rows of learning alone; None in a study without them.
    """
    marked = {
        budget: {f"{label} (unreviewed)": rows for label, rows in lines.items()}
        for budget, lines in unreviewed.items()
    }
    everything = {budget: {**certified.get(budget, {}), **own} for budget, own in marked.items()}
    for lines, rivals, whose in (
        (certified, certified, "certified personal models"),
        (marked, everything, "personal models, unreviewed ones among them,"),
    ):
        if baseline is not None:
            yield from alone(lines, baseline)
        yield from leaders(rivals, whose)


def alone(budgets: Mapping[str, Lines], baseline: pd.DataFrame) -> Iterator[str]:
    """Yield which lines of each budget are better than learning alone.

    Args:
        budgets: lines of one claim by budget.
        baseline: the rows of learning alone.
    """
    own = by_seed([("", baseline)], METRIC)[""]
    said = sentences.each_budget(
        {
            budget: sentences.against(
                against(by_seed(list(lines.items()), METRIC), own), f"learning alone ({ALONE})"
            )
            for budget, lines in budgets.items()
        }
    )
    if said:
        yield said


def leaders(
    budgets: Mapping[str, Lines], whose: str = "certified personal models"
) -> Iterator[str]:
    """Yield who may be the best at each budget, in one sentence about models that are ``whose``."""
    said = {}
    for budget, lines in budgets.items():
        found = contest(by_seed(list(lines.items()), METRIC))
        means = {label: over_seeds(rows[METRIC]) for label, rows in lines.items()}
        said[budget] = sentences.leader(found, means, whose)
    if said:
        yield sentences.each_budget(said)


def references(lines: Lines) -> Iterator[str]:
    """Yield what is reached without privacy."""
    words = [f"{label} {over_seeds(rows[METRIC]):.1f}" for label, rows in lines.items()]
    if words:
        yield f"Without privacy: {', '.join(words)}."


def claims_that_fail(nominal: Mapping[str, Sequence[pd.DataFrame]]) -> Iterator[str]:
    """Yield what nominal epsilons are worth.

    Args:
        nominal: rows of each line, budget by budget.
    """
    for label, budgets in nominal.items():
        pairs = [
            [round_up(largest(rows[f"epsilon_{name}"])) for name in ("nominal", "central")]
            for rows in budgets
        ]
        worth = ", and ".join(f"what it calls ε = {called} is {honest}" for called, honest in pairs)
        yield f"The claim of {label} does not hold: {worth} for a client."
