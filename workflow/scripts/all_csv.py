"""Join the tables of several studies into results/tables/all.csv, in the order given."""

from __future__ import annotations

import argparse
from pathlib import Path

from pflpipe import config, tables
from pflpipe.cli import run_script


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", required=True, nargs="+", help="their tables must exist")
    parser.add_argument("--config", default="config.yaml")
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args()
    folder = Path(config.load(args.config).results_dir) / "tables"
    tables.join([folder / f"{study}.csv" for study in args.studies], args.out)


if __name__ == "__main__":
    run_script(main)
