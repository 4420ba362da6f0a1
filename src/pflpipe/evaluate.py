"""Evaluation: what the personal models and the global model are worth after the last round, client by client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pflpipe import methods, runs
from pflpipe.accuracies import accuracies
from pflpipe.cells import Cell
from pflpipe.processes import ALONE, Processes

COLUMNS = (
    "cell",
    "client",
    "train_size",
    "personal_own",
    "personal_validation",
    "personal_common",
    "global_own",
    "global_validation",
    "global_common",
)


def evaluate_cells(
    places: Sequence[tuple[Cell, runs.Inputs, Path]],
    out: Path,
    *,
    device: str,
    backend: str,
    processes: Processes = ALONE,
) -> None:
    """Write the scores file of several cells: one row per cell and client, accuracies in percent, empty where undefined.

    Args:
        places: for each cell its input files and the folder of its run.
        out: the CSV to write.
        device: ``cpu``, ``cuda`` or ``auto``.
        backend: ``loop``, ``vmap`` or ``auto``.
        processes: share the clients; the first one writes the file.
    """
    rows = []
    for cell, inputs, run in places:
        simulation = runs.simulate(cell, inputs, device=device, backend=backend, processes=processes)
        progress = runs.load_final(run, simulation)
        has_global_model = methods.info(cell.method).about.has_global_model
        rows += [{"cell": cell.id, **row} for row in accuracies(simulation, progress, has_global_model)]
    if processes.is_first:
        runs.write_rows(out, COLUMNS, rows)
