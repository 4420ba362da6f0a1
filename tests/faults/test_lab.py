"""What a lab has beyond one machine: MLflow on PostgreSQL with its files in an object store, and
the runs of a study in an object store. Whatever happens to them, every run is there once."""

import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from test_kills import killed
from test_mlflow_outages import PIPELINE, TESTS, at_request, complete, refused

import lab
import malformed
import test_workflow
import tracked
import warm
from faulty import SCORES, Ready
from mlflow_server import Server
from reliability import record
from tracked import SETTINGS, World, small

pytestmark = [pytest.mark.faults, pytest.mark.pipeline]
BUCKET, RESULTS = "mlflow", "results"
STORE, RUNS = f"s3://{RESULTS}/lab", "lab/results/runs/"


@pytest.fixture(scope="module")
def store() -> Iterator[lab.ObjectStore]:
    if why := lab.missing():
        pytest.skip(why)
    store = lab.ObjectStore(BUCKET)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        yield store
    store.stop()


# ------------------------------------------------- MLflow on PostgreSQL, with its files in a store


@pytest.fixture(scope="module")
def database(store: lab.ObjectStore) -> Iterator[lab.PostgreSQL]:
    if why := lab.missing(database=True):
        pytest.skip(why)
    database = lab.PostgreSQL().start()
    yield database
    database.remove()


@pytest.fixture(scope="module")
def server(database: lab.PostgreSQL, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("server")
    server = Server(place, database.uri, artifacts=f"s3://{BUCKET}").start()
    MlflowClient(server.uri).search_experiments(max_results=1)  # which makes the tables
    yield server
    server.kill()


@pytest.fixture
def patient() -> Iterator[None]:
    with tracked.environment():
        os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "60"
        yield


def files_are_stored(world: World, uri: str, store: lab.ObjectStore) -> None:
    """Check that each run's two files are objects of the bucket."""
    keys = store.keys(BUCKET)
    for run in world.runs(uri).values():
        path = run.info.artifact_uri.removeprefix("mlflow-artifacts:/")
        assert {f"{path}/run.json", f"{path}/rounds.csv"} <= keys


def test_a_pipeline_that_is_killed_leaves_every_run_once_in_postgresql(
    server, store, tmp_path, patient
):
    program = tmp_path / "pipeline.py"
    program.write_text(PIPELINE)
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    clean = {name: value for name, value in os.environ.items() if name not in SETTINGS[:1]}
    world = World(tmp_path / "world", small("postgresql"))
    words = [str(tmp_path / "world"), world.study.name, server.uri]
    job = subprocess.Popen(
        [warm.interpreter(), program, *words],
        env=clean | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    client = MlflowClient(server.uri)
    until = time.monotonic() + 300
    while not (found := client.get_experiment_by_name(world.study.name)) or not (
        client.search_runs([found.experiment_id])
    ):
        assert time.monotonic() < until
        time.sleep(0.05)  # polling until it has begun
    job.kill()
    job.communicate()
    complete(world, server.uri)
    files_are_stored(world, server.uri, store)
    record(
        "MLflow on PostgreSQL with its files in an object store: kill -9 of the pipeline while it "
        "copies a study",
        "the next copy completes the runs, each once, with its files in the store",
    )


@pytest.mark.night
def test_a_database_that_is_restarted_meanwhile_has_every_run_once(
    server, database, store, tmp_path, capsys, patient, long
):
    with at_request(0, False, None) as sent:
        World(tmp_path / "calm", small("calm_postgresql")).sync(server.uri)
    # One request in the middle of a run; at night each of them.
    for number in range(1, len(sent) + 1) if long else [len(sent) // 2]:
        world = World(tmp_path / f"{number}", small(f"restarted_{number}"))
        with at_request(number, False, database.kill):
            line = refused(world, server.uri, capsys)
        assert "its log says why" in line
        database.start()
        complete(world, server.uri)
        files_are_stored(world, server.uri, store)
    record(
        "MLflow on PostgreSQL: the database is killed while a study is copied, and started again",
        "one line says to look at the server's log; the next attempt completes the runs, each once",
    )


@pytest.mark.night
def test_a_store_that_refuses_files_is_one_line_and_no_run_twice(
    server, store, tmp_path, capsys, patient
):
    world = World(tmp_path, small("refused_files"))
    store.disturb = lambda: "403 Forbidden"
    assert "did not take study refused_files" in refused(world, server.uri, capsys)
    store.disturb = lambda: ""
    complete(world, server.uri)
    files_are_stored(world, server.uri, store)


@pytest.mark.night
def test_a_store_that_is_slow_or_hangs_once_has_the_files_of_every_run_once(
    server, store, tmp_path, patient
):
    # The server's own client of the store waits a minute before it asks again.
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "180"
    world = World(tmp_path, small("slow_files"))
    store.delay, store.hanging = 0.2, {"PUT"}
    assert world.sync(server.uri).startswith("done: 2 runs")
    assert not store.hanging, "one did"
    store.delay = 0
    complete(world, server.uri)
    files_are_stored(world, server.uri, store)
    record(
        "MLflow with its files in an object store: each request takes 0.2 s longer, and one is "
        "never answered",
        "every run is there once, with its files in the store",
    )


# ---------------------------------------------------------------- runs of a study in a store


@pytest.fixture
def project(ready: Ready, store: lab.ObjectStore, tmp_path: Path) -> Path:
    """A project with a store of results, in which nothing is trained."""
    folder = tmp_path / "project"
    shutil.copytree(ready.folder, folder)
    malformed.put("store", STORE, "config.yaml")(folder)
    return folder


def without_plans(folder: Path) -> None:
    for name in ("partitions", "plans"):
        shutil.rmtree(folder / "results" / name)


def same_bits(folder: Path, store: lab.ObjectStore, ready: Ready) -> None:
    """Check that the store has the run, the disk its scores, and no copy is left; then remove all
    of it."""
    client, stored = store.client(), {}
    for key in store.keys(RESULTS):
        stored[key] = client.get_object(Bucket=RESULTS, Key=key)["Body"].read()
        client.delete_object(Bucket=RESULTS, Key=key)
    run = {Path(key).name: bits for key, bits in stored.items() if key.startswith(RUNS)}
    run[Path(SCORES).name] = (folder / SCORES).read_bytes()
    assert {name: run[name] for name in ready.bits} == ready.bits
    copies = (folder / ".snakemake/storage").rglob("*")
    assert not [path for path in copies if path.is_file()]
    (folder / SCORES).unlink()


def test_results_of_this_disk_are_not_taken_for_those_of_a_store(project):
    again = test_workflow.snakemake(project, SCORES, code=2)
    assert "is a folder of this disk, and `store` names an object store" in again.stderr


def test_a_worker_that_is_killed_and_a_store_that_refuses_end_with_the_same_bits(
    project, store, ready, long
):
    answers = itertools.cycle([*[""] * 9, "429 Too Many Requests", *[""] * 9, "503 Slow Down"])
    without_plans(project)
    for number in range(10 if long else 1):
        # Its checkpoint is on this disk, where the next worker finds it.
        assert killed(project, "worker", ready.seconds * (0.6 + 0.03 * number))
        store.disturb = lambda: next(answers)
        test_workflow.snakemake(project, SCORES)
        store.disturb = lambda: ""
        same_bits(project, store, ready)
    record(
        "runs in an object store: kill -9 of a worker, and a store that refuses every tenth "
        "request (429, 503)",
        "the same command ends with the same bits; no copy is left on the disk",
    )


@pytest.mark.night
def test_a_store_that_is_gone_loses_nothing(project, store, ready):
    without_plans(project)
    answers = itertools.chain([""] * 40, itertools.repeat("503 Slow Down"))
    store.disturb = lambda: next(answers)
    stopped = test_workflow.snakemake(project, SCORES, code=1)
    assert "503" in stopped.stdout + stopped.stderr
    assert not (project / SCORES).exists()
    store.disturb = lambda: ""
    test_workflow.snakemake(project, SCORES)
    same_bits(project, store, ready)


@pytest.mark.night
def test_a_store_that_is_slow_or_hangs_ends_with_the_same_bits(project, store, ready):
    without_plans(project)
    store.delay, store.hanging = 0.2, {"HEAD", "GET", "PUT"}
    test_workflow.snakemake(project, SCORES)
    assert not store.hanging, "one of each did"
    store.delay = 0
    same_bits(project, store, ready)
    record(
        "runs in an object store: each request takes 0.2 s longer, and three (HEAD, GET, PUT) are "
        "never answered",
        "asked again after a minute; the same bits; no copy is left on the disk",
    )
