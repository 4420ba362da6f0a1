"""The tables of a study: for machines the tidy table (.csv); for people (.md, .tex) the summary
over seeds and the table in a paper's layout."""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from pflpipe.files import write_text
from pflpipe.methods import registry
from pflpipe.report import paper_table
from pflpipe.report.render_table import Entry, Table, latex, markdown
from pflpipe.report.summary import summarise
from pflpipe.report.tidy import planned, tidy, write
from pflpipe.study import metric_columns
from pflpipe.study.study_spec import Study


def write_study(study: Study, results: Path, target: Path) -> None:
    """Write the tidy table to ``target`` (.csv), and the summary and the table in a paper's layout
    next to it (.md, .tex). The latter names methods as print does, and has the columns that a paper
    has."""
    frame = tidy(study, results)
    write_text(target.with_suffix(".md"), "\n".join(map(markdown, shown(study, frame, results))))
    names = metric_columns.of_a_paper(study.printed, study.metrics)
    tables = shown(study, frame, results, names)
    write_text(target.with_suffix(".tex"), "\n".join(latex(in_print(study, one)) for one in tables))
    write(frame, target)


def in_print(study: Study, table: Table) -> Table:
    """Return a table of a study with the names of its methods in print in place of their keys."""
    titles = {cell.method: registry.of(cell).about.title for cell in study.cells}
    key = re.compile(rf"(?<![\w.:/])({'|'.join(map(re.escape, titles))})(?![\w/]|\.\w)")

    def titled(text: str) -> str:
        return key.sub(lambda found: titles[found[0]], text)

    return dataclasses.replace(
        table,
        caption=titled(table.caption),
        notes=tuple(map(titled, table.notes)),
        sections=tuple(
            tuple(tuple(Entry(titled(one.text), one.bold) for one in line) for line in section)
            for section in table.sections
        ),
    )


def shown(
    study: Study, frame: pd.DataFrame, results: Path, names: Iterable[str] | None = None
) -> list[Table]:
    """Return the tables for people: the summary over seeds and, if the study has a paper's layout,
    the table in it.

    Args:
        frame: the tidy table of the study.
        results: folder with ``plans/``.
        names: columns of metrics in the summary; by default all.
    """
    plans = dict.fromkeys(cell.plan_id for cell in study.cells)
    warnings = dict.fromkeys(w for plan in plans for w in planned(plan, results).ledger.warnings)
    summary = summarise(study, frame, warnings, names)
    if study.layout is None:
        return [summary]
    return [summary, paper_table.table(study, study.layout, frame)]
