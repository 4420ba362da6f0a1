"""Draw one figure of a study as .png and, beside it, .svg."""

from __future__ import annotations

import argparse
from pathlib import Path

from pflpipe.program import run_script
from pflpipe.report import figures
from pflpipe.study.load import load_study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument("--kind", required=True, choices=sorted(figures.KINDS))
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        help="folder with scores/, runs/, plans/, partitions/",
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with <dataset>.npz")
    parser.add_argument("--out", type=Path, required=True, help="the .png file")
    args = parser.parse_args()
    figures.write(
        load_study(args.study, results=args.results), args.kind, args.results, args.data, args.out
    )


run_script(main)
