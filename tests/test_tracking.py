"""Tracking: MLflow shows what is on disk, however often it is synced and however the server
behaves."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fake_results
import warm
from pflpipe.errors import ConfigError, PflpipeError
from pflpipe.files import DIGEST, write_json
from pflpipe.methods import registry
from pflpipe.report import tidy, tracking
from pflpipe.study.outline import Chosen, Study

pytestmark = pytest.mark.pipeline
SETTINGS = (
    "MLFLOW_TRACKING_URI",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES",
    "MLFLOW_HTTP_REQUEST_TIMEOUT",
    "MLFLOW_DISABLE_TELEMETRY",
)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No setting of the machine reaches a test, and none of a sync survives it."""
    before = {name: os.environ.pop(name, None) for name in SETTINGS}
    yield
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def small(name: str, **changes: Any) -> Study:
    return fake_results.study(
        name, **({"seeds": (0,), "epsilons": (2.0,), "methods": ("fedavg", "feddpa!")} | changes)
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder whose fresh database two studies were synced into at the same time, by two
    processes."""
    folder = tmp_path_factory.mktemp("shared")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "import fake_results as f\n"
        "from pflpipe.report import tracking\n"
        "name, folder = sys.argv[1], Path(sys.argv[2])\n"
        "study = f.study(name, seeds=(0,), epsilons=(2.0,), methods=('fedavg', 'feddpa!'))\n"
        "done = folder / 'results' / 'tracking' / f'{name}.done'\n"
        "print(tracking.sync(study, f.write(study, folder), done))\n"
    )
    program = folder / "sync.py"
    program.write_text(code)
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    clean = {name: value for name, value in os.environ.items() if name not in SETTINGS} | {
        "PYTHONPATH": path
    }
    # Another study's partitions and plans are the same files: write them before two processes do.
    fake_results.write(small("first"), folder)
    jobs = [
        subprocess.Popen(
            [warm.interpreter(), program, name, str(folder)],
            env=clean,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for name in ("first", "second")
    ]
    for job in jobs:
        output, errors = job.communicate()
        assert job.returncode == 0, errors.decode()
        assert output.startswith(b"done: 2 runs (2 new, 0 kept, 0 replaced)"), output
    return folder


class World:
    """A study of its own in the shared database, and what a user would ask of it."""

    def __init__(self, folder: Path, study: Study) -> None:
        self.folder, self.study = folder, study
        self.results = fake_results.write(study, folder)
        self.marker = self.results / "tracking" / f"{study.name}.done"

    def sync(self, uri: str | None = None) -> str:
        table = self.results / "tables" / f"{self.study.name}.csv"
        tidy.write(tidy.tidy(self.study, self.results), table)
        text = tracking.sync(self.study, self.results, self.marker, uri)
        assert self.marker.read_text() == text + "\n"
        return text

    def client(self, uri: str | None = None) -> Any:
        from mlflow.tracking import MlflowClient

        return MlflowClient(uri or f"sqlite:///{self.results / 'mlflow.db'}")

    def runs(self, uri: str | None = None) -> dict[str, Any]:
        client = self.client(uri)
        found = client.search_runs([client.get_experiment_by_name(self.study.name).experiment_id])
        by_cell = {run.data.tags["pflpipe.cell"]: run for run in found}
        assert len(by_cell) == len(found), "one active run per cell"
        return by_cell


@pytest.fixture
def world(tree: Path, request: pytest.FixtureRequest) -> World:
    return World(tree, small(request.node.name.replace("[", "_").rstrip("]")))


# ---------------------------------------------------------------- what MLflow shows


@pytest.mark.slow
def test_two_studies_may_meet_on_a_fresh_database(tree: Path) -> None:
    results = tree / "results"
    for name in ("first", "second"):
        assert len(World(tree, small(name)).runs()) == 2
    assert not list(results.glob(".mlflow.*.db")), "the database was built aside and renamed"
    assert not (tree / "mlruns").exists()


def test_a_run_holds_parameters_metrics_per_round_scores_and_files(world: World) -> None:
    figures = world.results / "figures" / world.study.name
    figures.mkdir(parents=True)
    (figures / "noise.png").write_bytes(b"png")
    world.sync()
    cell = world.study.cells[1]
    run, client = world.runs()[cell.id], world.client()
    assert run.info.status == "FINISHED"
    assert run.data.params["partition.alpha"] == "0.3"
    assert run.data.params["hyperparameters.tau"] == "0.4"
    assert run.data.params["model.hidden"] == "32"
    assert run.data.params["plan.noise_multiplier"] == "12.0"
    assert run.data.params["ledger.epsilon_central"] == "inf"
    assert (
        run.data.params["ledger.departures"]
        == "sample_level_calibration, data_size_weights, update_against_global"
    )
    assert run.data.tags["pflpipe.claim"] == "nominal"
    assert run.data.tags["pflpipe.kind"] == "diagnostics"
    assert "pflpipe.chosen" not in run.data.tags
    losses = client.get_metric_history(run.info.run_id, "loss")
    assert [metric.step for metric in losses] == [1, 2, 3, 4]
    assert [metric.timestamp - run.info.start_time for metric in losses] == [250, 500, 750, 1000]
    assert run.info.end_time - run.info.start_time == 1000
    (written,) = world.results.glob(f"runs/{registry.run_id(cell)}/run.json")
    assert run.info.end_time == int(written.stat().st_mtime * 1000)
    assert run.data.metrics["personal_own"] == pytest.approx(72, abs=2)
    assert run.data.metrics["images_per_second"] == 2000
    assert "epsilon_central" not in run.data.metrics, "MLflow stores infinity as a huge number"
    files = {
        item.path
        for folder in (None, "study")
        for item in client.list_artifacts(run.info.run_id, folder)
    }
    assert files == {"run.json", "rounds.csv", "study", "study/noise.png"}
    location = client.get_experiment_by_name(world.study.name).artifact_location
    assert location == (world.results / "mlartifacts" / world.study.name).as_uri()


def test_an_experiment_says_that_no_epsilon_covers_what_is_measured(world: World) -> None:
    world.sync()
    client = world.client()
    found = client.get_experiment_by_name(world.study.name)
    assert found.tags["pflpipe.kind"] == "diagnostics"
    note = found.tags["mlflow.note.content"]
    assert note == (
        "Accuracies, losses and times are diagnostics: the experimenter's own measurements on "
        "public data, covered by no ε."
    )
    client.set_experiment_tag(found.experiment_id, "mlflow.note.content", "words of my own")
    world.sync()
    assert (
        client.get_experiment(found.experiment_id).tags["mlflow.note.content"] == "words of my own"
    )


def test_a_run_whose_settings_a_search_chose_says_that_no_epsilon_covers_the_choice(
    world: World,
) -> None:
    chosen = Chosen(0, {"hyperparameters.tau": 0.4}, sets=3, runs=6)
    rows = tuple(
        dataclasses.replace(row, chosen=chosen if row.cell.method == "feddpa" else None)
        for row in world.study.rows
    )
    world.study = dataclasses.replace(world.study, rows=rows)
    world.sync()
    words = [world.runs()[cell.id].data.tags.get("pflpipe.chosen") for cell in world.study.cells]
    assert words == [
        None,
        "Hyper-parameters were chosen on validation data; no ε covers that choice.",
    ]


def test_values_that_are_not_finite_are_named_in_a_tag(world: World) -> None:
    cell = world.study.cells[0]
    fake_results.write(world.study, world.folder, diverged={cell.id: 3})
    world.sync()
    run = world.runs()[cell.id]
    history = world.client().get_metric_history(run.info.run_id, "loss")
    assert [metric.step for metric in history] == [1, 2]
    assert run.data.tags["pflpipe.diverged_round"] == "3"
    assert run.data.tags["pflpipe.not_finite"] == "loss from round 3, signal_to_noise from round 1"


def test_accuracies_by_round_arrive_once_each(tmp_path: Path) -> None:
    training = dataclasses.replace(fake_results.BASE.training, evaluate_every=2)
    study = fake_results.study(
        seeds=(0,), epsilons=(2.0,), base=dataclasses.replace(fake_results.BASE, training=training)
    )
    results = fake_results.write(study, tmp_path)
    row = next(row for row in study.rows if row.cell.method == "dp_fedavg")
    record = next(
        found for found in tracking._records(study, results) if found["cell"] == row.cell.id
    )
    found = tracking._cell(row, record, study, results)
    assert [step for name, _, _, step in found.metrics if name == "personal_own"] == [2, 4]
    assert "personal_own" not in found.tags.get("pflpipe.not_finite", "")


def test_more_than_a_thousand_metrics_arrive(tree: Path) -> None:
    base = dataclasses.replace(
        fake_results.BASE, training=dataclasses.replace(fake_results.BASE.training, rounds=120)
    )
    world = World(tree, small("long", methods=("dp_fedavg",), base=base))
    world.sync()
    (run,) = world.runs().values()
    for name in ("participants", "loss", "images_per_second"):
        history = world.client().get_metric_history(run.info.run_id, name)
        assert sorted(metric.step for metric in history) == list(range(1, 121))


# ---------------------------------------------------------------- idempotence


def test_a_second_sync_keeps_every_run_and_writes_the_same_words(world: World) -> None:
    assert "(2 new, 0 kept, 0 replaced)" in world.sync()
    before = {cell: run.info.run_id for cell, run in world.runs().items()}
    text = world.sync()
    assert text == (
        f"done: 2 runs (0 new, 2 kept, 0 replaced) in experiment {world.study.name} "
        f"at sqlite:///{world.results.resolve() / 'mlflow.db'}"
    )
    assert {cell: run.info.run_id for cell, run in world.runs().items()} == before
    assert world.marker.read_text().startswith("done: ")


@pytest.mark.parametrize("file", ["rounds", "timing", "run", "plan", "scores"])
def test_a_changed_result_replaces_its_own_run_only(file: str, world: World) -> None:
    world.sync()
    before = {cell: run.info.run_id for cell, run in world.runs().items()}
    cell = world.study.cells[1]
    path = {
        "plan": world.results / "plans" / f"{cell.plan_id}.json",
        "scores": world.results / "scores" / world.study.name / "feddpa.csv",
        "run": world.results / "runs" / registry.run_id(cell) / "run.json",
    }.get(file, world.results / "runs" / registry.run_id(cell) / f"{file}.csv")
    old = {
        "plan": "12.0",
        "run": "9640.0",
        "timing": "0.25",
        "rounds": "0.4,0.9",
        "scores": ",14,",
    }[file]
    text = path.read_text()
    assert old in text
    new = (
        old.replace("4,0.9", "5,0.9")
        if file == "rounds"
        else old.replace("2", "3").replace("4", "5")
    )
    # A client's training size is no metric: for the scores, raise an accuracy.
    if file == "scores":
        header, first, *rest = text.splitlines()
        fields = first.split(",")
        fields[3] = "99.5"
        path.write_text("\n".join([header, ",".join(fields), *rest]) + "\n")
    elif path.suffix == ".json":
        values = json.loads(text.replace(old, new))
        write_json(path, {key: value for key, value in values.items() if key != DIGEST})
    else:
        path.write_text(text.replace(old, new))
    assert "(0 new, 1 kept, 1 replaced)" in world.sync()
    after = {cell: run.info.run_id for cell, run in world.runs().items()}
    assert after[world.study.cells[0].id] == before[world.study.cells[0].id]
    assert after[cell.id] != before[cell.id]


def test_an_interrupted_sync_is_repaired_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    def killed(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_terminated", killed)
        with pytest.raises(KeyboardInterrupt):
            world.sync()
    assert not world.marker.exists()
    assert [run.info.status for run in world.runs().values()] == ["RUNNING"]
    world.sync()
    assert [run.info.status for run in world.runs().values()] == ["FINISHED", "FINISHED"]


def test_a_new_figure_is_added_to_runs_that_are_kept(world: World) -> None:
    world.sync()
    figures = world.results / "figures" / world.study.name
    figures.mkdir(parents=True)
    for content in (b"first", b"second"):
        (figures / "noise.png").write_bytes(content)
        assert "(0 new, 2 kept, 0 replaced)" in world.sync()
        for run in world.runs().values():
            path = world.client().download_artifacts(run.info.run_id, "study/noise.png")
            assert Path(path).read_bytes() == content


def test_runs_of_cells_that_left_the_study_stay_and_say_so(world: World) -> None:
    world.sync()
    whole = world.study
    world.study = dataclasses.replace(whole, rows=whole.rows[:1])
    assert "done: 1 runs (0 new, 1 kept, 0 replaced)" in world.sync()
    assert [world.runs()[cell.id].data.tags["pflpipe.in_study"] for cell in whole.cells] == [
        "true",
        "false",
    ]
    world.study = whole
    assert "done: 2 runs (0 new, 2 kept, 0 replaced)" in world.sync()
    assert [world.runs()[cell.id].data.tags["pflpipe.in_study"] for cell in whole.cells] == [
        "true",
        "true",
    ]


def test_a_users_own_runs_and_a_deleted_experiment_are_respected(world: World) -> None:
    world.sync()
    client = world.client()
    experiment = client.get_experiment_by_name(world.study.name).experiment_id
    mine = client.create_run(experiment, run_name="mine").info.run_id
    client.delete_experiment(experiment)
    world.sync()
    assert client.get_run(mine).info.lifecycle_stage == "active"
    client.delete_run(mine)
    assert set(world.runs()) == {cell.id for cell in world.study.cells}


# ---------------------------------------------------------------- servers, dead and alive


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def server(
    tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A real MLflow server on a copy of the database (its own first migration would take most of
    the time)."""
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    shutil.copy(tree / "results" / "mlflow.db", folder / "mlflow.db")
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder / 'mlflow.db'}",
        "--artifacts-destination",
        str(folder / "artifacts"),
    ]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    uri = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, (folder / "log").read_text()
            try:
                urllib.request.urlopen(f"{uri}/health", timeout=5).read()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)  # polling a process that starts, not waiting for luck
        else:
            pytest.fail((folder / "log").read_text())
        yield uri, process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, 15)  # the group of this very process: the server and its worker
        process.wait(timeout=60)


@pytest.mark.slow
def test_a_server_gets_the_same_runs_and_its_death_costs_nothing(
    world: World,
    server: tuple[str, subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    uri, process = server
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)  # wins over the configured address
    assert world.sync("sqlite:////nowhere/at/all.db").endswith(f"at {uri}")
    runs = world.runs(uri)
    assert set(runs) == {cell.id for cell in world.study.cells}
    run = runs[world.study.cells[1].id]
    assert len(world.client(uri).get_metric_history(run.info.run_id, "loss")) == 4
    assert {item.path for item in world.client(uri).list_artifacts(run.info.run_id)} == {
        "run.json",
        "rounds.csv",
    }
    assert "(0 new, 2 kept, 0 replaced)" in world.sync()
    stop(process)
    capsys.readouterr()
    assert world.sync().startswith(f"pending: {uri} did not take study {world.study.name} (")
    assert world.marker.read_text().startswith("pending: ")
    assert "nothing is lost, the next run tries again" in capsys.readouterr().err
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert "(2 new, 0 kept, 0 replaced)" in world.sync()
    assert world.marker.read_text().startswith("done: ")


def test_a_refused_port_is_one_warning_line_without_the_password(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    text = world.sync(f"http://me:secret@127.0.0.1:{port}/?token=secret")
    assert text.startswith(f"pending: http://127.0.0.1:{port}/ did not take study")
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("warning: ")
    assert "secret" not in captured.err + captured.out + text


def test_a_server_that_never_answers_is_given_up(world: World) -> None:
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "1"
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        text = world.sync(f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert text.startswith("pending: ")
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "1", "the user's own setting stays"


def test_mlflow_is_told_to_be_brief_and_quiet(world: World) -> None:
    world.sync(f"http://127.0.0.1:{free_port()}")
    assert [os.environ[name] for name in SETTINGS[1:]] == ["1", "5", "true"]


@pytest.mark.parametrize(
    "uri", ["file:///tmp/mlruns", "mlruns", "ftp://host", "http://", "http://host:port"]
)
def test_an_address_that_cannot_work_is_the_users_to_mend(uri: str, tmp_path: Path) -> None:
    world = World(tmp_path, small("addresses", methods=("fedavg",)))
    with pytest.raises(ConfigError, match=r"the MLflow tracking address; got .*; expected"):
        world.sync(uri)
    assert not world.marker.exists()


def test_a_damaged_database_is_one_clear_line(tmp_path: Path) -> None:
    world = World(tmp_path, small("damaged", methods=("fedavg",)))
    (world.results / "mlflow.db").write_bytes(b"not a database" * 100)
    with pytest.raises(
        PflpipeError, match=r"mlflow.db cannot be written; .*move the file away"
    ) as caught:
        world.sync()
    assert "\n" not in str(caught.value)
    assert not world.marker.exists()
