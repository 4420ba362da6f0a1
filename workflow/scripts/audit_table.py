"""Write results/tables/audit.csv and .md, and results/figures/audit.png and audit_column.png with
their .svg and .pdf (rule audit_table)."""

from __future__ import annotations

import argparse
from pathlib import Path

from pflpipe.program import run_script
from pflpipe.report import audits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder with audits/")
    parser.add_argument("--out", type=Path, required=True, help="the .csv file")
    args = parser.parse_args()
    audits.write(args.results, args.out)


run_script(main)
