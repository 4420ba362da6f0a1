"""The verdict page of a study: its answer, what it stands beside, who gains, what the epsilon
protects and what would decide it, in one HTML file that needs no other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pflpipe._version import __version__
from pflpipe.files import write_text
from pflpipe.report import answer, sentences, tables, verdicts
from pflpipe.report.answer import Answer
from pflpipe.report.templates import filled
from pflpipe.report.tidy import stored
from pflpipe.report.verdicts import DOES_NOT, MARGIN
from pflpipe.study.settings import measured
from pflpipe.study.study_spec import Study


def write(study: Study, results: Path, template: Path, target: Path, again: str) -> None:
    """Write the page of a study whose table is there.

    Args:
        results: folder with tables/, plans/, runs/ and scores/.
        template: verdict.html.
        again: the command that makes it again.

    Raises:
        DataError: a result is missing or of another version of the study.
    """
    frame = stored(study, results)
    answers = answer.of_study(study, frame, results)
    figures = results / "figures" / study.name
    files = [str(results / "tables" / f"{study.name}{end}") for end in (".tex", ".csv", ".md")]
    text = filled(
        template,
        study=study,
        version=__version__,
        answers=[_shown(one) for one in answers],
        margin=f"{MARGIN:g}",
        protected=answer.protected(study, frame, results),
        seeds=len({cell.seed for cell in study.cells}),
        sentences=list(sentences.of_study(study, frame)),
        tables=tables.shown(study, frame, results),
        measured=measured(study.datasets),
        files=[*files, *sorted(map(str, figures.glob("*.pdf")))],
        again=again,
    )
    write_text(target, text)


def _shown(one: Answer) -> dict[str, Any]:
    return {
        "budget": one.budget,
        "mark": _mark(one),
        "deed": answer.deed(one),
        "name": one.group.name,
        "mean": one.group.mean_words,
        "beside": list(_bars(one)),
        "parts": one.parts,
        "decides": answer.decides(one),
    }


def _mark(one: Answer) -> str:
    if one.verdict and verdicts.helps(one.verdict):
        return "helps"
    return "not" if one.word == DOES_NOT else "open"


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
            "text": answer.gap(gap, one.group.metric.digits),
            "low": place(gap.low),
            "mean": place(gap.mean),
            "width": round(place(gap.high) - place(gap.low), 2),
        }
