"""The certificate of a study: for every row of its table, what is claimed and what the claim rests
on, in one file that others can check (checking/verify.py), alone or beside these results."""

import functools
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pflpipe import json_records
from pflpipe._version import __version__
from pflpipe.auditing import cases
from pflpipe.auditing.cases import Case
from pflpipe.auditing.verdict import require_kept
from pflpipe.cells import Cell
from pflpipe.checking import rules, verify
from pflpipe.checking.verify import FORMAT, NOT_CHECKABLE, REFUTED, VERIFIED, Finding
from pflpipe.code import dependencies, meaning
from pflpipe.errors import DataError, PflpipeError
from pflpipe.files import canonical_json, read_json, write_json
from pflpipe.learning.metrics import ALWAYS
from pflpipe.methods import registry, row_code
from pflpipe.pipeline import settled
from pflpipe.privacy.ledger import DEALT, effective_plan
from pflpipe.privacy.plan import Plan
from pflpipe.report import tidy
from pflpipe.study import metric_columns
from pflpipe.study.settings import flatten
from pflpipe.study.study_spec import Study

EPSILONS = ("central", "replace_one", "local", "local_replace_one")
OF_AUDITS = ("verdict", "epsilon_claimed", "epsilon_lower", "detects", "detects_runs")
OF_PLANS = ("mechanism", "noise_multiplier", "sample_rate", "rounds", "groups", "band", "buffers")
MEASURED = frozenset(metric_columns.columns(ALWAYS)) | {
    *("clients_evaluated", "diverged_round", "train_seconds", "images_per_second"),
    "nonfinite_uploads",
}
"""Columns of every table that are measured on the clients' data without noise."""
_ELSEWHERE = {"method", "metric"}
"""Kinds of code from outside that a run's record may lack: a method may train as another one does,
and metrics are computed after it."""


def write(study: Study, results: Path, data: Path) -> Path:
    """Write ``results/tables/<study>.certificate.json`` and return it.

    Args:
        results: folder with the table of the study, and its plans, runs, audits and search.
        data: folder of data sets, for their pins.

    Raises:
        DataError: a file is missing, damaged or of another version of the study, or a run deviated
            from its plan.
        PrivacyError: an audit refutes a certified claim.
    """
    columns = list(map(str, tidy.stored(study, results)))
    searched = searches(study.name, results)
    # A metric of the user's goes by its file.
    measures = [metric.source or name for name, metric in study.metrics.items()]
    rows = [
        row(one.cell, one.run, columns, searched, results, data)
        | {"code": code(one.cell, one.run, measures, results)}
        for one in study.rows
    ]
    return save(study.name, rows, results)


def save(name: str, rows: list[dict[str, Any]], results: Path) -> Path:
    """Write ``results/tables/<name>.certificate.json`` with these rows and return it."""
    target = results / "tables" / f"{name}.certificate.json"
    about = {"format": FORMAT, "study": name, "pflpipe": __version__}
    write_json(target, about | {"rows": rows})
    return target


def row(
    cell: Cell,
    run: str,
    columns: Collection[str],
    searched: Mapping[str, Mapping[str, Any]],
    results: Path,
    data: Path,
) -> dict[str, Any]:
    """Return the row of a cell without its code, of which results know a part; raises as ``write``.

    Args:
        run: id of its training run.
        columns: of the table.
        searched: from ``searches``.
        results, data: as of ``write``.
    """
    planned = tidy.planned(cell.plan_id, results)
    plan, values = planned.plan, json_records.to_json(planned.ledger)
    record = tidy.record_of(results / "runs" / run, plan, cell)
    pin = data / f"{cell.dataset}.pin"
    counted = accountant = None
    if plan.mechanism != "none":
        # The ledger has the multiplier; rounds and rate depend on who can compute the cohorts.
        rounds = effective_plan(plan, {"public_sampling"}.intersection(cell.departures))
        counted = {
            "multiplier": values["noise_multiplier_effective"],
            "rate": rounds.sample_rate,
            "rounds": rounds.rounds,
            "message": values["noise_multiplier_message"],
            "update": values["noise_multiplier_update"],
        }
        program = f"pflpipe {__version__}, dp-accounting {version('dp-accounting')}"
        accountant = {"name": plan.law.curve(rounds.sample_rate), "version": program}
    line, person = searched.get(cell.id), None
    if values["unit"] == DEALT:
        person = {"max_clients_per_user": values["max_clients_per_user"]}
        person |= {f"epsilon{at}": values[f"epsilon_person{at}"] for at in ("", "_1e5")}
    digest = pin.read_text().strip() if pin.exists() else None
    public = {*tidy.COLUMNS, *tidy.OF_UNITS} - MEASURED
    return {
        "cell": cell.id,
        "settings": cell.identity,
        "run": run,
        "dataset": {"name": cell.dataset, "sha256": digest},
        "unit": values["unit"],
        "person": person,
        **{name: values[name] for name in ("adjacency", "trust", "claim", "sampling")},
        "warnings": values["warnings"],
        "departures": values["departures"],
        "plan": json_records.to_json(plan),
        "grid": plan.grid and json_records.to_json(plan.grid),
        "counted": counted,
        "epsilons": {
            f"{name}{at}": values[f"epsilon_{name}{at}"] for name in EPSILONS for at in ("", "_1e5")
        },
        "accountant": accountant,
        "audits": [_audit(case, plan, results) for case in cases.of_release(cell)],
        "commit": record.program.commit,
        "diagnostics": [name for name in columns if name not in public],
        "search": line and _search(line, results),
    }


def searches(study: str, results: Path) -> dict[str, dict[str, Any]]:
    """Return the record of a study's search by the id of each cell that follows from it; empty
    without a search."""
    file = results / "searches" / f"{study}.json"
    lines = read_json(file)["lines"] if file.exists() else []
    if any(not {"rows", "private"} <= line.keys() for line in lines):
        do = "remove it, and snakemake chooses again among the finished runs"
        raise DataError(f"{file} is of an earlier version of pflpipe", do=do)
    # Lines may share rows; the study has the choice of the first.
    return {cell: line for line in reversed(lines) for cell in line["rows"]}


def code(cell: Cell, run: str, measures: Collection[str], results: Path) -> list[dict[str, Any]]:
    """Return the parts of a row (``code.dependencies``): of the package's with digests of the code
    as it is now, of others with those of the run.

    Args:
        run: id of its training run.
        measures: names of its study's metrics, or ``file.py:name``.
        results: as of ``write``.
    """
    plan = tidy.planned(cell.plan_id, results).plan
    record = tidy.record_of(results / "runs" / run, plan, cell)
    return [
        json_records.to_json(part) for part in row_code.of_cell(cell, record.dependencies, measures)
    ]


@functools.cache
def _audited(case: Case) -> Plan:
    """Return the plan that an audit claims, also of a release with departures: the one without."""
    return case.plan(())


def _audit(case: Case, plan: Plan, results: Path) -> dict[str, Any]:
    """Return the result of an audit, with the plan that it audited beside that of the row; without
    a result only its id, and null for the rest."""
    file = results / "audits" / f"{case.id}.json"
    if not file.exists():
        return {"audit": case.id} | dict.fromkeys((*OF_AUDITS, "plan", "this_plan"))
    result = read_json(file)
    require_kept([result])
    audited = _audited(case)
    claimed = rules.claimed_by(json_records.to_json(audited), case.trust)
    if not math.isclose(result["epsilon_claimed"], claimed, rel_tol=rules.CLOSE):
        got, expected = result["epsilon_claimed"], f"{claimed:g}, of the audited plan"
        do = "it is of another version of pflpipe: remove it and run snakemake again"
        raise DataError(f"{file}: epsilon_claimed", got=got, expected=expected, do=do)
    about = {"audit": case.id, "plan": json_records.to_json(audited), "this_plan": audited == plan}
    return about | {key: result[key] for key in OF_AUDITS}


def _search(line: Mapping[str, Any], results: Path) -> dict[str, Any]:
    plans = []
    for name, runs in sorted(line["plans"].items()):
        plan = tidy.planned(name, results).plan
        values = {key: json_records.to_json(getattr(plan, key)) for key in OF_PLANS}
        plans.append({"plan": name, "runs": runs} | values)
    chosen = {key: line["chosen"][key] for key in ("sets", "runs", "epsilon_with_search")}
    chosen["epsilon_with_search"] = json_records.to_json(chosen["epsilon_with_search"])
    chosen["search_not_counted"] = line["chosen"].get("search_not_counted") or None
    return {"line": line["line"], **chosen, "plans": plans, "private": line["private"]}


# ---------------------------------------------------------------- beside its results


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
        self.searched = searches(study, results)

    def of(self, stated: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Return what results refute in a row of it, and what is missing for a check."""
        if not self.table.is_file():
            return [], [f"there is no {self.table}"]
        if stated["cell"] not in self.cells:
            return [f"{self.table} has no such row"], []
        cell = settled.cell_of(stated["settings"])
        # The id of its run follows from a method's file, which a certificate must not run.
        run = stated["run"] if cell.source else registry.run_id(cell)
        record = self.results / "runs" / run / "run.json"
        needed = [self.results / "plans" / f"{cell.plan_id}.json", record]
        audits = [one["audit"] for one in stated["audits"] if one["verdict"]]
        needed += [self.results / f"audits/{name}.json" for name in audits]
        needed += [self.search] * bool(stated["search"])
        if missing := [str(file) for file in needed if not file.is_file()]:
            return [], [f"there is no {', '.join(missing)}"]
        try:
            made = row(cell, run, self.columns, self.searched, self.results, self.data)
        except PflpipeError as error:
            return [str(error)], []
        found = dict(flatten(json.loads(canonical_json(made))))
        used = read_json(record)["code"]
        theirs = [
            one for one in stated["code"] if not one["package"] and one["kind"] not in _ELSEWHERE
        ]
        other = [one for one in used if one not in stated["code"]]
        if other or any(one not in used for one in theirs):
            found["code"] = (
                dependencies.listed(dependencies.Dependency(**one) for one in used)
                or "the package's alone"
            )
        expected = {path: found[path] for path in found.keys() - verify.ELSEWHERE}
        return list(verify.differences(stated, expected, str(self.results))), []

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
        parts = (dependencies.Dependency(**part) for row in rows for part in row["code"])
        yield from map(_of_code, dict.fromkeys(parts))


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
