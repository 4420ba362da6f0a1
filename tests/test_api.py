"""The Python door: what a notebook needs is there, and is what the pipeline does."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import pflpipe
import warm
from pflpipe import Model, Privacy, Training
from pflpipe.data import datasets, partition
from pflpipe.errors import ConfigError, DataError, PflpipeError
from pflpipe.files import write_json
from pflpipe.methods import registry
from pflpipe.simulation import rounds
from pflpipe.simulation.runs import Inputs, load_final, simulate
from pflpipe.simulation.runs import train as train_files
from pflpipe.study.plans import plan_of

ROOT = Path(__file__).resolve().parent.parent
MLP, BUDGET = Model("mlp", (4,)), Privacy(epsilon=8, delta=1e-3, clip_norm=0.5)
LOCAL = Training(rounds=3, local_epochs=1, batch_size=4, optimizer="sgd", lr=0.2)


def clients(count: int = 5, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Clients with 8 to 12 examples of 6 numbers and 3 classes."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [8 + i for i in range(count)]
    return [
        (
            torch.randn(size, 6, generator=generator),
            torch.randint(0, 3, (size,), generator=generator) % 3,
        )
        for size in sizes
    ]


def train(method="dp_fedavg", shards=None, **changes):
    settings = {"model": MLP, "training": LOCAL, "privacy": BUDGET, "device": "cpu"} | changes
    return pflpipe.train(method, clients() if shards is None else shards, **settings)


def test_every_public_name_is_there_and_documented():
    for name in pflpipe.__all__:
        value = getattr(pflpipe, name)
        if callable(value):
            assert inspect.getdoc(value), name
    assert set(pflpipe.__all__) <= set(dir(pflpipe))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = pflpipe.nonsense


@pytest.mark.slow
def test_ten_lines_train_feddpa_on_own_tensors_and_print_accuracies_and_ledger():
    example = ROOT / "docs" / "examples" / "own_tensors.py"
    lines = [line for line in example.read_text().splitlines() if line.strip()]
    assert len(lines) <= 10
    assert example.read_text() in (ROOT / "docs/reference/api.md").read_text()
    done = subprocess.run(
        [warm.interpreter(), str(example)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert "'personal_own': " in done.stdout
    assert "claim='certified'" in done.stdout
    assert "epsilon_central=7.99" in done.stdout


def test_a_budget_alone_means_the_gaussian_mechanism_and_the_ledger_keeps_it():
    result = train()
    assert result.simulation.plan.mechanism == "gaussian"
    assert result.ledger.claim == "certified"
    assert 7.9 < result.ledger.epsilon_central <= 8
    assert result.ledger.delta == 1e-3
    assert set(result.accuracies) == {"personal_own", "personal_common", "global_common"}
    assert len(result.clients) == len(clients())


def test_two_calls_draw_other_noise_and_a_secret_repeats_a_run():
    one, other = train(), train()
    assert one.simulation.key != other.simulation.key
    assert any(not torch.equal(one.params[name], other.params[name]) for name in one.params)
    first, again = train(secret="mine"), train(secret="mine")
    assert all(torch.equal(first.params[name], again.params[name]) for name in first.params)
    assert len(bytes.fromhex(one.simulation.key)) == 32


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "feddpa"},
        {"privacy": Privacy(epsilon=2, delta=1e-3, clip_norm=0.5)},
        {"model": Model("mlp", (5,))},
        {"training": dataclasses.replace(LOCAL, lr=0.1)},
    ],
)
def test_one_secret_gives_runs_with_other_settings_other_noise(changes):
    assert train(secret="mine", **changes).simulation.key != train(secret="mine").simulation.key


def test_without_noise_and_clip_it_is_fedavg_on_each_clients_own_rows():
    """One round of one full-batch step: the mean over clients of the weights after their step."""
    shards = clients(3)
    training = Training(rounds=1, local_epochs=1, batch_size=0, optimizer="sgd", lr=0.2)
    loose = Privacy(noise_multiplier=0.0, delta=1e-3, clip_norm=1e9)
    result = train(
        "dp_fedavg",
        shards,
        training=training,
        privacy=loose,
        tests=shards,
        model=Model("mlp", ()),
        dtype=torch.float64,
    )
    begin = rounds.start(result.simulation).params
    steps = []
    for x, y in shards:
        w = {name: value.clone().requires_grad_() for name, value in begin.items()}
        logits = x.double() @ w["head.weight"].T + w["head.bias"]
        torch.nn.functional.cross_entropy(logits, y).backward()
        steps.append({name: value.detach() - 0.2 * value.grad for name, value in w.items()})
    for name, value in result.params.items():
        expected = torch.stack([step[name] for step in steps]).mean(0)
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)


def test_held_out_rows_are_drawn_without_regard_to_class():
    """Class 0 is seen once by each of 500 clients: it is held out as often as any other example."""
    shard = torch.zeros(10, 4), torch.tensor([0] + [1] * 5 + [2] * 4)
    simulation = pflpipe.federation(
        "fedavg", [shard] * 500, model=MLP, training=LOCAL, device="cpu"
    )
    rate = (simulation.test.y[np.concatenate(simulation.split.test)] == 0).sum() / 500
    assert abs(rate - 0.2) < 4 * math.sqrt(0.2 * 0.8 / 500)


def test_held_out_rows_take_no_part_in_training():
    simulation = pflpipe.federation(
        "dp_fedavg", clients(), model=MLP, training=LOCAL, privacy=BUDGET, device="cpu"
    )
    split = simulation.split
    ends = np.cumsum([len(y) for _, y in clients()])
    for train_rows, test_rows, end, (_, y) in zip(
        split.train, split.test, ends, clients(), strict=True
    ):
        assert len(test_rows) == round(0.2 * len(y))
        assert sorted([*train_rows, *test_rows]) == list(range(end - len(y), end))
    broken = simulation.test.x.clone()
    broken[np.concatenate(split.test)] = math.nan
    simulation.train.x.copy_(broken)
    done = rounds.run(simulation, rounds.start(simulation))
    assert all(bool(torch.isfinite(value).all()) for value in done.params.values())
    assert done.diverged_round is None


def test_own_hooks_and_a_network_object_are_taken_as_they_are():
    quiet = {"privacy": Privacy(noise_multiplier=0.0, delta=1e-3, clip_norm=0.5)}
    named, own = train(**quiet), train(registry.info("dp_fedavg").factory(), **quiet)
    assert all(torch.equal(named.params[name], own.params[name]) for name in named.params)
    again = train(model=named.simulation.network, **quiet)
    assert all(torch.equal(named.params[name], again.params[name]) for name in named.params)


def test_a_method_without_privacy_has_no_ledger_to_speak_of():
    result = train("fedavg", privacy=None)
    assert result.ledger.claim == "none"
    assert result.ledger.epsilon_central is None


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"privacy": None}, ConfigError, "method dp_fedavg: privacy"),
        ({"method": "fedavg"}, ConfigError, "it promises nothing"),
        ({"privacy": Privacy(epsilon=8, clip_norm=1.0)}, ConfigError, "privacy.delta is missing"),
        ({"privacy": Privacy(epsilon=8, delta=1e-3)}, ConfigError, "privacy.clip_norm is missing"),
        ({"shards": []}, DataError, "clients; got 'none'"),
        ({"tests": clients(2)}, DataError, "tests; got '2 pairs'; expected 5"),
        ({"shards": [(torch.zeros(3, 6), torch.zeros(2))]}, DataError, r"clients\[0\]"),
        ({"shards": [(torch.zeros(3, 6), torch.zeros(3))]}, DataError, "whole numbers"),
        (
            {"shards": [(torch.full((3, 6), math.nan), torch.arange(3))]},
            DataError,
            "finite numbers",
        ),
        (
            {"shards": [*clients(1), (torch.zeros(3, 7), torch.arange(3))]},
            DataError,
            "shapes of an example",
        ),
        ({"method": "dp_fedavgg"}, ConfigError, "did you mean 'dp_fedavg'"),
        ({"model": "mpl"}, ConfigError, "did you mean 'mlp'"),
        (
            {"hyperparameters": {"tau": 1}},
            ConfigError,
            "hyper-parameter dp_fedavg.tau does not exist",
        ),
        ({"classes": 2}, DataError, "classes; got 2; expected at least 3"),
        ({"test_fraction": 1.0}, ConfigError, "0 <= fraction < 1"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(changes, kind, words):
    with pytest.raises(kind, match=words) as caught:
        train(**changes)
    assert "\n" not in str(caught.value)
    assert issubclass(kind, PflpipeError)


@pytest.mark.slow
def test_a_cell_of_a_study_has_the_bits_of_the_pipeline(tmp_path):
    study = pflpipe.load_study("quickstart", ROOT / "studies")
    cell = next(cell for cell in study.cells if cell.method == "feddpa")
    file = tmp_path / "digits.npz"
    datasets.prepare("digits", None, tmp_path, file)
    cell = dataclasses.replace(cell, training=dataclasses.replace(cell.training, rounds=2))
    result = pflpipe.run(cell, tmp_path, device="cpu")

    inputs = Inputs(tmp_path / "plan.json", tmp_path / "split.npz", file)
    partition.make(datasets.load_arrays(file), cell.partition, cell.seed).save(inputs.partition)
    write_json(inputs.plan, {"plan": vars(plan_of(cell, None).plan)})
    out = tmp_path / "run"
    train_files(
        registry.run_cell(cell),
        inputs,
        out,
        tmp_path,
        device="cpu",
        backend="auto",
        checkpoint_seconds=60,
        code="",
    )
    world = simulate(cell, inputs, device="cpu", backend="auto")
    trained = load_final(out, world)
    assert all(torch.equal(result.params[name], trained.params[name]) for name in trained.params)
    assert result.ledger.epsilon_central == pytest.approx(cell.privacy.epsilon)


@pytest.mark.docs
def test_the_notebook_is_executed_and_its_cells_run_with_fewer_rounds(monkeypatch):
    cells = json.loads((ROOT / "docs" / "notebook.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not any(output["output_type"] == "error" for cell in code for output in cell["outputs"])
    monkeypatch.chdir(ROOT / "docs")
    namespace: dict[str, object] = {}
    for cell in code:
        exec("".join(cell["source"]).replace("rounds=20", "rounds=2"), namespace)
    assert namespace["result"].ledger.claim == "certified"
