"""The tables of a study: for machines the tidy table (.csv); for people (.md, .tex) the summary
over seeds and the table in a paper's layout."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pflpipe import records
from pflpipe.files import write_text
from pflpipe.privacy.ledger import Planned
from pflpipe.report import paper_table
from pflpipe.report.render_table import Table, latex, markdown
from pflpipe.report.summary import summarise
from pflpipe.report.tidy import tidy, write
from pflpipe.study.study_spec import Study


def write_study(study: Study, results: Path, target: Path) -> None:
    """Write the tidy table to ``target`` (.csv), and the summary and the table in a paper's layout
    next to it (.md, .tex)."""
    frame = tidy(study, results)
    tables = shown(study, frame, results)
    write_text(target.with_suffix(".md"), "\n".join(map(markdown, tables)))
    write_text(target.with_suffix(".tex"), "\n".join(map(latex, tables)))
    write(frame, target)


def shown(study: Study, frame: pd.DataFrame, results: Path) -> list[Table]:
    """Return the tables for people: the summary over seeds and, if the study has a paper's layout,
    the table in it.

    Args:
        frame: the tidy table of the study.
        results: folder with ``plans/``.
    """
    warnings = {
        warning: None
        for plan in dict.fromkeys(cell.plan_id for cell in study.cells)
        for warning in records.load(Planned, results / "plans" / f"{plan}.json").ledger.warnings
    }
    summary = summarise(study, frame, warnings)
    if study.layout is None:
        return [summary]
    return [summary, paper_table.table(study, study.layout, frame)]
