"""Initial weights from a file: they are the start of every client, the file's digest is part of a
run's identity, the ledger says whose word it is, and a file that does not fit is one clear line."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import malformed
import pflpipe
import tabled
from pflpipe.cells import Cell, Model, Partition, Privacy, Training
from pflpipe.errors import ConfigError, PflpipeError
from pflpipe.learning import initial, networks
from pflpipe.methods import registry
from pflpipe.pipeline import project
from pflpipe.simulation import rounds
from pflpipe.study import config
from pflpipe.study.check import validate
from pflpipe.study.load import load_outline
from pflpipe.study.plans import START, plan_of
from pflpipe.study.settings import model_name

TABLES = tabled.table("test_initial")
SHAPES = {"fc1.weight": (8, 64), "fc1.bias": (8,), "head.weight": (10, 8), "head.bias": (10,)}
NOISE = Privacy("gaussian", epsilon=8, delta=1e-3, clip_norm=1.0)
TRAINING = Training(2, 1, 0, "sgd", 1.0)
CELL = Cell("digits", Partition("iid", 5), Model("mlp", (8,)), TRAINING, NOISE, "dp_fedavg")


@pytest.fixture(autouse=True)
def _studies(here):
    Path("studies").mkdir()


def drawn(**changes: object) -> dict[str, np.ndarray]:
    """Weights of an mlp for digits; arrays that are changed, further ones or, if None, none."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    return {name: array for name, array in (arrays | changes).items() if array is not None}


def stored(**changes: object) -> Model:
    safetensors.numpy.save_file(drawn(**changes), "start.safetensors")
    return Model("mlp", (8,), init="start.safetensors")


def study(**model: object) -> None:
    block = {"name": "mlp", "hidden": [8], "init": "../start.safetensors"}
    malformed.write(Path("studies/tiny.yaml"), malformed.STUDY | {"model": block | model})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_network_starts_at_the_weights_of_the_file_whatever_the_seed(dtype):
    network = networks.build(initial.with_digest(stored()), (8, 8, 1), 10)
    for seed in (0, 1):
        found = network.init(torch.Generator().manual_seed(seed), dtype)
        assert list(found) == list(network.shapes)
        for name, array in drawn().items():
            assert found[name].dtype == dtype
            np.testing.assert_array_equal(found[name].numpy(), array)
            found[name].zero_()  # another run in this process starts at the file's weights too


def test_a_module_of_the_user_is_saved_and_started_under_its_own_names():
    Path("net.py").write_text(TABLES["NET"])
    made = pflpipe.code.user_files.load("net.py:net")((1, 8, 8), 10)
    safetensors.torch.save_file(made.state_dict(), "start.safetensors")
    model = initial.with_digest(Model("net.py:net", init="start.safetensors"))
    found = networks.build(model, (8, 8, 1), 10).init(torch.Generator())
    norm, head = ("norm_2.weight", "norm_2.bias"), ("head.weight", "head.bias")
    assert list(found) == ["1.weight", "1.bias", *norm, *head]
    for value, (name, wanted) in zip(found.values(), made.state_dict().items(), strict=True):
        assert value.equal(wanted), name


def test_a_file_that_changes_again_within_a_tick_of_the_clock_has_its_new_digest():
    for value in range(50):  # a tick of the clock is some milliseconds, a file less than one
        model = stored(**{"fc1.bias": np.full(8, value, np.float32)})
        content = Path("start.safetensors").read_bytes()
        assert initial.with_digest(model).init_digest == hashlib.sha256(content).hexdigest()


def test_every_client_and_the_server_of_a_federation_start_at_the_file():
    model, settings = stored(), {"training": CELL.training, "classes": 10}
    people = [(torch.randn(6, 64), torch.arange(6)) for _ in range(3)]
    world = pflpipe.federation("local_only", people, model=model, **settings)
    before = rounds.start(world)
    for name, array in drawn().items():
        np.testing.assert_array_equal(before.params[name].numpy(), array)
        np.testing.assert_array_equal(before.states[name].numpy(), np.stack([array] * 3))
    settings["secret"] = "mine"
    first, same, other = (
        pflpipe.federation("local_only", people, model=stored(**changes), **settings).key
        for changes in ({}, {}, {"fc1.bias": np.zeros(8, np.float32)})
    )
    assert first == same != other, "or runs from different weights would share their noise"


def test_a_study_names_the_file_by_its_own_folder_and_its_digest_is_part_of_every_id():
    def cell(**model: object) -> Cell:
        study(**model)
        return load_outline("tiny").everything.cells[-1]

    stored()
    first = cell()
    content = Path("start.safetensors").read_bytes()
    assert first.model.init == "start.safetensors"
    assert first.model.init_digest == hashlib.sha256(content).hexdigest()
    assert model_name(first) == "mlp-8-start=start.safetensors"
    assert Cell.from_dict(json.loads(json.dumps(first.to_dict()))) == first
    stored(**{"head.bias": np.ones(10, np.float32)})
    found = [first, cell(), cell(init=None)]
    plain = replace(first, model=Model("mlp", (8,)))
    assert found[2] == plain
    for name in (lambda c: c.id, registry.run_id, registry.key, lambda c: c.plan_id):
        assert len({name(one) for one in found}) == 3
    assert len({one.partition_id for one in found}) == 1
    with pytest.raises(ConfigError, match=r"start.safetensors: sha256; got .* start again"):
        networks.build(first.model, (8, 8, 1), 10)


def test_the_ledger_of_a_private_run_says_that_the_start_is_the_studys_word():
    cell = replace(CELL, model=initial.with_digest(stored()))
    Path("start.safetensors").unlink()  # accounting does not read it
    request = json.loads(project.plan_request(cell))
    warning = START.format("start.safetensors", cell.model.init_digest[:12])
    assert plan_of(Cell.from_dict(request)).ledger.warnings == (warning,)
    assert plan_of(cell).plan == plan_of(CELL).plan
    assert plan_of(CELL).ledger.warnings == ()
    assert plan_of(replace(cell, privacy=Privacy())).ledger.warnings == ()


def assert_refused(message: str, **model: object) -> None:
    """One line is the error with which a study is refused whose network starts at the file."""
    study(**model)
    with pytest.raises(PflpipeError, match=message) as found:
        validate(config.parse({"studies": ["tiny"]}))
    assert len(found.value.all) == 1
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(("changes", "message"), TABLES["REFUSED"].values(), ids=TABLES["REFUSED"])
def test_a_file_that_is_not_the_networks_is_one_line_before_any_job(changes, message):
    stored(**malformed.arrays_of(changes))
    assert_refused(f"start.safetensors: {message}")


@pytest.mark.parametrize(("content", "message"), TABLES["OTHER_KINDS"])
def test_a_file_of_another_kind_is_one_line(content, message):
    if content is not None:
        Path("start.safetensors").write_bytes(content)
    assert_refused(message)


def test_bfloat16_is_refused_as_another_dtype():
    tensors = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in SHAPES.items()}
    safetensors.torch.save_file(tensors, "start.safetensors")
    model = initial.with_digest(Model("mlp", (8,), init="start.safetensors"))
    with pytest.raises(ConfigError, match=r"fc1.bias; got 'BF16 \[8\]'; expected F32 \[8\]"):
        initial.weights(model, (8, 8, 1), 10)


def test_frozen_layers_stay_as_the_file_has_them_and_are_neither_trained_nor_sent():
    """What is left is the linear head on the features of the frozen layers."""
    model = replace(stored(), freeze=("fc1",))
    weights = {name: torch.from_numpy(value) for name, value in drawn().items()}
    generator = torch.Generator().manual_seed(0)
    people = [(torch.randn(9, 64, generator=generator), torch.arange(9) % 3) for _ in range(3)]
    bodies = [((x @ weights["fc1.weight"].T + weights["fc1.bias"]).relu(), y) for x, y in people]
    head = {name: weights[name].numpy() for name in ("head.weight", "head.bias")}
    safetensors.numpy.save_file(head, "head.safetensors")
    settings = {"training": Training(2, 1, 4, "sgd", 0.1), "classes": 10, "secret": "mine"}
    quiet = Privacy(noise_multiplier=0.0, delta=1e-3, clip_norm=0.5)
    linear = Model("linear", init="head.safetensors")
    for backend in ("loop", "vmap"):
        found, wanted = (
            pflpipe.train("dp_fedavg", rows, model=one, privacy=quiet, backend=backend, **settings)
            for rows, one in ((people, model), (bodies, linear))
        )
        assert list(found.params) == ["head.weight", "head.bias"]
        assert not torch.equal(found.params["head.bias"], weights["head.bias"])
        for name, value in wanted.params.items():
            torch.testing.assert_close(found.params[name], value, rtol=1e-5, atol=1e-6)
        sent = found.progress.uploaded_bits / found.progress.round
        assert sent == wanted.progress.uploaded_bits / wanted.progress.round
    found.save("saved")
    again = pflpipe.load("saved")
    assert torch.equal(again.predict(people[0][0]), found.predict(people[0][0]))


@pytest.mark.parametrize(("model", "message"), TABLES["UNFREEZABLE"])
def test_what_cannot_be_frozen_is_one_line(model, message):
    stored()
    assert_refused(message, **model)
