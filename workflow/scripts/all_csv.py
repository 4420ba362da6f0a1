"""Join the tables of several studies, in the order given."""

from __future__ import annotations

import argparse
from pathlib import Path

from pflpipe.program import run_script
from pflpipe.report import tidy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tables", type=Path, nargs="+", required=True, help="results/tables/<study>.csv"
    )
    parser.add_argument("--out", type=Path, required=True, help="the .csv file")
    args = parser.parse_args()
    tidy.join(args.tables, args.out)


run_script(main)
