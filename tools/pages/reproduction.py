"""docs/reproduction.md: what papers print beside what came out here, as far as it was run.

A study with a paper's ``layout`` leaves two files in ``docs/reproduction/``, of which the page is
made without ``results/``:

- ``<study>.csv``: rows of its tidy table (tidy.py), of the runs that are finished. Such studies
  take days, so they come in parts: rows of runs that are no longer at hand stay.
- ``<study>.json``: for every row where, with what and when it was trained.

Verdicts are made of studies/readings/ (readings.py). Blocks of the page are written by hand
(blocks.py): the summary on top, what is known beside the verdicts, and for every study what
explains differences to the print. Without that, differences are listed as unexplained.
``rounds/<study>.csv`` has the accuracy of every round of runs without such rows, whose table such a
block has.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from pages import blocks, readings, wording
from pflpipe.errors import DataError
from pflpipe.files import read_json, write_json, write_text
from pflpipe.report import paper_table, tidy
from pflpipe.report.comparison import largest, over_seeds
from pflpipe.report.render_table import markdown
from pflpipe.study.config import study_file
from pflpipe.study.load import load_study
from pflpipe.study.settings import round_up
from pflpipe.study.study_spec import Study

FOLDER = "reproduction"
FAR = 3.0
"""Percent points to the printed number from which on a difference wants an explanation."""
TITLE = "# What papers print, and what comes out here"


def export(study: Study, frame: pd.DataFrame, measured: Mapping[str, str], docs: Path) -> Path:
    """Write the rows of finished runs into ``docs/reproduction/``; return the CSV file.

    Args:
        study: with all of its runs.
        frame: the tidy rows of its finished methods.
        measured: by cell of these, where, with what and when it was trained.
    """
    target = docs / FOLDER / f"{study.name}.csv"
    before, told = _read(target) if target.is_file() else (frame[:0], {})
    rows = {str(row["cell"]): row for part in (before, frame) for _, row in part.iterrows()}
    kept = [rows[cell.id] for cell in study.cells if cell.id in rows]
    told |= measured
    tidy.write(pd.DataFrame(kept, columns=tidy.columns_of(study), dtype=object), target)
    write_json(target.with_suffix(".json"), {str(row["cell"]): told[row["cell"]] for row in kept})
    return target


def write(docs: Path, studies: Path) -> Path | None:
    """Write ``docs/reproduction.md`` from ``docs/reproduction/``; return the page, or None where no
    study is there.

    Args:
        studies: folder of the studies' files, which say where in the table a run stands.

    Raises:
        DataError: a study's rows are not among its runs any more.
    """
    sources = sorted((docs / FOLDER).glob("*.csv"))
    if not sources:
        return None
    page = docs / "reproduction.md"
    parts = [
        TITLE,
        *(blocks.kept(page, name) for name in (blocks.NOTE, "note: verdicts")),
        *readings.page(studies, docs / FOLDER),
        blocks.kept(page, "note: beside"),
        *(_part(source, studies, page) for source in sources),
    ]
    write_text(page, "\n\n".join(parts) + "\n")
    return page


def far(frame: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence for every printed number that the mean over seeds is more than ``FAR``
    from."""
    printed = frame[frame["paper_value"].notna()]
    words = ["dataset", "alpha", "method", "variant", "epsilon_target"]
    for _, rows in printed.groupby(words, sort=False, dropna=False):
        first = rows.iloc[0]
        ours, paper = over_seeds(rows[first["paper_metric"]]), float(first["paper_value"])
        if abs(ours - paper) <= FAR:
            continue
        name = first["method"] + (f" ({first['variant']})" if first["variant"] else "")
        where = first["dataset"] + (f", α = {first['alpha']:g}" if first["alpha"] else "")
        honest = largest(rows["epsilon_central"])
        budget = "" if honest is None else f", under an ε that is {round_up(honest)}"
        yield f"{name} on {where}: {ours:.1f}, printed {paper:g}, {ours - paper:+.1f}{budget}."


def _part(source: Path, studies: Path, page: Path) -> str:
    frame, _ = _read(source)
    study = load_study(source.stem, studies)
    shown = tidy.of_cells(study, frame["cell"])
    has_runs = list(frame["cell"]) == [cell.id for cell in shown.cells]
    if not has_runs or study.layout is None or list(frame) != tidy.columns_of(study):
        raise DataError(
            f"{source} has runs or columns that {study_file(study.name)} does not have",
            do=f"make it again: make results STUDY={study.name}",
        )
    name = f"{blocks.NOTE}: {study.name}"
    unexplained = [] if blocks.written(page, name) else list(far(frame))
    table = paper_table.table(shown, study.layout, frame)
    # The heading has the title, and the note on top says for all tables that no ε covers these.
    quantity = table.caption.partition("In the layout of the paper: ")[2].partition(". ")[0]
    notes = tuple(one for one in table.notes if one.startswith("ε: "))
    missing = len(study.rows) - len(shown.rows)
    lines = [
        f"## {study.title}",
        f"{len(shown.rows)} of {len(study.rows)} runs are finished." if missing else "",
        markdown(
            dataclasses.replace(table, name=study.name, caption=quantity, notes=notes)
        ).strip(),
        f"Farther than {FAR:g} points from the print, not explained:" if unexplained else "",
        "\n".join(f"- {wording.escaped(text)}" for text in unexplained),
        blocks.kept(page, name),
        f"[Its study]({_link(study_file(study.name, studies), page)}) has what was chosen, "
        f"[its record]({_link(source.with_suffix('.json'), page)}) how each run was trained.",
    ]
    return "\n\n".join(filter(None, lines))


def _link(file: Path, page: Path) -> str:
    """Return the path of a file as a link of the page."""
    return Path(os.path.relpath(file, page.parent)).as_posix()


def _read(source: Path) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the rows, and by cell where they were trained.

    Raises:
        DataError: a row has no word of where.
    """
    frame, told = tidy.read(source), read_json(source.with_suffix(".json"))
    if set(frame["cell"]) != set(told):
        raise DataError(
            f"{source} and {source.with_suffix('.json').name} are of different runs",
            do=f"remove both and make them again: make results STUDY={source.stem}",
        )
    return frame, told
