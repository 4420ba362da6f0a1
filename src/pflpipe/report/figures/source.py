"""The data of a figure: the results of a study, and the part of it that the figure shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from pflpipe.code.dependencies import CLAIMS
from pflpipe.errors import DataError
from pflpipe.learning.metrics import Metric
from pflpipe.methods import registry
from pflpipe.report import comparison
from pflpipe.report.comparison import MAIN, PLAIN, Group
from pflpipe.report.tidy import existing
from pflpipe.study.settings import NO_PRIVACY, describe, layout
from pflpipe.study.study_spec import Drawing, Study


@dataclass(frozen=True)
class Panel:
    """Groups that are compared with each other: those of one budget under the same conditions, and
    those without privacy, in the study's order."""

    title: str
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Source:
    """A figure's study and its results.

    Attributes:
        drawing: the study's options for the figure.
        frame: the tidy table of the study, or the part that the figure shows.
        results, data: folders of config.yaml.
    """

    study: Study
    drawing: Drawing
    frame: pd.DataFrame
    results: Path
    data: Path

    @cached_property
    def panels(self) -> tuple[Panel, ...]:
        """Facets x budgets, in the study's order; one panel without a budget if nothing is private.
        The baseline is always shown, a placebo never."""
        groups = comparison.of_claim(comparison.groups(self.study, self.frame), *CLAIMS)
        chosen = [group for group in groups if self._is_chosen(group)]
        budgets = dict.fromkeys(group.budget for group in chosen if group.budget != NO_PRIVACY)
        panels = []
        for facet in layout(self.study).facets:
            for budget in budgets or (NO_PRIVACY,):
                shown = [group for group in chosen if group.budget in (budget, NO_PRIVACY)]
                drawn = tuple(group for group in shown if group.belongs(facet))
                title = [budget, *(f"{name} = {value}" for name, value in facet.items())]
                if any(group.budget == budget for group in drawn):
                    panels.append(Panel(", ".join(title), drawn))
        return tuple(panels)

    def _is_chosen(self, group: Group) -> bool:
        row = self.study.rows[group.indices[0]]
        drawing, values = self.drawing, describe(row.cell)
        named = not drawing.methods or {row.cell.method, row.variant} & set(drawing.methods)
        # A filter on a condition that the cell lacks, such as a budget, does not exclude it.
        return bool(named or group.label == PLAIN) and all(
            values[path] in wanted for path, wanted in drawing.where.items() if path in values
        )

    def values(self, groups: Sequence[Group]) -> dict[Group, pd.Series[float]]:
        """Return the figure's metric by seed for each group that has it."""
        series = {group: group.values(self.drawing.metric) for group in groups}
        return {group: values for group, values in series.items() if values.notna().any()}

    def name(self, group: Group) -> str:
        """Return a group's label, with the method's name in print, and in a second line its privacy
        unless it is certified. † marks a group with a diverged seed."""
        privacy = {
            "certified": "",
            "unreviewed": "\nunreviewed",
            "nominal": f"\nhonest ε = {group.worst('epsilon_central')}",
            "none": "\nno privacy" if group.sends else "\nsends nothing",
        }
        label = registry.in_print(group.label, self.study.rows[group.indices[0]].cell)
        return label + " †" * bool(group.diverged) + privacy[group.claim]

    def rounds(self, group: Group, column: str) -> pd.DataFrame:
        """Return a column of rounds.csv [rounds, seeds], without rounds in which no seed has a
        value. Values that are not finite are missing."""
        runs = []
        for index in group.indices:
            file = self.results / "runs" / self.study.rows[index].run / "rounds.csv"
            table = pd.read_csv(existing(file)).set_index("round").reindex(columns=[column])
            values = pd.to_numeric(table[column], errors="coerce")
            runs.append(values.replace([math.inf, -math.inf], math.nan))
        return pd.concat(runs, axis=1).dropna(how="all")

    def clients(self, group: Group) -> Iterator[tuple[str, pd.Series[float]]]:
        """Yield for each run of a group the id of its split and, by client, the accuracy of the
        personal model on the client's test rows."""
        for index in group.indices:
            cell = self.study.rows[index].cell
            file = existing(self.results / "scores" / self.study.name / f"{cell.method}.csv")
            scores = pd.read_csv(file, usecols=["cell", "client", MAIN])
            yield cell.partition_id, scores[scores["cell"] == cell.id].set_index("client")[MAIN]

    def require(self, drawable: bool, what: str) -> None:
        """Raise DataError unless the study has what the figure shows."""
        if not drawable:
            figure = f"figure {self.drawing.name} of study {self.study.name}"
            do = "take it out of the study's figures, or add what it shows"
            raise DataError(figure, got="nothing to draw", expected=what, do=do)

    @property
    def subject(self) -> str:
        """The models and test rows of the figure's metric."""
        return self.study.columns[self.drawing.metric].words

    @property
    def metric(self) -> Metric:
        """The figure's metric."""
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
        """The unit of a difference: ``points``, or the metric itself."""
        return "points" if self.metric.unit == "%" else self.metric.heading

    @property
    def in_points(self) -> bool:
        """Whether the study's first metric is in percent."""
        return self.study.metric.unit == "%"

    @cached_property
    def seeds_text(self) -> str:
        """``3 seeds``, or ``2 to 3 seeds`` where groups differ."""
        counts = {len(group.rows) for panel in self.panels for group in panel.groups}
        low, high = min(counts, default=0), max(counts, default=0)
        return f"{low if low == high else f'{low} to {high}'} seed{'s' * (high != 1)}"
