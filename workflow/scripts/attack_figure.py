"""Draw what an attack found in a study as .png and, beside it, .svg and .pdf, and write the numbers
as .csv."""

from __future__ import annotations

import argparse
from pathlib import Path

from pflpipe.files import atomic
from pflpipe.program import run_script
from pflpipe.report.attacks.registry import SHOWN, draw
from pflpipe.report.figures import style
from pflpipe.study.load import load_study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attack", required=True, choices=SHOWN)
    parser.add_argument("--study", required=True)
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder with attacks/ and plans/"
    )
    parser.add_argument("--out", type=Path, required=True, help="the .png file")
    args = parser.parse_args()
    study, shown = load_study(args.study, results=args.results), SHOWN[args.attack]
    with atomic(args.out.with_suffix(".csv")) as path:
        shown.table(study, args.results).to_csv(path, index=False)
    style.save(lambda: draw(args.attack, study, args.results), args.out)


run_script(main)
