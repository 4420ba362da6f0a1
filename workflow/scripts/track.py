"""Bring MLflow up to date with a study's results; a dead server is a warning, and the next run
tries again. The file is a marker, 'done: ...' or 'pending: ...'; ``failures`` are the attempts
before that the server did not take."""

from pathlib import Path

from pflpipe.program import run_step
from pflpipe.report import mlflow_export
from pflpipe.study.load import load_study


def main(study: str, results: Path, out: Path, failures: int = 0) -> None:
    mlflow_export.at_the_end(load_study(study, results=results), results, out, failures=failures)


run_step(main)
