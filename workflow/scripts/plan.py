"""Write the privacy plan and the ledger of one cell (rule plan)."""

import argparse
import json
from pathlib import Path

import numpy as np

from pflpipe.cells import Cell
from pflpipe.data.datasets import read_header
from pflpipe.files import write_json
from pflpipe.program import run_script
from pflpipe.records import to_json
from pflpipe.study.plans import plan_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", required=True, help="the cell as JSON")
    parser.add_argument(
        "--partition",
        type=Path,
        help="partition file, where the clients or their examples are to be counted",
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="data/<dataset>.npz, where it tells whether its number of classes is declared",
    )
    parser.add_argument("--out", required=True, type=Path, help="plan file to write")
    args = parser.parse_args()
    cell = Cell.from_dict(json.loads(args.cell))
    sizes = None if args.partition is None else np.diff(np.load(args.partition)["train_offsets"])
    declared = args.data is None or read_header(args.data).declared
    write_json(args.out, to_json(plan_of(cell, sizes, declared=declared)))


run_script(main)
