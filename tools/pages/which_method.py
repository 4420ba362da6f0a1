"""docs/which_method.md: a rule that chooses a method before anything is trained, and what it costs
not to have known the best one.

A rule sees public facts of a study alone: what its rows are, how many numbers DP-FedAvg sends and
how many people there are. Its regret at a budget is the largest mean accuracy of a certified method
or of one that sends nothing, less that of the rule's. The largest of many means is rather too
large, and so are regrets.

The data set is the unit: the regret of one is the mean over its studies of the mean over their
budgets and numbers of people and of rows. A rule is fitted on the others, so that its regret is
that of a data set which it has not seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pandas as pd

from pages import wording
from pages.panel import Panel
from pflpipe.report.comparison import ALONE, MAIN, Group
from pflpipe.report.render_table import Entry, Table, markdown
from pflpipe.report.verdicts import CONSTANT, OFFSET

PAGE = "which_method.md"
ANSWERS, MANY, SHORT, LONG = (
    "people answer at most 500 items",
    "people answer more items",
    "rows have features, and a message at most 100 numbers",
    "rows have features, and a message more numbers",
)
_MOST_ITEMS, _MOST_SHORT = 500, 100
FEW = (0, 100, 300)
"""Numbers of people up to which a rule may say one of ``LITTLE``. Among equally good ones, the
first."""
LITTLE = (ALONE, CONSTANT, OFFSET)
"""What asks little of the others: nothing, or one release of a number for each item."""
GOOD = 1.0
"""A regret that a reader would not mind, in points."""
ALWAYS = ("dp_fedavg", "fedrep", "pmtl_ft", "ditto", "feddpa", ALONE)


@dataclass(frozen=True)
class Case:
    """What was measured at one budget, number of people and of rows of a study.

    Attributes:
        data: the data set, the same for features made of it.
        kind: ``ANSWERS``, ``MANY``, ``SHORT`` or ``LONG``.
        map: whether the study is a map of few methods at several numbers of people and of rows.
        regret: by label of a line.
    """

    data: str
    study: str
    budget: str
    kind: str
    map: bool
    people: int
    regret: Mapping[str, float]


@dataclass(frozen=True)
class Rule:
    """Up to ``few`` people the first of the kind's ``little``, and without one learning alone; else
    the first method of the kind's ``order`` that the study has, or of ``others``, which is of all
    kinds."""

    few: int = 0
    little: Mapping[str, Sequence[str]] = field(default_factory=dict)
    order: Mapping[str, Sequence[str]] = field(default_factory=dict)
    others: Sequence[str] = ()

    def method(self, case: Case) -> str:
        """Return what the rule says; empty where the study has none of its methods."""
        if case.people <= self.few:
            order = [*self.little.get(case.kind, ()), ALONE]
        else:
            order = [*self.order.get(case.kind, ()), *self.others]
        return next((label for label in order if label in case.regret), "")


Choice = Callable[[Case], str]


def cases(found: Mapping[str, Sequence[Panel]]) -> list[Case]:
    """Return the cases of all studies that have learning alone."""
    return [
        Case(
            data=str(panel.groups[0].first("partition")).partition("-")[0],
            study=name,
            budget=budget,
            kind=_kind(panel),
            map=len(parts) > 1,
            people=panel.people,
            regret=_regret(panel, section.groups),
        )
        for name, parts in found.items()
        for panel in parts
        if panel.alone is not None
        for budget, section in panel.certified.items()
    ]


def _kind(panel: Panel) -> str:
    items = re.search(r"-(\d+) items\b", panel.study.about.caption)
    if items:
        return ANSWERS if int(items[1]) <= _MOST_ITEMS else MANY
    sent = panel.numbers.replace(",", "")
    return SHORT if sent.isdigit() and int(sent) <= _MOST_SHORT else LONG


def _regret(panel: Panel, certified: Sequence[Group]) -> dict[str, float]:
    none = [one for one in (panel.alone, panel.constant) if one is not None]
    means = {one.label: one.mean(MAIN) for one in (*none, *certified)}
    return {label: max(means.values()) - mean for label, mean in means.items()}


def regrets(known: Sequence[Case], choice: Choice) -> pd.DataFrame:
    """Return data set, study, budget, method and regret of what a rule chooses; nothing where it
    chooses nothing."""
    rows = (
        (case.data, case.study, case.budget, label, case.regret[label])
        for case in known
        if (label := choice(case)) in case.regret
    )
    return pd.DataFrame(rows, columns=["data", "study", "budget", "method", "regret"])


def _same(label: str, _: Case) -> str:
    return label


def by_data(found: pd.DataFrame) -> pd.Series[float]:
    """Return the regret of every data set."""
    return found.groupby(["data", "study"])["regret"].mean().groupby("data").mean()


def fit(known: Sequence[Case]) -> Rule:
    """Return the rule with the least mean regret: methods by their mean regret among those that
    every study of a kind has, and the number of people. Maps say the number of people alone."""
    rules = [_fit(known, few) for few in FEW]
    return min(rules, key=lambda rule: round(by_data(regrets(known, rule.method)).mean(), 9))


def _fit(known: Sequence[Case], few: int) -> Rule:
    single = [case for case in known if not case.map]
    many = [case for case in single if case.people > few]
    little = {
        kind: [label for label in order if label in LITTLE]
        for kind, order in _by_kind(single).items()
    }
    return Rule(few, little, _by_kind(many), _order(many))


def _by_kind(known: Sequence[Case]) -> dict[str, list[str]]:
    kinds = dict.fromkeys(case.kind for case in known)
    return {kind: _order([case for case in known if case.kind == kind]) for kind in kinds}


def _order(known: Sequence[Case]) -> list[str]:
    common = set.intersection(*(set(case.regret) for case in known)) if known else set()
    means = _means(known).mean(axis=1).round(9)
    return list(means[sorted(common)].sort_values(kind="stable").index)


def _means(known: Sequence[Case]) -> pd.DataFrame:
    """Return the regret of every method on every data set; NaN where no study has it."""
    rows = ((c.data, c.study, label, one) for c in known for label, one in c.regret.items())
    found = pd.DataFrame(rows, columns=["data", "study", "method", "regret"])
    means = found.groupby(["method", "data", "study"])["regret"].mean()
    return means.groupby(["method", "data"]).mean().unstack()


def left_out(known: Sequence[Case]) -> pd.DataFrame:
    """Return the ``regrets`` of every data set under the rule that was fitted on the others."""
    names = dict.fromkeys(case.data for case in known)
    parts = []
    for name in names:
        rule = fit([case for case in known if case.data != name])
        parts.append(regrets([case for case in known if case.data == name], rule.method))
    return pd.concat(parts, ignore_index=True)


def page(known: Sequence[Case], note: str) -> str:
    """Return the page; ``note`` is its block written by hand."""
    unseen = left_out(known)
    parts = ["# Which method", note, "## The rule", _told(fit(known))]
    parts += ["## What it costs", markdown(_compared(known, unseen)).strip()]
    parts += ["## Every data set", markdown(_each(known, unseen)).strip()]
    return "\n\n".join(parts) + "\n"


def sentence(known: Sequence[Case]) -> str:
    """Return on how many data sets the rule and single methods are good enough."""
    rule, means = by_data(left_out(known)), _means(known)
    parts = []
    for label in means.index.intersection([*ALWAYS]):
        found = means.loc[label].dropna()
        parts.append(f"always {label} on {(found <= GOOD).sum()} of {len(found)}")
    return (
        f"The data set as the unit: a [rule]({PAGE}) that was fitted on the other data sets has a "
        f"regret of at most {GOOD:g} point on {(rule <= GOOD).sum()} of {len(rule)}, in the mean "
        f"{rule.mean():.1f}; {wording.escaped(', '.join(parts))} that have it."
    )


def _told(rule: Rule) -> str:
    instead = (
        f"; where {kind}, {labels[0]}"
        for kind, labels in rule.little.items()
        if labels and labels[0] != ALONE
    )
    lines = [f"At most {rule.few} people: learn alone{''.join(instead)}."] * bool(rule.few)
    for kind, order in rule.order.items():
        lines.append(f"Where {kind}: {' or '.join(order[:2])}.")
    return "\n".join(
        f"{number}. {wording.escaped(line)}" for number, line in enumerate(lines, start=1)
    )


def _compared(known: Sequence[Case], unseen: pd.DataFrame) -> Table:
    header = ("rule", "data sets", "mean", "the rule there", "worst data set", "worst case", "good")
    rows = [_row("this rule, fitted on the others", unseen, unseen)]
    for label in ALWAYS:
        found = regrets(known, partial(_same, label))
        if len(found):
            rows.append(_row(f"always {label}", found, unseen))
    caption = (
        "regret in points of accuracy, the data set as the unit. Good: data sets with at most "
        f"{GOOD:g} point. The rule there: its mean on the data sets that have the method."
    )
    return Table("rules", caption, (), header, (tuple(rows),), labels=len(header))


def _row(name: str, found: pd.DataFrame, unseen: pd.DataFrame) -> tuple[Entry, ...]:
    regret, rule = by_data(found), by_data(unseen)
    worst = found.sort_values("regret").iloc[-1]
    texts = (
        name,
        str(len(regret)),
        f"{regret.mean():.1f}",
        f"{rule.reindex(regret.index).mean():.1f}",
        f"{regret.max():.1f} ({regret.idxmax()})",
        f"{worst['regret']:.1f} ({worst['study']}, {worst['budget']})",
        f"{(regret <= GOOD).sum()} of {len(regret)}",
    )
    return tuple(map(Entry, texts))


def _each(known: Sequence[Case], unseen: pd.DataFrame) -> Table:
    header = ("data set", "studies", "the rule's methods", "regret", "worst case", "least regret")
    rows = tuple(_of_data(name, known, unseen) for name in dict.fromkeys(unseen["data"]))
    caption = (
        "the rule of the other data sets on each. Least regret: the method that all studies of the "
        "data set have with the smallest one, known afterwards."
    )
    return Table("data sets", caption, (), header, (rows,), labels=len(header))


def _of_data(name: str, known: Sequence[Case], unseen: pd.DataFrame) -> tuple[Entry, ...]:
    own = [case for case in known if case.data == name]
    found = unseen[unseen["data"] == name]
    worst = found.sort_values("regret").iloc[-1]
    common = set.intersection(*(set(case.regret) for case in own))
    means = _means(own).loc[sorted(common), name]
    best = str(means.idxmin())
    texts = (
        name,
        str(found["study"].nunique()),
        ", ".join(dict.fromkeys(found["method"])),
        f"{by_data(found)[name]:.1f}",
        f"{worst['regret']:.1f} ({worst['study']}, {worst['budget']})",
        f"{best} ({means[best]:.1f})",
    )
    return tuple(map(Entry, texts))
