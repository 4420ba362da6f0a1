"""A study of its own in MLflow, and what a user would ask of it, for tests."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fake_results
from pflpipe.pipeline import mlflow_export, mlflow_runs
from pflpipe.report import tidy
from pflpipe.study.study_spec import Study

SETTINGS = (
    *("MLFLOW_TRACKING_URI", "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"),
    *("MLFLOW_DISABLE_TELEMETRY", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"),
)


@contextmanager
def environment() -> Iterator[None]:
    """No setting of the machine reaches what is inside, and none of a sync survives it."""
    before = {name: os.environ.pop(name, None) for name in SETTINGS}
    yield
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def small(name: str, **changes: Any) -> Study:
    of = {"seeds": (0,), "epsilons": (2.0,), "methods": ("fedavg", "feddpa!")}
    return fake_results.study(name, **(of | changes))


def runs_of(study: Study, results: Path) -> list[mlflow_runs.Tracked]:
    """The runs of a study in MLflow, each group followed by its seeds."""
    groups = mlflow_runs.of_study(study, results)
    return [run for group in groups for run in (group, *group.seeds)]


class World:
    """A study of its own in the shared database, and what a user would ask of it."""

    def __init__(self, folder: Path, study: Study) -> None:
        self.folder, self.study = folder, study
        self.results = fake_results.write(study, folder)
        self.marker = self.results / "tracking" / f"{study.name}.done"

    @property
    def uri(self) -> str:
        """The address of the database beside the results."""
        return mlflow_export.address_of(self.results, None)

    def sync(self, uri: str | None = None) -> str:
        table = self.results / "tables" / f"{self.study.name}.csv"
        tidy.write(tidy.tidy(self.study, self.results), table)
        text = mlflow_export.export_or_warn(self.study, self.results, self.marker, uri)
        assert self.marker.read_text() == text + "\n"
        return text

    def client(self, uri: str | None = None) -> Any:
        from mlflow.tracking import MlflowClient

        return MlflowClient(uri or self.uri)

    def files(self, run: Any) -> set[str]:
        """Return the paths of a run's artifacts, where ``mlflow ui`` looks for them."""
        path = run.info.artifact_uri.removeprefix("mlflow-artifacts:/")
        folder = self.results / "mlartifacts" / path
        return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}

    def entries(self, uri: str | None = None) -> dict[str, Any]:
        """Return all runs that are shown, by their keys."""
        client = self.client(uri)
        found = client.search_runs([client.get_experiment_by_name(self.study.name).experiment_id])
        ours = [run for run in found if "pflpipe.key" in run.data.tags]
        keys = [run.data.tags["pflpipe.key"] for run in ours]
        assert len(set(keys)) == len(keys), "one active run for each entry"
        known = {run.info.run_id for run in ours}
        parents = [run.data.tags.get("mlflow.parentRunId") for run in ours]
        assert known.issuperset(filter(None, parents)), "no run is below one that is gone"
        return dict(zip(keys, ours, strict=True))

    def runs(self, uri: str | None = None) -> dict[str, Any]:
        """Return the runs of cells."""
        return {key: run for key, run in self.entries(uri).items() if "seed" in run.data.tags}
