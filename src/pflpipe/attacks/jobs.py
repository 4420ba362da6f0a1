"""Attacks on the releases of a run, each a job: to which cells one applies, and how it runs.

An attack is a module of this package with a function ``attack(simulation)``. As one job, it
simulates one cell, reads what its adversary sees and returns arrays by name, which are written to
``results/attacks/<attack>/<cell>.npz``. report/attacks makes tables and figures of them. An attack
needs no trained run, and training imports nothing from here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from pflpipe.cells import Cell
from pflpipe.errors import ConfigError, nearest
from pflpipe.facts.departures import EXTRAS, OF_MESSAGES
from pflpipe.files import atomic
from pflpipe.methods import registry

if TYPE_CHECKING:
    from pflpipe.simulation.runs import Inputs
    from pflpipe.study.study_spec import Study

LEAST_CLIENTS = 12
"""Least number of clients for membership inference: a quarter of them calibrates, and each of these
is compared with at least two others."""


def load(name: str) -> ModuleType:
    """Return an attack's module; raise ConfigError with the nearest name."""
    if name not in NAMES:
        raise ConfigError("attack", got=name, do=nearest(name, NAMES))
    return importlib.import_module(f"pflpipe.attacks.{name}")


def lacks(name: str, cell: Cell) -> str:
    """Return what a cell lacks for an attack, or an empty string if the attack applies."""
    if cell.privacy.clip_quantile is not None:
        return "a fixed clip_norm"  # no adversary here reads the bits of adaptive clipping
    if cell.fixed:
        return "groups 1, band 1 and buffers 0"  # nor reads rounds together
    return _LACKS[name](cell)


def _membership_lacks(cell: Cell) -> str:
    if not registry.of(cell).about.has_global_model:
        return "a method with a global model"
    enough = not cell.partition.clients or cell.partition.clients >= LEAST_CLIENTS
    return "" if enough else f"at least {LEAST_CLIENTS} clients"


def _one_run_lacks(cell: Cell) -> str:
    # Any noise, as long as a canary needs no private extras but its number of examples.
    if cell.privacy.mechanism == "none" or cell.privacy.noise_multiplier == 0:
        return "noise"
    if private := sorted((EXTRAS.keys() - {"data_size_weights"}).intersection(cell.departures)):
        return (
            "no departure that reads private extras, which a canary does not have: "
            f"{', '.join(private)}"
        )
    shown = (OF_MESSAGES | {"public_sampling"}).intersection(cell.departures)
    if cell.training.sample_rate < 1 and shown:
        return "one draw of noise on the sum and a secret cohort, or sample_rate 1"
    return ""


_LACKS: dict[str, Callable[[Cell], str]] = {
    "membership": _membership_lacks,
    "one_run": _one_run_lacks,
}
NAMES = tuple(_LACKS)


def cells(name: str, study: Study) -> list[Cell]:
    """Return the cells of a study to which an attack applies; raise ConfigError if there is
    none."""
    attacked = [cell for cell in study.cells if not lacks(name, cell)]
    what, expected = f"study {study.name}: no run for attack {name}", lacks(name, study.cells[0])
    ConfigError.unless(bool(attacked), what, expected=expected)
    return attacked


def run(name: str, cell: Cell, inputs: Inputs, target: Path, *, device: str, backend: str) -> None:
    """Attack one cell and write the arrays to ``target`` (.npz); raise ConfigError if the attack
    does not apply to the cell."""
    if missing := lacks(name, cell):
        raise ConfigError(f"attack {name}: {cell.id}", expected=missing)
    from pflpipe.simulation.runs import simulate

    simulation = simulate(cell, inputs, device=device, backend=backend)
    arrays: dict[str, Any] = load(name).attack(simulation)
    with atomic(target) as path:
        np.savez(path, **arrays)
