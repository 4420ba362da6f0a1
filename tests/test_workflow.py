"""The real workflow on a tiny study: what it makes, what an edit repeats, and how it ends when
something is wrong."""

import ast
import csv
import gzip
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fake_audits
import malformed
import once
import pflpipe
import tabled
import tracked
import warm
from pflpipe.errors import ConfigError, PflpipeError
from pflpipe.pipeline import certificate, run
from pflpipe.report import tidy
from pflpipe.report.figures import kinds
from pflpipe.study import config, figures
from pflpipe.study.check import validate
from pflpipe.study.epsilon_as_published import as_published
from pflpipe.study.load import load_outline, load_study
from pflpipe.study.plans import CLASSES_FOUND, REFERENCE

pytestmark = pytest.mark.pipeline
TABLES = tabled.table("test_workflow")

ROOT = Path(__file__).resolve().parent.parent
STUDY = TABLES["STUDY"]
METRIC = TABLES["METRIC"]
AUDITED = ("gaussian-central", "gaussian-scaled_by_fedaddp-central")
AFTER_TABLE = {"table", "track", "all_csv", "ledger", "report"}
AFTER_TESTS = {"evaluate", "track_method", "figure", *AFTER_TABLE}


def environment(**more: str) -> dict[str, str]:
    """The environment without an MLflow server of the tester's own."""
    return {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"} | more


def snakemake(folder: Path, *words: str, code: int = 0, **more: str) -> Any:
    """Run snakemake, which ends with this code."""
    result = warm.snakemake(folder, ("--cores", "2", *words), environment(**more))
    assert result.returncode == code, result.stdout + result.stderr
    return result


def python(folder: Path, program: str, *words: str, **more: str) -> Any:
    """Run a program, which succeeds, with these words as its ``sys.argv``."""
    result = warm.python(program, words, folder, environment(**more))
    assert result.returncode == 0, result.stderr
    return result


def write_study(folder: Path, name: str = "tiny", **changes: Any) -> None:
    malformed.write(folder / f"studies/{name}.yaml", STUDY | changes)


def to_do(folder: Path, *targets: str) -> set[tuple[str, str]]:
    """Return (rule, file) for all files that the next run would make."""
    result = snakemake(folder, "--summary", *targets)
    lines = [line.split("\t") for line in result.stdout.splitlines()]
    return {(line[2], line[0]) for line in lines[1:] if line[-1] != "no update"}


def rules(jobs: set[tuple[str, str]]) -> set[str]:
    return {rule for rule, _ in jobs}


def methods(jobs: set[tuple[str, str]]) -> set[str]:
    """Methods whose cells are trained or tested again."""
    files = [file for rule, file in jobs if rule in ("train", "evaluate")]
    return {name for name in ("local_only", "feddpa") if any(name in file for file in files)}


def append(path: Path, text: str = "\nedited = True\n") -> None:
    with path.open("a") as file:
        file.write(text)


# Bytecode that another process is writing has such a name, and may be gone before it is copied.
NOT_COPIED = shutil.ignore_patterns("*.egg-info", "*.pyc.*")


def write_project(folder: Path) -> None:
    for name in ("workflow", "src", "profiles", "envs"):
        shutil.copytree(ROOT / name, folder / name, ignore=NOT_COPIED)
    for name in ("Snakefile", "config.yaml", "README.md"):
        shutil.copy(ROOT / name, folder)
    (folder / "studies").mkdir()
    write_study(folder)
    (folder / "studies/broken.yaml").write_text("title: [")  # not requested, so it disturbs nothing
    malformed.put("studies", ["tiny"], "config.yaml")(folder)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this repository in which the tiny study is done; made once, also when several
    processes run the tests.

    Two audits are real, the others made up: auditing everything takes six minutes (tests/audit
    audits for real).
    """

    def make(folder: Path) -> None:
        write_project(folder)
        fake_audits.write(folder / "results/audits", leave_out=AUDITED)
        snakemake(folder)

    return once.folder(tmp_path_factory, "finished", make)


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    """The finished project, to be edited."""
    return Path(shutil.copytree(finished, tmp_path / "project", ignore=NOT_COPIED))


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A project in which nothing is done."""
    write_project(tmp_path)
    return tmp_path


def add_data(folder: Path, **changes: Any) -> None:
    """A data set of the user's own, which the config names."""
    malformed.arrays(folder, **changes)
    malformed.put("datasets", {"mine": "mine.npz"}, "config.yaml")(folder)


def table_of(folder: Path, name: str = "tiny") -> list[dict[str, str]]:
    with (folder / f"results/tables/{name}.csv").open() as file:
        return list(csv.DictReader(file))


# ---------------------------------------------------------------- what is made


def test_one_command_makes_tables_figures_mlflow_runs_and_a_report(finished):
    """With the threads that its jobs were given."""
    results = finished / "results"
    tables = ("tables/all.csv", "tables/tiny.csv", "tables/tiny.md", "tables/tiny.tex")
    assert all((results / name).stat().st_size > 0 for name in (*tables, "mlflow.db"))
    figures = ("privacy_utility", "gains", "cost", "convergence", "partition")
    made = {file.name for file in (results / "figures/tiny").iterdir()}
    assert made == {f"{name}.{kind}" for name in figures for kind in ("png", "svg", "pdf")}
    # One by one beside the training, and then found.
    assert (results / "tracking/tiny.done").read_text().startswith("done: 2 runs (0 new, 2 kept")
    for method in ("local_only", "feddpa"):
        marker = (results / f"tracking/tiny/{method}.done").read_text()
        assert marker.startswith("done: 1 of 2 runs (1 new")
    assert (results / "tables/all.csv").read_bytes() == (results / "tables/tiny.csv").read_bytes()
    assert list((results / "checkpoints").glob("*")) == []
    runs = [json.loads(file.read_text()) for file in results.glob("runs/*/run.json")]
    assert [run["program"]["threads"] for run in runs] == [1, 1]
    report = (results / "report.html").read_text()
    picture = 'src="data:image/png;base64,'
    for words in ("Two methods on five clients.", picture, "-- results/report.html"):
        assert words in report


def test_a_number_has_one_name_and_one_value_wherever_it_is_shown(finished, tmp_path, monkeypatch):
    """Also beside curves over a part of the clients, which other numbers come of."""
    monkeypatch.chdir(finished)
    study, results, data = load_study("tiny"), Path("results"), Path("data")
    texts = {name: (results / name).read_text() for name in ("report.html", "ledger.html")}
    texts |= {kind: (results / f"tables/tiny.{kind}").read_text() for kind in ("md", "tex")}
    # Made-up audits have no place in a certificate.
    shutil.copytree("results", tmp_path / "results", ignore=shutil.ignore_patterns("audits"))
    claims = json.loads(certificate.write(study, tmp_path / "results", data).read_text())["rows"]
    texts["verdict page"] = run.write_page(load_outline("tiny"), tmp_path / "results").read_text()
    drawn = kinds.draw(study, figures.find(study, "privacy_utility"), results, data)
    marks = {float(x) for axes in drawn.axes for line in axes.lines for x in line.get_xdata()}
    with sqlite3.connect(results / "mlflow.db") as base:
        key = "tags.run_uuid = latest_metrics.run_uuid and tags.key = 'pflpipe.key'"
        query = "select tags.value, latest_metrics.key, latest_metrics.value from latest_metrics"
        stored = base.execute(f"{query} join tags on {key}").fetchall()
    kept = {(key, name): value for key, name, value in stored}
    for row, claim in zip(tidy.stored(study, results).to_dict("records"), claims, strict=True):
        cell = next(one for one in study.cells if one.id == row["cell"])
        seen = {name: row[name] for name in study.columns if row[name] is not None}
        assert seen.keys() >= {"personal_own", "personal_own_worst_decile", "personal_common"}
        for key in (cell.id, f"setting {cell.id}"):
            shown = {name: kept.get((key, name)) for name in (*seen, "epsilon_central")}
            assert shown == seen | {"epsilon_central": row["epsilon_central"]}, key
            assert kept[key, "by_round/personal_own"] != seen["personal_own"]
        result = pflpipe.run(cell, data)
        known = {name: value for name, value in result.accuracies.items() if value == value}
        assert known == {name: seen[name] for name in known}
        assert result.ledger.epsilon_central == row["epsilon_central"]
        assert claim["cell"] == cell.id
        assert claim["epsilons"]["central"] == row["epsilon_central"]
        assert {*study.columns} <= {*claim["diagnostics"]}
        own = seen["personal_own"]
        assert min(abs(mark - own) for mark in marks) < 1e-9
        for name, text in texts.items():
            if name != "ledger.html" or cell.privacy.mechanism != "none":
                assert f"{own:.1f}" in text, name


def test_figures_drawn_by_themselves_are_those_of_the_study(finished, tmp_path, monkeypatch, ran):
    monkeypatch.chdir(finished)
    ran("figures", "tiny", "cost", "--out", tmp_path)
    for kind in ("png", "svg", "pdf"):
        drawn = (tmp_path / f"cost.{kind}").read_bytes()
        assert drawn == (finished / f"results/figures/tiny/cost.{kind}").read_bytes()
    assert {file.stem for file in tmp_path.iterdir()} == {"cost"}


@pytest.mark.docs
def test_a_study_goes_from_its_search_to_the_page_of_results_which_needs_no_results(fresh):
    searched = {"name": "feddpa", "search": {"training.lr": [0.1, 0.5]}}
    methods = [{"name": "local_only"}, {"name": "dp_fedavg"}, searched]
    search = {"seeds": [100], "validation_fraction": 0.3}
    write_study(fresh, "small", seeds=[0, 1, 2], search=search, methods=methods)
    snakemake(fresh, "results/tables/small.csv")

    program = f"import runpy, sys; sys.path.insert(0, {str(ROOT / 'tools')!r}); "
    program += "runpy.run_module('pages', run_name='__main__')"
    python(fresh, program, "pages", "results", "small")
    page = fresh / "docs/results/small.md"
    text = page.read_text()
    shutil.rmtree(fresh / "results")
    page.unlink()
    python(fresh, program, "pages", "results")
    assert page.read_text() == text
    shutil.rmtree(fresh / ".snakemake")  # as on another machine
    (fresh / "results/searches").mkdir(parents=True)
    chosen = gzip.decompress((fresh / "docs/results/small/search.json.gz").read_bytes())
    (fresh / "results/searches/small.json").write_bytes(chosen)
    rest = snakemake(fresh, "--dry-run", "results/scores/small/feddpa.csv")
    assert re.search(r"^train +3$", rest.stdout, re.MULTILINE), "its own runs, and no trials"
    picture = "small/privacy_utility.png"
    assert (page.parent / picture).read_bytes().startswith(b"\x89PNG")
    answer = ("# Tiny\n\nAt ε = 8, ", f"]({picture})", "| feddpa | ε = 8 | ", "Measured on ")
    for words in (*answer, "Hyper-parameters were chosen on validation data"):
        assert words in text


def test_a_metric_from_a_file_is_wherever_numbers_are_and_its_edit_trains_nothing(fresh):
    (fresh / "studies/mine.py").write_text(METRIC)
    search = {"seeds": [100], "validation_fraction": 0.3, "metric": "doubt"}
    methods = [{"name": "fedavg", "search": {"training.lr": [0.1, 0.5]}}]
    shown = {"metrics": ["mine.py:doubt"], "figures": {"cost": {"metric": "doubt_personal_own"}}}
    write_study(fresh, "small", search=search, methods=methods, **shown)
    results = fresh / "results"
    snakemake(fresh, "results/tables/small.csv", "results/tracking/small.done")
    (row,) = table_of(fresh, "small")
    own = pd.read_csv(results / "scores/small/fedavg.csv")["doubt_personal_own"]
    assert float(row["doubt_personal_own"]) == max(own), "averaged as the file says"
    assert "| own doubt, personal own |" in (results / "tables/small.md").read_text()
    assert "Own doubt (less is better)" in (results / "figures/small/cost.svg").read_text()
    with sqlite3.connect(results / "mlflow.db") as base:
        found = base.execute("select value from latest_metrics where key = 'doubt_personal_own'")
        assert {value for (value,) in found} == {float(row["doubt_personal_own"])}
    (line,) = json.loads((results / "searches/small.json").read_text())["lines"]
    reached = [one["doubt_personal_validation"] for one in line["candidates"]]
    assert line["chosen"]["index"] == reached.index(min(reached))
    (fresh / "studies/mine.py").write_text(METRIC.replace("1 -", "2 -"))
    assert rules(to_do(fresh, "results/scores/small/search/fedavg.csv")) == {"evaluate"}


def test_the_hooks_say_at_the_end_where_everything_is(project):
    (project / "results/tables/tiny.csv").unlink()
    program = "from snakemake.cli import main; main()"
    result = python(project, program, "snakemake", "--cores", "1", "results/tables/tiny.csv")
    assert "tiny: results/tables/tiny.md, .tex, .csv" in result.stderr.splitlines()
    assert not (project / "logs/planned.json").exists()


def test_settings_on_the_command_line_win(project):
    malformed.arrays(project)
    mine = json.dumps({"mine": "mine.npz"})
    write_study(project, "second", dataset="mine")
    words = ("results_dir=out", "data_dir=arrays", "studies=[second]", f"datasets={mine}")
    result = snakemake(project, "--summary", "--config", *words)
    files = [line.split("\t")[0] for line in result.stdout.splitlines()[1:]]
    assert {"out/tables/all.csv", "out/tables/second.csv", "arrays/mine.npz"} <= set(files)
    assert all(file.startswith(("out/", "arrays/")) for file in files)


# ---------------------------------------------------------------- what an edit repeats


def test_nothing_is_done_twice_nor_after_edits_that_mean_the_same_or_say_how_to_run(project):
    """Comments, docstrings, another layout, touches, a new method, the readme and how to run, all
    at once, as a pull brings them: each alone would show which rule it disturbs."""
    append(project / "README.md")
    append(project / "config.yaml", "\n# a word\n")
    malformed.put("backend", "loop", "config.yaml")(project)
    malformed.put("checkpoint_seconds", 5, "config.yaml")(project)
    package = project / "src/pflpipe"
    helper = package / "trees.py"
    code = helper.read_text()
    assert code.count('"""') > 2
    one_line = ast.unparse(ast.parse(code))  # without comments, and laid out otherwise
    helper.write_text("# A comment.\n" + one_line.replace('"""', '"""Other words. ', 1))
    append(package / "methods/feddpa.py", "\n# an edit\n")
    append(package / "simulation/rounds.py", '\n"""What was said above."""\n')
    shutil.copy(ROOT / "docs/examples/easgd.py", package / "methods")
    pulled = (path for path in project.rglob("*") if "results" not in path.parts)
    for file in (path for path in pulled if ".snakemake" not in path.parts):
        if file.is_file() and file.suffix in (".py", ".smk", ".yaml", ".html", ""):
            file.touch()
    assert to_do(project) == set()
    assert "Nothing to be done" in snakemake(project, "results/tables/all.csv").stderr


def test_a_changed_operator_in_a_helper_repeats_what_imports_its_file(project):
    malformed.text("value + b[name]", "value - b[name]", "src/pflpipe/trees.py")(project)
    jobs = to_do(project, "results/tables/tiny.csv")
    assert {"train", "evaluate", "table"} <= rules(jobs)
    assert methods(jobs) == {"local_only", "feddpa"}
    assert not {"data", "partition"} & rules(jobs)  # neither adds up any tree


def edited(file: str) -> malformed.Damage:
    return lambda project: append(project / "src/pflpipe" / file)


TAU = malformed.put("methods.1.hyperparameters", {"tau": 0.2}, "studies/tiny.yaml")
EDITS = {
    "a method's file": (edited("methods/feddpa.py"), {"train", *AFTER_TESTS}, {"feddpa"}),
    "a hyper-parameter of a method": (TAU, {"train", *AFTER_TESTS}, {"feddpa"}),
    "the evaluation": (edited("simulation/scores.py"), AFTER_TESTS, {"feddpa", "local_only"}),
    "tables, which figures read": (edited("report/tables.py"), {"figure", *AFTER_TABLE}, set()),
}


@pytest.mark.parametrize(("edit", "repeated", "of"), EDITS.values(), ids=EDITS)
def test_an_edit_repeats_what_depends_on_it_and_nothing_else(project, edit, repeated, of):
    edit(project)
    jobs = to_do(project)
    assert rules(jobs) == repeated
    assert methods(jobs) == of


def test_an_edit_of_a_method_repeats_the_audits_of_scales_that_import_it(project):
    """No row of the study is of the method that has such a scale."""
    edited("methods/feddpa.py")(project)
    jobs = to_do(project, "results/tables/audit.csv")
    audited = {Path(file).stem for rule, file in jobs if rule == "audit"}
    assert audited == {"gaussian-scaled_by_fedaddp-central"}


def test_a_second_study_trains_only_its_own_cells(project):
    write_study(project, "second", methods=[{"name": "feddpa"}, {"name": "dp_fedavg"}])
    malformed.put("studies", ["second", "tiny"], "config.yaml")(project)
    trained = [file for rule, file in to_do(project) if rule == "train"]
    assert ["dp_fedavg" in file for file in trained] == [True]


def test_a_study_in_batches_trains_every_run_once_and_has_its_table_after_the_last(project):
    write_study(project, seeds=[1, 2, 3])
    table = "results/tables/tiny.csv"

    def batch(number: int) -> dict[Path, int]:
        snakemake(project, "--batch", f"table={number}/3", "--", table)
        done = project.glob("results/runs/*-seed[123]-*/run.json")
        return {file: file.stat().st_mtime_ns for file in done}

    (project / table).unlink()
    first, second = batch(1), batch(2)
    assert not (project / table).exists()
    last = batch(3)
    assert len(first) < len(last) == 6
    assert first.items() <= second.items() <= last.items()
    assert set(pd.read_csv(project / table)["seed"]) == {1, 2, 3}


@pytest.mark.faults
def test_changed_data_are_refused_under_their_old_name_and_used_under_a_new_one(fresh):
    add_data(fresh)
    local = [{"name": "local_only"}]  # a method without audits
    write_study(fresh, dataset="mine", methods=local)
    made, pin = fresh / "data/mine.npz", fresh / "data/mine.pin"
    table = "results/tables/tiny.csv"
    snakemake(fresh, table)
    first = made.read_bytes(), pin.read_bytes()

    # Snakemake takes the old data away before the job, which makes nothing of the new ones, however
    # often it is tried.
    malformed.arrays(fresh, train_labels=np.arange(60)[::-1] % 3)
    for target in (table, "data/mine.npz"):
        snakemake(fresh, target, code=1)
        (line,) = (fresh / "logs/data/mine.log").read_text().splitlines()
        refused = "error: data set 'mine' has other values than when it was first used; expected "
        assert line.startswith(f"{refused}the values")
        assert "give the new values a name of their own" in line
        assert not made.exists()
        assert pin.read_bytes() == first[1]

    # What was there before is made again from the old values, and nothing is repeated for those of
    # a name of their own.
    (fresh / "mine.npz").rename(fresh / "changed.npz")
    malformed.arrays(fresh)
    snakemake(fresh, "data/mine.npz")
    assert (made.read_bytes(), pin.read_bytes()) == first
    malformed.put("datasets", {"mine": "mine.npz", "mine_2": "changed.npz"}, "config.yaml")(fresh)
    axes = {"dataset": ["mine", "mine_2"]}
    write_study(fresh, "second", dataset="mine", methods=local, axes=axes)
    jobs = to_do(fresh, table, "results/tables/second.csv")
    # The data of a name of the user's own tell what their plan warns of.
    assert rules(jobs) == {"data", "partition", "plan", "train", "evaluate", "table"}
    assert {file for rule, file in jobs if rule == "data"} == {"data/mine_2.npz"}
    (plan,) = (file for rule, file in jobs if rule == "plan")
    assert all("mine_2" in file or "/second" in file for _, file in jobs if file != plan)


def test_the_plan_of_data_that_declare_no_classes_warns_of_that_first(fresh):
    """And a data set that declares them beside it, in the same study, has a plan of its own. What
    else is warned of: test_plans.py."""
    fake_audits.write(fresh / "results/audits")
    for name, classes in (("declared", np.int64(3)), ("found", None)):
        malformed.arrays(fresh, classes=classes)
        (fresh / "mine.npz").rename(fresh / f"{name}.npz")
    files = {name: f"{name}.npz" for name in ("declared", "found")}
    malformed.put("datasets", files, "config.yaml")(fresh)
    axes, methods = {"dataset": list(files)}, [{"name": "dp_fedavg"}]
    write_study(fresh, dataset="found", axes=axes, methods=methods)
    snakemake(fresh, "results/tables/tiny.csv")
    plans = [json.loads(file.read_text()) for file in (fresh / "results/plans").glob("*.json")]
    short, long = sorted((plan["ledger"]["warnings"] for plan in plans), key=len)
    assert long == [CLASSES_FOUND, *short]
    summary = (fresh / "results/tables/tiny.md").read_text()
    assert summary.count(f"Warning: {CLASSES_FOUND}.") == 1


def test_features_are_made_once_and_a_changed_block_repeats_only_what_is_made_of_them(fresh):
    fake_audits.write(fresh / "results/audits")
    pictures = np.random.default_rng(0).integers(0, 256, (60, 28, 28), np.uint8)
    np.savez(fresh / "public.npz", train_images=pictures, train_labels=np.arange(60) % 10)
    malformed.put("datasets", {"fashion_mnist": "public.npz"}, "config.yaml")(fresh)
    block = {"kind": "scattering", "scales": 1, "reference": "fashion_mnist"}
    linear = {"model": {"name": "mlp", "hidden": []}, "methods": [{"name": "dp_fedavg"}]}
    write_study(fresh, features=block, **linear)
    table = "results/tables/tiny.csv"
    snakemake(fresh, table)
    assert not to_do(fresh, table)
    (row,) = table_of(fresh)
    assert json.loads(row["hyperparameters"])["features.reference"] == "fashion_mnist"
    warning = REFERENCE.format(r"fashion\_mnist")
    assert f"Warning: {warning}." in (fresh / "results/tables/tiny.md").read_text()

    # Python makes the same features of the same data, and the same numbers of them.
    (cell,) = load_study("tiny", fresh / "studies", fresh / "results").cells
    (fresh / "again").mkdir()
    for name in ("digits", "fashion_mnist"):
        shutil.copy(fresh / f"data/{name}.npz", fresh / "again")
    result = pflpipe.run(cell, fresh / "again", device="cpu")
    pins = [(fresh / folder / f"{cell.data_id}.pin") for folder in ("data", "again")]
    assert pins[0].read_text() == pins[1].read_text()
    assert result.accuracies["personal_own"] == pytest.approx(float(row["personal_own"]))

    write_study(fresh, features=block | {"clip": 0.5}, **linear)
    jobs = to_do(fresh, table)
    assert rules(jobs) == {"features", "train", "evaluate", "table"}
    assert len([file for rule, file in jobs if rule == "features"]) == 1


def test_a_large_data_file_that_only_looks_newer_is_not_prepared_again(fresh):
    add_data(fresh, train_images=np.zeros((60, 150, 150), np.uint8))
    result = snakemake(fresh, "data/mine.npz")
    assert result.stdout.splitlines()[:2] == [
        "mine: 60 rows, 3 classes, images of 150 x 150 pixels",
        "warning: mine: test rows are copies of training rows: leave out copies",
    ]
    assert (fresh / "mine.npz").stat().st_size > 1_000_000  # Snakemake's own limit
    (fresh / "mine.npz").touch()
    assert to_do(fresh, "data/mine.npz") == set()


def test_results_that_are_only_touched_after_their_data_changed_are_not_taken_for_new(fresh):
    add_data(fresh)
    write_study(fresh, dataset="mine")
    snakemake(fresh, "data/mine.npz")
    first = (fresh / "mine.npz").read_bytes()
    malformed.arrays(fresh, train_labels=np.arange(60)[::-1] % 3)
    snakemake(fresh, "--touch", "data/mine.npz")
    refused = snakemake(fresh, "data/mine.npz", code=2).stderr
    words = "datasets.mine: data/mine.npz was made of another file; got 'mine.npz'; write the old"
    assert words in refused
    (fresh / "mine.npz").write_bytes(first)
    snakemake(fresh, "--touch", "data/mine.npz")
    assert to_do(fresh, "data/mine.npz") == set()


def test_the_command_finds_in_mlflow_what_the_workflow_put_there(finished):
    program, source = "from pflpipe.pipeline.cli import main; main()", str(finished / "src")
    result = python(finished, program, "pflpipe", "track", "tiny", PYTHONPATH=source)
    (line,) = result.stdout.splitlines()
    assert line.startswith("done: 2 runs (0 new, 2 kept, 0 replaced) in experiment tiny at sqlite")


def test_a_verdict_leaves_in_mlflow_what_the_workflow_leaves_there(project, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.setattr(run, "_snakemake", lambda *_: None)  # all is done
    with tracked.environment():
        # In full: MLflow keeps a database open by its address, also after a change of the folder.
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{project}/results/mlflow.db")
        *_, last = run.lines(run.Wish("tiny"))
    marker = (project / "results/tracking/tiny.done").read_text()
    assert marker.startswith("done: 2 runs (0 new, 2 kept, 0 replaced)"), "every number is the same"
    assert last.startswith("MLflow: ")
    assert "/runs?viewStateShareKey=pflpipe&workflowType=machine_learning" in last


def test_an_address_that_cannot_be_mlflows_is_refused_before_anything_starts(project):
    result = snakemake(project, "-n", MLFLOW_TRACKING_URI="ftp://me:secret@host", code=2)
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert "the MLflow tracking address; got 'ftp://host'" in line


def test_a_study_that_mlflow_did_not_take_is_tried_again_once(project):
    (project / "results/tracking/tiny.done").write_text("pending: no server\n")
    assert rules(to_do(project)) == {"track", "all_csv"}
    snakemake(project, "results/tables/all.csv")
    marker = (project / "results/tracking/tiny.done").read_text()
    assert marker.startswith("done: 2 runs (0 new, 2 kept")
    assert to_do(project) == set()


# ---------------------------------------------------------------- what is published


def test_one_command_publishes_the_certified_runs_of_a_study_and_trains_no_others(project):
    write_study(project, "second", methods=[{"name": "fedavg"}, {"name": "dp_fedavg"}])
    jobs = to_do(project, "results/released/second")
    assert rules(jobs) == {"train", "released"}
    assert all("dp_fedavg" in file for rule, file in jobs if rule == "train")
    snakemake(project, "results/released/tiny")
    files = {file.name for file in (project / "results/released/tiny").glob("[!.]*")}
    (run,) = (file.name for file in (project / "results/runs").iterdir() if "feddpa" in file.name)
    assert files == {"README.md", "manifest.json", f"{run}.npz", f"{run}.json"}
    assert to_do(project, "results/released/tiny") == set()


# ---------------------------------------------------------------- searches

SEARCH = TABLES["SEARCH"]


def test_the_export_of_a_method_waits_for_the_plan_of_its_published_version(project):
    """Its row shows the epsilon of the published version too."""
    write_study(project, methods=[{"name": "dp_fedsam"}])
    (cell,) = load_study("tiny", project / "studies").cells
    files = to_do(project, "results/tracking/tiny/dp_fedsam.done")
    assert ("plan", f"results/plans/{as_published(cell).plan_id}.json") in files


def test_a_search_is_run_first_and_the_study_with_what_it_chose(project):
    write_study(project, **SEARCH)
    target = "results/tables/tiny.csv"
    # Before the choice only what leads to it is known, and what does not depend on it.
    first = snakemake(project, "--dry-run", target)
    planned = first.stdout + first.stderr
    assert planned.count("Training digits") == 2
    assert planned.count("Training digits-dirichlet0.5x5-dp_fedavg-eps8-seed100") == 2
    assert "Choosing the hyper-parameters of tiny" in planned

    snakemake(project, target)
    (line,) = json.loads((project / "results/searches/tiny.json").read_text())["lines"]
    assert line["chosen"]["values"] == {"training.lr": 0.5}
    trained = [file.name for file in (project / "results/runs").glob("*dp_fedavg*")]
    assert sorted(name.split("-")[-2] for name in trained) == ["seed0", "seed100", "seed100"]
    rows = {row["method"]: json.loads(row["hyperparameters"]) for row in table_of(project)}
    assert rows["dp_fedavg"]["lr"] == 0.5
    assert "Nothing to be done" in snakemake(project, target).stderr

    # A job on a cluster is told a file, and not how it came to be wanted.
    scores = project / "results/scores/tiny/dp_fedavg.csv"
    before = scores.read_bytes(), scores.stat().st_mtime_ns
    words = ("--mode", "subprocess", "--force", "--allowed-rules", "evaluate")
    snakemake(project, "--target-jobs", "evaluate:study=tiny,method=dp_fedavg", *words)
    assert scores.read_bytes() == before[0]
    assert scores.stat().st_mtime_ns > before[1]

    # A search whose trials were tested again chooses again before the rest is known.
    trials = project / "results/scores/tiny/search/dp_fedavg.csv"
    content = trials.read_bytes()
    trials.write_bytes(content + b"\n")
    assert re.search(r"^choose +1$", snakemake(project, "--dry-run", target).stdout, re.MULTILINE)
    trials.write_bytes(content)

    # Other words choose nothing again; another grid tries what is new, and whatever follows from
    # the choice waits for it.
    malformed.put("description", "Other words.", "studies/tiny.yaml")(project)
    assert rules(to_do(project, target)) == {"table"}
    searched = {"name": "dp_fedavg", "search": {"training.lr": [0.001, 0.5, 0.7]}}
    malformed.put("methods.1", searched, "studies/tiny.yaml")(project)
    jobs = to_do(project, target)
    assert rules(jobs) == {"train", "evaluate", "choose", "table"}
    assert len([file for rule, file in jobs if rule == "train" and "seed100" in file]) == 1
    assert not any("seed0" in file or "local_only" in file for _, file in jobs)

    # A choice that was deleted is made again, though everything that follows from it is there.
    write_study(project, **SEARCH)
    (project / "results/searches/tiny.json").unlink()
    assert "choose" in rules(to_do(project, target))


# ---------------------------------------------------------------- endings


@pytest.mark.parametrize("name", list(malformed.CASES)[::20])
def test_malformed_projects_end_snakemake_with_the_line_and_the_code_of_validate(name, good):
    """All cases are tried without Snakemake in test_cli.py."""
    malformed.CASES[name].damage(good)
    with pytest.raises(PflpipeError) as error:
        validate(config.load())
    words = ("--snakefile", str(ROOT / "Snakefile"), "--workflow-profile", "none")
    assert snakemake(good, *words, code=2).stderr == f"error: {error.value}\n"
    assert not (good / "results").exists()


def test_a_broken_study_ends_snakemake_with_one_line_when_it_is_asked_for(project, monkeypatch):
    monkeypatch.chdir(project)
    with pytest.raises(ConfigError) as error:
        load_study("broken")
    result = snakemake(project, "results/tables/broken.csv", code=2)
    assert result.stderr.splitlines()[-1] == f"error: {error.value}"
    assert not re.search("Traceback|Job stats", result.stderr)


@pytest.mark.faults
def test_snakemake_killed_at_work_says_how_to_unlock_and_then_goes_on(fresh):
    words = ["--no-hooks", "--cores", "1", "data/digits.npz"]  # no process for the scripts' imports
    command = [sys.executable, "-m", "snakemake", *words]
    how = {"cwd": fresh, "stderr": subprocess.PIPE, "text": True, "env": environment()}
    with subprocess.Popen(command, **how) as first:
        assert any("Preparing digits" in line for line in first.stderr)
        first.kill()
    assert "--unlock" in snakemake(fresh, "data/digits.npz", code=1).stderr
    snakemake(fresh, "--unlock")
    snakemake(fresh, "data/digits.npz")
    assert (fresh / "data/digits.npz").exists()


def test_runs_and_evaluations_are_given_their_processes_whatever_is_done_already(project):
    options = ("--dry-run", "--forceall", "--printshellcmds", "--config", "processes=2", "--")
    planned = snakemake(project, *options, "results/tables/tiny.csv")
    lines = (planned.stdout + planned.stderr).splitlines()
    commands = " ".join(line for line in lines if "--processes 2" in line)
    assert {"train.py", "evaluate.py"} == set(re.findall(r"\b(?:train|evaluate)\.py", commands))


@pytest.mark.parametrize("profile", ["slurm", "gpu"])
def test_the_profiles_are_understood(finished, profile):
    """And a study without a search has no checkpoint."""
    result = snakemake(finished, "--profile", f"profiles/{profile}", "--dry-run", "--forceall")
    assert "Training digits-" in result.stdout + result.stderr
    assert not re.search("Choosing|checkpoint", result.stdout + result.stderr)


# ---------------------------------------------------------------- from another workflow


def write_outer(folder: Path, names: str = "") -> None:
    """A Snakefile that uses the rules of pflpipe by these names."""
    text = TABLES["OUTER"].format(snakefile=ROOT / "Snakefile", names=names)
    (folder / "Snakefile").write_text(text)


@pytest.fixture
def outer(finished: Path, tmp_path: Path) -> Path:
    """Another workflow in a folder of its own, whose config.yaml holds that of pflpipe."""
    (tmp_path / "studies").mkdir()
    write_study(tmp_path, methods=[{"name": "local_only"}])
    comparison = {"studies": ["tiny"], "data_dir": str(finished / "data")}
    malformed.write(tmp_path / "config.yaml", {"comparison": comparison, "other": 1})
    return tmp_path


def test_another_workflow_runs_a_study_as_a_module(outer):
    write_outer(outer)
    snakemake(outer)
    assert (outer / "lines.txt").read_text() == "2\n"
    assert "Nothing to be done" in snakemake(outer).stderr


def test_the_rules_of_a_module_can_have_other_names(outer):
    write_study(outer, **SEARCH)
    write_outer(outer, " as pfl_*")
    result = snakemake(outer, "--dry-run", "results/tables/all.csv", "results/report.html")
    assert all(name in result.stdout for name in ("pfl_choose", "pfl_report"))
    assert "not present in the Snakefile" not in result.stderr


def test_a_mistake_in_the_settings_of_a_module_is_one_line(outer):
    write_outer(outer)
    malformed.put("comparison.device", "gpu", "config.yaml")(outer)
    result = snakemake(outer, code=2)
    assert result.stderr.splitlines()[-1].startswith("error: config.yaml: device; got 'gpu'")
