"""Sentences about a comparison, in a vocabulary that follows from intervals.

A group is "better" or "worse" if its adjusted interval excludes 0, and "the best" if no other group
may be the best. All others are "not distinguishable". The report and the pages in tools/ take every
sentence that compares from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pandas as pd

from pflpipe.code.dependencies import PLACEBO
from pflpipe.methods import registry
from pflpipe.report import cards, comparison, verdicts
from pflpipe.report.comparison import ALONE, Group, by_budget, largest, of_claim
from pflpipe.report.statistics import MIN_SEEDS, Difference, People
from pflpipe.report.verdicts import DOES_NOT, PAYS, Verdict
from pflpipe.study.settings import layout, round_up
from pflpipe.study.study_spec import Study

NAMED = 5
"""How many methods of a list a sentence names; it counts the others."""
FEW = 3
"""A longer list of methods that are not the subject of a sentence is only counted."""
SEEDS_ALONE = "Intervals are over seeds alone, for these clients: others may differ by more."
"""Beside every sentence of a study of which nobody keeps the answers of single people."""
Budgets = Mapping[str, Sequence[Group]]
"""Groups by their budget."""


# ---------------------------------------------------------------- of a study


def of_study(study: Study, frame: pd.DataFrame) -> Iterator[str]:
    """Yield the sentences of a study, panel by panel: whether personalization pays, which method is
    better than learning alone, which may be the best, the references, and the honest epsilons of
    nominal ones; then what intervals are about, and what the epsilons protect, if a client is no
    user.

    Args:
        frame: the tidy table of the study.
    """
    groups = comparison.groups(study, frame)
    for facet in layout(study).facets:
        where = ", ".join(f"{name} = {value}" for name, value in facet.items())
        panel = [group for group in groups if group.belongs(facet)]
        found = judged(panel, len(study.looks) or 1)
        said = (*paying(found, max(study.looks, default=0)), *compared(panel), *references(panel))
        for sentence in (*said, *claims_that_fail(panel)):
            yield f"{where}: {sentence}" if where else sentence
    yield SEEDS_ALONE
    if len(study.looks) > 1:
        yield (
            f"Seeds may be added: the verdict is read at {names([str(n) for n in study.looks])} "
            "seeds, and its intervals hold together at all of these."
        )
    yield from comparison.protected(frame)


def judged(groups: Sequence[Group], looks: int = 1) -> dict[str, Verdict]:
    """Return the verdict at every budget of the certified groups, over seeds alone; ``looks`` as in
    ``verdicts.judge``."""
    none = [group for group in of_claim(groups, "none") if not group.sends]
    certified = by_budget(of_claim(groups, "certified"))
    found = {
        budget: verdicts.judge([*members, *none], looks=looks)
        for budget, members in certified.items()
    }
    return {budget: verdict for budget, verdict in found.items() if verdict}


def paying(found: Mapping[str, Verdict], last_look: int = 0) -> Iterator[str]:
    """Yield whether personalization pays and what to do at each budget, which rivals the study
    lacks, and how often runs collapsed; ``last_look`` as in ``deed``."""
    deeds: dict[str, list[str]] = {}
    for budget, verdict in found.items():
        deeds.setdefault(deed(verdict, last_look), []).append(spent(budget, [verdict.group]))
    if deeds:
        yield each_budget({names(budgets): deed for deed, budgets in deeds.items()})
    lacking = dict.fromkeys(kind for verdict in found.values() for kind in verdict.missing)
    if lacking:
        rivals = "; ".join(f"({kind}) {verdicts.KINDS[kind]}" for kind in lacking)
        yield f"Not among the rivals: {rivals}."
    fell: dict[str, list[str]] = {}
    for budget, verdict in found.items():
        if told := "; ".join(verdicts.fallen(verdict)):
            fell.setdefault(told, []).append(budget)
    if fell:
        yield each_budget({names(budgets): told for told, budgets in fell.items()})


def deed(verdict: Verdict, last_look: int = 0) -> str:
    """Return whether personalization pays and what to do.

    Args:
        last_look: the number of seeds at which the study is read last; 0 if it plans no looks.
    """
    other = verdicts.instead(verdict)
    if verdict.word == PAYS:
        return f"personalization pays: train {verdict.group.label}"
    if verdict.word == DOES_NOT:
        return f"personalization does not pay: {other}"
    ended = 0 < last_look <= len(verdict.group.indices)
    more = "plan a study with more seeds" if ended else "run more seeds"
    return f"it is undecided whether personalization pays: {other}, or {more}"


def spent(budget: str, members: Sequence[Group]) -> str:
    """Return a budget with the epsilon of the runs and their search together, where that is
    known."""
    values = [value for one in members for value in one.rows.get("epsilon_with_search", ())]
    known = largest(values)
    return budget if known is None else f"{budget} ({round_up(known)} with search)"


def compared(groups: Sequence[Group], people: People | None = None) -> Iterator[str]:
    """Yield which method is better than learning alone and which may be the best: among certified
    groups, then among certified and unreviewed ones together; and how placebos stand."""
    baseline = comparison.find(of_claim(groups, "none"), ALONE)
    certified, unreviewed = (by_budget(of_claim(groups, c)) for c in ("certified", "unreviewed"))
    everything = {budget: [*certified.get(budget, ()), *new] for budget, new in unreviewed.items()}
    for shown, rivals, whose in (
        (certified, certified, "certified personal models"),
        (unreviewed, everything, "personal models, unreviewed ones included"),
    ):
        alone = over(shown, lambda budget: baseline, f"learning alone ({ALONE})", people)
        yield from filter(None, [alone])
        yield from leaders(rivals, whose, people)
    placebos = by_budget(of_claim(groups, PLACEBO))
    if said := over(placebos, lambda budget: baseline, "learning alone", people):
        yield f"With the noise alone and nobody's update, {said[:1].lower()}{said[1:]}"


def over(
    budgets: Budgets,
    baseline: Callable[[str], Group | None],
    name: str,
    people: People | None = None,
) -> str:
    """Return which groups of each budget are better than the baseline at it; nothing for budgets
    without one."""
    parts = {}
    for budget, members in budgets.items():
        differences = comparison.against(members, baseline(budget), people=people)
        if differences:
            named = {group.name: difference for group, difference in differences.items()}
            parts[budget] = against(named, name)
    return each_budget(parts)


def leaders(
    budgets: Budgets, whose: str = "certified personal models", people: People | None = None
) -> Iterator[str]:
    """Yield one sentence: which method may be the best at each budget. ``whose`` names the models
    that are compared."""
    parts = {spent(b, each): leader(each, whose, people) for b, each in budgets.items()}
    if parts:
        yield each_budget(parts)


def references(groups: Sequence[Group]) -> Iterator[str]:
    """Yield the accuracies without privacy."""
    means = [
        f"{group.label} {group.mean():.{group.metric.digits}f}"
        for group in of_claim(groups, "none")
    ]
    if means:
        yield f"Without privacy: {', '.join(means)}."


def claims_that_fail(groups: Sequence[Group]) -> Iterator[str]:
    """Yield the epsilons that hold in place of the nominal ones of each method, from the least to
    the largest of the seeds, and whose mechanism that is."""
    nominal = comparison.by(of_claim(groups, "nominal"), lambda group: group.label)
    for label, budgets in nominal.items():
        worth = " and ".join(
            f"{_span(group.rows['epsilon_central'])} where it claims "
            f"{group.worst('epsilon_nominal')}"
            for group in budgets
        )
        whose = _imitated(budgets[0].method)
        yield f"In this study {label}, {whose}, has ε = {worth}, by arithmetic."


def _span(values: pd.Series[float]) -> str:
    least, most = (round_up(float(value)) for value in (min(values), max(values)))
    return most if least == most else f"{least} to {most}"


def _imitated(method: str) -> str:
    # Where official code departs from a paper, the paper's own version is certified.
    if method not in registry.NAMES or not registry.info(method).about.official_departures:
        return "as pflpipe reads its paper"
    code = cards.header(method).formulas["code"]
    return f"as pflpipe imitates {code.partition(': ')[0]}"


# ---------------------------------------------------------------- parts of sentences


def names(labels: Sequence[str]) -> str:
    """Return ``a``, ``a and b``, ``a, b and c``, or ``a, b, c, d, e and 3 more``."""
    shown = (
        list(labels) if len(labels) <= NAMED else [*labels[:NAMED], f"{len(labels) - NAMED} more"]
    )
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


def against(differences: Mapping[str, Difference], baseline: str) -> str:
    """Return which lines are better than a baseline (or that none is) and how many are worse or not
    distinguishable from it: part of a sentence, without its budget."""
    ranked = sorted(differences, key=lambda label: -differences[label].mean)
    better, same, worse = (
        [label for label in ranked if differences[label].sign == sign] for sign in (1, 0, -1)
    )
    if better:
        text, link = f"{names(better)} {are(better)} better than {baseline}", ", while "
    else:
        text, link = f"the seeds show no gain over {baseline} by any method", ": "
    rest = [
        f"{_few(labels)} {are(labels)} {word}"
        for labels, word in ((same, "not distinguishable from it"), (worse, "worse"))
        if labels
    ]
    return text + (link + " and ".join(rest) if rest else "")


def _few(labels: Sequence[str]) -> str:
    return names(labels) if len(labels) <= FEW else f"{len(labels)} methods"


def are(labels: Sequence[str]) -> str:
    """Return the verb of a sentence about these lines."""
    return "is" if len(labels) == 1 else "are"


def capitalised(text: str) -> str:
    """Return a text with a capital letter, for the start of a sentence."""
    return text[:1].upper() + text[1:]


def joined(parts: Sequence[str]) -> str:
    """Join the parts of one sentence, with a capital letter and without a full stop."""
    return capitalised("; ".join(parts))


def each_budget(parts: Mapping[str, str]) -> str:
    """Return one sentence with a part for every budget; empty without parts."""
    text = joined([f"at {budget}, {part}" for budget, part in parts.items()])
    return f"{text}." if text else ""


def leader(members: Sequence[Group], whose: str, people: People | None = None) -> str:
    """Return which method is or may be the best: part of a sentence, without its budget.

    Args:
        members: groups of one budget.
        whose: what is compared, such as ``certified personal models``.
    """
    # No contest: one group only, or too few common seeds.
    metric = members[0].metric
    outcome = comparison.contest(members, sign=metric.sign, people=people)
    top = outcome.leader if outcome else max(members, key=lambda group: group.worth)
    place = f"of the {whose} ({top.mean_words})"
    extreme = "highest" if metric.sign > 0 else "lowest"
    if outcome is None:
        alone = "there is nothing to compare it with"
        few = f"fewer than {MIN_SEEDS} common seeds rank no method"
        reason = alone if len(members) == 1 else few
        return f"{top.name} has the {extreme} mean {place}, but {reason}"
    if outcome.decided:
        return f"{top.name} is the best {place}"
    if not outcome.bold:
        seeds = max(difference.seeds for difference in outcome.behind.values())
        return (
            f"{top.name} has the {extreme} mean {place}, but {seeds} seeds separate none of the "
            f"{len(outcome.kept)} methods"
        )
    others = comparison.ranked(outcome.kept - {top})
    rivals = names([group.name for group in others])
    return (
        f"{top.name} has the {extreme} mean {place}, but the seeds do not separate it from {rivals}"
    )
