"""A program for torchrun: runs every method with the processes that there are and writes what the
first one got.

python -m torch.distributed.run --standalone --nproc-per-node=3 tests/shared_run.py FOLDER
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import torch

from pflpipe.learning.metrics import CURVES
from pflpipe.methods import registry
from pflpipe.simulation import rounds
from pflpipe.simulation.clients import Backend
from pflpipe.simulation.evaluation import accuracies
from pflpipe.simulation.processes import ALONE, Processes, joined
from pflpipe.simulation.simulation import Simulation
from simulations import open_plan, plan, simulation

RUNS = [
    *((name, "loop") for name in registry.NAMES),
    # What is done with clients in groups does not depend on the method, only on what they hand
    # over: nothing but an update; states of numbers; of truth values and a message of their own;
    # statistics besides; no update.
    *((name, "vmap") for name in ("dp_fedavg", "feddpa", "fedglp_adp", "fedpac", "local_only")),
]


def world(method: str, backend: Backend, processes: Processes = ALONE) -> Simulation:
    """Return a run of three rounds, the last with a single client."""
    make = plan if registry.info(method).about.private else open_plan
    alone = simulation(method, plan=make(sample_rate=0.5), backend=backend, local_epochs=1)
    return dataclasses.replace(alone, processes=processes)


def outcome(
    method: str, backend: Backend, processes: Processes = ALONE, states: Path | None = None
) -> dict[str, Any]:
    """Return the end of a run and its accuracies."""
    run = world(method, backend, processes)
    done = rounds.run(run, rounds.start(run, states))
    rows = [[value for name, value in row.items() if name not in CURVES] for row in done.rows]
    scores = [list(row.values()) for row in accuracies(run, done)]
    numbers = {"rows": rows, "scores": scores}
    tables = {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}
    ends = {"params": done.params, "server": done.server, "states": dict(done.states)}
    return ends | {"tables": tables}


def main() -> None:
    folder = Path(sys.argv[1])
    with joined("cpu") as (processes, _):
        for method, backend in RUNS:
            name = f"{method}-{backend}"
            found = outcome(method, backend, processes, folder / f"{name}.states")
            if processes.rank == processes.size - 1:  # the last one knows all that the first knows
                about = {"size": processes.size, "threads": torch.get_num_threads()}
                torch.save(found | about, folder / f"{name}.pt")


if __name__ == "__main__":
    main()
