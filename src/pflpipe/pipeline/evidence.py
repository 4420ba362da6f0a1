"""The results that a certificate is compared with."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pflpipe.checking import verify
from pflpipe.checking.verify import NOT_CHECKABLE, REFUTED, VERIFIED, Finding
from pflpipe.code import dependencies, meaning
from pflpipe.errors import PflpipeError
from pflpipe.files import canonical_json, read_json
from pflpipe.methods import registry, row_code
from pflpipe.pipeline import certificate, settled
from pflpipe.pipeline.settled import cell_of
from pflpipe.report import tidy
from pflpipe.study.settings import flatten

_ELSEWHERE = {"method", "metric"}
"""Kinds of code from outside that a run's record may lack: a method may train as another one does,
and metrics are computed after it."""


def findings(file: Path, results: Path, data: Path) -> list[Finding]:
    """Return ``settled.findings`` of a certificate beside its results.

    Args:
        file: the certificate.
        results: folder with tables, plans, runs, audits and searches.
        data: folder with the pins of data sets.
    """
    return settled.findings(file, lambda study: Evidence(study, results, data))


class Evidence:
    """The results of a study."""

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
        cell = cell_of(row["settings"])
        # The id of its run follows from a method's file, which a certificate must not run.
        run = row["run"] if cell.source else registry.run_id(cell)
        record = self.results / "runs" / run / "run.json"
        needed = [self.results / "plans" / f"{cell.plan_id}.json", record]
        audits = [one["audit"] for one in row["audits"] if one["verdict"]]
        needed += [self.results / f"audits/{name}.json" for name in audits]
        needed += [self.search] * bool(row["search"])
        if missing := [str(file) for file in needed if not file.is_file()]:
            return [], [f"there is no {', '.join(missing)}"]
        try:
            made = certificate.row(cell, run, self.columns, self.searched, self.results, self.data)
        except PflpipeError as error:
            return [str(error)], []
        found = dict(flatten(json.loads(canonical_json(made))))
        used = read_json(record)["code"]
        theirs = [
            one for one in row["code"] if not one["package"] and one["kind"] not in _ELSEWHERE
        ]
        other = [one for one in used if one not in row["code"]]
        if other or any(one not in used for one in theirs):
            found["code"] = (
                dependencies.listed(dependencies.Dependency(**one) for one in used)
                or "the package's alone"
            )
        expected = {path: found[path] for path in found.keys() - verify.ELSEWHERE}
        return list(verify.differences(row, expected, str(self.results))), []

    def of_all(self, rows: Iterable[dict[str, Any]]) -> Iterator[Finding]:
        """Yield the findings on rows that were left out, on data sets and on code."""
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
        code = (dependencies.Dependency(**part) for row in rows for part in row["code"])
        yield from map(_of_code, dict.fromkeys(code))


def _of_code(part: dependencies.Dependency) -> Finding:
    """Return the finding on a part of the code, whose files are read and not run."""
    what, file = f"code of {part}", part.name.rpartition(":")[0] or part.name
    try:
        if part.package:
            digest = row_code.of_package(part.kind, part.name).sha256
            other = NOT_CHECKABLE, "the code installed here is another"
        elif part.kind in ("features", dependencies.START):
            digest, other = row_code.of_values(file), (REFUTED, f"{file} has another digest")
        else:
            digest = meaning.sha256(Path(file)) if Path(file).is_file() else ""
            other = REFUTED, f"{file} is other code"
    except (OSError, PflpipeError) as error:
        return Finding(what, NOT_CHECKABLE, str(error))
    if not digest:
        return Finding(what, NOT_CHECKABLE, f"there is no {file}")
    return Finding(what, VERIFIED) if digest == part.sha256 else Finding(what, *other)
