"""The progress of the snakemake that is running in this folder (``pflpipe status``)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from pflpipe.errors import DataError
from pflpipe.study.runtime_estimate import duration_text

FILE = "status.txt"
ENDED = "snakemake ended"
SILENT = 120.0
"""Seconds without an update after which snakemake counts as dead: shared disks may show a file a
minute late."""


def report(results: Path) -> Iterator[str]:
    """Yield what ``pflpipe status`` prints.

    Raises:
        DataError: no snakemake has run here.
    """
    file = results / FILE
    try:
        text, written = file.read_text(encoding="utf-8"), file.stat().st_mtime
    except FileNotFoundError:
        raise DataError(
            f"{file} does not exist: no snakemake has run here",
            do="start one: snakemake --cores all results/tables/all.csv",
        ) from None
    yield from text.splitlines()
    age = max(0.0, time.time() - written)
    if ENDED in text:
        yield f"  {duration_text(age)} ago"
    elif age > SILENT:
        yield (
            f"snakemake's last update was {duration_text(age)} ago: it was killed, or its machine "
            "is gone; the same command resumes the study (docs/reruns.md, When Snakemake stops)"
        )
    else:
        yield f"({duration_text(age)} ago)"
