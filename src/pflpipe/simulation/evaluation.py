"""Accuracies of personal models and of the global model after any round, also for clients that
join after training.

A new client was never drawn, so it computes its state from the releases: on the last released model
it does the local work of as many rounds as a client is expected to be drawn in, without sending.
Otherwise an untrained head or local model would be compared with trained ones. If a method has no
client state, this work is left out. Then the new client personalizes like all others.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pflpipe.learning.losses import Loss
from pflpipe.learning.metrics import CURVES, over_clients
from pflpipe.learning.solvers import Schedule
from pflpipe.learning.task import Batches, Task
from pflpipe.seeds import numpy_rng, seed_for
from pflpipe.simulation.rounds import Progress
from pflpipe.simulation.simulation import SEEN_BY_METHODS, Simulation, batches
from pflpipe.trees import ClientState, Params

Measures = Mapping[str, Callable[[np.ndarray, np.ndarray], float]]
"""Name of a metric -> ``(probabilities [n, K], labels [n])`` of one client's rows, or ``(outputs
[n, K], targets [n, K])`` of real numbers -> number."""
NO_MEASURES: Measures = {}
BLOCK = 2**12
"""Clients whose schedules and answers are in memory at once; large enough to fill groups."""
_Answers = dict[str, dict[str, Tensor]]


def accuracies(
    simulation: Simulation,
    progress: Progress,
    *,
    clients: Sequence[int] = (),
    validation_only: bool = False,
    measures: Measures = NO_MEASURES,
) -> list[dict[str, float]]:
    """Return the accuracies (percent) of every client's personal model and of the global model, one
    row per client, and further metrics as ``<metric>_<model>_<rows>``, except on the common test
    set: the outputs of all personal models on it do not fit in memory.

    ``personalize`` computes the personal model of every client, drawn or not, from the released
    parameters and the client's state after the last round of ``progress``. ``own`` is the client's
    test split, ``validation`` its held-out examples, ``common`` the common test set. A metric over
    no examples is NaN. A client without training rows stands in the columns of new clients,
    ``personal_new`` and ``global_new``, instead of ``own`` and ``personal_common``.

    Args:
        clients: the clients to test; empty tests all.
        validation_only: leave out the test data, which a search must not use.
        measures: computes the further metrics.
    """
    task, split = simulation.task_in(progress.round, progress.bound), simulation.split
    held_out = {"validation": split.validation}
    common = None
    if not validation_only:
        held_out["own"] = split.test
        common = simulation.test.schedule(simulation.in_order(split.common))
    tests = _Tests(simulation, held_out, measures)

    def hook(state: ClientState, batches: Batches, others: Mapping[str, Schedule]) -> _Answers:
        personal = _personal(simulation, progress, state, batches)
        answers = tests.answers(task, personal, progress.params, others)
        if common is not None:
            answers["sums"]["personal_common"] = task.score(personal, common)
        return answers

    scores: list[dict[str, float]] = []
    for block in _blocks(clients or range(simulation.plan.clients)):
        work = [
            simulation.work(client, progress.round)
            | {name: simulation.in_order(rows[client]) for name, rows in held_out.items()}
            for client in block
        ]
        with simulation.calls("personalize", progress.params, progress.server) as what:
            answers = simulation.run_clients(hook, progress.states, block, work, what)
            if common is not None:
                total = task.score(progress.params, common)
                answers["sums"]["global_common"] = total.expand(len(block))
        scores += tests.scores(answers, block)
    return scores


def personal_models(
    simulation: Simulation, progress: Progress, clients: Sequence[int]
) -> Iterator[tuple[int, Params]]:
    """Yield each of these clients and its personal model, which ``accuracies`` tests."""

    def hook(state: ClientState, batches: Batches, others: Mapping[str, Schedule]) -> Params:
        return _personal(simulation, progress, state, batches)

    for client in clients:
        work = [simulation.work(client, progress.round)]
        with simulation.calls("personalize", progress.params, progress.server) as what:
            found = simulation.run_clients(hook, progress.states, [client], work, what)
        yield client, Params({name: value[0] for name, value in found.items()})


def _personal(
    simulation: Simulation, progress: Progress, state: ClientState, batches: Batches
) -> Params:
    """Return one client's personal model, ready to be tested."""
    task = simulation.task_in(progress.round, progress.bound)
    given = progress.params, progress.server, state, batches, task
    return task.for_tests(simulation.method.personalize(*given), batches)


def _blocks(clients: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the clients in blocks: all schedules at once take 15 kB for each client."""
    for first in range(0, len(clients), BLOCK):
        yield clients[first : first + BLOCK]


def accuracies_of_new(
    simulation: Simulation, progress: Progress, measures: Measures = NO_MEASURES
) -> list[dict[str, Any]]:
    """Return the accuracies (percent) of every new client's personal model and of the global model
    on the client's test split, ``personal_new`` and ``global_new``, and further metrics of both,
    one row per new client.

    New clients are called ``new0``, ``new1`` ... Their random numbers (the order of their batches)
    share no stream with clients in training. Their validation examples are not used.
    """
    if simulation.split.new is None:
        return []
    split, seed = simulation.split.new, seed_for(simulation.seed, "new clients")
    simulation = dataclasses.replace(simulation, split=split, seed=seed)
    task = simulation.task_in(progress.round, progress.bound)
    method = simulation.method
    with simulation.calls("init_client", progress.params):
        initial = method.init_client(progress.params, task)
    # The expected number of rounds in which a client is drawn.
    plan = simulation.plan
    expected = max(1, round(plan.sample_rate * plan.rounds / plan.groups))
    turns = range(expected if initial else 0)
    tests = _Tests(simulation, {"new": split.test}, measures)

    def hook(_: ClientState, last: Batches, others: Mapping[str, Schedule]) -> _Answers:
        state = initial
        for turn in turns:
            ours = {name: f"{name} {turn}" for name in SEEN_BY_METHODS}
            seen = {name: others[key] for name, key in ours.items() if key in others}
            now = batches(last.n, seen)
            state = method.local_update(progress.params, progress.server, state, now, task)[1]
        personal = _personal(simulation, progress, state, last)
        return tests.answers(task, personal, progress.params, others)

    scores: list[dict[str, Any]] = []
    for block in _blocks(range(len(split.train))):
        work = []
        for client in block:
            new = {"new": simulation.in_order(split.test[client])}
            made = simulation.work(client, progress.round) | new
            for turn in turns:
                of_turn = simulation.work(client, turn).items()
                made |= {f"{name} {turn}": rows for name, rows in of_turn}
            work.append(made)
        with simulation.calls("personalize", progress.params, progress.server, initial) as what:
            answers = simulation.run_clients(hook, None, block, work, what)
        scores += [row | {"client": f"new{row['client']}"} for row in tests.scores(answers, block)]
    return scores


@dataclass(frozen=True)
class _Tests:
    """The rows on which clients are tested (``held_out``: name -> rows of each client), and the
    metrics."""

    simulation: Simulation
    held_out: Mapping[str, Sequence[np.ndarray]]
    measures: Measures

    @cached_property
    def most(self) -> dict[str, int]:
        """The largest number of rows of a client, by name of the rows."""
        return {name: max(map(len, rows)) for name, rows in self.held_out.items()}

    def answers(
        self, task: Task, personal: Params, released: Params, schedules: Mapping[str, Schedule]
    ) -> _Answers:
        """Return, for one client and by ``<model>_<rows>``, the sum of ``Task.score`` and, if there
        are further metrics, the outputs."""
        answers: _Answers = {"sums": {}, "outputs": {}}
        for model, params in (("personal", personal), ("global", released)):
            for name in self.held_out:
                column = f"{model}_{name}"
                # Counts and not rates: sums of whole numbers have no rounding.
                answers["sums"][column] = task.score(params, schedules[name])
                if self.measures:
                    outputs = task.logits(params, schedules[name], self.most[name])
                    answers["outputs"][column] = outputs
        return answers

    def scores(self, answers: _Answers, clients: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Yield the row of each of these clients, whose answers are stacked in their order."""
        sums = {column: values.tolist() for column, values in answers["sums"].items()}
        loss = self.simulation.loss_function
        for place, client in enumerate(clients):
            size = len(self.simulation.split.train[client])
            row: dict[str, Any] = {"client": client, "train_size": size}
            for column, totals in sums.items():
                model, _, name = column.partition("_")
                common = self.simulation.split.common
                rows = common if name == "common" else self.held_out[name][client]
                is_there = model == "personal" or self.simulation.has_global_model
                defined = len(rows) > 0 and is_there
                row[column] = _mean(loss, totals[place], len(rows)) if defined else math.nan
                if column not in answers["outputs"]:
                    continue
                labels = self.simulation.examples(name).y[torch.from_numpy(rows)].cpu()
                outputs = answers["outputs"][column][place, : len(rows)].cpu()
                given = _given(loss, outputs, labels)
                for metric, measure in self.measures.items():
                    value = measure(*given) if defined else math.nan
                    row[f"{metric}_{column}"] = value
            yield _with_new(row)


def _with_new(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a client in training with the columns of new clients. A client without
    training rows has its scores there, as nothing of its model was trained; others have none."""
    own = [name for name in row if name.endswith("_own")]
    is_new = row["train_size"] == 0
    new = {f"{name.removesuffix('own')}new": row[name] if is_new else math.nan for name in own}
    empty = [*own, *{"personal_common"}.intersection(row)] if is_new else []
    return row | dict.fromkeys(empty, math.nan) | new


def _mean(loss: Loss, total: float, rows: int) -> float:
    """Return accuracy in percent, or the mean error, from the sum of ``Task.score``."""
    return total / rows if loss.numbers else 100 * total / rows


def _given(loss: Loss, outputs: Tensor, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return what a metric gets of a network's outputs and labels: probabilities ``[n, K]`` and
    classes ``[n]``, or predicted and true numbers ``[n, K]``, all of these in float64.

    A row that is not finite becomes a wrong prediction with probability 1, or infinite. If it were
    left out, a model that diverges on its difficult rows would score better.
    """
    finite = outputs.isfinite().all(-1, keepdim=True)
    if loss.numbers:
        targets = labels.double().view_as(outputs)
        return outputs.double().where(finite, torch.inf).numpy(), targets.numpy()
    logits = F.pad(outputs, (1, 0)) if loss.one_logit else outputs
    classes = logits.shape[-1]
    wrong = F.one_hot((labels + 1) % classes, classes).double()
    return torch.where(finite, logits.double().softmax(-1), wrong).numpy(), labels.numpy()


def means(simulation: Simulation, progress: Progress) -> dict[str, float]:
    """Return the accuracies ``CURVES`` as means over the clients with test examples; NaN if no
    client has any.

    ``evaluate_clients`` limits the number of tested clients; they are the same in all rounds and
    for all methods of a seed. Without ``evaluate_personal`` only ``global_common`` is there.
    """
    if not simulation.training.evaluate_personal:
        return {"global_common": _released(simulation, progress)}
    total, tested = simulation.plan.clients, simulation.training.evaluate_clients
    clients: list[int] = []
    if 0 < tested < total:
        drawn = numpy_rng(simulation.seed, "curves").choice(total, tested, replace=False)
        clients = sorted(drawn.tolist())
    rows = accuracies(simulation, progress, clients=clients)
    return {name: over_clients(row[name] for row in rows) for name in CURVES}


def _released(simulation: Simulation, progress: Progress) -> float:
    """Return the accuracy (percent) of the released model on the common test set; NaN without
    these rows, or if the method makes no model for everybody."""
    rows = simulation.split.common
    if not len(rows) or not simulation.has_global_model:
        return math.nan
    task = simulation.task_in(progress.round, progress.bound)
    schedule = simulation.test.schedule(simulation.in_order(rows))
    return _mean(task.loss_function, task.score(progress.params, schedule).item(), len(rows))
