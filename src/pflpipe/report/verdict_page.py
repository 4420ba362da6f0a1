"""The verdict page of a study: its answer, what it stands beside, who gains, what the epsilon
protects and what would decide it, in one HTML file that needs no other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pflpipe._version import __version__
from pflpipe.files import write_text
from pflpipe.report import answer, sentences, tables
from pflpipe.report.answer import Answer
from pflpipe.report.templates import filled
from pflpipe.report.tidy import stored
from pflpipe.report.verdicts import DOES_NOT
from pflpipe.study.settings import measured
from pflpipe.study.study_spec import Study


@dataclass(frozen=True)
class Underway:
    """How far a study is whose page is shown while it trains.

    Attributes:
        state: runs that are done, and the time left.
        missing: methods that are not tested yet.
        is_read: whether a verdict is read of what is there: all methods, audited, at a look.
    """

    state: str
    missing: Sequence[str]
    is_read: bool


def write(study: Study, results: Path, template: Path, target: Path, again: str) -> None:
    """Write the page of a study whose table is there; arguments as in ``text``.

    Raises:
        DataError: a result is missing or of another version of the study.
    """
    write_text(target, text(study, stored(study, results), results, template, again))


def text(
    study: Study,
    frame: pd.DataFrame,
    results: Path,
    template: Path,
    again: str,
    underway: Underway | None = None,
) -> str:
    """Return the page of a study.

    Args:
        frame: its tidy table.
        results: folder with tables/, plans/, runs/ and scores/.
        template: verdict.html.
        again: the command that makes it again.
        underway: of a page that shows what is there so far, and asks for itself again.
    """
    answers = answer.of_study(study, frame, results) if study.rows else []
    figures = results / "figures" / study.name
    files = [results / "tables" / f"{study.name}{end}" for end in (".tex", ".csv", ".md")]
    files += sorted(figures.glob("*.pdf"))
    return filled(
        template,
        study=study,
        version=__version__,
        answers=[_shown(one, underway is None or underway.is_read) for one in answers],
        margin=answer.margin(study.metric),
        protected=answer.protected(study, frame, results) if study.rows else "",
        seeds=len({cell.seed for cell in study.cells}),
        sentences=list(sentences.of_study(study, frame)) if study.rows else [],
        tables=tables.shown(study, frame, results) if study.rows else [],
        measured=measured(study.datasets),
        files=[str(file) for file in files if file.exists()],
        again=again,
        underway=underway,
    )


def _shown(one: Answer, is_read: bool) -> dict[str, Any]:
    return {
        "budget": one.budget,
        "mark": _mark(one) if is_read else "open",
        "deed": answer.deed(one) if is_read else "no verdict yet",
        "name": one.group.name,
        "mean": one.group.mean_words,
        "unit": answer.unit(one),
        "beside": list(_bars(one)),
        "parts": one.parts,
        "decides": answer.decides(one) if is_read else "the rest of the runs",
    }


def _mark(one: Answer) -> str:
    if one.verdict.helps:
        return "helps"
    return "not" if one.verdict.word == DOES_NOT else "open"


def _bars(one: Answer) -> Iterator[dict[str, Any]]:
    """Yield for each rival its name, the difference as text, and the places of interval, mean and
    zero on a scale that all rivals share, in percent of its width."""
    gaps = one.beside.values()
    ends = [end for gap in gaps for end in (gap.low, gap.mean, gap.high) if math.isfinite(end)]
    most = 1.05 * max(map(abs, ends), default=1.0) or 1.0

    def place(value: float) -> float:
        return round(50 + 50 * min(max(value / most, -1), 1), 2)

    for name, gap in one.beside.items():
        yield {
            "name": name,
            "text": answer.gap(gap),
            "low": place(gap.low),
            "mean": place(gap.mean),
            "width": round(place(gap.high) - place(gap.low), 2),
        }
