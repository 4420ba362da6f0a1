"""Accuracies of a federation's personal models and of its global model, after any round."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from pflpipe.learning.solvers import Schedule
from pflpipe.learning.task import Batches
from pflpipe.means import over_clients
from pflpipe.simulation.clients import Rows
from pflpipe.simulation.rounds import CURVES, Progress
from pflpipe.simulation.simulation import Simulation
from pflpipe.trees import ClientState

# Examples classified at once: measured best for the papers' networks on a CPU.
EXAMPLES_AT_ONCE = 256


def accuracies(
    simulation: Simulation, progress: Progress, has_global_model: bool
) -> list[dict[str, float]]:
    """Return the accuracies (percent) of every client's personal model and of the global model, one
    row per client.

    Personal models come from ``personalize`` with the released parameters and the client's state
    after the last round of ``progress``, once for every client whether or not it was drawn in that
    round. Own is the client's own test split, validation its held-out examples, common the whole
    common test set. An accuracy over no examples is NaN.
    """
    task, method, split = (
        simulation.task_in(progress.round, progress.bound),
        simulation.method,
        simulation.split,
    )
    common = simulation.test.schedule(Rows.epochs(split.common, 1, EXAMPLES_AT_ONCE))
    held_out = {"own": split.test, "validation": split.validation}
    clients = range(simulation.plan.clients)
    work = [
        simulation.work(client, progress.round)
        | {name: Rows.epochs(rows[client], 1, EXAMPLES_AT_ONCE) for name, rows in held_out.items()}
        for client in clients
    ]

    def hook(
        state: ClientState, batches: Batches, others: Mapping[str, Schedule]
    ) -> dict[str, Tensor]:
        personal = method.personalize(progress.params, progress.server, state, batches, task)
        correct = {"personal_common": task.correct(personal, common)}
        for name, schedule in others.items():
            correct[f"personal_{name}"] = task.correct(personal, schedule)
            correct[f"global_{name}"] = task.correct(progress.params, schedule)
        return correct

    correct = simulation.run_clients(hook, progress.states, clients, work)
    global_common = task.correct(progress.params, common).item()
    sizes = {
        "own": split.test,
        "validation": split.validation,
        "common": [split.common] * len(clients),
    }
    rows = []
    for client in clients:
        right = {name: counts[client].item() for name, counts in correct.items()} | {
            "global_common": global_common
        }
        row: dict[str, float] = {"client": client, "train_size": len(split.train[client])}
        for name, count in right.items():
            model, _, data = name.partition("_")
            total = len(sizes[data][client])
            row[name] = (
                100 * count / total
                if total and (model == "personal" or has_global_model)
                else math.nan
            )
        rows.append(row)
    return rows


def means(simulation: Simulation, progress: Progress, has_global_model: bool) -> dict[str, float]:
    """Return the accuracies ``CURVES`` as means over the clients that have examples to test on; NaN
    where none has."""
    rows = accuracies(simulation, progress, has_global_model)
    return {name: over_clients(row[name] for row in rows) for name in CURVES}
