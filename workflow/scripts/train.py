"""Train one cell: results/runs/<run>/{rounds.csv,timing.csv,state.pt,states.bin,run.json}."""

import argparse
import json
from pathlib import Path

from pflpipe import origin
from pflpipe.cells import Cell
from pflpipe.program import run_script
from pflpipe.simulation.processes import joined
from pflpipe.simulation.runs import Inputs, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", required=True, help="JSON of the cell")
    parser.add_argument(
        "--inputs",
        type=Path,
        nargs=3,
        required=True,
        help="files of the plan, the partition and the data set",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the five files")
    parser.add_argument(
        "--checkpoints",
        type=Path,
        default=Path("results/checkpoints"),
        help="a killed run goes on here",
    )
    parser.add_argument(
        "--checkpoint-seconds", type=float, default=60.0, help="least time between two checkpoints"
    )
    parser.add_argument(
        "--code", default="", help="what the program means: only its own checkpoints are used"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:<index>")
    parser.add_argument(
        "--backend",
        default="auto",
        choices=("auto", "loop", "vmap", "graphs"),
        help="how clients are computed",
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="that share the clients: one for each core or GPU"
    )
    args = parser.parse_args()
    with joined(args.device, args.processes) as (processes, device):
        train(
            Cell.from_dict(json.loads(args.cell)),
            Inputs(*args.inputs),
            args.out,
            args.checkpoints,
            device=device,
            backend=args.backend,
            checkpoint_seconds=args.checkpoint_seconds,
            code=args.code,
            commit=origin.told(),
            processes=processes,
        )


run_script(main)
