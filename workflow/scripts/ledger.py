"""Write results/ledger.html: what is published, what is true, what the truth costs, and every
number of the ledger."""

from __future__ import annotations

import argparse
from pathlib import Path

from pflpipe.program import run_script
from pflpipe.report import ledger_page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tables", type=Path, nargs="+", required=True, help="results/tables/<study>.csv"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder with audits/")
    parser.add_argument("--template", type=Path, required=True, help="workflow/report/ledger.html")
    parser.add_argument("--out", type=Path, required=True, help="the .html file")
    args = parser.parse_args()
    ledger_page.write(args.tables, args.results, args.template, args.out)


run_script(main)
