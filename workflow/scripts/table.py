"""Write results/tables/<study>.csv and, beside it, the same study as a readable .md and .tex table."""

from __future__ import annotations

import argparse
from pathlib import Path

from pflpipe import config, tables
from pflpipe.cli import run_script


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument("--config", default="config.yaml")
    parser.add_argument("--out", required=True, type=Path, help="the .csv file")
    args = parser.parse_args()
    results = Path(config.load(args.config).results_dir)
    tables.write_study(config.load_study(args.study), results, args.out)


if __name__ == "__main__":
    run_script(main)
