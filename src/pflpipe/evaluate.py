"""Evaluation: what the personal models and the global model are worth after the last round, client by client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from pflpipe import methods, runs
from pflpipe.cells import Cell
from pflpipe.clients import Rows
from pflpipe.federated import Progress
from pflpipe.local import Schedule
from pflpipe.simulation import Simulation
from pflpipe.task import Batches
from pflpipe.trees import Tree

# Examples classified at once: measured best for the papers' networks on a CPU.
EXAMPLES_AT_ONCE = 256

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


def accuracies(simulation: Simulation, progress: Progress, has_global_model: bool) -> list[dict[str, float]]:
    """Return the accuracies (percent) of every client's personal model and of the global model, one row per client.

    Personal models come from ``personalize`` with the final released parameters and the client's final state, once for every
    client whether or not it was drawn in the last round. Own is the client's own test split, validation its held-out
    examples, common the whole common test set. An accuracy over no examples is NaN.
    """
    task, method, split = simulation.task, simulation.method, simulation.split
    common = simulation.test.schedule(Rows.epochs(split.common, 1, EXAMPLES_AT_ONCE))
    held_out = {"own": split.test, "validation": split.validation}
    clients = range(simulation.plan.clients)
    work = [
        simulation.work(client, progress.round)
        | {name: Rows.epochs(rows[client], 1, EXAMPLES_AT_ONCE) for name, rows in held_out.items()}
        for client in clients
    ]

    def hook(state: Tree, batches: Batches, others: Mapping[str, Schedule]) -> dict[str, Tensor]:
        personal = method.personalize(progress.params, progress.server, state, batches, task)
        correct = {"personal_common": task.correct(personal, common)}
        for name, schedule in others.items():
            correct[f"personal_{name}"] = task.correct(personal, schedule)
            correct[f"global_{name}"] = task.correct(progress.params, schedule)
        return correct

    correct = simulation.run_clients(hook, progress.states, clients, work)
    global_common = task.correct(progress.params, common).item()
    sizes = {"own": split.test, "validation": split.validation, "common": [split.common] * len(clients)}
    rows = []
    for client in clients:
        right = {name: counts[client].item() for name, counts in correct.items()} | {"global_common": global_common}
        row: dict[str, float] = {"client": client, "train_size": len(split.train[client])}
        for name, count in right.items():
            model, _, data = name.partition("_")
            total = len(sizes[data][client])
            row[name] = 100 * count / total if total and (model == "personal" or has_global_model) else math.nan
        rows.append(row)
    return rows


def evaluate_cells(places: Sequence[tuple[Cell, runs.Inputs, Path]], out: Path, *, device: str, backend: str) -> None:
    """Write the scores file of several cells: one row per cell and client, accuracies in percent, empty where undefined.

    Args:
        places: for each cell its input files and the folder of its run.
        out: the CSV to write.
        device: ``cpu``, ``cuda`` or ``auto``.
        backend: ``loop``, ``vmap`` or ``auto``.
    """
    rows = []
    for cell, inputs, run in places:
        simulation = runs.simulate(cell, inputs, device=device, backend=backend)
        progress = runs.load_final(run, simulation)
        has_global_model = methods.info(cell.method).about.has_global_model
        rows += [{"cell": cell.id, **row} for row in accuracies(simulation, progress, has_global_model)]
    runs.write_rows(out, COLUMNS, rows)
