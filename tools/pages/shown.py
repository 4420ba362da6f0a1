"""The tables of results as the site shows them: from the CSV files beside the pages."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pandas as pd

from pflpipe.report.render_table import Entry, Table, markdown

PARTS = {
    "accuracy": ("method", "claim", "ε (central)", "personal own", "rank", "to *", "global *", "n"),
    "who gains": ("method", "budget", "above", "below", "net", "worst tenth", "new", "new, *"),
    "by size and skew": ("method", "budget", "examples, *", "classes, *"),
    "cost": ("method", "budget", "MB, *", "s, *", "rounds, *"),
}
"""Columns of the tables of a study; docs/results.md explains them."""
AUDITS = {
    "results": ("program", "version", "mechanism", "claim", "verdict", "sentence"),
    "claims": ("program", "mechanism", "source", "said", "situation", "notes"),
    "figures": (*("program", "mechanism", "epsilon_*", "sensitivity", "noise", "detects*"),),
}
"""Those of the audits of other programs; docs/audit_a_release.md explains the figures."""


def tables(file: Path) -> str:
    """Return the tables of a file as Markdown: those of ``PARTS`` for a study, else one table."""
    frame = pd.read_csv(file, dtype=str, keep_default_na=False)
    if "best" in frame:
        marked = frame["claim"].isin(("nominal", "unreviewed"))
        frame.loc[marked, "budget"] += " (" + frame["claim"] + ")"
    parts = PARTS if "best" in frame else AUDITS if "sentence" in frame else {"all": ("*",)}
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
            words = {"accuracy": 3, "all": 3, "results": 6, "claims": 6}
            table = Table(
                f"{file.parent.name}, {name}", "", (), tuple(columns), (rows,), words.get(name, 2)
            )
            found.append(markdown(table).strip())
    return "\n\n".join(found)
