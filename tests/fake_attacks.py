"""A cell to attack, and made-up results of attacks on a study, for tests of their figures."""

from pathlib import Path

import numpy as np

from pflpipe import cells
from pflpipe.attacks import jobs
from pflpipe.attacks.membership import SCORES
from pflpipe.cells import Cell
from pflpipe.files import write_json
from pflpipe.json_records import to_json
from pflpipe.study.plans import plan_of
from pflpipe.study.study_spec import Study

CELL = Cell(
    dataset="digits",
    partition=cells.Partition("iid", 40),
    model=cells.Model("mlp", (4,)),
    training=cells.Training(4, 1, 0, "sgd", 0.1),
    privacy=cells.Privacy(),
    method="fedavg",
)
"""Without privacy."""


def write(study: Study, results: Path) -> None:
    """Write plans, and what every attack found in the cells that it is about."""
    for name in jobs.NAMES:
        for cell in jobs.cells(name, study):
            store(cell, results, name, **_FOUND[name](cell, np.random.default_rng(cell.seed)))


def store(cell: Cell, results: Path, attack: str, **arrays: np.ndarray) -> None:
    """Write the plan of a cell, and what an attack found in it."""
    write_json(results / "plans" / f"{cell.plan_id}.json", to_json(plan_of(cell)))
    path = results / "attacks" / attack / f"{cell.id}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def _strength(cell: Cell) -> float:
    # How far what a client did shifts what an attacker sees.
    return 3.0 if cell.privacy.mechanism == "none" else (cell.privacy.epsilon or 20.0) / 8


def _membership(cell: Cell, rng: np.random.Generator) -> dict[str, np.ndarray]:
    member = rng.random(60) < 0.5
    scores = {name: rng.normal(size=60) + _strength(cell) * member for name in SCORES}
    return {"member": member, "calibration": np.zeros(60, bool), **scores}


def _one_run(cell: Cell, rng: np.random.Generator) -> dict[str, np.ndarray]:
    heads = rng.random(500) < 0.5
    return {"heads": heads, "scores": rng.normal(size=500) + _strength(cell) * heads}


_FOUND = {"membership": _membership, "one_run": _one_run}
