"""Write the released part of a study by itself, to be published: results/released/<study>/."""

from __future__ import annotations

import argparse
from pathlib import Path

from pflpipe.audit.verdict import require_kept
from pflpipe.files import read_json
from pflpipe.program import run_script
from pflpipe.report import released
from pflpipe.study.load import load_study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder with runs/ and plans/"
    )
    parser.add_argument(
        "--audits",
        type=Path,
        nargs="*",
        default=[],
        help="audits of the releases that are published",
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    args = parser.parse_args()
    require_kept(map(read_json, args.audits))
    released.write(load_study(args.study, results=args.results), args.results, args.out)


run_script(main)
