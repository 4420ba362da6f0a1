"""Attack one cell, given as JSON: results/attacks/<attack>/<cell>.npz."""

import json
from pathlib import Path

from pflpipe.attacks import jobs as attacks
from pflpipe.cells import Cell
from pflpipe.program import run_step
from pflpipe.simulation.processes import take_gpus
from pflpipe.simulation.runs import Inputs


def main(
    attack: str,
    cell: str,
    plan: Path,
    partition: Path,
    data: Path,
    out: Path,
    device: str = "auto",
    backend: str = "auto",
) -> None:
    take_gpus(device)
    inputs = Inputs(plan, partition, data)
    what = Cell.from_dict(json.loads(cell))
    attacks.run(attack, what, inputs, out, device=device, backend=backend)


run_step(main)
