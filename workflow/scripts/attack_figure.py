"""Draw what an attack found in a study as .png and, beside it, .svg and .pdf, with the numbers as
.csv."""

from __future__ import annotations

import argparse
from pathlib import Path

from pflpipe.program import run_script
from pflpipe.report.attacks import registry
from pflpipe.study import figures
from pflpipe.study.load import load_study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attack", required=True, choices=figures.ATTACKS)
    parser.add_argument("--study", required=True)
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder with attacks/ and plans/"
    )
    parser.add_argument("--out", type=Path, required=True, help="the .png file")
    args = parser.parse_args()
    study = load_study(args.study, results=args.results)
    registry.write(study, figures.find(study, args.attack), args.results, args.out)


run_script(main)
