"""What competes on the pages of results: the lines of a study at one number of people and of rows,
with three rivals of personal models.

(a) Learning alone. (b) The best released model of any certified method, tested untouched on the
clients' own rows; it is chosen on validation rows (archive.py). A study without validation scores
of released models has DP-FedAvg's by rule. (c) DP-FedAvg, fine-tuned by every client.

Personalization pays where a personal model beats (a) and (b).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from pages.archive import SETTING, VALIDATION, Archive, is_new
from pages.gains import gains
from pflpipe.report import comparison, statistics
from pflpipe.report.comparison import ALONE, MAIN, PLAIN, Group, finite
from pflpipe.report.statistics import Contest, Difference
from pflpipe.study.settings import NO_PRIVACY

RELEASED = "global_own"
"""The column of (b)."""
MARGIN = 1.0
"""Percent points; a gain that is smaller for certain does not pay."""
PAYS, DOES_NOT, UNDECIDED = "pays", "does not pay", "undecided"


@dataclass(frozen=True)
class Verdict:
    """Whether personalization pays at one budget.

    Attributes:
        word: ``PAYS`` if the intervals of some personal model against (a) and (b) lie above 0,
            ``DOES_NOT`` if every one has an interval against (a) or (b) that ends below
            ``MARGIN``, else ``UNDECIDED``.
        group: the personal model with the largest mean; among those that pay, where some do.
        alone, released: its differences to (a) and (b).
        rival: (b).
        apart: (b) beside (a), which tells a reader what to do where personalization does not pay.
    """

    word: str
    group: Group
    alone: Difference
    released: Difference
    rival: Group
    apart: Difference


@dataclass(frozen=True)
class Section:
    """The groups of one budget and one claim, the largest mean first; their rows are those of
    ``Archive.runs``, with ``GAINS`` beside them."""

    groups: list[Group]

    @property
    def budget(self) -> str:
        """The budget of all groups."""
        return self.groups[0].budget

    @property
    def claim(self) -> str:
        """The claim of all groups."""
        return self.groups[0].claim

    @cached_property
    def contest(self) -> Contest | None:
        """Who may be the best."""
        return comparison.contest(self.groups)

    @property
    def best(self) -> frozenset[Group]:
        """The groups in bold."""
        return self.contest.bold if self.contest else frozenset()

    def against(self, baseline: Group | None, column: str = MAIN) -> dict[Group, Difference]:
        """Return the differences to a baseline in the same column."""
        return comparison.against(self.groups, baseline, column)

    def beside(self, rival: Group | None) -> dict[Group, Difference]:
        """Return the differences of personal models to the untouched released model of ``rival``.
        A line whose personal model is a released one has none."""
        if rival is None:
            return {}
        personal = [one for one in self.groups if not untouched(one)]
        return statistics.against(comparison.table(personal), rival.values(RELEASED))

    def gain(self, column: str) -> dict[Group, Difference]:
        """Return a column of ``GAINS`` beside 0, for the groups that have it."""
        own = comparison.table(self.groups, column).dropna(axis=1, how="all")
        return statistics.against(own, pd.Series(0.0, index=own.index))


def untouched(group: Group) -> bool:
    """Return whether the personal model of every client is the released one."""
    return bool((group.values(MAIN) == group.values(RELEASED)).all())


class Panel:
    """The lines of a study at one number of people and of rows."""

    def __init__(self, study: Archive, runs: pd.DataFrame) -> None:
        self.study = study
        lines = runs.groupby(["budget", "claim", "line"], sort=False)
        groups = [Group(str(label), str(budget), rows) for (budget, _, label), rows in lines]
        self.sections = [Section(section) for section in comparison.sections(groups)]
        self.groups = [group for section in self.sections for group in section.groups]
        self.alone = self.find(NO_PRIVACY, ALONE)
        self.people = int(runs["clients"].iloc[0])
        self.test_fraction = float(runs["test_fraction"].iloc[0])
        partitions = [study.held[str(name)] for name in runs["partition"].unique()]
        held = pd.concat([one[~is_new(one)] for one in partitions])
        self.rows = round(float(held["train_size"].mean()))

    @property
    def numbers(self) -> str:
        """How many numbers of four bytes a client sends in a round of DP-FedAvg."""
        plain = next((group for group in self.groups if group.label == PLAIN), None)
        if plain is None:
            return "–"
        drawn = self.people * float(plain.first("sample_rate"))
        return f"{round(float(plain.first('upload_bytes_per_round')) / 4 / drawn):,}"

    @property
    def setting(self) -> str:
        """People, rows and numbers in words."""
        each = f"{self.rows} rows each and messages of {self.numbers} numbers"
        return f"{self.people:,} people with {each}"

    def find(self, budget: str, label: str) -> Group | None:
        """Return a group; None if there is none."""
        return comparison.find(self.groups, label, budget)

    @cached_property
    def certified(self) -> dict[str, Section]:
        """The certified sections by budget, the largest budget last."""
        return {one.budget: one for one in self.sections if one.claim == "certified"}

    @property
    def by_rule(self) -> bool:
        """Whether (b) could not be chosen."""
        return bool(self.study.runs[VALIDATION].isna().all())

    def released(self, budget: str) -> Group | None:
        """Return (b), whose ``RELEASED`` is the rival; None if the study has none."""
        groups = self.certified[budget].groups if budget in self.certified else []
        known = [one for one in groups if finite(one.rows[VALIDATION])]
        if known:
            return max(known, key=lambda group: group.mean(VALIDATION))
        return self.find(budget, PLAIN)

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """Whether personalization pays, by budget; nothing for budgets without (a) or (b)."""
        found = ((budget, self._verdict(budget)) for budget in self.certified)
        return {budget: one for budget, one in found if one}

    def _verdict(self, budget: str) -> Verdict | None:
        section, rival = self.certified[budget], self.released(budget)
        if self.alone is None or rival is None:
            return None
        alone, released = section.against(self.alone), section.beside(rival)
        both = {one: (alone[one], released[one]) for one in section.groups if one in released}
        if not both:
            return None
        paying = [one for one, pair in both.items() if min(each.low for each in pair) > 0]
        hopeless = all(min(each.high for each in pair) < MARGIN for pair in both.values())
        word = PAYS if paying else DOES_NOT if hopeless else UNDECIDED
        first = next(iter(paying or both))
        apart = statistics.paired(rival.values(RELEASED), self.alone.values(MAIN))
        return Verdict(word, first, *both[first], rival, apart)


def panels(study: Archive) -> Sequence[Panel]:
    """Return the panels of a study: fewer people first, then those with more rows."""
    alone = study.runs[study.runs["line"] == ALONE]
    runs = study.runs.join(gains(study, alone), on="cell")
    return [Panel(study, part) for _, part in runs.groupby(list(SETTING), dropna=False)]


def released_by(group: Group) -> str:
    """Return the name of a rival (b)."""
    return f"the released model of {group.label}"
