"""How far the snakemake is that works in this folder, as it says itself (``pflpipe status``)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from pflpipe.errors import DataError
from pflpipe.study.runtime_estimate import words

FILE = "status.txt"
ENDED = "snakemake ended"
SILENT = 120.0
"""Seconds without a writing after which snakemake is taken for gone: shared disks may show a file a
minute late."""


def report(results: Path) -> Iterator[str]:
    """Yield what ``pflpipe status`` prints.

    Raises:
        DataError: no snakemake has worked here.
    """
    file = results / FILE
    try:
        text, written = file.read_text(encoding="utf-8"), file.stat().st_mtime
    except FileNotFoundError:
        raise DataError(
            f"{file} does not exist: no snakemake has been at work here",
            do="start one: snakemake --cores all results/tables/all.csv",
        ) from None
    yield from text.splitlines()
    age = max(0.0, time.time() - written)
    if ENDED in text:
        yield f"  {words(age)} ago"
    elif age > SILENT:
        yield (
            f"snakemake was last heard of {words(age)} ago: it was killed, or its machine is gone; "
            "the same command goes on where it was (docs/reruns.md, When Snakemake stops)"
        )
    else:
        yield f"({words(age)} ago)"
