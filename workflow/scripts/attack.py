"""Attack one cell: results/attacks/<attack>/<cell>.npz."""

import argparse
import json
from pathlib import Path

from pflpipe.attacks import registry as attacks
from pflpipe.cells import Cell
from pflpipe.program import run_script
from pflpipe.simulation.processes import take_gpus
from pflpipe.simulation.runs import Inputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attack", required=True, choices=attacks.NAMES)
    parser.add_argument("--cell", required=True, help="JSON of the cell")
    parser.add_argument("--plan", type=Path, required=True, help="results/plans/<id>.json")
    parser.add_argument("--partition", type=Path, required=True, help="results/partitions/<id>.npz")
    parser.add_argument("--data", type=Path, required=True, help="data/<dataset>.npz")
    parser.add_argument("--out", type=Path, required=True, help="the .npz file")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:<index>")
    parser.add_argument(
        "--backend",
        default="auto",
        choices=("auto", "loop", "vmap", "graphs"),
        help="how clients are computed",
    )
    args = parser.parse_args()
    take_gpus(args.device)
    attacks.run(
        args.attack,
        Cell.from_dict(json.loads(args.cell)),
        Inputs(args.plan, args.partition, args.data),
        args.out,
        device=args.device,
        backend=args.backend,
    )


run_script(main)
