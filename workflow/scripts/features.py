"""Make features of the images of a data set: data/<dataset>.<kind>-<digest>.npz. The settings are
JSON; a reference is the file with the features of a public data set."""

import json
from pathlib import Path

from pflpipe.cells import Features
from pflpipe.data import extraction
from pflpipe.program import run_step


def main(features: str, data: Path, target: Path, reference: Path | None = None) -> None:
    print(extraction.make(Features(**json.loads(features)), data, target, reference))


run_step(main)
