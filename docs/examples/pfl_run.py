"""Train a run of a study in pfl 0.6, Apple's simulator: ``python pfl_run.py flower/RUN``, after
``pflpipe flower STUDY RUN``.

pfl runs the rounds and calls the clients. The cohorts, the updates, the clip and the noise are
pflpipe's: the same key gives the same release.
"""

import sys
from pathlib import Path

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import FederatedAlgorithm
from pfl.common_types import Population
from pfl.context import CentralContext
from pfl.data import FederatedDataset
from pfl.data.dataset import Dataset
from pfl.hyperparam import AlgorithmHyperParams, ModelHyperParams
from pfl.metrics import Metrics
from pfl.postprocessor.base import Postprocessor
from pfl.stats import MappedVectorStatistics

from pflpipe.pipeline import flower
from pflpipe.program import run_script
from pflpipe.simulation import remote


class Rounds(FederatedAlgorithm):
    """The cohorts of a run and the updates of its clients. pfl's model is what clients receive."""

    def __init__(self, server: remote.Server, folder: Path) -> None:
        super().__init__()
        self.server, self.drawn = server, iter(())
        here = [remote.Device(remote.read(node)[1], node / "states") for node in folder.iterdir()]
        self.devices = {client: device for device in here for client in device.clients}

    def clients(self) -> FederatedDataset:
        """Return pfl's data set of the drawn clients. Their rows are in ``devices``."""
        nothing = (np.zeros(0),)
        return FederatedDataset(lambda one: Dataset(nothing, one), lambda: next(self.drawn))

    def get_next_central_contexts(self, model, iteration, algorithm_params, train, evaluation=None):
        """Ask the clients that are drawn."""
        if self.server.progress.round == self.server.simulation.plan.rounds:
            return None, model, Metrics()
        # pfl fails where nobody is drawn, and the noise of that round is due.
        cohort = self.server.cohort or [None]
        self.drawn, asked = iter(cohort), (len(cohort), Population.TRAIN, algorithm_params, train)
        return (CentralContext(iteration, False, *asked),), model, Metrics()

    def simulate_one_user(self, model, user_dataset, central_context):
        """Return the update of a client, which keeps its state."""
        if (client := user_dataset.user_id) is None:
            return None, Metrics()
        return MappedVectorStatistics(self.devices[client].update(client, model)), Metrics()

    def process_aggregated_statistics(self, central_context, aggregate_metrics, model, statistics):
        """Not called: ``Release`` has taken the step."""

    def process_aggregated_statistics_from_all_contexts(self, pairs, aggregate_metrics, model):
        """Return what the clients of the next round receive."""
        return self.server.public, Metrics()


class Release(Postprocessor):
    """Clip, noise, server optimizer and server state of a run."""

    def __init__(self, server: remote.Server) -> None:
        self.server, self.updates = server, {}

    def postprocess_one_user(self, *, stats, user_context):
        """Keep an update for the release. pfl, which would add it unclipped, gets nothing."""
        self.updates[user_context.user_id] = dict(stats.items())
        return MappedVectorStatistics(), Metrics()

    def postprocess_server_metrics(self, *, central_context, aggregate_metrics):
        """Release the round: the hook that pfl calls also where nobody has sent anything."""
        updates, self.updates = self.updates, {}
        self.server.step(updates)
        return Metrics()


def main(folder: Path) -> None:
    """Train the run, write its files and its certificate."""
    cell, server = remote.begin(folder / "server")
    rounds = Rounds(server, folder / "nodes")
    backend = SimulatedBackend(rounds.clients(), rounds.clients(), [Release(server)])
    rounds.run(AlgorithmHyperParams(), backend, server.public, ModelHyperParams())
    print(f"certificate: {flower.finish(cell, server, folder / 'server')}")


if __name__ == "__main__":
    run_script(lambda: main(Path(sys.argv[1])))
