"""A check of a certificate at two levels.

Alone: its schema, its own digest, the digests of its settings, and every number that follows from
others in it (recomputed.py). With results: every row is made again from plans, runs, audits and
searches and compared, and no row of the table may be missing. docs/certificates.md says what
neither level can show.
"""

from __future__ import annotations

import collections
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator

from pflpipe.cells import BLOCKS, Cell
from pflpipe.errors import DataError, PflpipeError
from pflpipe.files import DIGEST, canonical_json
from pflpipe.methods import registry
from pflpipe.pipeline import certificate, recomputed
from pflpipe.report import tidy
from pflpipe.study import documents

VERIFIED, REFUTED, NOT_CHECKABLE = "verified", "refuted", "not checkable"
SCHEMA = Path(__file__).with_name("certificate-2.schema.json")
TOLERANCE = 1e-6
"""Largest relative difference of a number to the recomputed one."""
_ELSEWHERE = {"dataset.sha256", "accountant.version"}
"""What results do not tell: data sets are checked by themselves, and a version is that of the
program that wrote the certificate."""


class RefutedError(PflpipeError):
    """Something in a certificate is refuted."""

    exit_code = 1


class Finding(NamedTuple):
    """The verdict on a part of a certificate, and why it is not ``verified``."""

    part: str
    verdict: str
    why: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, self))


def findings(file: Path, results: Path | None = None, data: Path = Path("data")) -> list[Finding]:
    """Return the verdict on every row of a certificate, and on what concerns all of them.

    Args:
        file: the certificate.
        results: folder with tables, plans, runs, audits and searches; None checks the file alone.
        data: folder with the pins of data sets; read if there are results.

    Raises:
        DataError: the file cannot be read as a certificate of this version.
    """
    content, refused = _read(file)
    if refused:
        return [Finding("file", REFUTED, why) for why in refused]
    rows, found = content["rows"], []
    names = collections.Counter(row["cell"] for row in rows)
    if twice := [name for name, number in names.items() if number > 1]:
        found.append(Finding("file", REFUTED, f"rows that occur twice: {', '.join(twice)}"))
    evidence = None if results is None else _Evidence(content["study"], results, data)
    for row in rows:
        refuted, unknown = _alone(row)
        if evidence and not refuted:
            refuted, unknown = evidence.of(row)
        verdict = REFUTED if refuted else NOT_CHECKABLE if unknown else VERIFIED
        found.append(Finding(row["cell"], verdict, "; ".join(refuted or unknown)))
    return found + (list(evidence.of_all(rows)) if evidence else [])


def require_unrefuted(found: Iterable[Finding], file: Path) -> None:
    """Raise RefutedError if a part of a certificate is refuted."""
    if refuted := [one.part for one in found if one.verdict == REFUTED]:
        raise RefutedError(f"{file}: refuted", got=", ".join(refuted))


def _read(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the content of a certificate, and what makes it no certificate."""
    try:
        text = file.read_text(encoding="utf-8")
        content = json.loads(text)
        written = json.dumps(content, sort_keys=True, indent=1, allow_nan=False) + "\n"
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file} cannot be read", got=str(error)) from None
    stated = content.get("format") if isinstance(content, dict) else None
    if stated != certificate.FORMAT:
        raise DataError(f"{file}: format", got=stated, expected=certificate.FORMAT)
    body = {name: value for name, value in content.items() if name != DIGEST}
    digest = hashlib.sha256(canonical_json(body).encode()).hexdigest()
    # A repeated key leaves the content alone, but a reader may see the other value.
    if content.get(DIGEST) != digest or text != written:
        return content, ["it is not what was written: it was edited or damaged"]
    validator = Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    return content, [str(one.error) for one in documents.violations(content, validator)]


def _alone(row: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return what the rest of a row refutes, and what cannot be checked without results."""
    digest = hashlib.sha256(canonical_json(row["settings"]).encode()).hexdigest()
    if not row["cell"].endswith(f"-{digest[:10]}"):
        return ["the settings are not those of this cell"], []
    try:
        expected, unknown = recomputed.expected(row)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        return [f"its epsilons cannot be recomputed: {error or type(error).__name__}"], []
    return list(_differences(row, expected, "the rest of the row")), unknown


def _differences(row: Mapping[str, Any], expected: Mapping[str, Any], of: str) -> Iterator[str]:
    for path, value in expected.items():
        stated: Any = row
        for key in path.split("."):
            stated = stated.get(key) if isinstance(stated, dict) else None
        if not _agree(stated, value):
            yield f"{path} is {stated}, but {value} by {of}"


def _agree(stated: Any, value: Any) -> bool:
    pair = [math.inf if one == "inf" else one for one in (stated, value)]
    if all(isinstance(one, int | float) for one in pair) and float in map(type, pair):
        return math.isclose(*pair, rel_tol=TOLERANCE, abs_tol=TOLERANCE**2)
    return bool(pair[0] == pair[1])


class _Evidence:
    """The results that a certificate is compared with."""

    def __init__(self, study: str, results: Path, data: Path) -> None:
        self.results, self.data = results, data
        self.table = results / "tables" / f"{study}.csv"
        self.search = results / "searches" / f"{study}.json"
        self.columns: list[str] = []
        self.cells: list[str] = []
        if self.table.is_file():
            frame = tidy.read(self.table)
            self.columns, self.cells = list(map(str, frame)), list(frame["cell"])
        self.searched = certificate.searches(study, results)

    def of(self, row: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Return what results refute in a row, and what is missing for a check."""
        if not self.table.is_file():
            return [], [f"there is no {self.table}"]
        if row["cell"] not in self.cells:
            return [f"{self.table} has no such row"], []
        cell = _cell(row["settings"])
        if cell.id != row["cell"]:
            return [f"its settings are those of {cell.id}"], []
        # The id of its run follows from a method's file, which a certificate must not run.
        run = row["run"] if cell.source else registry.run_id(cell)
        needed = [
            self.results / "plans" / f"{cell.plan_id}.json",
            self.results / "runs" / run / "run.json",
            *(
                self.results / f"audits/{one['audit']}.json"
                for one in row["audits"]
                if one["verdict"]
            ),
            *[self.search] * bool(row["search"]),
        ]
        if missing := [str(file) for file in needed if not file.is_file()]:
            return [], [f"there is no {', '.join(missing)}"]
        try:
            made = certificate.row(cell, run, self.columns, self.searched, self.results, self.data)
        except PflpipeError as error:
            return [str(error)], []
        found = dict(_leaves(json.loads(canonical_json(made))))
        expected = {path: found[path] for path in found.keys() - _ELSEWHERE}
        return list(_differences(row, expected, str(self.results))), []

    def of_all(self, rows: Iterable[dict[str, Any]]) -> Iterator[Finding]:
        """Yield the findings on rows that were left out, on data sets and on code of methods."""
        if left_out := set(self.cells) - {row["cell"] for row in rows}:
            why = f"rows of {self.table} are left out: {', '.join(sorted(left_out))}"
            yield Finding("file", REFUTED, why)
        for name, digest in dict.fromkeys(tuple(row["dataset"].values()) for row in rows):
            part, pin = f"data set {name}", self.data / f"{name}.pin"
            if not pin.is_file():
                yield Finding(part, NOT_CHECKABLE, f"there is no {pin}")
            elif pin.read_text().strip() != digest:
                yield Finding(part, REFUTED, f"{pin} has another digest")
            else:
                yield Finding(part, VERIFIED)
        methods = ((row["settings"]["method"], row["code"]) for row in rows)
        for name, digest in dict.fromkeys(methods):
            if name in registry.NAMES and certificate.code(name, "") == digest:
                yield Finding(f"code of {name}", VERIFIED)
            else:
                why = "the code installed here is another"
                yield Finding(f"code of {name}", NOT_CHECKABLE, why)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a nested object by their dotted paths; lists are values."""
    if not isinstance(value, dict):
        yield path, value
        return
    for key, inner in value.items():
        yield from _leaves(inner, f"{path}.{key}" if path else key)


def _cell(settings: Mapping[str, Any]) -> Cell:
    """Return the cell with these settings and the defaults of all others."""
    values = {name: value for name, value in settings.items() if name != "streams"}
    blocks = {name: kind(**settings.get(name, {})) for name, kind in BLOCKS.items()}
    departures = tuple(settings.get("departures", ()))
    return Cell(**values | blocks | {"departures": departures})
