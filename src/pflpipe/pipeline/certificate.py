"""The certificate of a study: for every row of its table, what is claimed and what the claim rests
on, in one file that others can check (checking/verify.py)."""

import functools
import math
from collections.abc import Collection, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pflpipe import json_records
from pflpipe._version import __version__
from pflpipe.auditing import cases
from pflpipe.auditing.cases import Case
from pflpipe.auditing.verdict import require_kept
from pflpipe.cells import Cell
from pflpipe.checking import rules
from pflpipe.checking.verify import FORMAT
from pflpipe.errors import DataError
from pflpipe.files import read_json, write_json
from pflpipe.learning.metrics import ALWAYS
from pflpipe.methods import row_code
from pflpipe.privacy.ledger import DEALT, effective_plan
from pflpipe.privacy.plan import Plan
from pflpipe.report import tidy
from pflpipe.study import metric_columns
from pflpipe.study.study_spec import Study

EPSILONS = ("central", "replace_one", "local", "local_replace_one")
OF_AUDITS = ("verdict", "epsilon_claimed", "epsilon_lower", "detects", "detects_runs")
OF_PLANS = ("mechanism", "noise_multiplier", "sample_rate", "rounds", "groups", "band", "buffers")
MEASURED = frozenset(metric_columns.columns(ALWAYS)) | {
    *("clients_evaluated", "diverged_round", "train_seconds", "images_per_second"),
    "nonfinite_uploads",
}
"""Columns of every table that are measured on the clients' data without noise."""


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
