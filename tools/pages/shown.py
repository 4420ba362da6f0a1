"""The tables of results as the site shows them: from the CSV files beside the pages."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

import pandas as pd

from pflpipe.code.dependencies import PLACEBO
from pflpipe.report.render_table import Entry, Table, markdown

PARTS: Mapping[str, tuple[str, ...]] = {
    "accuracy": ("method", "claim", "ε (central)", "personal own", "rank", "to *", "global *", "n"),
    "who gains": ("method", "budget", "above", "below", "net", "worst tenth", "new", "new, *"),
    "by size": ("method", "budget", "examples, *"),
    "by skew": ("method", "budget", "classes, *"),
    "cost": ("method", "budget", "MB, *", "s, *", "rounds, *"),
}
"""Columns of the tables of a study; docs/results.md explains them."""
ACROSS: Mapping[str, tuple[str, ...]] = {
    "people": ("rival", "method", "budget", "people_*"),
    "dealt clients": ("rival", "method", "budget", "fashion_*", "cifar10_*"),
}
"""Those of the differences in all studies."""
AUDITS: Mapping[str, tuple[str, ...]] = {
    "results": ("program", "version", "mechanism", "claim", "verdict", "sentence"),
    "claims": ("program", "mechanism", "source", "said", "situation", "notes"),
    "figures": (*("program", "mechanism", "epsilon_*", "sensitivity", "noise", "detects*"),),
}
"""Those of the audits of other programs; docs/audit_a_release.md explains the figures."""


def tables(file: Path) -> str:
    """Return the tables of a file as Markdown: parts of its columns, or one table."""
    frame = pd.read_csv(file, dtype=str, keep_default_na=False)
    if "best" in frame:
        marked = frame["claim"].isin(("nominal", "unreviewed", PLACEBO))
        frame.loc[marked, "budget"] += " (" + frame["claim"] + ")"
    parts: Mapping[str, tuple[str, ...]] = {"all": ("*",)}
    for column, known in {"best": PARTS, "rival": ACROSS, "sentence": AUDITS}.items():
        if column in frame:
            parts = known
    found = []
    for name, patterns in parts.items():
        columns = [one for one in map(str, frame) if any(fnmatch(one, each) for each in patterns)]
        if len(columns) > 2:
            rows = tuple(
                tuple(
                    Entry(row[one], one == "personal own" and row["best"] == "yes")
                    for one in columns
                )
                for row in frame.to_dict("records")
            )
            # Columns of numbers do not wrap.
            words = {"accuracy": 3, "all": len(columns), "results": 6, "claims": 6}
            table = Table(
                f"{file.parent.name}, {name}", "", (), tuple(columns), (rows,), words.get(name, 2)
            )
            found.append(markdown(table).strip())
    return "\n\n".join(found)
