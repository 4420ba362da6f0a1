"""DP-FedAvg in pflpipe: the engine of every study, on arrays instead of a study's files.

Evaluation ``central`` is the count of right answers of the new global model, ``each`` the engine's
own (accuracies.means): every client's model, and beside them the global one, on the common test
set.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import work

import pflpipe
from pflpipe import cells, trees
from pflpipe.interface.training import federation
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import Method, Upload
from pflpipe.methods.dp_fedavg import dp_fedavg, local_update
from pflpipe.simulation import evaluation, rounds
from pflpipe.simulation.clients import Examples, Rows
from pflpipe.simulation.processes import Processes, joined
from pflpipe.simulation.simulation import Simulation
from pflpipe.trees import Tree


def keeping_dp_fedavg() -> Method:
    """DP-FedAvg whose clients keep the models that they trained: what evaluation ``each`` tests.

    dp_fedavg itself keeps nothing and would train a personal model anew from the new global one.
    """

    def train(
        params: Tree, server: Tree, state: Tree, batches: Batches, task: Task
    ) -> tuple[Upload, Tree]:
        upload, _ = local_update(params, server, state, batches, task)
        return upload, trees.add(params, upload.update)

    def kept(params: Tree, server: Tree, state: Tree, batches: Batches, task: Task) -> Tree:
        return state

    return Method(train, personalize=kept, init_client=lambda params, task: params)


MODELS = {
    "cifar10": (cells.Model("cnn_cifar"), 10),
    "spi": (cells.Model("embedding", (8,), items=135), 2),
}
"""The network and the number of classes of each work."""


def simulation(
    name: str, path: str, evaluation: str, rounds: int, processes: Processes
) -> Simulation:
    """Return the work as a simulation, with the backend that the engine chooses on a CPU."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files}
    train, test = (Examples(arrays[f"{part}_x"], arrays[f"{part}_y"]) for part in ("train", "test"))
    job, (model, classes) = work.WORKS[name], MODELS[name]
    training = cells.Training(
        rounds,
        job.epochs,
        job.batch_size,
        job.optimizer.__name__.lower(),
        job.learning_rate,
        sample_rate=job.cohort / job.clients,
    )
    world = federation(
        keeping_dp_fedavg() if evaluation == "each" else dp_fedavg(),
        [(train.x[rows], train.y[rows]) for rows in job.shares(len(train.y))],
        model=model,
        training=training,
        privacy=cells.Privacy(
            noise_multiplier=work.NOISE_MULTIPLIER, delta=1e-4, clip_norm=work.CLIP_NORM
        ),
        tests=[(test.x[:0], test.y[:0])] * job.clients,
        classes=classes,
        secret="benchmark",
        method_name=evaluation,
        device="cpu",
    )
    split = replace(world.split, common=np.arange(len(test.y)))
    return replace(world, split=split, test=test, processes=processes)


def main() -> None:
    """Run the rounds, one at a time."""
    asked = work.arguments()
    with joined("cpu") as (processes, _):
        world = simulation(asked.work, asked.examples, asked.evaluation, asked.rounds, processes)
        common = world.test.schedule(Rows.epochs(world.split.common, 1, work.EVALUATED_AT_ONCE))
        turns = work.Turns({"pflpipe": pflpipe.__version__})
        progress = rounds.start(
            world, Path(asked.examples).with_suffix(".states")
        )  # all processes see this file
        for _ in range(asked.rounds):
            turns.wait()
            rounds.one_round(world, progress)
            found: float | None = None
            if asked.evaluation == "central":
                found = (
                    100 * world.task.score(progress.params, common).item() / len(world.split.common)
                )
            elif asked.evaluation == "each":
                found = evaluation.means(world, progress)["personal_common"]
            turns.tell(found)


if __name__ == "__main__":
    main()
