"""The overview of the package's methods: what a client sends and keeps, and where the method won.

The first two are lines of the cards (report/cards.py); the last follows from the tables of the
committed studies.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from pages.wording import escaped
from pflpipe.methods import registry
from pflpipe.report import cards


def table(results: Path) -> str:
    """Return the overview as Markdown, whose methods are links to their cards below.

    Args:
        results: the folder with ``<study>/table.csv``.
    """
    won, there = _won(results)
    rows = []
    for name in registry.NAMES:
        entry = registry.info(name)
        steps = cards.header(name, knobs=entry.hyperparameters).formulas
        studies = [escaped(study) for study in won.get(name, ())]
        count = f"{len(studies)} of {there[name]}" if name in there else "–"
        cells = (
            *(f"[{entry.about.title}](#{name})", entry.about.paper),
            *(steps["sends"], steps["keeps"], count, ", ".join(studies) or "–"),
        )
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    header = "| method | paper | a client sends | it keeps | best in | studies |"
    return "\n".join([header, "|---|---|---|---|---|---|", *rows])


def _won(results: Path) -> tuple[dict[str, list[str]], dict[str, int]]:
    """Return by method the studies in which one of its certified lines is not distinguishable from
    the best at the largest budget, and the number of studies that have one."""
    won: dict[str, list[str]] = {}
    there: dict[str, int] = {}
    for study, lines in _certified(results):
        methods = lines["method"].str.split(" (", regex=False).str[0]
        for name in dict.fromkeys(methods):
            there[name] = there.get(name, 0) + 1
            if (lines.loc[methods == name, "best"] == "yes").any():
                won.setdefault(name, []).append(study)
    return won, there


def _certified(results: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the certified lines of every study at its largest budget; maps have none."""
    for file in sorted(results.glob("*/table.csv")):
        frame = pd.read_csv(file, dtype=str)
        if "best" in frame:
            certified = frame[frame["claim"] == "certified"]
            budgets = certified["budget"].str.removeprefix("ε = ").astype(float)
            yield file.parent.name, certified[budgets == budgets.max()]
