"""Tasks besides classification: losses, what follows from them, and who refuses them."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
import yaml

import fake_results
import pflpipe
import tabled
from pflpipe import cells, json_records
from pflpipe.code import user_files
from pflpipe.data import partition, sources
from pflpipe.data.datasets import load_arrays
from pflpipe.errors import ConfigError, DataError, PflpipeError
from pflpipe.files import write_json
from pflpipe.learning import losses
from pflpipe.learning.metrics import BUILT_IN, CONSTANT_ERROR
from pflpipe.methods import registry, row_code
from pflpipe.report import comparison, sentences, tidy
from pflpipe.simulation import runs, scores
from pflpipe.study import config, metric_columns, search
from pflpipe.study.check import validate
from pflpipe.study.load import load_outline
from pflpipe.study.plans import plan_of

TABLES = tabled.table("test_losses")

SQUARED = cells.Training(1, 1, 6, "sgd", 0.05, loss="squared_error")


def clients(columns: int = 1, classes: bool = False) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the examples of five clients: linear functions that differ by client."""
    rng, found = np.random.default_rng(0), []
    for client in range(5):
        x = rng.normal(size=(20, 4))
        z = x @ (np.arange(4)[:, None] / 4 + 0.3 * client + np.arange(columns))
        y = (z[:, 0] > 0).astype(int) if classes else z if columns > 1 else z[:, 0]
        found.append((x, y))
    return found


def trained(method: str, given: Any = None, training: Any = SQUARED, **settings: Any) -> Any:
    noise = cells.Privacy(noise_multiplier=1.0, delta=1e-3, clip_norm=0.5)
    usual = {"model": cells.Model("mlp", (6,)), "dtype": torch.float64, "secret": "a"}
    usual["privacy"] = noise if registry.info(method).about.private else None
    return pflpipe.train(method, given or clients(), training=training, **(usual | settings))


# ---------------------------------------------------------------- losses and networks


def test_losses_and_their_gradients_are_those_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(7, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randn(7, 2, generator=generator, dtype=torch.float64)
    one, labels = outputs[:, :1], (targets[:, 0] > 0).long()
    large = 1000 * one  # whose exponential overflows
    of_logits = F.binary_cross_entropy_with_logits(large[:, 0], labels.double())
    for ours, theirs in (
        (losses.squared_error(outputs, targets), F.mse_loss(outputs, targets)),
        (losses.squared_error(one, targets[:, 0]), F.mse_loss(one[:, 0], targets[:, 0])),
        (losses.absolute_error(outputs, targets), F.l1_loss(outputs, targets)),
        (losses.binary(large, labels), of_logits),
        (losses.cross_entropy(outputs, labels), F.cross_entropy(outputs, labels)),
    ):
        assert torch.allclose(ours.mean(), theirs, rtol=1e-12)
        slopes = [torch.autograd.grad(v.mean(), outputs, retain_graph=True) for v in (ours, theirs)]
        assert torch.allclose(slopes[0][0], slopes[1][0], rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dp_fedavg", "fedavg", "local_only", "ditto", "fedrep"])
def test_loop_and_vmap_have_the_same_errors(method: str) -> None:
    for loss, given in (("squared_error", clients()), ("absolute_error", clients(2))):
        training = replace(SQUARED, rounds=2, loss=loss)
        runs = [trained(method, given, training, backend=name) for name in ("loop", "vmap")]
        errors = [run.to_frame()["personal_own"].to_numpy() for run in runs]
        assert np.allclose(*errors, rtol=1e-9)
        assert (errors[0] > 0).all()


def test_solvers_that_are_exact_for_cross_entropy_refuse_another_loss() -> None:
    """Which method trains by which loss: test_few_rows.py."""
    with pytest.raises(ConfigError, match=r"head_solver=ridge: training.loss.*take sgd"):
        trained("fedrep", hyperparameters={"head_solver": "ridge"})


def test_an_output_that_is_not_finite_has_an_infinite_error() -> None:
    result = trained("fedavg", training=replace(SQUARED, lr=1e200))
    assert result.accuracies["personal_own"] == math.inf


def test_a_saved_model_predicts_numbers_or_the_class_of_its_one_logit(tmp_path: Path) -> None:
    x = clients()[0][0]
    trained("fedavg", clients(2)).save(tmp_path)
    loaded = pflpipe.load(tmp_path)
    assert loaded.predict(x.astype(np.float32)).shape == (20, 2)
    assert "mean squared error (less is better)" in repr(loaded)
    binary = replace(SQUARED, rounds=30, loss="binary", lr=0.5)
    guess = trained("fedavg", clients(classes=True), binary).predict(x).numpy()
    assert set(guess) == {0, 1}
    assert (guess == clients(classes=True)[0][1]).mean() > 0.8


def test_a_private_run_counts_a_message_from_a_label_that_is_no_number_as_zero() -> None:
    given = clients()
    given[2][1][:] = math.nan
    result = trained("dp_fedavg", given)
    assert result.progress.rows[-1]["nonfinite_uploads"] == 1
    assert all(value.isfinite().all() for value in result.params.values())
    with pytest.raises(DataError, match="examples; got 'NaN"):
        trained("fedavg", given)


# ---------------------------------------------------------------- a study from its file on


TABLE = "person,age,city,kg\n" + "\n".join(
    f"{row % 6},{20 + row % 50},{row % 7},{50 + 0.5 * (row % 50)}" for row in range(180)
)
STUDY: dict[str, Any] = TABLES["STUDY"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("weights.csv").write_text(TABLE)
    Path("own.py").write_text(TABLES["OWN"])
    Path("words.py").write_text(TABLES["WORDS"])
    block = {"file": "weights.csv", "user": "person", "target": "kg", "ranges": {"kg": [40, 90]}}
    known = {"weights": block, "words": "words.py:load"}
    Path("config.yaml").write_text(yaml.safe_dump({"studies": ["weights"], "datasets": known}))
    Path("studies").mkdir()
    write()
    prepared("weights", block)
    return tmp_path


def prepared(name: str, source: Any) -> Any:
    """The arrays of a source."""
    sources.prepare(name, source, Path(), Path(f"data/{name}.npz"))
    return load_arrays(Path(f"data/{name}.npz"))


def write(training: dict[str, Any] | None = None, **changes: Any) -> None:
    made = STUDY | changes | {"training": STUDY["training"] | (training or {})}
    Path("studies/weights.yaml").write_text(yaml.safe_dump(made))


def validated() -> Any:
    return validate(config.load(), ["weights"])["weights"]


def test_a_target_of_a_table_is_a_number_for_each_row_scaled_by_its_declared_range(folder):
    arrays = load_arrays(Path("data/weights.npz"))
    assert (arrays.numbers, arrays.classes, arrays.declared) == (True, 1, True)
    assert arrays.train_labels.dtype == np.float32
    values = np.concatenate([arrays.train_labels, arrays.test_labels])
    expected = [(50 + 0.5 * (row % 50) - 65) / 25 for row in range(180)]
    assert np.allclose(np.sort(values), np.sort(expected))
    assert "1 number to predict" in str(arrays)
    validated()


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["squared_error", "../own.py:huber"])
def test_a_cell_of_a_study_runs_and_its_first_column_is_its_mean_squared_error(
    folder: Path, loss: str
) -> None:
    write({"loss": loss}, metrics=["mean_absolute_error", "../own.py:bias"])
    outline = validated()
    assert list(outline.metrics) == ["mean_squared_error", "mean_absolute_error", "bias"]
    result = pflpipe.run(outline.study().cells[1])
    predictor, split = result.personal(0), result.simulation.split
    x, y = (part[split.test[0]] for part in (result.simulation.test.x, result.simulation.test.y))
    error = float((predictor.predict(x)[:, 0] - y).square().mean())
    assert result.clients[0]["personal_own"] == pytest.approx(error, rel=1e-5)


def test_a_point_of_errors_follows_from_training_rows_alone(folder: Path) -> None:
    """The error of the own constant, each row beside the mean of the person's other ones."""
    cell = validated().study().cells[0]
    arrays = load_arrays(Path("data/weights.npz"))
    made = partition.make(arrays, cell.partition, cell.seed)
    ((_, inputs, run),) = scores.places_of([cell], [cell.id], folder, folder / "data")
    made.save(inputs.partition)
    sizes = np.array([len(rows) for rows in made.train])
    write_json(inputs.plan, json_records.to_json(plan_of(cell, sizes)))
    how = {"device": "cpu", "backend": "loop"}
    runs.train(registry.run_cell(cell), inputs, run, folder, checkpoint_seconds=9, **how)
    scores.evaluate_cells([(cell, inputs, run)], folder / "scores.csv", **how)
    table = pd.read_csv(folder / "scores.csv", comment="#")
    own = [arrays.train_labels[rows].astype(float) for rows in made.train]
    gaps = [(len(y) / (len(y) - 1) * (y - y.mean())) ** 2 for y in own]
    assert np.allclose(table[CONSTANT_ERROR], [one.mean() for one in gaps], rtol=1e-5)


@pytest.mark.parametrize(("changes", "message"), TABLES["REFUSED"])
def test_what_does_not_fit_numbers_is_refused_in_one_line_before_a_job_starts(
    folder, changes, message
):
    write(**changes)
    with pytest.raises(PflpipeError, match=message):
        validated()


def test_clients_without_users_get_disjoint_parts_of_the_test_rows(folder: Path) -> None:
    np.savez("rows.npz", train_images=np.zeros((90, 2), np.float32), train_labels=np.arange(90.0))
    split = partition.make(prepared("rows", Path("rows.npz")), cells.Partition("iid", 4), 0)
    assert sorted(np.concatenate(split.test).tolist()) == list(range(18))


def test_the_code_of_a_loss_belongs_to_the_files_of_a_run(folder: Path) -> None:
    write({"loss": "../own.py:huber"})
    cell = load_outline("weights").study().cells[0]
    assert row_code.files(cell) == [Path("own.py")]
    plain = replace(cell.training, loss="cross_entropy")
    assert "loss" not in json_records.without_defaults(plain)
    assert registry.key(replace(cell, training=plain)) != registry.key(cell)


# ---------------------------------------------------------------- less is better


BY_NUMBERS = replace(fake_results.BASE.training, loss="squared_error")
BASE = replace(fake_results.BASE, training=BY_NUMBERS)


def test_comparisons_and_sentences_rank_the_smallest_error_first(tmp_path: Path) -> None:
    study = fake_results.study(base=BASE, epsilons=(2.0,), methods=("dp_fedavg", "feddpa"))
    study = replace(study, metrics={"mean_squared_error": BUILT_IN["mean_squared_error"]})
    frame = tidy.tidy(study, fake_results.write(study, tmp_path))
    frame["personal_own"] = [
        (0.5 if method == "dp_fedavg" else 0.2) + seed / 100
        for method, seed in zip(frame["method"], frame["seed"], strict=True)
    ]
    groups = comparison.groups(study, frame)
    assert [group.method for group in comparison.ranked(groups)] == ["feddpa", "dp_fedavg"]
    ahead = comparison.against(groups, groups[0])
    assert [difference.sign for difference in ahead.values()] == [1]
    words = " ".join(sentences.of_study(study, frame))
    assert "feddpa is the best of the certified personal models (0.210)" in words


def test_the_worst_tenth_of_clients_has_the_largest_errors() -> None:
    columns = metric_columns.columns({"mean_squared_error": BUILT_IN["mean_squared_error"]})
    errors = np.arange(20.0)
    assert columns["personal_own_worst_decile"].metric.average(errors) == 18.5


def test_a_search_chooses_the_smallest_error(folder: Path) -> None:
    searched = {"seeds": [100], "validation_fraction": 0.2}
    candidates = {"training.lr": [0.01, 0.1]}
    write(search=searched, methods=[{"name": "dp_fedavg", "search": candidates}])
    outline = load_outline("weights")
    assert outline.search is not None
    results = fake_results.write(outline.search, Path())
    found = outline.search.cells
    lines = [[cell.id, 0, 1 / cell.training.lr, 1 / cell.training.lr] for cell in found]
    header = "cell,client,personal_validation,global_validation"
    fake_results.write_csv(results / "scores/weights/search/dp_fedavg.csv", header, lines)
    (choice,) = search.write(outline, results, outline.choices(results))
    assert choice.values == {"training.lr": 0.1}
    private = {"private": {"trials": 4}}
    write(search=searched | private, methods=[{"name": "dp_fedavg", "search": candidates}])
    with pytest.raises(ConfigError, match="private search; got 'mean_squared_error'"):
        load_outline("weights")


# ---------------------------------------------------------------- other tasks, from file to table


def test_metrics_of_one_logit_get_the_probabilities_of_two_classes() -> None:
    from pflpipe.simulation.evaluation import _given

    outputs, labels = torch.tensor([[0.0], [3.0], [math.nan]]), torch.tensor([0, 1, 1])
    probabilities, classes = _given(losses.BUILT_IN["binary"], outputs, labels)
    high = 1 / (1 + math.exp(-3))
    assert np.allclose(probabilities, [[0.5, 0.5], [1 - high, high], [1, 0]])
    assert classes.tolist() == [0, 1, 1]


def test_a_frame_gives_targets_to_train() -> None:
    table = pd.DataFrame({"who": [1, 1, 2, 2], "x": [0, 1, 2, 3], "y": [0.5, 1.5, 2.5, 3.5]})
    given = pflpipe.clients_of(table, user="who", target="y")
    assert [y.tolist() for _, y in given] == [[0.5, 1.5], [2.5, 3.5]]
    with pytest.raises(DataError, match="target None, text None'; expected label or target"):
        pflpipe.clients_of(table, user="who")


@pytest.mark.slow
def test_the_example_of_load_forecasting_trains_on_its_stand_in_and_on_a_file_in_its_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(__file__).parents[1]
    monkeypatch.chdir(tmp_path)
    file = shutil.copy(root / "docs/examples/load_forecasting.py", tmp_path)
    module = user_files.module(str(file))
    made = module.load()
    assert "a generated stand-in" in capsys.readouterr().out
    np.savez("NRELCAdataset.npz", data=module.generated(buildings=3, days=4))
    sources.prepare("loads", Path("load_forecasting.py:load"), Path(), Path("loads.npz"))
    assert "load forecasting: NRELCAdataset.npz" in capsys.readouterr().out
    arrays = load_arrays(Path("loads.npz"))
    assert (arrays.numbers, arrays.train_images.shape[1:]) == (True, made["train_images"].shape[1:])
    given = [(arrays.train_images, arrays.train_labels)] * 2
    hours, channels = arrays.train_images.shape[1:]
    of_torch = module.LSTM((channels, hours), 1)
    assert of_torch.lstm.input_size == channels
    windows = torch.arange(2.0 * hours * channels).view(2, hours, channels)
    assert torch.equal(of_torch(windows.mT), of_torch.head(of_torch.lstm(windows)[0][:, -1]))
    network = cells.Model("load_forecasting.py:LSTM")
    result = trained("dp_fedavg", given, model=network, dtype=torch.float32)
    assert math.isfinite(result.accuracies["personal_own"])


GRU, MLP = {"name": "gru", "items": 5, "hidden": [2, 3]}, {"name": "mlp", "hidden": [4]}


@pytest.mark.parametrize(("model", "got"), [(GRU, "5"), (MLP, "None")])
def test_a_network_of_another_vocabulary_is_refused_before_a_job_and_in_a_run(folder, model, got):
    prepared("words", Path("words.py:load"))
    write({"loss": "cross_entropy"}, dataset="words", model=model, metrics=["log_loss"])
    line = rf"model {model['name']}: items; got {got}; expected 6, the data set's vocabulary; .*gru"
    with pytest.raises(PflpipeError, match=line):
        validated()
    with pytest.raises(ConfigError, match=line):
        pflpipe.run(load_outline("weights").study().cells[0])
