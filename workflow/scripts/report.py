"""Write results/report.html: what the studies asked, what came of it, whether it is true, how to
make it again."""

from __future__ import annotations

import argparse
from pathlib import Path

from pflpipe.program import run_script
from pflpipe.report import report_page
from pflpipe.study.load import load_study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", nargs="+", required=True)
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder with tables/, figures/, runs/"
    )
    parser.add_argument("--root", type=Path, required=True, help="folder of the Snakefile")
    parser.add_argument(
        "--settings", default="", help="words of the command line that config.yaml does not have"
    )
    parser.add_argument("--template", type=Path, required=True, help="workflow/report/report.html")
    parser.add_argument("--out", type=Path, required=True, help="the .html file")
    args = parser.parse_args()
    studies = [load_study(name, results=args.results) for name in args.studies]
    report_page.write(studies, args.results, args.root, args.settings, args.template, args.out)


run_script(main)
