"""Bring MLflow up to date with a study's results; a dead server is a warning, and the next run
tries again."""

from __future__ import annotations

import argparse
from pathlib import Path

from pflpipe.program import run_script
from pflpipe.report import mlflow_export
from pflpipe.study.load import load_study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        help="folder with scores/, runs/, plans/, figures/",
    )
    parser.add_argument(
        "--failures", type=int, default=0, help="attempts before that the server did not take"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="marker file, 'done: ...' or 'pending: ...'"
    )
    args = parser.parse_args()
    study = load_study(args.study, results=args.results)
    mlflow_export.at_the_end(study, args.results, args.out, failures=args.failures)


run_script(main)
