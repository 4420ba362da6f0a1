"""What competes on the pages of results: the lines of a study at one number of people and of rows,
with the verdicts of pflpipe (report/verdicts.py).

A person's own constant answer is a line of every study: what always saying the majority class of
one's training examples has right follows from what the archive keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from pages.archive import SETTING, Archive, is_new
from pages.gains import gains
from pflpipe.code.dependencies import CLAIMS, PLACEBO
from pflpipe.report import comparison, statistics, verdicts
from pflpipe.report.comparison import ALONE, MAIN, PLAIN, Group
from pflpipe.report.statistics import Contest, Difference, People
from pflpipe.report.verdicts import CONSTANT, RELEASED, Line, Verdict, untouched
from pflpipe.study.settings import NO_PRIVACY


@dataclass(frozen=True)
class Section:
    """The groups of one budget and one claim, the largest mean first; their rows are those of
    ``Archive.runs``, with ``GAINS`` beside them. ``people``: of lines, see verdicts.py;
    ``of_groups``: of their personal models."""

    groups: list[Group]
    people: People
    of_groups: People

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
        return comparison.contest(self.groups, people=self.of_groups)

    @property
    def best(self) -> frozenset[Group]:
        """The groups in bold."""
        return self.contest.bold if self.contest else frozenset()

    def against(self, baseline: Group | None, column: str = MAIN) -> dict[Group, Difference]:
        """Return the differences to a baseline in the same column."""
        known = self.of_groups if column == MAIN else None
        return comparison.against(self.groups, baseline, column, known)

    def beside(self, rival: Group | None) -> dict[Group, Difference]:
        """Return the differences of personal models to the untouched released model of ``rival``.
        A line whose personal model is a released one has none."""
        if rival is None:
            return {}
        personal = [one for one in self.groups if not untouched(one)]
        return statistics.against(
            comparison.table(personal),
            rival.values(RELEASED),
            lambda group: self.people(Line(group), Line(rival, RELEASED)),
        )

    def gain(self, column: str) -> dict[Group, Difference]:
        """Return a column of ``GAINS`` beside 0, for the groups that have it."""
        own = comparison.table(self.groups, column).dropna(axis=1, how="all")
        return statistics.against(own, pd.Series(0.0, index=own.index))


class Panel:
    """The lines of a study at one number of people and of rows."""

    def __init__(self, study: Archive, runs: pd.DataFrame) -> None:
        self.study = study
        lines = runs.groupby(["budget", "claim", "line"], sort=False)
        self.groups = [Group(str(label), str(budget), rows) for (budget, _, label), rows in lines]
        self.alone = self.find(NO_PRIVACY, ALONE)
        self.constant = self._constant()
        self.people_of = self._people()
        sections = comparison.sections(self.groups)
        self.sections = [Section(one, self.people_of, self.of_groups) for one in sections]
        self.people = int(runs["clients"].iloc[0])
        self.test_fraction = float(runs["test_fraction"].iloc[0])
        partitions = [study.held[str(name)] for name in runs["partition"].unique()]
        held = pd.concat([one[~is_new(one)] for one in partitions])
        self.rows = round(float(held["train_size"].mean()))

    @property
    def numbers(self) -> str:
        """How many numbers of four bytes a client sends in a round of DP-FedAvg; empty without."""
        plain = next((group for group in self.groups if group.label == PLAIN), None)
        if plain is None:
            return ""
        drawn = self.people * float(plain.first("sample_rate"))
        return f"{round(float(plain.first('upload_bytes_per_round')) / 4 / drawn):,}"

    @property
    def setting(self) -> str:
        """People or dealt clients, rows and numbers in words."""
        sent = f" and messages of {self.numbers} numbers" if self.numbers else ""
        natural = "-natural" in str(self.groups[0].first("partition"))
        who = "people" if natural else "dealt clients"
        return f"{self.people:,} {who} with {self.rows} rows each{sent}"

    def of_groups(self, ours: Group, theirs: Group) -> float:
        """Return the variance over people of the difference of personal models (verdicts.py)."""
        return self.people_of(Line(ours), Line(theirs))

    def find(self, budget: str, label: str) -> Group | None:
        """Return a group; None if there is none."""
        return comparison.find(self.groups, label, budget)

    def placebo(self, budget: str) -> Group | None:
        """Return the control of the personal model of a verdict; None if the study has none."""
        verdict = self.verdicts.get(budget)
        wanted = verdict and (verdict.group.method, budget)
        found = comparison.of_claim(self.groups, PLACEBO)
        return next((one for one in found if (one.method, one.budget) == wanted), None)

    @cached_property
    def certified(self) -> dict[str, Section]:
        """The certified sections by budget, the largest budget last."""
        return {one.budget: one for one in self.sections if one.claim == "certified"}

    def released(self, budget: str) -> Group | None:
        """Return the group of the strongest released model; None if the study has none."""
        verdict = self.verdicts.get(budget)
        return verdict.beside["b"][0].group if verdict and "b" in verdict.beside else None

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """Whether personalization pays, by budget; nothing for budgets without rivals."""
        none = [one for one in (self.alone, self.constant) if one]
        found = {
            budget: verdicts.judge([*section.groups, *none], self.people_of)
            for budget, section in self.certified.items()
        }
        return {budget: one for budget, one in found.items() if one}

    def _constant(self) -> Group | None:
        """Return the line of the own constant, if the study has none, at the seeds of (a)."""
        if self.alone is None or self.find(NO_PRIVACY, CONSTANT):
            return self.find(NO_PRIVACY, CONSTANT)
        means = [float(self._majority(str(one)).mean()) for one in self.alone.rows["partition"]]
        rows = self.alone.rows.assign(method=CONSTANT, line=CONSTANT, **{MAIN: means})
        return Group(CONSTANT, NO_PRIVACY, rows)

    def _majority(self, partition: str) -> pd.Series[float]:
        held = self.study.held[partition]
        held = held[~is_new(held)]
        return 100 * held["majority"] / held["test_size"]

    def _people(self) -> People:
        """Return what the archive knows of single people: of personal models, and of released ones
        that are the personal ones of a line."""
        competing = comparison.of_claim(self.groups, *CLAIMS)
        inside = {name: held.index[~is_new(held)] for name, held in self.study.held.items()}
        known: dict[Line, dict[int, pd.Series[float]]] = {
            Line(group): {
                row["seed"]: self.study.percent.loc[inside[row["partition"]], row["cell"]]
                for row in group.rows.to_dict("records")
            }
            for group in competing
        }
        for group in filter(untouched, competing):
            known[Line(group, RELEASED)] = known[Line(group)]
        if self.constant is not None:
            known[Line(self.constant)] = {
                row["seed"]: self._majority(row["partition"])
                for row in self.constant.rows.to_dict("records")
            }
        seeds = sorted(set.intersection(*(set(one) for one in known.values())))
        runs = [
            pd.DataFrame([one[seed] for one in known.values()]).dropna(axis=1) for seed in seeds
        ]
        pool = max(len(one) for one in self.study.held.values())
        return verdicts.people([*known], [one.to_numpy() for one in runs], pool)


def panels(study: Archive) -> Sequence[Panel]:
    """Return the panels of a study: fewer people first, then those with more rows."""
    alone = study.runs[study.runs["line"] == ALONE]
    searched = study.runs["cell"].map(study.searched)
    runs = study.runs.join(gains(study, alone), on="cell").assign(epsilon_with_search=searched)
    return [Panel(study, part) for _, part in runs.groupby(list(SETTING), dropna=False)]
