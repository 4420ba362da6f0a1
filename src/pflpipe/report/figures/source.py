"""What a figure is drawn from: the results of a study, and the part of it that was asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from pflpipe.cells import CLAIMS
from pflpipe.errors import DataError
from pflpipe.methods import registry
from pflpipe.report.summary import largest, round_up
from pflpipe.report.tidy import existing
from pflpipe.study.metrics import Metric
from pflpipe.study.outline import Drawing, Study
from pflpipe.study.settings import NO_PRIVACY, Layout, Setting, describe, layout

REFERENCE = "dp_fedavg"
"""The method against which all others are compared, where a study has it."""
CERTIFIED, UNREVIEWED, NOMINAL, NONE = CLAIMS


@dataclass(frozen=True)
class Panel:
    """The lines that are compared with each other: those of a budget under the same conditions, and
    what has no budget.

    Attributes:
        title: words for both.
        settings: in the study's order.
    """

    title: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class Source:
    """A figure's study and where its results are.

    Attributes:
        drawing: what was asked for.
        frame: the tidy table of the whole study, or as much of it as the figure shows.
        results, data: folders of config.yaml.
    """

    study: Study
    drawing: Drawing
    frame: pd.DataFrame
    results: Path
    data: Path

    @cached_property
    def layout(self) -> Layout:
        """How the whole study is divided, so that a line has the name that the table gives it."""
        return layout(self.study)

    @cached_property
    def panels(self) -> tuple[Panel, ...]:
        """Facets x budgets of what was asked for, in the study's order; one panel without a budget
        where nothing is private. The reference is in each that has it."""
        chosen = [setting for setting in self.layout.settings if self._is_chosen(setting)]
        budgets = dict.fromkeys(s.budget for s in chosen if s.budget != NO_PRIVACY)
        panels = []
        for facet in self.layout.facets:
            for budget in budgets or (NO_PRIVACY,):
                drawn = tuple(
                    setting
                    for setting in chosen
                    if setting.budget in (budget, NO_PRIVACY) and setting.belongs(facet)
                )
                words = [budget, *(f"{name} = {value}" for name, value in facet.items())]
                if any(setting.budget == budget for setting in drawn):
                    panels.append(Panel(", ".join(words), drawn))
        return tuple(panels)

    def _is_chosen(self, setting: Setting) -> bool:
        row = self.study.rows[setting.indices[0]]
        drawing, values = self.drawing, describe(row.cell)
        named = not drawing.methods or {row.cell.method, row.variant} & set(drawing.methods)
        return bool(named or setting.label == REFERENCE) and all(
            values[path] in wanted for path, wanted in drawing.where.items() if path in values
        )

    def rows(self, setting: Setting) -> pd.DataFrame:
        """Return the tidy rows of a line."""
        return self.frame.iloc[list(setting.indices)]

    def claim(self, setting: Setting) -> str:
        """Return one of ``cells.CLAIMS``."""
        return str(self.rows(setting)["claim"].iloc[0])

    def seeds(self, setting: Setting) -> pd.Series[float]:
        """Return the figure's metric by seed, missing where it is not finite."""
        rows = self.rows(setting)
        numbers = pd.to_numeric(rows[self.drawing.metric], errors="coerce")
        numbers.index = pd.Index(rows["seed"])
        return numbers.astype(float).replace([math.inf, -math.inf], math.nan)

    def values(self, settings: Sequence[Setting]) -> dict[str, pd.Series[float]]:
        """Return the metric by seed of each line that has one."""
        found = {setting.label: self.seeds(setting) for setting in settings}
        return {label: values for label, values in found.items() if values.notna().any()}

    def name(self, setting: Setting) -> str:
        """Return a line's label and, in a second line, what has to be known of its privacy. † marks
        one of which a seed diverged."""
        rows = self.rows(setting)
        label = setting.label + " †" * bool(rows["diverged_round"].notna().any())
        claim = self.claim(setting)
        if claim == CERTIFIED:
            return label
        if claim == UNREVIEWED:
            return f"{label}\nunreviewed"
        if claim == NOMINAL:
            return f"{label}\nhonest ε = {round_up(largest(rows['epsilon_central']))}"
        sends = rows["upload_bytes_per_round"].any()
        return f"{label}\n{'no privacy' if sends else 'sends nothing'}"

    def rounds(self, setting: Setting, column: str) -> pd.DataFrame:
        """Return a column of rounds.csv [rounds, seeds], without rounds that have none; what is not
        finite is missing."""
        runs = []
        for index in setting.indices:
            run = registry.run_id(self.study.rows[index].cell)
            table = pd.read_csv(existing(self.results / "runs" / run / "rounds.csv"))
            own = table.set_index("round").reindex(columns=[column])[column]
            values = pd.to_numeric(own, errors="coerce")
            runs.append(values.replace([math.inf, -math.inf], math.nan))
        return pd.concat(runs, axis=1).dropna(how="all")

    def clients(self, setting: Setting) -> Iterator[tuple[str, pd.Series[float]]]:
        """Yield the id of the split and the own test of each client's personal model, for the runs
        of a line."""
        for index in setting.indices:
            cell = self.study.rows[index].cell
            scores = self._scores(cell.method)
            own = scores[scores["cell"] == cell.id].set_index("client")["personal_own"]
            yield cell.partition_id, own

    def _scores(self, method: str) -> pd.DataFrame:
        file = existing(self.results / "scores" / self.study.name / f"{method}.csv")
        return pd.read_csv(file, usecols=["cell", "client", "personal_own"])

    def require(self, drawable: bool, what: str) -> None:
        """Raise DataError unless the study has what the figure shows."""
        if not drawable:
            raise DataError(
                f"figure {self.drawing.name} of study {self.study.name}",
                got="nothing to draw",
                expected=what,
                do="take it out of the study's figures, or add what it shows",
            )

    @property
    def metric(self) -> Metric:
        """What is drawn."""
        return self.study.columns[self.drawing.metric].metric

    @property
    def what(self) -> str:
        """The metric in a heading: ``accuracy``, ``log loss (less is better)``."""
        return self.metric.heading + " (less is better)" * (self.metric.sign < 0)

    @property
    def axis(self) -> str:
        """The metric at an axis: ``accuracy (%)``."""
        unit = self.metric.unit
        return f"{self.metric.heading} ({unit})" if unit else self.metric.heading

    @property
    def points(self) -> str:
        """What a difference is counted in: ``points``, or the metric itself."""
        return "points" if self.metric.unit == "%" else self.metric.heading

    @property
    def words(self) -> str:
        """What the figure's metric is of."""
        return self.study.columns[self.drawing.metric].words

    @cached_property
    def seeds_text(self) -> str:
        """``3 seeds``, or ``2 to 3 seeds`` where lines differ."""
        counts = {len(s.indices) for panel in self.panels for s in panel.settings}
        low, high = min(counts, default=0), max(counts, default=0)
        return f"{low if low == high else f'{low} to {high}'} seed{'s' * (high != 1)}"


def by_claim(source: Source, settings: Sequence[Setting]) -> Mapping[str, list[Setting]]:
    """Return the lines of each claim, which are compared among themselves; empty ones are left
    out."""
    found = {c: [s for s in settings if source.claim(s) == c] for c in CLAIMS}
    return {claim: members for claim, members in found.items() if members}
