"""Export a study's results to MLflow. If the server does not answer, this is a warning, and the
next run tries again. The output is a marker, 'done: ...' or 'pending: ...'; ``failures`` is the
number of failed attempts before."""

from pathlib import Path

from pflpipe.program import run_step
from pflpipe.report import mlflow_export
from pflpipe.study.load import load_study


def main(study: str, results: Path, out: Path, failures: int = 0) -> None:
    mlflow_export.at_the_end(load_study(study, results=results), results, out, failures=failures)


run_step(main)
