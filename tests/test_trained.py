"""The life of a model after training: it predicts, is saved and loaded, and goes on."""

import dataclasses
import inspect
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import pflpipe
from pflpipe.errors import DataError, PflpipeError
from pflpipe.learning import networks
from test_api import NETWORK, clients, same, small_net, train

X = clients(seed=3)[0][0]
OWN = dataclasses.replace(NETWORK, model=None)


def stopped(**changes):
    """A run of three planned rounds that ends after the first."""
    return train(on_round=lambda progress: False, secret="mine", **changes)


def test_every_argument_of_a_federation_is_in_the_signature_of_train():
    ours = inspect.signature(pflpipe.train).parameters
    theirs = inspect.signature(pflpipe.federation).parameters
    assert [*ours] == [*theirs, "on_round", "progress_bar"]
    assert all(ours[name] == theirs[name] for name in theirs)


def test_predictions_are_those_that_were_tested():
    tests = clients(seed=3)
    found = train(tests=tests, backend="loop")
    for client, (x, y) in enumerate(tests):
        row = found.clients[client]
        for model, column in ((found, "global_own"), (found.personal(client), "personal_own")):
            right = (model.predict(x.numpy()) == y).double().mean()
            assert 100 * float(right) == pytest.approx(row[column])


def test_predictions_take_the_images_of_a_cell_as_they_are_stored():
    network = networks.build(pflpipe.Model("mlp", ()), (4, 5, 3), 3)
    params = network.init(torch.Generator().manual_seed(0))
    scale = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    model = pflpipe.Predictor(network=network, params=params, example=(4, 5, 3), scale=scale)
    images = np.random.default_rng(0).integers(0, 256, (300, 4, 5, 3), np.uint8)
    by_hand = (torch.from_numpy(images) / 255 - torch.tensor(scale[0])) / torch.tensor(scale[1])
    expected = network.apply(params, by_hand).argmax(1)
    assert len(expected.unique()) > 1
    assert torch.equal(model.predict(images), expected)
    assert torch.equal(model.predict(by_hand.movedim(-1, 1)), expected)
    by_hand[0] = math.nan
    assert model.predict(by_hand)[:2].tolist() == [-1, int(expected[1])]


def test_a_saved_model_is_loaded_with_its_bits_its_claim_and_its_diagnostics(tmp_path):
    found = train("feddpa")
    found.save(tmp_path, personal=True)
    again = pflpipe.load(tmp_path)
    assert same(found.params, again.params)
    assert again.ledger == found.ledger
    assert repr(again) == repr(found)
    assert torch.equal(again.predict(X), found.predict(X))
    for client in range(5):
        assert same(found.personal(client).params, again.personal(client).params)
    kinds = {file.suffix for file in tmp_path.rglob("*") if file.is_file()}
    assert kinds == {".json", ".safetensors"}
    frame = again.to_frame()
    assert list(frame["train_size"]) == [row["train_size"] for row in found.clients]
    assert frame["personal_validation"].isna().all(), "NaN is NaN again"


def test_the_files_that_the_ledger_covers_are_enough_and_hold_no_diagnostics(tmp_path):
    found = train()
    found.save(tmp_path, personal=True)
    found.save(tmp_path)  # replaces what the folder had
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"model.safetensors", "model.json", "diagnostics.json"}
    text = (tmp_path / "model.json").read_text()
    assert not {"clients", "train_size", "personal_own"} & json.loads(text).keys()
    (tmp_path / "diagnostics.json").unlink()
    again = pflpipe.load(tmp_path)
    assert same(found.params, again.params)
    assert repr(again).startswith("accuracy in percent, no epsilon covers it: unknown\n")


def test_a_saved_network_of_a_file_has_the_names_of_its_state_dict(here):
    Path("net.py").write_text(f"from torch import nn\n\n\n{inspect.getsource(small_net)}")
    found = train(model="net.py:small_net")
    found.save("saved")
    plain = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    plain.load_state_dict(load_file("saved/model.safetensors"))
    assert torch.equal(plain(X).argmax(1), found.predict(X))
    assert torch.equal(pflpipe.load("saved").predict(X), found.predict(X))


def test_a_saved_model_can_be_the_public_start_of_another_run(tmp_path):
    found = train()
    found.save(tmp_path)
    start = pflpipe.Model("mlp", (4,), init=str(tmp_path / "model.safetensors"))
    next_one = train(model=start)
    assert same(found.params, pflpipe.simulation.rounds.start(next_one.simulation).params)
    assert "the initial weights are those of " in next_one.ledger.warnings[0]
    assert train("fedavg", model=start, privacy=None).ledger.warnings == ()


def test_on_round_ends_a_run_and_resume_ends_with_the_bits_of_a_run_in_one_piece():
    part, whole = stopped(), train(secret="mine")
    assert (part.progress.round, whole.progress.round) == (1, 3)
    assert part.ledger == whole.ledger, "of all planned rounds"
    next_one = part.resume(1)
    assert next_one.progress.round == 2
    assert [row["round"] for row in part.progress.rows] == [1], "the earlier result stays"
    end = next_one.resume()
    assert same(end.params, whole.params)
    assert end.clients == whole.clients
    assert part.resume(on_round=lambda progress: False).progress.round == 2


@pytest.mark.parametrize("method", ["dp_fedavg", "fedavg"])
def test_a_run_has_no_more_rounds_than_its_plan(method):
    changes = {"privacy": None} if method == "fedavg" else {}
    part = stopped(method=method, **changes)
    for rounds, result in ((3, part), (0, part), (1, part.resume())):
        with pytest.raises(PflpipeError, match=r"resume: rounds; .* the plan") as caught:
            result.resume(rounds)
        assert "\n" not in str(caught.value)
    part.resume(2)


CANNOT = [
    (lambda found, folder: found.predict(X[:, :4]), r"x; got \[8, 4\]; expected"),
    (lambda found, folder: found.personal(5), "client; got 5; expected 0 to 4"),
    (lambda found, folder: pflpipe.load(folder / "no"), "got 'no model.json'"),
    (lambda found, folder: pflpipe.load(folder).personal(1), "got 1; .*personal=True"),
    (lambda found, folder: train("fedper").predict(X), "without a global model'; .*personal"),
    (lambda found, folder: train(model=OWN).save(folder), "without a name"),
    (lambda found, folder: edited(folder), "sha256; got"),
]


@pytest.mark.parametrize(("call", "words"), CANNOT)
def test_what_cannot_be_done_with_a_result_is_told_in_one_line(call, words, tmp_path):
    found = train()
    found.save(tmp_path)
    with pytest.raises(PflpipeError, match=words) as caught:
        call(found, tmp_path)
    assert "\n" not in str(caught.value)


def edited(folder):
    """Load a model whose weights were exchanged."""
    file = folder / "model.safetensors"
    values = load_file(file)
    save_file({name: value + 1 for name, value in values.items()}, file)
    return pflpipe.load(folder)


def test_a_model_that_is_not_finite_is_not_saved(tmp_path):
    found = train()
    found.params["head.bias"][0] = math.nan
    with pytest.raises(DataError, match="save: model; got 'NaN or infinity'"):
        found.save(tmp_path)
    assert not any(tmp_path.iterdir())
