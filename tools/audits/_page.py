"""docs/audit_others.csv, the table of all audits, and docs/audit_others.md, made of it alone."""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pflpipe.files import write_text

DOCS = Path(__file__).resolve().parents[2] / "docs"
TABLE, PAGE = "audit_others.csv", "audit_others.md"
COLUMNS = (
    *("file", "program", "version", "mechanism", "source", "claim", "said", "verdict", "evidence"),
    *("epsilon_claimed", "epsilon_true", "epsilon_is", "epsilon_lower", "sensitivity", "noise"),
    *("detects", "detects_runs", "situation", "sentence", "notes", "remark"),
)
VERDICTS = ("kept", "refuted", "unsound", "not tried")
HEAD = """\
# Audits of other programs

Written by `make audits` from [audit_others.csv](audit_others.csv), which has every claim with its
place in the program and every figure; the site shows it below. [The auditor](audit_a_release.md)
attacks mechanisms of other programs and compares them with the claims that these programs make.

{counts}

- `kept`: the audit found nothing against the claimed ε, which is no proof. The number after it is
  the largest factor on the noise that it would have detected: .96 is 4 % missing noise.
- `refuted`: the claim is false for what is named, and for no more than that. The ε that holds is
  next to the claimed one: exact, after ≥ a measured lower bound, after ≤ what holds without
  sampling. In brackets is what an attacker of whole runs proves with 99 % confidence or more.
  *Arithmetic*: this is not more than the claim. *Attack*: only this refutes it. *Both*: each does.
- `unsound`: the noise follows the messages. No proof covers that, but the audit shows no larger ε.

A claim is what the program's documentation or its own accountant says, in the terms of [a claim to
the auditor](audit_a_release.md#a-claim). Where neither names the neighbouring relation, one entry
has the relation under which the claim is easiest to keep. Installed programs run their own
functions. Official code that cannot be installed is stated in our words, with file and line.

**If you maintain one of these programs:** the command below a program's heading repeats its
entries, and `tools/audits/` has the adapter. Please open an issue about a wrong adapter or an
unfair claim. **If an audit of yours refutes somebody's claim:** report it to the maintainers first,
with the command that shows it, before you publish it.
"""


def renew(name: str, rows: Iterable[Mapping[str, Any]], docs: Path = DOCS) -> None:
    """Replace the rows of one file in the table, and write the page."""
    kept = [row for row in read(docs) if row["file"] != name]
    table = sorted([*kept, *rows], key=lambda row: str(row["file"]))
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _digits(value) for key, value in row.items()} for row in table)
    write_text(docs / TABLE, text.getvalue())
    write_text(docs / PAGE, page(read(docs)))


def read(docs: Path = DOCS) -> list[dict[str, str]]:
    """Return the rows of the table, none if there is no table."""
    if not (docs / TABLE).is_file():
        return []
    with (docs / TABLE).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def page(table: list[dict[str, str]]) -> str:
    """Return the page of a table."""
    programs = itertools.groupby(table, lambda row: row["file"])
    parts = (_program(name, list(rows)) for name, rows in programs)
    return "\n".join([HEAD.format(counts=_counts(table)), *parts, f"<!-- table: {TABLE} -->\n"])


def _counts(table: list[dict[str, str]]) -> str:
    programs, verdicts = len({row["file"] for row in table}), Counter(r["verdict"] for r in table)
    shown = [verdict for verdict in VERDICTS if verdicts[verdict]]
    counts = "; ".join(f"{verdict}: {verdicts[verdict]}" for verdict in shown)
    return f"Claims: {len(table)}; programs: {programs}. **{counts.capitalize()}.**"


def _program(name: str, rows: list[dict[str, str]]) -> str:
    title = f"## {rows[0]['program']} {rows[0]['version']}\n\n`make audits AUDITS={name}`\n"
    return "\n".join([title, *map(_entry, rows), ""])


def _entry(row: Mapping[str, str]) -> str:
    verdict, why = row["verdict"], row["remark"]
    if verdict == "not tried":
        why = row["sentence"]
    elif verdict == "kept":
        verdict = f"kept, ε {_short(row['epsilon_claimed'])}, {_short(row['detects'])}"
    elif verdict == "refuted":
        sign = {"at least": "≥ ", "at most": "≤ "}.get(row["epsilon_is"], "")
        verdict = f"refuted by {row['evidence']}, ε {sign}{_short(row['epsilon_true'])} and not "
        verdict += f"{_short(row['epsilon_claimed'])} ({_short(row['epsilon_lower'])})"
    return f"- {row['mechanism'] or 'All of it'}: **{verdict}**. {why}".rstrip()


def _short(number: str) -> str:
    return "∞" if number == "inf" else f"{float(number or 'nan'):.3g}"


def _digits(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value
