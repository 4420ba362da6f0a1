"""Accuracies of personal models and of the global model after any round, also for clients that
join after training.

A new client was never drawn, so it computes its state from the releases: on the last released model
it does the local work of as many rounds as a client is expected to be drawn in, without sending.
Otherwise an untrained head or local model would be compared with trained ones. If a method has no
client state, this work is left out. Then the new client personalizes like all others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from pflpipe.learning.solvers import Schedule
from pflpipe.learning.task import Batches
from pflpipe.means import over_clients
from pflpipe.seeds import numpy_rng, seed_for
from pflpipe.simulation.clients import untouched
from pflpipe.simulation.rounds import CURVES, Progress
from pflpipe.simulation.simulation import SEEN_BY_METHODS, Simulation, batches
from pflpipe.trees import ClientState


def accuracies(
    simulation: Simulation,
    progress: Progress,
    has_global_model: bool,
    *,
    clients: Sequence[int] = (),
    validation_only: bool = False,
) -> list[dict[str, float]]:
    """Return the accuracies (percent) of every client's personal model and of the global model, one
    row per client.

    ``personalize`` computes the personal model of every client, drawn or not, from the released
    parameters and the client's state after the last round of ``progress``. ``own`` is the client's
    test split, ``validation`` its held-out examples, ``common`` the common test set. An accuracy
    over no examples is NaN.

    Args:
        clients: the clients to test; empty tests all.
        validation_only: leave out the test data, which a search must not use.
    """
    task, method, split = (
        simulation.task_in(progress.round, progress.bound),
        simulation.method,
        simulation.split,
    )
    held_out = {"validation": split.validation}
    common = None
    if not validation_only:
        held_out["own"] = split.test
        common = simulation.test.schedule(simulation.in_order(split.common))
    clients = clients or range(simulation.plan.clients)
    work = [
        simulation.work(client, progress.round)
        | {name: simulation.in_order(rows[client]) for name, rows in held_out.items()}
        for client in clients
    ]

    def hook(
        state: ClientState, batches: Batches, others: Mapping[str, Schedule]
    ) -> dict[str, Tensor]:
        personal = method.personalize(progress.params, progress.server, state, batches, task)
        # Counts and not rates: sums of whole numbers have no rounding.
        correct = {}
        if common is not None:
            correct["personal_common"] = task.correct(personal, common)
        for name, schedule in others.items():
            correct[f"personal_{name}"] = task.correct(personal, schedule)
            correct[f"global_{name}"] = task.correct(progress.params, schedule)
        return correct

    what = simulation.named("personalize")
    with untouched(what, progress.params, progress.server):
        correct = simulation.run_clients(hook, progress.states, clients, work, what)
    sizes = {**held_out, "common": [split.common] * simulation.plan.clients}
    of_global = {}
    if common is not None:
        of_global["global_common"] = task.correct(progress.params, common).item()
    rows = []
    for place, client in enumerate(clients):
        right = {name: counts[place].item() for name, counts in correct.items()} | of_global
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


def accuracies_of_new(
    simulation: Simulation, progress: Progress, has_global_model: bool
) -> list[dict[str, Any]]:
    """Return the accuracies (percent) of every new client's personal model and of the global model
    on the client's test split, ``personal_new`` and ``global_new``, one row per new client.

    New clients are called ``new0``, ``new1`` ... Their random numbers (the order of their batches)
    share no stream with clients in training. Their validation examples are not used.
    """
    if simulation.split.new is None:
        return []
    simulation = dataclasses.replace(
        simulation, split=simulation.split.new, seed=seed_for(simulation.seed, "new clients")
    )
    task = simulation.task_in(progress.round, progress.bound)
    method, split = simulation.method, simulation.split
    initial = method.init_client(progress.params, task)
    # The expected number of rounds in which a client is drawn.
    expected = max(1, round(simulation.plan.sample_rate * simulation.plan.rounds))
    turns = range(expected if initial else 0)
    work = [
        simulation.work(client, progress.round)
        | {"own": simulation.in_order(test_rows)}
        | {
            f"{name} {turn}": rows
            for turn in turns
            for name, rows in simulation.work(client, turn).items()
        }
        for client, test_rows in enumerate(split.test)
    ]

    def hook(_: ClientState, last: Batches, others: Mapping[str, Schedule]) -> dict[str, Tensor]:
        state = initial
        for turn in turns:
            seen = {name: others[f"{name} {turn}"] for name in SEEN_BY_METHODS}
            state = method.local_update(
                progress.params, progress.server, state, batches(last.n, seen), task
            )[1]
        personal = method.personalize(progress.params, progress.server, state, last, task)
        models = {"personal_new": personal, "global_new": progress.params}
        return {name: task.correct(model, others["own"]) for name, model in models.items()}

    what = simulation.named("personalize")
    with untouched(what, progress.params, progress.server, initial):
        correct = simulation.run_clients(hook, None, range(len(work)), work, what)
    rows = []
    for client, test_rows in enumerate(split.test):
        row: dict[str, Any] = {"client": f"new{client}", "train_size": len(split.train[client])}
        for name, counts in correct.items():
            defined = len(test_rows) and (name == "personal_new" or has_global_model)
            row[name] = 100 * counts[client].item() / len(test_rows) if defined else math.nan
        rows.append(row)
    return rows


def means(simulation: Simulation, progress: Progress, has_global_model: bool) -> dict[str, float]:
    """Return the accuracies ``CURVES`` as means over the clients with test examples; NaN if no
    client has any.

    ``evaluate_clients`` limits the number of tested clients; they are the same in all rounds and
    for all methods of a seed.
    """
    total, tested = simulation.plan.clients, simulation.training.evaluate_clients
    clients: list[int] = []
    if 0 < tested < total:
        drawn = numpy_rng(simulation.seed, "curves").choice(total, tested, replace=False)
        clients = sorted(drawn.tolist())
    rows = accuracies(simulation, progress, has_global_model, clients=clients)
    return {name: over_clients(row[name] for row in rows) for name in CURVES}
