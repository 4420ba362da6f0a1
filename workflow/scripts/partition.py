"""Divide a data set over clients: results/partitions/<id>.npz."""

import argparse
import json
from pathlib import Path

from pflpipe.cells import Cell
from pflpipe.data.datasets import load_arrays
from pflpipe.data.partition import make
from pflpipe.program import run_script


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--cell", required=True, help="JSON of a cell; its partition and seed are used"
    )
    parser.add_argument("--data", type=Path, required=True, help="data/<dataset>.npz")
    parser.add_argument("--target", type=Path, required=True, help="the .npz file to make")
    args = parser.parse_args()
    cell = Cell.from_dict(json.loads(args.cell))
    make(load_arrays(args.data), cell.partition, cell.seed).save(args.target)


run_script(main)
