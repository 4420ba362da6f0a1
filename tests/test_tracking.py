"""Tracking: MLflow shows what is on disk, however often it is synced and however the server
behaves."""

import dataclasses
import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fake_results
import tabled
import tracked
import warm
from mlflow_server import Server, free_port
from pflpipe.cells import Cell
from pflpipe.errors import ConfigError
from pflpipe.files import DIGEST, write_json
from pflpipe.methods import registry
from pflpipe.pipeline import mlflow_export, mlflow_runs
from pflpipe.report import tidy
from pflpipe.study.study_spec import Chosen, Study
from tracked import SETTINGS, World, small

TABLES = tabled.table("test_tracking")
pytestmark = pytest.mark.pipeline


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    with tracked.environment():
        yield


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder whose fresh database two studies were synced into at the same time, by two
    processes."""
    folder, names = tmp_path_factory.mktemp("shared"), ("first", "second")
    program = folder / "sync.py"
    program.write_text(TABLES["SYNC"])
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    environment["PYTHONPATH"] = path
    # Partitions, plans and runs of both are the same files: who writes them may have no reader yet.
    _, results = (fake_results.write(small(name), folder) for name in names)
    words = [[warm.interpreter(), program, name, results] for name in names]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    jobs = [subprocess.Popen(command, env=environment, **pipes) for command in words]
    for job in jobs:
        output, errors = job.communicate()
        assert job.returncode == 0, errors.decode()
        assert output.startswith(b"done: 2 runs (2 new, 0 kept, 0 replaced)"), output
    return folder


@pytest.fixture
def world(tree: Path, request: pytest.FixtureRequest) -> World:
    return World(tree, small(request.node.name.replace("[", "_").rstrip("]")))


@pytest.fixture(scope="module")
def shown(tree: Path) -> World:
    """A study in MLflow: FedAvg, which diverged, and FedDPA, which a search has chosen."""
    study = small("shown")
    chosen = Chosen(0, {"hyperparameters.tau": 0.4}, sets=3, runs=6)
    first, searched = study.rows
    rows = (first, dataclasses.replace(searched, chosen=chosen))
    world = World(tree, dataclasses.replace(study, rows=rows))
    fake_results.write(world.study, tree, diverged={first.cell.id: 3})
    with tracked.environment():
        world.sync()
    return world


# ---------------------------------------------------------------- what MLflow shows


@pytest.mark.slow
def test_two_studies_may_meet_on_a_fresh_database(tree):
    results = tree / "results"
    for name in ("first", "second"):
        assert len(World(tree, small(name)).runs()) == 2
    assert not list(results.glob(".mlflow.*.db")), "the database was built aside and renamed"
    assert not (tree / "mlruns").exists()


def test_a_run_holds_parameters_metrics_per_round_scores_and_files(shown):
    cell = shown.study.cells[1]
    run, client = shown.runs()[cell.id], shown.client()
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "feddpa eps=inf (official) asked 2 s0"
    assert TABLES["PARAMETERS"].items() <= run.data.params.items()
    assert TABLES["TAGS"].items() <= run.data.tags.items()
    losses = client.get_metric_history(run.info.run_id, "loss")
    assert [metric.step for metric in losses] == [1, 2, 3, 4]
    assert [metric.timestamp - run.info.start_time for metric in losses] == [250, 500, 750, 1000]
    assert run.info.end_time - run.info.start_time == 1000
    (written,) = shown.results.glob(f"runs/{registry.run_id(cell)}/run.json")
    assert run.info.end_time == int(written.stat().st_mtime * 1000)
    assert run.data.metrics["personal_own"] == pytest.approx(72, abs=2)
    assert run.data.metrics["images_per_second"] == 2000
    assert "epsilon_central" not in run.data.metrics, "MLflow stores infinity as a huge number"
    assert shown.files(run) == {"run.json", "rounds.csv"}


def test_a_run_whose_settings_a_search_chose_says_that_no_epsilon_covers_the_choice(shown):
    words = [shown.runs()[cell.id].data.tags.get("chosen") for cell in shown.study.cells]
    covered = "Hyper-parameters were chosen on validation data; no ε covers that choice."
    assert words == [None, covered]


def test_values_that_are_not_finite_are_named_in_a_tag(shown):
    run = shown.runs()[shown.study.cells[0].id]
    history = shown.client().get_metric_history(run.info.run_id, "loss")
    assert [metric.step for metric in history] == [1, 2]
    assert run.data.tags["diverged_round"] == "3"
    assert run.data.tags["not_finite"] == "loss from round 3, signal_to_noise from round 1"


def test_runs_can_be_told_by_the_words_of_the_tables(shown):
    client = shown.client()
    experiment = client.get_experiment_by_name(shown.study.name).experiment_id

    def names(words: str) -> set[str]:
        return {run.info.run_name for run in client.search_runs([experiment], words)}

    nominal = names("tags.claim = 'nominal' and tags.level = 'setting'")
    assert nominal == {"feddpa eps=inf (official) asked 2"}
    assert names("tags.method = 'fedavg'") == {"fedavg eps=inf", "fedavg eps=inf s0"}
    assert names("tags.level = 'study'") == {"study shown"}


def test_an_experiment_says_that_no_epsilon_covers_what_is_measured(world):
    world.sync()
    client = world.client()
    note, found = "mlflow.note.content", client.get_experiment_by_name(world.study.name)
    assert found.tags["kind"] == "diagnostics"
    words = "are diagnostics: the experimenter's own measurements on public data, covered by no ε."
    assert f"Measured values {words}" in found.tags[note]
    client.set_experiment_tag(found.experiment_id, note, "words of my own")
    world.sync()
    assert client.get_experiment(found.experiment_id).tags[note] == "words of my own"


def with_training(**changes: int) -> Cell:
    training = dataclasses.replace(fake_results.BASE.training, **changes)
    return dataclasses.replace(fake_results.BASE, training=training)


def entries_of(study: Study, folder: Path) -> dict[str, mlflow_runs.Tracked]:
    """What MLflow is to show of a study, by the names."""
    results = fake_results.write(study, folder)
    return {entry.name: entry for entry in tracked.runs_of(study, results)}


def test_accuracies_by_round_arrive_once_each(tmp_path):
    base = with_training(evaluate_every=2)
    found = entries_of(fake_results.study(seeds=(0,), epsilons=(2.0,), base=base), tmp_path)
    for entry in (found["dp_fedavg eps=2 s0"], found["dp_fedavg eps=2"]):
        curve = [step for name, *_, step in entry.points if name == "by_round/personal_own"]
        assert curve == [2, 4]
        assert [step for name, *_, step in entry.points if name == "personal_own"] == [0]
        assert "personal_own" not in entry.tags.get("not_finite", "")


def test_more_than_a_thousand_metrics_arrive(tree):
    world = World(tree, small("long", methods=("dp_fedavg",), base=with_training(rounds=120)))
    world.sync()
    (run,) = world.runs().values()
    for name in ("participants", "loss", "images_per_second"):
        history = world.client().get_metric_history(run.info.run_id, name)
        assert sorted(metric.step for metric in history) == list(range(1, 121))


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    write_json(path, {key: value for key, value in content.items() if key != DIGEST})


# ---------------------------------------------------------------- settings and their seeds


def test_names_have_the_epsilon_that_holds_and_tell_all_rows_apart(tmp_path):
    """And two seeds have no interval."""
    study = fake_results.study(seeds=(0, 1))
    results = fake_results.write(study, tmp_path)
    for cell in study.cells:
        if cell.departures and cell.privacy.epsilon == 2.0:
            epsilon = (20.0, 25.6912)[cell.seed]  # each seed has other numbers of examples
            held = {"epsilon_central": epsilon, "claim": "nominal"}
            plan = results / "plans" / f"{cell.plan_id}.json"
            edit(plan, lambda plan, held=held: plan["ledger"].update(held))
    tidy.write(tidy.tidy(study, results), results / "tables" / f"{study.name}.csv")
    entries = tracked.runs_of(study, results)
    assert not any(name.startswith("interval/") for one in entries for name, *_ in one.points)
    names = [entry.name for entry in entries]
    assert len(set(names)) == len(names)
    settings = {name for name in names if name[-3:-1] != " s"}
    assert settings == set(TABLES["NAMES"])
    assert {"feddpa eps=20 (official) s0", "feddpa eps=25.7 (official) s1"} < set(names)
    alike = settings - {"study tiny", "feddpa eps=25.7 (official)"}
    assert {f"{name} s{seed}" for name in alike for seed in (0, 1)} < set(names)


def test_a_setting_has_the_means_of_its_seeds_with_their_interval(tmp_path):
    study = fake_results.study(epsilons=(2.0,), methods=("dp_fedavg",))
    shown = entries_of(study, tmp_path)
    numbers = {name: value for name, value, *_ in shown["dp_fedavg eps=2"].points}
    scores = pd.read_csv(tmp_path / "results/scores/tiny/dp_fedavg.csv").set_index("cell")
    means = [scores.loc[cell.id, "personal_own"].mean() for cell in study.cells]
    # 4.302652729911275 is the 97.5 % point of Student's t with two degrees of freedom.
    reach = 4.302652729911275 * np.std(means, ddof=1) / 3**0.5
    assert numbers["personal_own"] == pytest.approx(np.mean(means), abs=1e-9)
    assert numbers["interval/personal_own_low"] == pytest.approx(np.mean(means) - reach, abs=1e-6)
    assert numbers["interval/personal_own_high"] == pytest.approx(np.mean(means) + reach, abs=1e-6)
    assert numbers["seeds"] == 3

    def curve(entry: str) -> list[float]:
        return [value for name, value, *_ in shown[entry].points if name == "loss"]

    losses = [curve(f"dp_fedavg eps=2 s{seed}") for seed in range(3)]
    assert curve("dp_fedavg eps=2") == pytest.approx(np.mean(losses, axis=0))
    below = [shown[f"dp_fedavg eps=2 s{seed}"] for seed in range(3)]
    assert [*shown["dp_fedavg eps=2"].seeds] == below
    assert not any(entry.seeds for entry in (shown["study tiny"], *below))


# ---------------------------------------------------------------- when it is written


def test_a_method_is_written_once_as_soon_as_it_is_tested(world):
    first, second = world.study.cells
    marker = world.marker.with_name("fedavg.done")
    scores = world.results / f"scores/{world.study.name}"
    (scores / f"{second.method}.csv").rename(scores / "aside")
    (world.results / "tables" / f"{world.study.name}.csv").unlink()
    assert tidy.tested(world.study, world.results).methods == (first.method,)
    text = mlflow_export.export_or_warn(world.study, world.results, marker, methods=[first.method])
    assert text.startswith("done: 1 of 2 runs (1 new, 0 kept, 0 replaced)")
    early = world.entries()
    status = {run.info.run_name: run.info.status for run in early.values()}
    assert status == dict.fromkeys(("fedavg eps=inf", "fedavg eps=inf s0"), "FINISHED")
    (scores / "aside").rename(scores / f"{second.method}.csv")
    assert world.sync().startswith("done: 2 runs (1 new, 1 kept, 0 replaced)")
    late = world.entries()
    assert len(late) == 5
    assert all(run.info.run_id == late[key].info.run_id for key, run in early.items())


def test_only_the_copy_of_the_whole_study_warns_of_an_outage(world, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    place = world.results, world.marker
    for methods, warnings in ((["fedavg"], 0), (None, 1)):
        text = mlflow_export.export_or_warn(world.study, *place, methods=methods)
        assert text.startswith("pending: ")
        assert capsys.readouterr().err.count("warning") == warnings


def test_writers_of_one_folder_take_turns_and_do_not_wait_for_ever(world, monkeypatch):
    monkeypatch.setattr(mlflow_export, "PATIENCE", 0.0)
    with open(world.results / ".mlflow.lock", "a") as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # a writer wants it for itself alone
        text = world.sync()
    assert "/.mlflow.lock' could not be acquired" in text
    assert text.endswith("; wait until nobody else writes to it")
    assert world.sync().startswith("done: 2 runs (2 new")


def test_a_folder_of_any_name_has_database_and_files_in_its_results(tmp_path, tree, monkeypatch):
    folder = tmp_path / "a folder? #1 100%25"
    (folder / "results").mkdir(parents=True)
    monkeypatch.chdir(folder)
    shutil.copy(tree / "results/mlflow.db", "results/mlflow.db")
    world = World(Path(), small("anywhere", methods=("fedavg",)))
    assert " in experiment anywhere at sqlite:///results/mlflow.db, page http" in world.sync()
    assert world.files(world.entries()["study"]) >= {"table/anywhere.csv"}
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert not Path("mlruns").exists()


def test_a_folder_of_results_of_any_name_is_where_an_address_says(tmp_path):
    results = tmp_path / "my results #1 100%25"
    address = mlflow_export.address_of(results, None)
    assert mlflow_export.database_file(address) == results / "mlflow.db"
    assert mlflow_export.without_credentials(address) == address
    quoted = f"sqlite:///file:{tmp_path}/what%3F.db?mode=ro&uri=true"
    assert mlflow_export.database_file(quoted) == tmp_path / "what?.db"
    with pytest.raises(ConfigError, match=r"sqlite:///file.db without '\?'"):
        mlflow_export.address_of(tmp_path / "results?", None)


def test_files_are_found_after_the_folder_has_moved(tmp_path, tree, request):
    shutil.copy(tree / "results/mlflow.db", tmp_path / "mlflow.db")
    world = World(tmp_path, small("moved", methods=("fedavg",)))
    shutil.move(tmp_path / "mlflow.db", world.results)
    world.sync()
    moved = tmp_path / "else where?#%20"
    world.results.rename(moved)
    server = Server(moved).start()
    request.addfinalizer(server.kill)
    run = world.entries(server.uri)["study"].info.run_id
    path = world.client(server.uri).download_artifacts(run, "table/moved.csv", str(tmp_path))
    assert Path(path).read_bytes() == (moved / "tables/moved.csv").read_bytes()


# ---------------------------------------------------------------- idempotence


def test_a_second_sync_keeps_every_run_and_writes_the_same_words(world, monkeypatch):
    monkeypatch.setattr(mlflow_export, "PAGE", 2)  # of five runs
    assert "(2 new, 0 kept, 0 replaced)" in world.sync()
    before = {cell: run.info.run_id for cell, run in world.runs().items()}
    text, _, page = world.sync().partition(", page ")
    experiment = world.client().get_experiment_by_name(world.study.name).experiment_id
    view = f"#/experiments/{experiment}/runs?{mlflow_export.PAGE_OPTIONS}"
    assert page == f"http://127.0.0.1:5000/{view}"
    place = f"{world.study.name} at sqlite:///{world.results.resolve() / 'mlflow.db'}"
    assert text == f"done: 2 runs (0 new, 2 kept, 0 replaced) in experiment {place}"
    assert {cell: run.info.run_id for cell, run in world.runs().items()} == before
    assert world.marker.read_text().startswith("done: ")


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    if path.suffix == ".json":
        edit(path, lambda content: content.update(json.loads(text.replace(old, new))))
    else:
        path.write_text(text.replace(old, new))


def test_a_changed_result_replaces_its_own_group_only(world):
    world.sync()
    first, cell = world.study.cells
    run = world.results / "runs" / registry.run_id(cell)
    (score,) = re.findall(f"{cell.id},0,14,([0-9.]+),", scores_of(world, cell).read_text())
    for path, old, new in (
        (world.results / "plans" / f"{cell.plan_id}.json", "12.0", "13.0"),
        (run / "run.json", "9640.0", "9650.0"),
        (run / "timing.csv", "0.25", "0.35"),
        (run / "rounds.csv", "0.4,0.9", "0.5,0.9"),
        (scores_of(world, cell), f",14,{score}", ",14,99.5"),
    ):
        known = digests(world)
        change(path, old, new)
        others = {key for key, digest in digests(world).items() if digest != known[key]}
        assert others == {f"setting {cell.id}"}, path
    before = world.runs()
    assert "(0 new, 1 kept, 1 replaced)" in world.sync()
    after = world.runs()
    assert after[first.id].info.run_id == before[first.id].info.run_id
    assert after[cell.id].info.run_id != before[cell.id].info.run_id


def digests(world: World) -> dict[str, str]:
    """The digest by which a sync knows whether a group is the one that it wrote, by its key."""
    runs = mlflow_runs.of_study(world.study, world.results, world.study.methods)
    return {run.key: run.digest for run in runs}


def scores_of(world: World, cell: Cell) -> Path:
    return world.results / f"scores/{world.study.name}/{cell.method}.csv"


@pytest.mark.parametrize("step", ["create_run", "log_batch", "set_terminated", "delete_run"])
def test_an_interrupted_sync_is_repaired_by_the_next(step, world, monkeypatch):
    from mlflow.tracking import MlflowClient

    if step == "delete_run":  # there must be something to replace
        world.sync()
        run = world.results / "runs" / registry.run_id(world.study.cells[1])
        change(run / "timing.csv", "0.25", "0.35")
    work, calls = getattr(MlflowClient, step), list[int]()

    def killed(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return work(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, step, killed)
        with pytest.raises(KeyboardInterrupt):
            world.sync()
    world.sync()
    assert len(world.entries()) == 5
    assert {run.info.status for run in world.entries().values()} == {"FINISHED"}
    assert "(0 new, 2 kept, 0 replaced)" in world.sync()


def test_the_studys_files_are_there_once_and_a_new_figure_replaces_the_old(world):
    figures = world.results / "figures" / world.study.name
    figures.mkdir(parents=True)
    for content in (b"first", b"second"):
        (figures / "noise.png").write_bytes(content)
        world.sync()
        shown = world.entries()["study"]
        plans = {f"ledger/{cell.plan_id}.json" for cell in world.study.cells}
        assert world.files(shown) == {"figures/noise.png", f"table/{world.study.name}.csv", *plans}
        everywhere = (world.results / "mlartifacts" / world.study.name).rglob("noise.png")
        assert [path.read_bytes() for path in everywhere] == [content]


def test_runs_of_cells_that_left_the_study_are_deleted(world):
    world.sync()
    whole = world.study
    world.study = dataclasses.replace(whole, rows=whole.rows[:1])
    assert "done: 1 run (0 new, 1 kept, 0 replaced)" in world.sync()
    assert set(world.runs()) == {whole.cells[0].id}
    world.study = whole
    assert "done: 2 runs (1 new, 1 kept, 0 replaced)" in world.sync()


def test_of_two_equal_groups_one_is_kept(world, monkeypatch):
    with monkeypatch.context() as patch:  # as another machine that did not see these
        patch.setattr(mlflow_export._Experiment, "_search", lambda *_: [])
        world.sync()
        world.sync()
    assert "(0 new, 2 kept, 0 replaced)" in world.sync()
    assert len(world.entries()) == 5


def test_a_users_own_runs_and_a_deleted_experiment_are_respected(world):
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


@pytest.mark.faults
def test_a_server_gets_the_same_runs_and_its_death_costs_nothing(
    world, tree, tmp_path, monkeypatch, request
):
    """What it is sent, and what is said of its death: tests/faults/test_mlflow_outages.py."""
    # A copy of the database, because its first migration takes most of the time.
    server = Server(tmp_path, copy=tree / "results" / "mlflow.db").start()
    request.addfinalizer(server.kill)
    uri = server.uri
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)  # wins over the configured address
    said = world.sync("sqlite:////nowhere/at/all.db")
    assert f" at {uri}, page {uri}/#/experiments/" in said
    assert set(world.runs(uri)) == {cell.id for cell in world.study.cells}
    assert "(0 new, 2 kept, 0 replaced)" in world.sync()
    server.kill()
    assert world.sync().startswith(f"pending: {uri} did not take study {world.study.name} (")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert "(2 new, 0 kept, 0 replaced)" in world.sync()


def test_mlflow_is_told_to_be_brief_and_quiet(world):
    world.sync(f"http://127.0.0.1:{free_port()}")
    assert [os.environ[name] for name in SETTINGS[1:]] == ["1", "5", "true", "true"]


@pytest.mark.parametrize("uri", TABLES["BAD_ADDRESSES"])
def test_an_address_that_cannot_work_is_the_users_to_mend(uri, tmp_path):
    world = World(tmp_path, small("addresses", methods=("fedavg",)))
    with pytest.raises(ConfigError, match=r"the MLflow tracking address; got .*; expected"):
        world.sync(uri)
    assert not world.marker.exists()


def test_a_damaged_database_stops_nothing_and_is_one_clear_line(tmp_path, capsys):
    world = World(tmp_path, small("damaged", methods=("fedavg",)))
    (world.results / "mlflow.db").write_bytes(b"not a database" * 100)
    assert world.sync().startswith("pending: ")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: ")
    assert "mlflow.db did not take study damaged (" in line
    assert "move that file away; the next run writes everything again" in line
