"""Write a study's runs to MLflow: those of some methods, or without methods all of them and that of
the study. If the server does not answer, this is a warning, and the next run tries again. The
output is a marker, 'done: ...' or 'pending: ...'; ``failures`` is the number of failed attempts
before."""

from pathlib import Path

from pflpipe.pipeline import mlflow_export
from pflpipe.program import run_step
from pflpipe.study.load import load_study


def main(
    study: str, results: Path, out: Path, methods: list[str] | None = None, failures: int = 0
) -> None:
    loaded = load_study(study, results=results)
    mlflow_export.export_or_warn(loaded, results, out, None, methods, failures)


run_step(main)
