"""A metric is one declaration: its numbers, its file, what it changes and what it does not."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn

import fake_results
import malformed
import tabled
from pflpipe.errors import ConfigError, DataError
from pflpipe.files import read_json
from pflpipe.learning.metrics import BUILT_IN, error_of_means
from pflpipe.pipeline.project import Project
from pflpipe.report import tidy
from pflpipe.report.figures.kinds import draw
from pflpipe.report.summary import summarise
from pflpipe.simulation import rounds
from pflpipe.simulation.evaluation import accuracies, accuracies_of_new
from pflpipe.study import metric_columns, search
from pflpipe.study.config import Config
from pflpipe.study.load import load_outline
from pflpipe.study.study_spec import Drawing, Study
from simulations import CLASSES, simulation, with_states

TABLES = tabled.table("test_metrics")

ALL = {name: metric.of for name, metric in BUILT_IN.items()}
FILE = TABLES["FILE"]


def rows(count: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities, some of them equal, and labels that are somewhat likelier."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=count)
    logits = rng.normal(size=(count, classes)).round(1)
    logits[np.arange(count), labels] += 1
    found = np.exp(logits)
    return found / found.sum(1, keepdims=True), labels


# Numbers


@pytest.mark.parametrize(("count", "classes"), [(200, 2), (200, 10), (7, 10), (1, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_numbers_are_those_of_scikit_learn(count, classes, seed):
    probabilities, labels = rows(count, classes, seed)
    guess, one_hot = probabilities.argmax(1), np.eye(classes)[labels]
    here = np.unique(labels)
    found = {name: metric.of(probabilities, labels) for name, metric in BUILT_IN.items()}
    del found["calibration_error"]  # scikit-learn has none
    area = math.nan
    if len(here) > 1:
        one = [sklearn.roc_auc_score(labels == y, probabilities[:, y]) for y in here]
        area = 100 * np.mean(one)
    recall = sklearn.recall_score(labels, guess, labels=here, average="macro")
    expected = {
        "accuracy": 100 * sklearn.accuracy_score(labels, guess),
        "balanced_accuracy": 100 * recall,
        "macro_f1": 100 * sklearn.f1_score(labels, guess, average="macro"),
        "auc": area,
        "log_loss": sklearn.log_loss(labels, probabilities, labels=range(classes)),
        "mean_absolute_error": sklearn.mean_absolute_error(one_hot, probabilities),
        "mean_squared_error": sklearn.mean_squared_error(one_hot, probabilities),
    }
    assert found == pytest.approx(expected, nan_ok=True)


def test_the_error_of_means_leaves_every_row_out_of_its_own():
    rng = np.random.default_rng(0)
    targets = rng.normal(size=(5, 2))
    for name, of in (("absolute", np.abs), ("squared", np.square)):
        gaps = [np.delete(targets, row, 0).mean(0) - targets[row] for row in range(5)]
        found = error_of_means(targets, BUILT_IN[f"mean_{name}_error"].of)
        assert found == pytest.approx(of(np.array(gaps)).mean())
        assert math.isnan(error_of_means(targets[:1], BUILT_IN[f"mean_{name}_error"].of))


def test_a_certain_wrong_answer_has_the_log_loss_of_scikit_learn_and_not_infinity():
    probabilities, labels = np.array([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]]), np.array([1, 2])
    expected = sklearn.log_loss(labels, probabilities, labels=range(3))
    assert BUILT_IN["log_loss"].of(probabilities, labels) == pytest.approx(expected)


def test_calibration_error_is_the_sum_over_fifteen_bins():
    probabilities, labels = rows(300, 4, 0)
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    expected = 0.0
    for bin in range(15):
        inside = (bin / 15 < confidence) & (confidence <= (bin + 1) / 15)
        if inside.any():
            gap = abs(right[inside].mean() - confidence[inside].mean())
            expected += inside.mean() * gap
    found = BUILT_IN["calibration_error"].of(probabilities, labels)
    assert found == pytest.approx(100 * expected)


# Of every client


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("held_out", [(0, 1, 2, 3), (513, 0, 1, 300)])  # up to three batches
def test_every_client_has_the_metrics_of_its_own_rows_and_models(backend, held_out):
    world = simulation("dp_fedavg", backend=backend)
    validation = [np.arange(size) % len(world.train.y) for size in held_out]
    world = replace(world, split=replace(world.split, validation=validation))
    progress = rounds.run(world, rounds.start(world))
    plain = accuracies(world, progress)
    found = accuracies(world, progress, measures=ALL)
    for client, row in enumerate(found):
        known = {name: row[name] for name in plain[client]}
        assert known == pytest.approx(plain[client], nan_ok=True)
        train = world.train.schedule(world.work(client, progress.round)["train"])
        personal = world.task.minimize(progress.params, train, world.task.loss)[0]
        for model, params in (("personal", personal), ("global", progress.params)):
            for name, source, chosen in (
                ("own", world.test, world.split.test[client]),
                ("validation", world.train, world.split.validation[client]),
            ):
                logits, labels = world.network.apply(params, source.x[chosen]), source.y[chosen]
                column = f"{model}_{name}"
                assert row[f"accuracy_{column}"] == pytest.approx(row[column], nan_ok=True)
                for metric, declared in BUILT_IN.items():
                    expected = math.nan
                    if len(chosen):
                        expected = declared.of(logits.softmax(1).numpy(), labels.numpy())
                    assert row[f"{metric}_{column}"] == pytest.approx(expected, nan_ok=True)
    assert not any("_common" in name for name in found[0].keys() - plain[0].keys())


def test_new_clients_have_the_metrics_too():
    world = simulation("dp_fedavg")
    world = replace(world, split=replace(world.split, new=world.split))
    progress = rounds.run(world, rounds.start(world))
    for row in accuracies_of_new(world, progress, ALL):
        assert math.isfinite(row["log_loss_personal_new"])
        assert math.isfinite(row["macro_f1_global_new"])
    world = replace(world, has_global_model=False)
    for row in accuracies_of_new(world, progress, ALL):
        assert math.isnan(row["macro_f1_global_new"])


def test_an_answer_that_is_not_finite_is_a_wrong_one_given_with_certainty():
    world = simulation("local_only")
    progress = rounds.run(world, rounds.start(world))
    with_states(progress, lambda _, value: torch.full_like(value, torch.nan))
    worst = {"macro_f1": 0, "balanced_accuracy": 0, "calibration_error": 100}
    worst |= {"log_loss": -math.log(2.0**-52), "mean_absolute_error": 2 / CLASSES}
    for row in accuracies(world, progress, measures=ALL):
        assert {name: row[f"{name}_personal_own"] for name in worst} == pytest.approx(worst)
        assert not row["auc_personal_own"] > 50


# Files from outside


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose study has a metric from a file beside it, which its search chooses by."""
    malformed.write_good(tmp_path)
    (tmp_path / "studies/mine.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    write_study(metric="calibration")
    return tmp_path


def write_study(**search: object) -> None:
    values = {"hyperparameters.tau": [0.1, 0.4]}
    changes = {
        "metrics": ["macro_f1", "mine.py:calibration"],
        "search": {"seeds": [100], "validation_fraction": 0.2, **search},
        "methods": [{"name": "fedavg"}, {"name": "feddpa", "search": values}],
    }
    malformed.write(Path("studies/good.yaml"), malformed.STUDY | changes)


def test_a_study_has_the_metrics_that_it_names_and_accuracy(folder):
    found = load_outline("good").metrics
    assert list(found) == ["accuracy", "macro_f1", "calibration"]
    assert found["macro_f1"] is BUILT_IN["macro_f1"]
    assert (found["calibration"].heading, found["calibration"].sign) == ("calibration gap", -1)
    assert found["calibration"].average(np.array([1, 2, 9])) == 2


@pytest.mark.parametrize(("old", "new", "words"), TABLES["BAD_FILES"])
def test_a_bad_file_is_refused_in_one_line_before_anything_runs(folder, ran, old, new, words):
    text = FILE.replace(old, new, 1)
    assert text != FILE
    Path("studies/mine.py").write_text(text)
    (line,) = ran("validate", code=2).err.splitlines()
    assert line.startswith("error: studies/good.yaml: metrics: ")
    assert words in line


@pytest.mark.parametrize(("names", "words"), TABLES["BAD_METRICS"])
def test_a_metric_that_cannot_be_is_refused_in_one_line(folder, ran, names, words):
    malformed.write(Path("studies/good.yaml"), malformed.STUDY | {"metrics": names})
    (line,) = ran("validate", code=2).err.splitlines()
    assert words in line


def test_a_search_by_a_metric_that_the_study_does_not_have_is_refused(folder):
    write_study(metric="auc")
    with pytest.raises(ConfigError, match=r"search.metric; got 'auc'; expected .*macro_f1"):
        load_outline("good")


# What follows from it


def test_an_edit_of_the_file_tests_again_and_trains_nothing_again(folder):
    def digests() -> dict[str, str]:
        project = Project(Config(studies=("good",)), malformed.ROOT, thorough=False)
        cells = load_outline("good").everything.cells
        codes = {name: project.testing_code(name, cells) for name in ("good", "good/search")}
        return codes | {"trained": project.training_code(cells)}

    before = digests()
    Path("studies/mine.py").write_text(f"# A comment.\n{FILE}")
    assert digests() == before
    Path("studies/mine.py").write_text(FILE.replace("max(1)", "min(1)"))
    after = digests()
    assert [name for name in before if after[name] != before[name]] == ["good", "good/search"]


def test_a_search_chooses_by_the_metric_in_the_direction_that_is_better(folder):
    chosen = {}
    for criterion in ("accuracy", "calibration"):
        write_study(metric=criterion)
        outline = load_outline("good")
        results = fake_results.write(outline.search, Path())
        lines = []
        for cell in outline.search.cells:
            high = 10 * cell.hyperparameters["tau"]
            # The lower the median, the higher the mean: direction and average both count.
            gaps = enumerate((high, high, -5 * high))
            lines += [[cell.id, n, 50 + high, 60, gap] for n, gap in gaps]
        file = results / "scores/good/search/feddpa.csv"
        header = "cell,client,personal_validation,global_validation,calibration_personal_validation"
        fake_results.write_csv(file, header, lines)
        target = outline.choices(results)
        (choice,) = search.write(outline, results, target)
        chosen[criterion] = choice.values["hyperparameters.tau"]
        column = metric_columns.column(outline.metrics, criterion, "personal_validation")
        assert all(column in one for one in read_json(target)["lines"][0]["candidates"])
    assert chosen == {"accuracy": 0.4, "calibration": 0.1}


def test_another_metric_to_choose_by_is_another_search_and_the_same_runs(folder):
    by_gap = load_outline("good")
    write_study()
    by_accuracy = load_outline("good")
    assert by_gap.grid != by_accuracy.grid
    assert by_gap.search.cells == by_accuracy.search.cells


# In tables and figures


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    """A study with log loss, whose numbers are those of accuracy."""
    plain = fake_results.study("lossy", epsilons=(8.0,), methods=("local_only", "fedavg"))
    named = {name: BUILT_IN[name] for name in ("accuracy", "log_loss")}
    lossy = replace(plain, metrics=named)
    return lossy, fake_results.write(lossy, tmp_path_factory.mktemp("reported"))


def test_a_table_has_the_metrics_of_its_study_and_all_csv_those_of_all_studies(reported, tmp_path):
    lossy, results = reported
    plain = fake_results.study(epsilons=(8.0,), methods=("fedavg",))
    fake_results.write(plain, tmp_path)
    tables = [results / "tables/lossy.csv", tmp_path / "results/tables/tiny.csv"]
    tidy.join(tables[::-1], tmp_path / "all.csv")
    columns = ["log_loss_personal_own", "log_loss_global_own"]
    frame = tidy.read(tables[0])
    assert list(frame)[len(tidy.COLUMNS) :][:2] == columns
    assert list(frame[columns[0]]) == list(frame["personal_own"])
    joined = tidy.read(tmp_path / "all.csv")
    assert list(joined) == list(frame)
    assert list(joined["study"]) == ["tiny"] * 3 + ["lossy"] * 6
    assert joined[columns].isna().all(axis=1).tolist() == [True] * 3 + [False] * 6
    with pytest.raises(DataError, match="another version of the study"):
        tidy.stored(replace(lossy, metrics=plain.metrics), results)


def test_of_a_loss_the_least_is_bold_and_comes_first(reported):
    lossy, results = reported
    summary = summarise(lossy, tidy.read(results / "tables/lossy.csv"))
    bold = {
        heading: [line[0].text for line in summary.sections[0] if line[place].bold]
        for place, heading in enumerate(summary.header)
    }
    assert bold["personal own"] == ["fedavg"]
    assert bold["log loss, personal own"] == ["local_only"]
    assert "Accuracy in percent, log loss (less is better) after the last round" in summary.caption
    for metric, first in (("personal_own", "FedAvg"), ("log_loss_personal_own", "Local only")):
        drawing = Drawing("cost", "cost", metric=metric)
        figure = draw(lossy, drawing, results, results.parent / "data")
        names = figure.axes[0].get_yticklabels()
        heights = figure.axes[0].get_yticks()
        upwards = -1 if figure.axes[0].yaxis_inverted() else 1
        top = max(zip(heights, names, strict=True), key=lambda row: upwards * row[0])
        assert top[1].get_text().startswith(first)
