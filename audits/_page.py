"""docs/audit_others.csv, the table of all audits, and docs/audit_others.md, made of it alone."""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pflpipe.files import write_text

DOCS = Path(__file__).resolve().parent.parent / "docs"
TABLE, PAGE = "audit_others.csv", "audit_others.md"
COLUMNS = (
    *("file", "program", "version", "mechanism", "source", "claim", "said", "verdict"),
    *("epsilon_claimed", "epsilon_true", "epsilon_lower", "sensitivity", "noise", "detects"),
    *("detects_runs", "seconds", "situation", "sentence", "notes", "remark"),
)
VERDICTS = ("kept", "refuted", "unsound", "not tried")
HEAD = """\
# Audits of other programs

Written by `make audits` from docs/audit_others.csv; do not edit. [The auditor](audit_a_release.md)
attacks mechanisms of other programs and compares them with the claims that these programs make.

{counts}

- `kept`: the audit found nothing against the claim. The sentence says how much missing noise it
  would have found. This is a result, and no proof.
- `refuted`: the claim is false for what is named in the row, and for no more than that. Another
  row often shows the condition under which the same mechanism keeps its claim.
- `unsound`: the noise follows the messages. No proof covers that, but no larger epsilon was shown.
- `not tried`: the row says why.

A claim is what the program's documentation or its own accountant says, with file and line below.
Its terms are those of [a claim to the auditor](audit_a_release.md#a-claim).
Where neither names the neighbouring relation, one row has the relation under which the claim is
easiest to keep. Programs that are installed run their own functions. Official code that cannot be
installed is stated in our words, with file and line of theirs.

**If you maintain one of these programs:** the command below a program's heading repeats its rows on
your machine, and `audits/` has the adapter. A wrong adapter or an unfair claim is our mistake:
please open an issue. **If an audit of yours refutes somebody's claim:** report it to the
maintainers first, with the command that shows it, before you publish it.
"""
REPEATED = """\
## {program} {version}

In a checkout of pflpipe: `make audits AUDITS={file}`.
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
    return "\n".join([HEAD.format(counts=_counts(table)), *_summary(table), *_details(table)])


def _counts(table: list[dict[str, str]]) -> str:
    programs, verdicts = len({row["file"] for row in table}), Counter(r["verdict"] for r in table)
    shown = [verdict for verdict in VERDICTS if verdicts[verdict]]
    counts = "; ".join(f"{verdict}: {verdicts[verdict]}" for verdict in shown)
    return f"Claims: {len(table)}; programs: {programs}. **{counts.capitalize()}.**"


def _summary(table: list[dict[str, str]]) -> Iterator[str]:
    yield "| program | version | mechanism | claim | verdict | result |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in table:
        cells = (row[key] for key in ("program", "version", "mechanism", "claim"))
        last = (f"**{row['verdict']}**", row["sentence"])
        yield "| " + " | ".join(_cell(one) for one in (*cells, *last)) + " |"
    yield ""


def _details(table: list[dict[str, str]]) -> Iterator[str]:
    for _, group in itertools.groupby(table, lambda row: row["file"]):
        rows = list(group)
        yield REPEATED.format(**rows[0])
        for row in rows:
            yield f"- **{row['mechanism'] or 'All of it'}** (`{row['source']}`): {row['verdict']}."
            found = row["verdict"] in ("refuted", "unsound") and row["situation"]
            tried = f"Found where {row['situation']}." if found else ""
            noted = f"The audit notes: {row['notes']}." if row["notes"] else ""
            said = row["said"] and row["said"].removesuffix(".") + "."
            for text in (said, row["remark"], tried, noted):
                if text:
                    yield f"  {text}"
        yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _digits(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value
