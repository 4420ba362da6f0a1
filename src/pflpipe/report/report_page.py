"""The report: questions, verdicts, tables and figures of the studies of config.yaml, and the
commands that reproduce them, in one HTML file that needs no other.

Snakemake's reporter is not used: it shows tables and figures one at a time behind a menu, CSV files
as downloads only, nothing on a narrow screen, and it has no place for a verdict.
"""

import base64
import functools
import importlib.metadata
import platform
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from pflpipe._version import __version__
from pflpipe.auditing.cases import of_rows
from pflpipe.files import write_text
from pflpipe.report import audit_table, ledger_page, measured_on, sentences, tables
from pflpipe.report.figures import style
from pflpipe.report.templates import filled
from pflpipe.report.tidy import existing, stored
from pflpipe.simulation import checkout
from pflpipe.study.settings import CHOSEN_ON_VALIDATION, measured, round_up
from pflpipe.study.study_spec import Study

DOTS_PER_PIXEL = 300 / 96
"""Dots of a figure for each pixel of a page, so that its text is as large as in print."""
VERSIONS = ("torch", "numpy", "opacus", "dp-accounting", "pandas", "scipy", "matplotlib")


def write(
    studies: Sequence[Study], results: Path, root: Path, settings: str, template: Path, target: Path
) -> None:
    """Write the page of finished studies.

    Args:
        results: folder with tables/, figures/, plans/ and runs/, and audits/ of these rows.
        root: folder of the code, whose commit is named.
        settings: options of the command line that are not in config.yaml, quoted for a shell.
        template: report.html.

    Raises:
        DataError: a result is missing or of another version of a study.
    """
    frames = {study.name: stored(study, results) for study in studies}
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    everything = pd.concat(frames.values(), ignore_index=True)
    cells = [cell for study in studies for cell in study.cells]
    audited = audit_table.table(results, of_rows(cells))
    text = filled(
        template,
        made=f"Written {made} by pflpipe {__version__}.",
        studies=[_study(study, frames[study.name], results) for study in studies],
        audits=audit_table.distinct(audited),
        round_up=round_up,
        audit_figure=_audits(audited),
        measured=measured(name for study in studies for name in study.datasets),
        chosen=CHOSEN_ON_VALIDATION if any(r.chosen for s in studies for r in s.rows) else "",
        commands=list(_commands(results, root, settings)),
        versions={"Python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in VERSIONS},
        **ledger_page.sections(everything, audited),
    )
    write_text(target, text)


def _study(study: Study, frame: pd.DataFrame, results: Path) -> dict[str, Any]:
    folder = results / "figures" / study.name
    return {
        "study": study,
        "verdict": list(sentences.of_study(study, frame)),
        "tables": tables.shown(study, frame, results),
        "figures": [
            _picture(folder / f"{drawing.name}.png", f"{study.name}: {drawing.name}")
            for drawing in study.figures
        ],
        "seeds": ", ".join(map(str, sorted({cell.seed for cell in study.cells}))),
        "measured": measured_on.of_study(study, frame, results),
    }


def _audits(audited: pd.DataFrame) -> dict[str, Any] | None:
    """Return the figure of audits; None without one."""
    if audited.empty:
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "audit.png")
        page = functools.partial(audit_table.figure, audited, max(style.WIDTHS))
        style.save(page, file)
        return _picture(file, "claims against what an audit shows")


def _picture(file: Path, alt: str) -> dict[str, Any]:
    content = existing(file).read_bytes()
    with Image.open(file) as image:
        width = round(image.width / DOTS_PER_PIXEL)
    return {"data": base64.b64encode(content).decode(), "width": width, "alt": alt}


def _commands(results: Path, root: Path, settings: str) -> Iterator[str]:
    """Yield the commands that reproduce the page."""
    commit, is_changed = checkout.parted(checkout.commit(root))
    if commit:
        yield f"git checkout {commit}" + "  # and changes that are in no commit" * is_changed
    yield "make install"
    command = [".venv/bin/snakemake --cores all", settings, f"-- {results}/report.html"]
    yield " ".join(filter(None, command))
