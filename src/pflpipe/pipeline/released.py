"""The released part of a study, ready to be published: what an epsilon covers, and nothing else.

It contains the final model of every certified training run and what follows from the settings: the
plan, its ledger, the sizes of messages. Everything else in a run's files (participants, losses,
norms, times, accuracies, the round of a divergence, states) is a diagnostic and is left out, and so
are dates and machines. The files are therefore a function of settings and releases: equal releases
give equal bytes, whatever data the clients have.
"""

import math
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pflpipe import json_records
from pflpipe.cells import Cell
from pflpipe.code import dependencies
from pflpipe.errors import ConfigError, DataError
from pflpipe.files import atomic, write_json, write_text
from pflpipe.methods import registry
from pflpipe.privacy import accounting
from pflpipe.privacy.ledger import Planned
from pflpipe.privacy.plan import Plan
from pflpipe.report import tidy
from pflpipe.report.templates import filled
from pflpipe.report.tidy import existing
from pflpipe.study import documents
from pflpipe.study.settings import CHOSEN_ON_VALIDATION, round_up
from pflpipe.study.study_spec import Study

SIZES = ("releases", "parameters", "uploaded_parameters", "upload_bytes_per_round")
"""Fields of ``run.json`` to publish. They are listed, so that a field that a later version adds is
not published by default."""

GUARANTEE = (
    *("epsilon_central", "delta", "epsilon_central_1e5"),
    *("unit", "max_clients_per_user", "epsilon_person", "epsilon_person_1e5"),
)
"""Fields of the ledger in the manifest."""
_TEXTS = documents.read_yaml(Path(__file__).with_name("released.yaml"))
"""The meaning of each number in a run's file, and what no epsilon covers."""
_README = Path(__file__).with_name("released.md")


def left_out(cell: Cell) -> str:
    """Return why a cell's training run is not published; empty if a finite epsilon covers it."""
    if cell.privacy.mechanism == "none":
        return "none: no privacy was asked for, so what it sends is covered by nothing"
    if cell.departures:
        return f"nominal: it departs from the certified mechanism ({', '.join(cell.departures)})"
    if code := dependencies.unreviewed(cell.outside):
        return f"unreviewed: pflpipe's developers have not reviewed {dependencies.listed(code)}"
    if cell.privacy.noise_multiplier == 0:
        return "no noise, so no finite epsilon holds"
    return ""


def write(study: Study, results: Path, target: Path) -> None:
    """Write a folder with ``<run>.npz`` and ``<run>.json`` of every certified run,
    ``manifest.json`` and ``README.md``.

    Args:
        results: folder with ``runs/`` and ``plans/``.
        target: the folder; it appears once it is complete, and an existing one is never changed.

    Raises:
        ConfigError: no run of the study is certified.
        DataError: a run's file is missing, the run deviated from its plan, or the target exists.
    """
    published, missing = _chosen(study)
    if not published:
        expected = "one at least, to have something to publish"
        raise ConfigError(f"study {study.name}", got="no certified run", expected=expected)
    if target.is_dir() and any(target.iterdir()):
        raise DataError(f"{target}", got="files", expected="no such folder", do="move it away")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Next to the target, so that the rename stays on one file system and is atomic.
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as parent:
        folder = Path(parent) / target.name
        runs = {name: _write_run(name, cell, results, folder) for name, cell in published.items()}
        promised = {name: json_records.to_json(run.ledger) for name, run in runs.items()}
        manifest = {
            "study": study.name,
            "runs": {
                name: {field: ledger[field] for field in GUARANTEE if ledger[field] is not None}
                for name, ledger in promised.items()
            },
            "same_clients": _together(published, {name: run.plan for name, run in runs.items()}),
            "left_out": missing,
            "promises": _TEXTS["promises"],
            "not_covered": [_choice(study), *_TEXTS["not_covered"]],
        }
        write_json(folder / "manifest.json", manifest)
        text = filled(_README, title=study.title, round_up=lambda e: round_up(float(e)), **manifest)
        write_text(folder / "README.md", text)
        folder.rename(target)


def _chosen(study: Study) -> tuple[dict[str, Cell], list[dict[str, str]]]:
    """Return the cell of every run to publish by the run's id, and the runs left out. Runs with
    equal keys are one release."""
    published: dict[str, Cell] = {}
    missing: dict[str, dict[str, str]] = {}
    keys = set()
    for row in study.rows:
        if why := left_out(row.cell):
            missing[row.run] = {"run": row.run, "method": row.cell.method, "why": why}
        elif row.key not in keys:
            keys.add(row.key)
            published[row.run] = row.cell
    return published, [run for name, run in missing.items() if name not in published]


def _write_run(name: str, cell: Cell, results: Path, folder: Path) -> Planned:
    """Write the two files of a run and return its plan and its ledger."""
    source = results / "runs" / name
    planned = tidy.planned(cell.plan_id, results)
    # The cell is certified (``left_out``); a plan from another version may disagree.
    claim = planned.ledger.claim
    if claim != "certified":
        do = "delete the plan and run snakemake again"
        raise DataError(f"plan of {name}: claim", got=claim, expected="certified", do=do)
    run = tidy.record_of(source, planned.plan, cell)
    promised = json_records.to_json(planned.ledger)
    about = {
        "cell": registry.trained(cell).to_dict(),
        "plan": json_records.to_json(planned.plan),
        "ledger": {key: value for key, value in promised.items() if value not in (None, [])},
        "released": {key: getattr(run.released, key) for key in SIZES},
    }
    _write_arrays(folder / f"{name}.npz", _model(existing(source / "state.pt")))
    write_json(folder / f"{name}.json", about)
    return planned


def _model(path: Path) -> dict[str, np.ndarray]:
    """Return the global model and, as ``server/<name>``, what else the server computed from the
    releases.

    Parameters that stay with the clients have the values from before the first round, which follow
    from the seed.
    """
    saved = torch.load(path, map_location="cpu", weights_only=True)
    server = {f"server/{name}": value for name, value in saved["server"].items()}
    return {
        name: np.asarray(value.numpy(), order="C")
        for name, value in (saved["params"] | server).items()
    }


def _write_arrays(target: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz whose bytes depend on the arrays only: sorted names and no date (a bare ZipInfo
    has the date 1980)."""
    with atomic(target) as path, zipfile.ZipFile(path, "w") as bundle:
        for name in sorted(arrays):
            with bundle.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, arrays[name], allow_pickle=False)


# ---------------------------------------------------------------- the privacy of all runs together


def _together(cells: Mapping[str, Cell], plans: Mapping[str, Plan]) -> list[dict[str, Any]]:
    """Return the epsilon of all runs on the same clients, at every delta of these runs and at
    1e-5."""
    groups: dict[str, list[str]] = {}
    for name, cell in cells.items():
        groups.setdefault(cell.clients_id, []).append(name)
    curve = cache(_curve)  # runs that differ in their seed have the same plans
    totals = []
    for names in groups.values():
        first = cells[names[0]]
        users = f"users of {first.dataset}"
        is_natural = first.partition.kind == "natural"
        clients = users if is_natural else f"partition {first.partition_id}"
        same = tuple(sorted((plans[name] for name in names), key=repr))
        totals.append({"clients": clients, "runs": names, "epsilon_central": curve(same)})
    return totals


def _curve(plans: Sequence[Plan]) -> list[dict[str, Any]]:
    deltas = sorted({accounting.delta_of(plan) for plan in plans} | {1e-5})
    epsilons = {delta: accounting.composed_epsilon(plans, delta) for delta in deltas}
    return [
        {"delta": delta, "epsilon": "inf" if value == math.inf else value}
        for delta, value in epsilons.items()
    ]


# ---------------------------------------------------------------- texts


def _choice(study: Study) -> str:
    if any(row.chosen for row in study.rows):
        return CHOSEN_ON_VALIDATION
    return (
        "Hyper-parameters are those of the study's file. If they were chosen by looking at data, "
        "no ε covers that choice."
    )
