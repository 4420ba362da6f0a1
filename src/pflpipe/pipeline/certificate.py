"""The certificate of a study: for every row of its table, what is claimed and what the claim rests
on, in one file that others can check (verify.py)."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pflpipe import records
from pflpipe._version import __version__
from pflpipe.auditing import cases
from pflpipe.auditing.verdict import require_kept
from pflpipe.cells import Cell
from pflpipe.errors import DataError
from pflpipe.files import read_json, write_json
from pflpipe.learning.metrics import ALWAYS
from pflpipe.methods import registry
from pflpipe.pipeline import code_version
from pflpipe.privacy.ledger import Planned, effective_plan
from pflpipe.report import tidy
from pflpipe.study import metrics
from pflpipe.study.study_spec import Study

FORMAT = "pflpipe-certificate-1"
PACKAGE = Path(__file__).resolve().parents[1]
EPSILONS = ("central", "replace_one", "local", "local_replace_one")
OF_AUDITS = ("audit", "verdict", "epsilon_lower", "detects", "detects_runs")
OF_PLANS = (
    *("mechanism", "noise_multiplier", "sample_rate", "rounds", "groups", "band", "buffers"),
)
MEASURED = frozenset(
    {
        *metrics.columns(ALWAYS),
        *("diverged_round", "train_seconds", "images_per_second", "nonfinite_uploads"),
    }
)
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
    rows = [
        row(one.cell, one.run, columns, searched, results, data)
        | {"code": code(one.cell.method, one.cell.source)}
        for one in study.rows
    ]
    target = results / "tables" / f"{study.name}.certificate.json"
    about = {"format": FORMAT, "study": study.name, "pflpipe": __version__}
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
    """Return the row of a cell without the digest of its code, which results do not tell; raises as
    ``write``.

    Args:
        run: id of its training run.
        columns: of the table.
        searched: from ``searches``.
        results, data: as of ``write``.
    """
    planned = plan_file(cell.plan_id, results)
    plan, values = planned.plan, records.to_json(planned.ledger)
    record = tidy.record_of(results / "runs" / run, plan, cell.departures)
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
        is_closed = plan.mechanism == "gaussian" and rounds.sample_rate == 1
        program = f"pflpipe {__version__}, dp-accounting {version('dp-accounting')}"
        accountant = {"name": "gdp" if is_closed else "pld", "version": program}
    line = searched.get(cell.id)
    return {
        "cell": cell.id,
        "settings": cell.identity,
        "run": run,
        "dataset": {
            "name": cell.dataset,
            "sha256": pin.read_text().strip() if pin.exists() else None,
        },
        "unit": "user",
        **{name: values[name] for name in ("adjacency", "trust", "claim", "sampling")},
        "departures": values["departures"],
        "plan": records.to_json(plan),
        "counted": counted,
        "epsilons": {
            f"{name}{at}": values[f"epsilon_{name}{at}"] for name in EPSILONS for at in ("", "_1e5")
        },
        "accountant": accountant,
        "audits": [_audit(name, results) for name in audits(cell)],
        "commit": record.program.commit,
        "diagnostics": [
            name
            for name in columns
            if name in MEASURED or name not in (*tidy.COLUMNS, *tidy.OF_UNITS)
        ],
        "search": line and _search(line, results),
    }


def plan_file(plan: str, results: Path) -> Planned:
    """Return the content of the plan file with an id; raises DataError if it is missing or
    damaged."""
    return records.load(Planned, tidy.existing(results / "plans" / f"{plan}.json"))


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


def audits(cell: Cell) -> list[str]:
    """Return the ids of the audits of the release that a cell makes."""
    return [case.id for case in cases.of_cell(cell)] or [
        subject.case.id
        for subject in _subjects()
        if (subject.method, subject.case.mechanism, subject.case.departures)
        == ("" if cell.source else cell.method, cell.privacy.mechanism, cell.departures)
    ]


_subjects = functools.cache(cases.subjects)


def _audit(name: str, results: Path) -> dict[str, Any]:
    """Return the result of an audit; without one only its id, and null for the rest."""
    file = results / "audits" / f"{name}.json"
    if not file.exists():
        return dict.fromkeys(OF_AUDITS) | {"audit": name}
    result = read_json(file)
    require_kept([result])
    return {key: result[key] for key in OF_AUDITS}


def _search(line: Mapping[str, Any], results: Path) -> dict[str, Any]:
    plans = [
        {"plan": name, "runs": runs}
        | {key: records.to_json(getattr(plan_file(name, results).plan, key)) for key in OF_PLANS}
        for name, runs in sorted(line["plans"].items())
    ]
    chosen = {key: line["chosen"][key] for key in ("sets", "runs", "epsilon_with_search")}
    cost = records.to_json(chosen["epsilon_with_search"])
    return {
        "line": line["line"],
        **chosen,
        "epsilon_with_search": cost,
        "plans": plans,
        "private": line["private"],
    }


@functools.cache
def code(method: str, source: str) -> str:
    """Return the digest of the code of a method, with all of the package that it imports."""
    return code_version.digest(registry.file_of(method, source), PACKAGE)
