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
from pflpipe.auditing import cases
from pflpipe.cells import Cell
from pflpipe.code import meaning
from pflpipe.errors import ConfigError, PflpipeError
from pflpipe.pipeline import certificate, cli, mlflow_export, run
from pflpipe.pipeline.project import Project, each, partition_request, plan_request, settings_words
from pflpipe.report import tidy
from pflpipe.report.figures import kinds
from pflpipe.study import config, figures
from pflpipe.study.check import validate
from pflpipe.study.config import Config
from pflpipe.study.epsilon_as_published import as_published
from pflpipe.study.load import load_outline, load_study
from pflpipe.study.plans import CLASSES_FOUND, REFERENCE

TABLES = tabled.table("test_workflow")

ROOT = Path(__file__).resolve().parent.parent
STUDY = TABLES["STUDY"]
METRIC = TABLES["METRIC"]
AUDITED = ("gaussian-central", "gaussian-scaled_by_fedaddp-central")
AFTER_TABLE = {"table", "track", "all_csv", "ledger", "report"}
AFTER_SCORES = {"track_method", "figure", *AFTER_TABLE}


def environment(**more: str) -> dict[str, str]:
    """The environment without an MLflow server of the tester's own."""
    return {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"} | more


def snakemake(
    folder: Path, *words: str, code: int = 0, **more: str
) -> subprocess.CompletedProcess[str]:
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


@pytest.mark.pipeline
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


@pytest.mark.pipeline
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


@pytest.mark.pipeline
def test_figures_drawn_by_themselves_are_those_of_the_study(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(finished)
    monkeypatch.setattr(sys, "argv", ["pflpipe", "figures", "tiny", "cost", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 0
    for kind in ("png", "svg", "pdf"):
        drawn = (tmp_path / f"cost.{kind}").read_bytes()
        assert drawn == (finished / f"results/figures/tiny/cost.{kind}").read_bytes()
    assert {file.stem for file in tmp_path.iterdir()} == {"cost"}


@pytest.mark.docs
def test_a_study_goes_from_its_search_to_the_page_of_results_which_needs_no_results(fresh):
    project = fresh
    searched = {"name": "feddpa", "search": {"training.lr": [0.1, 0.5]}}
    methods = [{"name": "local_only"}, {"name": "dp_fedavg"}, searched]
    search = {"seeds": [100], "validation_fraction": 0.3}
    write_study(project, "small", seeds=[0, 1, 2], search=search, methods=methods)
    snakemake(project, "results/tables/small.csv")

    program = f"import runpy, sys; sys.path.insert(0, {str(ROOT / 'tools')!r}); "
    program += "runpy.run_module('pages', run_name='__main__')"
    python(project, program, "pages", "results", "small")
    page = project / "docs/results/small.md"
    text = page.read_text()
    shutil.rmtree(project / "results")
    page.unlink()
    python(project, program, "pages", "results")
    assert page.read_text() == text
    shutil.rmtree(project / ".snakemake")  # as on another machine
    (project / "results/searches").mkdir(parents=True)
    chosen = gzip.decompress((project / "docs/results/small/search.json.gz").read_bytes())
    (project / "results/searches/small.json").write_bytes(chosen)
    rest = snakemake(project, "--dry-run", "results/scores/small/feddpa.csv")
    assert re.search(r"^train +3$", rest.stdout, re.MULTILINE), "its own runs, and no trials"
    picture = "small/privacy_utility.png"
    assert (page.parent / picture).read_bytes().startswith(b"\x89PNG")
    answer = ("# Tiny\n\nAt ε = 8, ", f"]({picture})", "| feddpa | ε = 8 | ", "Measured on ")
    for words in (*answer, "Hyper-parameters were chosen on validation data"):
        assert words in text


@pytest.mark.pipeline
def test_a_metric_from_a_file_is_in_table_figure_mlflow_and_search_and_its_edit_trains_nothing(
    fresh,
):
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


@pytest.mark.pipeline
def test_the_hooks_say_at_the_end_where_everything_is(project):
    (project / "results/tables/tiny.csv").unlink()
    program = "from snakemake.cli import main; main()"
    result = python(project, program, "snakemake", "--cores", "1", "results/tables/tiny.csv")
    assert "tiny: results/tables/tiny.md, .tex, .csv" in result.stderr.splitlines()
    assert not (project / "logs/planned.json").exists()


@pytest.mark.pipeline
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


@pytest.mark.pipeline
def test_nothing_is_done_twice_nor_after_an_edit_of_the_readme_or_of_how_to_run(project):
    append(project / "README.md")
    append(project / "config.yaml", "\n# a word\n")
    malformed.put("backend", "loop", "config.yaml")(project)
    malformed.put("checkpoint_seconds", 5, "config.yaml")(project)
    assert to_do(project) == set()


@pytest.mark.pipeline
def test_nothing_is_done_after_comments_docstrings_reformatting_touches_and_a_new_method(project):
    """All at once, as a pull brings them: each alone would show which rule it disturbs."""
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


@pytest.mark.pipeline
def test_a_changed_operator_in_a_helper_repeats_what_imports_its_file(project):
    helper = project / "src/pflpipe/trees.py"
    code = helper.read_text()
    assert code.count("value + b[name]") == 1
    helper.write_text(code.replace("value + b[name]", "value - b[name]"))
    jobs = to_do(project, "results/tables/tiny.csv")
    assert {"train", "evaluate", "table"} <= rules(jobs)
    assert methods(jobs) == {"local_only", "feddpa"}
    assert not {"data", "partition"} & rules(jobs)  # neither adds up any tree


@pytest.mark.pipeline
def test_an_edit_of_a_methods_file_repeats_that_method_and_what_depends_on_it(project):
    append(project / "src/pflpipe/methods/feddpa.py")
    jobs = to_do(project)
    assert rules(jobs) == {"train", "evaluate", *AFTER_SCORES}
    assert methods(jobs) == {"feddpa"}
    # A method with a public scale of its own imports feddpa.py; no row of the study is one of it.
    jobs = to_do(project, "results/tables/audit.csv")
    audited = {Path(file).stem for rule, file in jobs if rule == "audit"}
    assert audited == {"gaussian-scaled_by_fedaddp-central"}


@pytest.mark.pipeline
def test_a_changed_hyperparameter_repeats_its_method_and_what_depends_on_it(project):
    malformed.put("methods.1.hyperparameters", {"tau": 0.2}, "studies/tiny.yaml")(project)
    jobs = to_do(project)
    assert rules(jobs) == {"train", "evaluate", *AFTER_SCORES}
    assert methods(jobs) == {"feddpa"}


@pytest.mark.pipeline
@pytest.mark.parametrize(
    ("file", "repeated"),
    [
        ("report/tables.py", {"figure", *AFTER_TABLE}),  # figures take their numbers from tables.py
        ("simulation/scores.py", {"evaluate", *AFTER_SCORES}),
    ],
)
def test_an_edit_of_tables_or_evaluation_trains_nothing(project, file, repeated):
    append(project / "src/pflpipe" / file)
    assert rules(to_do(project)) == repeated


@pytest.mark.pipeline
def test_a_second_study_trains_only_its_own_cells(project):
    write_study(project, "second", methods=[{"name": "feddpa"}, {"name": "dp_fedavg"}])
    malformed.put("studies", ["second", "tiny"], "config.yaml")(project)
    trained = {file for rule, file in to_do(project) if rule == "train"}
    assert trained
    assert all("dp_fedavg" in file for file in trained)


@pytest.mark.pipeline
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
def test_changed_data_are_refused_under_their_old_name_and_rerun_what_needs_them_under_a_new_one(
    fresh,
):
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
    files = {"mine": "mine.npz", "mine_2": "changed.npz"}
    malformed.put("datasets", files, "config.yaml")(fresh)
    axes = {"dataset": ["mine", "mine_2"]}
    write_study(fresh, "second", dataset="mine", methods=local, axes=axes)
    jobs = to_do(fresh, table, "results/tables/second.csv")
    # The data of a name of the user's own tell what their plan warns of.
    assert rules(jobs) == {"data", "partition", "plan", "train", "evaluate", "table"}
    assert {file for rule, file in jobs if rule == "data"} == {"data/mine_2.npz"}
    assert len([file for rule, file in jobs if rule == "plan"]) == 1
    others = [file for rule, file in jobs if rule != "plan"]
    assert all("mine_2" in file or "/second" in file for file in others)


@pytest.mark.pipeline
def test_the_plan_of_data_that_declare_no_classes_warns_of_that_first(fresh):
    """And a data set that declares them beside it, in the same study, has a plan of its own."""
    fake_audits.write(fresh / "results/audits")
    for name, classes in (("declared", np.int64(3)), ("found", None)):
        malformed.arrays(fresh, classes=classes)
        (fresh / "mine.npz").rename(fresh / f"{name}.npz")
    files = {name: f"{name}.npz" for name in ("declared", "found")}
    malformed.put("datasets", files, "config.yaml")(fresh)
    privacy = {"epsilon": 8, "delta": 0.05, "clip_norm": 0.5}  # a delta that is warned of
    axes, methods = {"dataset": list(files)}, [{"name": "dp_fedavg"}]
    write_study(fresh, dataset="found", privacy=privacy, axes=axes, methods=methods)
    snakemake(fresh, "results/tables/tiny.csv")
    plans = [json.loads(file.read_text()) for file in (fresh / "results/plans").glob("*.json")]
    short, long = sorted((plan["ledger"]["warnings"] for plan in plans), key=len)
    assert long == [CLASSES_FOUND, *short]
    copies, delta = short
    assert copies == "test rows are copies of training rows: leave out copies"
    assert delta.startswith("delta 0.05 is above")
    table = (fresh / "results/tables/tiny.md").read_text()
    assert table.count(f"Warning: {CLASSES_FOUND}.") == 1


@pytest.mark.pipeline
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


@pytest.mark.pipeline
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


@pytest.mark.pipeline
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


@pytest.mark.pipeline
def test_the_command_finds_in_mlflow_what_the_workflow_put_there(finished):
    program, source = "from pflpipe.pipeline.cli import main; main()", str(finished / "src")
    result = python(finished, program, "pflpipe", "track", "tiny", PYTHONPATH=source)
    (line,) = result.stdout.splitlines()
    assert line.startswith("done: 2 runs (0 new, 2 kept, 0 replaced) in experiment tiny at sqlite")


@pytest.mark.pipeline
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


@pytest.mark.pipeline
def test_an_address_that_cannot_be_mlflows_is_refused_before_anything_starts(project):
    result = snakemake(project, "-n", MLFLOW_TRACKING_URI="ftp://me:secret@host", code=2)
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert "the MLflow tracking address; got 'ftp://host'" in line


@pytest.mark.pipeline
def test_a_study_that_mlflow_did_not_take_is_tried_again_once(project):
    (project / "results/tracking/tiny.done").write_text("pending: no server\n")
    assert rules(to_do(project)) == {"track", "all_csv"}
    snakemake(project, "results/tables/all.csv")
    marker = (project / "results/tracking/tiny.done").read_text()
    assert marker.startswith("done: 2 runs (0 new, 2 kept")
    assert to_do(project) == set()


# ---------------------------------------------------------------- what is published


@pytest.mark.pipeline
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


@pytest.mark.pipeline
def test_the_export_of_a_method_waits_for_the_plan_of_its_published_version(project):
    """Its row shows the epsilon of the published version too."""
    write_study(project, methods=[{"name": "dp_fedsam"}])
    (cell,) = load_study("tiny", project / "studies").cells
    files = to_do(project, "results/tracking/tiny/dp_fedsam.done")
    assert ("plan", f"results/plans/{as_published(cell).plan_id}.json") in files


def chosen(folder: Path) -> dict:
    (line,) = json.loads((folder / "results/searches/tiny.json").read_text())["lines"]
    return line["chosen"]["values"]


@pytest.mark.pipeline
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
    assert chosen(project) == {"training.lr": 0.5}
    trained = [file.name for file in (project / "results/runs").glob("*dp_fedavg*")]
    assert sorted(name.split("-")[-2] for name in trained) == ["seed0", "seed100", "seed100"]
    rows = {row["method"]: json.loads(row["hyperparameters"]) for row in table_of(project)}
    assert rows["dp_fedavg"]["lr"] == 0.5
    summary = (project / "results/tables/tiny.md").read_text()
    assert "no ε counts that search as well" in summary  # its clients were dealt anew
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


@pytest.mark.pipeline
def test_a_study_without_a_search_has_no_checkpoint(finished):
    result = snakemake(finished, "--dry-run", "--forceall", "results/tables/tiny.csv")
    assert "Choosing" not in result.stdout + result.stderr
    assert "checkpoint" not in result.stdout + result.stderr


# ---------------------------------------------------------------- endings


@pytest.mark.pipeline
@pytest.mark.parametrize("name", list(malformed.CASES)[::20])
def test_malformed_projects_end_snakemake_with_the_line_and_the_code_of_validate(
    name, tmp_path, monkeypatch
):
    """All cases are tried without Snakemake in test_cli.py."""
    malformed.write_good(tmp_path)
    malformed.CASES[name].damage(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PflpipeError) as error:
        validate(config.load())
    words = ("--snakefile", str(ROOT / "Snakefile"), "--workflow-profile", "none")
    result = snakemake(tmp_path, *words, code=2)
    assert result.stderr == f"error: {error.value}\n"
    assert not (tmp_path / "results").exists()


@pytest.mark.pipeline
def test_a_broken_study_ends_snakemake_with_one_line_when_it_is_asked_for(project, monkeypatch):
    monkeypatch.chdir(project)
    with pytest.raises(ConfigError) as error:
        load_study("broken")
    result = snakemake(project, "results/tables/broken.csv", code=2)
    assert result.stderr.splitlines()[-1] == f"error: {error.value}"
    assert "Traceback" not in result.stderr
    assert "Job stats" not in result.stderr


@pytest.mark.faults
def test_snakemake_killed_at_work_says_how_to_unlock_and_then_goes_on(fresh):
    words = ["--no-hooks", "--cores", "1", "data/digits.npz"]  # no process for the scripts' imports
    command = [sys.executable, "-m", "snakemake", *words]
    how = {"cwd": fresh, "stderr": subprocess.PIPE, "text": True, "env": environment()}
    with subprocess.Popen(command, **how) as first:
        assert first.stderr is not None
        for line in first.stderr:
            if "Preparing digits" in line:
                first.kill()
                break
    again = snakemake(fresh, "data/digits.npz", code=1)
    assert "--unlock" in again.stderr
    snakemake(fresh, "--unlock")
    snakemake(fresh, "data/digits.npz")
    assert (fresh / "data/digits.npz").exists()


@pytest.mark.pipeline
def test_runs_and_evaluations_are_given_their_processes_whatever_is_done_already(project):
    options = ("--dry-run", "--forceall", "--printshellcmds", "--config", "processes=2", "--")
    planned = snakemake(project, *options, "results/tables/tiny.csv")
    lines = (planned.stdout + planned.stderr).splitlines()
    commands = " ".join(line for line in lines if "--processes 2" in line)
    assert {"train.py", "evaluate.py"} == set(re.findall(r"\b(?:train|evaluate)\.py", commands))


@pytest.mark.pipeline
@pytest.mark.parametrize("profile", ["slurm", "gpu"])
def test_the_profiles_are_understood(finished, profile):
    result = snakemake(finished, "--profile", f"profiles/{profile}", "--dry-run", "--forceall")
    assert "Training digits-" in result.stdout + result.stderr


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


@pytest.mark.pipeline
def test_another_workflow_runs_a_study_as_a_module(outer):
    write_outer(outer)
    snakemake(outer)
    assert (outer / "lines.txt").read_text() == "2\n"
    assert "Nothing to be done" in snakemake(outer).stderr


@pytest.mark.pipeline
def test_the_rules_of_a_module_can_have_other_names(outer):
    searched = {"name": "dp_fedavg", "search": {"training.lr": [0.1, 0.5]}}
    search = {"seeds": [100], "validation_fraction": 0.2}
    write_study(outer, search=search, methods=[searched])
    write_outer(outer, " as pfl_*")
    result = snakemake(outer, "--dry-run", "results/tables/all.csv", "results/report.html")
    assert "pfl_choose" in result.stdout
    assert "pfl_report" in result.stdout
    assert "not present in the Snakefile" not in result.stderr


@pytest.mark.pipeline
def test_a_mistake_in_the_settings_of_a_module_is_one_line(outer):
    write_outer(outer)
    malformed.put("comparison.device", "gpu", "config.yaml")(outer)
    result = snakemake(outer, code=2)
    assert result.stderr.splitlines()[-1].startswith("error: config.yaml: device; got 'gpu'")


# ---------------------------------------------------------------- what the rules are told


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    (tmp_path / "studies").mkdir()
    monkeypatch.chdir(tmp_path)
    official = {"name": "feddpa", "variant": "official", "profile": "paper", "official_code": True}
    official |= {"training": {"batch_size": 8}}
    write_study(tmp_path, methods=[*STUDY["methods"], official])
    (tmp_path / "studies/broken.yaml").write_text("title: [")
    return Config(studies=("tiny",))


@pytest.fixture
def asked(settings: Config) -> Project:
    return Project(settings, ROOT, thorough=False)


def test_requests_for_shared_files_hold_what_their_id_says_and_nothing_of_one_cell(settings):
    cells = load_study("tiny").cells
    for cell in cells:
        assert Cell.from_dict(json.loads(partition_request(cell))).partition_id == cell.partition_id
        assert Cell.from_dict(json.loads(plan_request(cell))).plan_id == cell.plan_id
    assert len(set(map(partition_request, cells))) == 1
    assert len(set(map(plan_request, cells))) == len({cell.plan_id for cell in cells}) == 3


def test_a_cell_is_found_by_its_id_without_its_study_being_named(settings):
    cell = load_study("tiny").cells[0]
    project = Project(Config(studies=("broken",)), ROOT, thorough=False)
    assert project.cells({"cell": cell.id}) == [cell]
    assert project.cells({"partition": cell.partition_id})[0].partition == cell.partition
    assert project.cells({"plan": cell.plan_id})[0].privacy == cell.privacy
    (run,) = each("{run}", [cell])
    assert project.cells({"run": run})[0].method == cell.method


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"cell": "x"}, r"no study contains 'x'; ask for results/tables/<study>\.csv"),
        ({"study": "tiny", "method": "fedpda"}, "did you mean 'feddpa'"),
    ],
    ids=["an id of no study", "a method that the study lacks"],
)
def test_what_no_study_has_says_what_to_ask_for(asked, words, said):
    with pytest.raises(ConfigError, match=said):
        asked.cells(words)


@pytest.mark.slow
def test_the_version_of_a_methods_code_is_not_that_of_another(asked):
    one, other = (
        asked.code("train", asked.method_files([method])).split(", ")
        for method in ("feddpa", "fedrep")
    )
    assert one[0] == other[0] != one[1] != other[1]
    assert [part.split()[0] for part in one] == ["train.py", "feddpa.py"]


def test_an_audit_depends_on_the_methods_whose_scale_it_audits(asked):
    """Two methods with a public scale of their own import feddpa.py."""
    feddpa = asked.package / "methods/feddpa.py"
    found = {
        name
        for name in cases.cases()
        for file in asked.method_files(asked.audited(name))
        if feddpa in meaning.closure(file, asked.package)
    }
    scaled = [f"gaussian-scaled_by_{name}" for name in ("fedaddp", "fedglp_adp")]
    assert found == {f"{name}-{trust}" for name in scaled for trust in ("central", "local")}


@pytest.mark.slow
def test_a_template_is_part_of_what_a_script_depends_on(asked):
    template = ROOT / "workflow/report/ledger.html"
    assert "ledger.html" not in asked.code("ledger")
    assert "ledger.html" in asked.code("ledger", [template])


def test_only_methods_of_the_studies_of_the_config_count_for_what_shows_all_methods(asked):
    assert asked.methods() == ["feddpa", "local_only"]


def test_every_cell_has_its_path_and_shared_files_come_once(settings):
    cells = load_study("tiny").cells
    assert each("a/{cell}.npz", cells) == [f"a/{cell.id}.npz" for cell in cells]
    assert each("{dataset}", cells) == ["digits"]
    assert len(each("{partition}", cells)) == 1
    assert each("{plan}", []) == []


@pytest.mark.parametrize(
    ("marker", "failures"), TABLES["every failed attempt at mlflow counts until one succeeds"]
)
def test_every_failed_attempt_at_mlflow_counts_until_one_succeeds(asked, marker, failures):
    """The number is what the attempt was made with only after a good attempt, so Snakemake tries
    again after a failed one and not after a good one."""
    if marker is not None:
        Path("results/tracking").mkdir(parents=True)
        Path("results/tracking/tiny.done").write_text(marker)
    assert asked.failures("tiny") == failures


def test_the_report_is_made_with_the_settings_of_the_snakemake_that_makes_it(tmp_path):
    file = tmp_path / "config.yaml"
    given = {"device": "cpu", "studies": ["tiny"]}
    words = ['device="cpu"', 'studies=["tiny"]']
    assert settings_words(given, file) == ["--config", *words], "there is no file"
    file.write_text("device: auto\nstudies: [tiny]\n")
    assert settings_words(given, file) == ["--config", words[0]]
    assert settings_words({"device": "auto"}, file) == []


def test_an_address_is_shown_without_credentials():
    """That of a database stays: tests/test_tracking.py."""
    address = "https://me:secret@host:5000/path?token=1#x"
    assert mlflow_export.without_credentials(address) == "https://host:5000/path"
