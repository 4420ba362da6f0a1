"""Draw one figure of a study as .png and, beside it, .svg and .pdf."""

from __future__ import annotations

import argparse
from pathlib import Path

from pflpipe.program import run_script
from pflpipe.report.figures import registry
from pflpipe.study import figures
from pflpipe.study.load import load_study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument("--figure", required=True, help="its name in the study")
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        help="folder with tables/, scores/, runs/, partitions/",
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with <dataset>.npz")
    parser.add_argument("--out", type=Path, required=True, help="the .png file")
    args = parser.parse_args()
    study = load_study(args.study, results=args.results)
    drawing = figures.find(study, args.figure)
    registry.write(study, drawing, args.results, args.data, args.out)


run_script(main)
