"""Train one cell, given as JSON: results/runs/<run>/{rounds.csv,timing.csv,state.pt,states.bin,
run.json}. The inputs are the plan, the partition and the data set. A killed run resumes from its
checkpoint, unless ``code`` has changed."""

import json
from pathlib import Path

from pflpipe.cells import Cell
from pflpipe.program import run_step
from pflpipe.simulation import checkout
from pflpipe.simulation.processes import joined
from pflpipe.simulation.runs import Inputs, train


def main(
    cell: str,
    inputs: list[Path],
    out: Path,
    checkpoints: Path,
    checkpoint_seconds: float = 60.0,
    code: str = "",
    device: str = "auto",
    backend: str = "auto",
    processes: int = 1,
) -> None:
    with joined(device, processes) as (shared, place):
        train(
            Cell.from_dict(json.loads(cell)),
            Inputs(*inputs),
            out,
            checkpoints,
            device=place,
            backend=backend,
            checkpoint_seconds=checkpoint_seconds,
            code=code,
            commit=checkout.commit_from_env(),
            processes=shared,
        )


run_step(main)
