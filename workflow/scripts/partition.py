"""Divide a data set over clients: results/partitions/<id>.npz. The cell is JSON; its partition and
seed are used."""

import json
from pathlib import Path

from pflpipe.cells import Cell
from pflpipe.data.datasets import load_arrays
from pflpipe.data.partition import make
from pflpipe.program import run_step


def main(cell: str, data: Path, target: Path) -> None:
    what = Cell.from_dict(json.loads(cell))
    make(load_arrays(data), what.partition, what.seed).save(target)


run_step(main)
