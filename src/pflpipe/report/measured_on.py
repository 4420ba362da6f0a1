"""Sentences about where, with what and when runs were trained. The record of each run is read,
because the runs of a study may come from several machines and versions of the code."""

from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from pflpipe import json_records
from pflpipe.errors import counted
from pflpipe.report.tidy import existing
from pflpipe.simulation import checkout
from pflpipe.simulation.run_record import Program, Record
from pflpipe.study.study_spec import Study


def of_cells(study: Study, frame: pd.DataFrame, results: Path) -> dict[str, str]:
    """Return for each cell of a study a sentence about the runs that were trained like its run: on
    such a machine, with these versions.

    The seconds are those of training, summed over these runs. Cells may share a run, and runs may
    have been parallel. No sentence has a name, address or path of a machine.

    Args:
        frame: the tidy table of the study.

    Raises:
        DataError: the record of a run is missing, damaged or of another version.
    """
    runs = {row.cell.id: row.run for row in study.rows}
    seconds = dict(zip(runs.values(), map(float, frame["train_seconds"]), strict=True))
    files = {run: existing(results / "runs" / run / "run.json") for run in seconds}
    ways = {run: _way(json_records.load(Record, file).program) for run, file in files.items()}
    sentences = {}
    for way in dict.fromkeys(ways.values()):
        alike = [run for run in ways if ways[run] == way]
        latest = datetime.fromtimestamp(max(files[run].stat().st_mtime for run in alike), UTC)
        trained = f"{sum(seconds[run] for run in alike):.0f} s of training"
        sentences[way] = f"{way}, {latest.date()}, {trained} in {counted(len(alike), 'run')}."
    return {cell: sentences[ways[run]] for cell, run in runs.items()}


def of_study(study: Study, frame: pd.DataFrame, results: Path) -> str:
    """Return the sentences of all cells, each once; see ``of_cells``."""
    return " ".join(dict.fromkeys(of_cells(study, frame, results).values()))


def _way(program: Program) -> str:
    commit, is_changed = checkout.parted(program.commit)
    parts = [
        f"Measured on {program.processor}",
        f"{program.cores} cores",
        f"training on {program.gpu}" if program.gpu else "",
        f"Python {program.versions['python']}",
        f"torch {program.versions['torch']}",
        f"commit {commit}" if commit else "",
        "with uncommitted changes" if is_changed else "",
    ]
    return ", ".join(filter(None, parts))
