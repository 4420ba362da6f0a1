"""What a lab has beyond one machine: MLflow on PostgreSQL with its files in an object store, and
the runs of a study in an object store. Whatever happens to them, every run is there once."""

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from test_kills import killed
from test_mlflow_outages import assert_complete, at_request, killed_while_it_syncs

import lab
import malformed
import test_workflow
from faulty import SCORES, Ready
from mlflow_server import Server
from reliability import record
from tracked import World, small

pytestmark = [pytest.mark.faults, pytest.mark.pipeline, pytest.mark.usefixtures("patient")]
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


def assert_completed(world: World, server: Server, store: lab.ObjectStore) -> None:
    """Sync, and check that every run is there once, its two files as objects of the bucket."""
    assert_complete(world, server.uri)
    keys = store.keys(BUCKET)
    for run in world.runs(server.uri).values():
        path = run.info.artifact_uri.removeprefix("mlflow-artifacts:/")
        assert {f"{path}/run.json", f"{path}/rounds.csv"} <= keys


def test_a_pipeline_that_is_killed_leaves_every_run_once_in_postgresql(server, store, tmp_path):
    world = World(tmp_path, small("postgresql"))
    killed_while_it_syncs(world, server.uri)
    assert_completed(world, server, store)
    where = "MLflow on PostgreSQL with its files in an object store"
    outcome = "the next copy completes the runs, each once, with its files in the store"
    record(f"{where}: kill -9 of the pipeline while it copies a study", outcome)


@pytest.mark.night
def test_a_database_that_is_restarted_meanwhile_has_every_run_once(
    server, database, store, tmp_path, refused, long
):
    with at_request(0, False, None) as sent:
        World(tmp_path / "calm", small("calm_postgresql")).sync(server.uri)
    # One request in the middle of a run; at night each of them.
    for number in range(1, len(sent) + 1) if long else [len(sent) // 2]:
        world = World(tmp_path / f"{number}", small(f"restarted_{number}"))
        with at_request(number, False, database.kill):
            line = refused(world, server.uri)
        assert "its log says why" in line
        database.start()
        assert_completed(world, server, store)
    record(
        "MLflow on PostgreSQL: the database is killed while a study is copied, and started again",
        "one line says to look at the server's log; the next attempt completes the runs, each once",
    )


@pytest.mark.night
def test_a_store_that_refuses_files_is_one_line_and_no_run_twice(server, store, tmp_path, refused):
    world = World(tmp_path, small("refused_files"))
    store.disturb = lambda: "403 Forbidden"
    assert "did not take study refused_files" in refused(world, server.uri)
    store.disturb = lambda: ""
    assert_completed(world, server, store)


@pytest.mark.night
def test_a_store_that_is_slow_or_hangs_once_has_the_files_of_every_run_once(
    server, store, tmp_path
):
    # The server's own client of the store waits a minute before it asks again.
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "180"
    world = World(tmp_path, small("slow_files"))
    store.delay, store.hanging = 0.2, {"PUT"}
    assert world.sync(server.uri).startswith("done: 2 runs")
    assert not store.hanging, "one did"
    store.delay = 0
    assert_completed(world, server, store)
    slow = "each request takes 0.2 s longer, and one is never answered"
    outcome = "every run is there once, with its files in the store"
    record(f"MLflow with its files in an object store: {slow}", outcome)


# ---------------------------------------------------------------- runs of a study in a store


@pytest.fixture
def on_disk(ready: Ready, store: lab.ObjectStore, tmp_path: Path) -> Path:
    """A project with a store of results, which has plans and partitions of this disk."""
    folder = Path(shutil.copytree(ready.folder, tmp_path / "project"))
    malformed.put("store", STORE, "config.yaml")(folder)
    return folder


@pytest.fixture
def project(on_disk: Path) -> Path:
    """A project with a store of results, in which nothing is planned or trained."""
    for name in ("partitions", "plans"):
        shutil.rmtree(on_disk / "results" / name)
    return on_disk


def assert_same_bits(folder: Path, store: lab.ObjectStore, ready: Ready) -> None:
    """Check that the store has the run, the disk its scores, and no copy is left; then remove all
    of it."""
    client, found = store.client(), {Path(SCORES).name: (folder / SCORES).read_bytes()}
    for key in store.keys(RESULTS):
        if key.startswith(RUNS):
            found[Path(key).name] = client.get_object(Bucket=RESULTS, Key=key)["Body"].read()
        client.delete_object(Bucket=RESULTS, Key=key)
    assert {name: found[name] for name in ready.bits} == ready.bits
    copies = (folder / ".snakemake/storage").rglob("*")
    assert not [path for path in copies if path.is_file()]
    (folder / SCORES).unlink()


def test_results_of_this_disk_are_not_taken_for_those_of_a_store(on_disk):
    again = test_workflow.snakemake(on_disk, SCORES, code=2)
    assert "is a folder of this disk, and `store` names an object store" in again.stderr


def test_a_worker_that_is_killed_and_a_store_that_refuses_end_with_the_same_bits(
    project, store, ready, long
):
    answers = itertools.cycle([*[""] * 9, "429 Too Many Requests", *[""] * 9, "503 Slow Down"])
    for number in range(10 if long else 1):
        # Its checkpoint is on this disk, where the next worker finds it.
        assert killed(project, "worker", ready.seconds * (0.6 + 0.03 * number))
        store.disturb = lambda: next(answers)
        test_workflow.snakemake(project, SCORES)
        store.disturb = lambda: ""
        assert_same_bits(project, store, ready)
    fault = "kill -9 of a worker, and a store that refuses every tenth request (429, 503)"
    outcome = "the same command ends with the same bits; no copy is left on the disk"
    record(f"runs in an object store: {fault}", outcome)


@pytest.mark.night
def test_a_store_that_is_gone_loses_nothing(project, store, ready):
    answers = itertools.chain([""] * 40, itertools.repeat("503 Slow Down"))
    store.disturb = lambda: next(answers)
    stopped = test_workflow.snakemake(project, SCORES, code=1)
    assert "503" in stopped.stdout + stopped.stderr
    assert not (project / SCORES).exists()
    store.disturb = lambda: ""
    test_workflow.snakemake(project, SCORES)
    assert_same_bits(project, store, ready)


@pytest.mark.night
def test_a_store_that_is_slow_or_hangs_ends_with_the_same_bits(project, store, ready):
    store.delay, store.hanging = 0.2, {"HEAD", "GET", "PUT"}
    test_workflow.snakemake(project, SCORES)
    assert not store.hanging, "one of each did"
    store.delay = 0
    assert_same_bits(project, store, ready)
    slow = "each request takes 0.2 s longer, and three (HEAD, GET, PUT) are never answered"
    outcome = "asked again after a minute; the same bits; no copy is left on the disk"
    record(f"runs in an object store: {slow}", outcome)
