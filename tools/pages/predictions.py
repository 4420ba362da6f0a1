"""What was predicted before the runs of a study (predictions.yaml), beside what came out.

The naive forecast is that noise costs nothing: at a smaller budget a method has what it has at the
largest. It is told the outcome there, which the predictions were not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from pages.panel import Panel
from pflpipe.report.comparison import MAIN
from pflpipe.report.render_table import Entry, Table, markdown
from pflpipe.report.verdicts import CONSTANT, RELEASED
from pflpipe.study import documents
from pflpipe.study.settings import NO_PRIVACY

FILE = Path(__file__).with_suffix(".yaml")
NEAR = 1.0
"""What comes true: within this many points."""
_OF_RELEASED = "released "


def table(found: Mapping[str, Sequence[Panel]]) -> pd.DataFrame:
    """Return study, line and budget of every prediction of the studies, with the value predicted,
    the outcome and the naive forecast; NaN at the largest budget, where there is none."""
    rows = []
    for study, lines in documents.read_yaml(FILE).items():
        for name, budgets in lines.items() if study in found else ():
            (panel,) = found[study]
            largest = [*panel.certified][-1]
            for budget, predicted in budgets.items():
                smaller = budget not in (NO_PRIVACY, largest)
                naive = _outcome(panel, name, largest) if smaller else math.nan
                outcome = _outcome(panel, name, budget)
                rows.append((study, name, budget, float(predicted), outcome, naive))
    columns = ["study", "line", "budget", "predicted", "outcome", "naive"]
    return pd.DataFrame(rows, columns=columns)


def _outcome(panel: Panel, name: str, budget: str) -> float:
    label = name.removeprefix(_OF_RELEASED)
    group = panel.constant if label == CONSTANT else panel.find(budget, label)
    assert group is not None, f"{panel.study.name} has no {label} at {budget}"
    return group.mean(RELEASED if name != label else MAIN)


def summary(found: Mapping[str, Sequence[Panel]]) -> str:
    """Return how many predictions came true, and how many naive forecasts; nothing without one."""
    known = table(found)
    if known.empty:
        return ""
    counts = [_counts(study, part) for study, part in known.groupby("study", sort=False)]
    rows = (*counts, _counts("all", known))
    header = ("study", "predictions", "came true", "smaller ε", "came true there", "naive")
    caption = (
        f"values within {NEAR:g} point of the outcome, of those that the studies' descriptions had "
        "before the runs. The last columns are about smaller budgets than the largest, where the "
        "naive forecast is the outcome at the largest one."
    )
    return markdown(Table("predictions", caption, (), header, (rows,), len(header))).strip()


def _counts(study: object, known: pd.DataFrame) -> tuple[Entry, ...]:
    true = (known["predicted"] - known["outcome"]).abs() <= NEAR
    smaller = known["naive"].notna()
    naive = (known["naive"] - known["outcome"]).abs() <= NEAR
    texts = (study, len(known), true.sum(), smaller.sum(), (true & smaller).sum(), naive.sum())
    return tuple(Entry(str(text)) for text in texts)
