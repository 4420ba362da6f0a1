"""Write the privacy plan and the ledger of one cell, given as JSON. The partition is needed if
clients or their examples are counted, the data if they may declare the number of classes, name
what a user is or have a contract with warnings."""

import json
from pathlib import Path

import numpy as np

from pflpipe.cells import Cell
from pflpipe.data.datasets import read_header
from pflpipe.files import write_json
from pflpipe.json_records import to_json
from pflpipe.program import run_step
from pflpipe.study import plans


def main(cell: str, out: Path, partition: Path | None = None, data: Path | None = None) -> None:
    sizes = None if partition is None else np.diff(np.load(partition)["train_offsets"])
    notes = {} if data is None else plans.told(read_header(data))
    plan = plans.plan_of(Cell.from_dict(json.loads(cell)), sizes, **notes)
    write_json(out, to_json(plan))


run_step(main)
