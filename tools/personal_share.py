"""How many coordinates FedDPA keeps personal: the shares that its Table 4 prints, beside ours.

    python tools/personal_share.py feddpa_table4

reads the study's finished runs of FedDPA and prints a line for each. A client's coordinates are
personal whose Fisher information in its last local model, scaled to [0, 1] in each tensor, is at
least tau (feddpa.py). The share is the mean over clients after the last round, in percent: that of
the mask with which a client would begin the next round. It is a diagnostic that no epsilon covers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from pflpipe.learning.solvers import Schedule
from pflpipe.learning.task import Batches
from pflpipe.methods.feddpa import fisher_mask
from pflpipe.program import run_script
from pflpipe.simulation import runs
from pflpipe.simulation.progress import Progress
from pflpipe.simulation.scores import places_of
from pflpipe.simulation.simulation import Simulation
from pflpipe.study import config, documents
from pflpipe.study.load import load_study
from pflpipe.study.printed import FILE
from pflpipe.trees import ClientState


def share(simulation: Simulation, progress: Progress, tau: float) -> float:
    """Return the share of coordinates that are personal, in percent, mean over clients."""
    task = simulation.task_in(progress.round, progress.bound)

    def kept(state: ClientState, batches: Batches, others: Mapping[str, Schedule]) -> Tensor:
        masks = fisher_mask(state, batches, tau, task).values()
        return sum((mask.sum() for mask in masks), batches.n * 0)

    clients = range(simulation.plan.clients)
    work = [simulation.work(client, progress.round) for client in clients]
    counts: Tensor = simulation.run_clients(kept, progress.states, clients, work)
    return 100 * float(counts.double().mean()) / simulation.network.parameters


def main() -> None:
    """Print the shares of the study that the command line names."""
    settings = config.load()
    study = load_study(sys.argv[1], results=settings.results_dir)
    rows = documents.read_yaml(Path(config.STUDIES) / FILE)["results"]
    percents = {
        row["param_value"]: row["personalized_percent"]
        for row in rows
        if "personalized_percent" in row
    }
    names = [row.cell.id for row in study.rows if row.cell.method == "feddpa"]
    for cell, inputs, run in places_of(study.cells, names, settings.results_dir, settings.data_dir):
        if (run / "run.json").is_file():
            simulation = runs.simulate(cell, inputs, device="auto", backend="auto")
            tau = cell.hyperparameters["tau"]
            found = share(simulation, runs.load_final(run, simulation), tau)
            paper = percents.get(tau, "-")
            print(f"{cell.id}: tau {tau:g}, personal {found:.2f} %, printed {paper}")


if __name__ == "__main__":
    run_script(main)
