"""Write results/tables/<study>.csv and, beside it, the same study as a readable .md and .tex
table."""

from __future__ import annotations

import argparse
from pathlib import Path

from pflpipe.audit.verdict import require_kept
from pflpipe.files import read_json
from pflpipe.program import run_script
from pflpipe.report import tables
from pflpipe.study.load import load_study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        help="folder with scores/, runs/ and plans/",
    )
    parser.add_argument(
        "--audits",
        type=Path,
        nargs="*",
        default=[],
        help="audits of the releases that are called certified",
    )
    parser.add_argument("--out", type=Path, required=True, help="the .csv file")
    args = parser.parse_args()
    require_kept(map(read_json, args.audits))
    tables.write_study(load_study(args.study, results=args.results), args.results, args.out)


run_script(main)
