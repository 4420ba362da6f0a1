"""What `make bench-peers` compares is the same work: the same network, and the same DP-FedAvg
whatever is evaluated."""

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import simulations
from pflpipe.learning import networks

PEERS = Path(__file__).resolve().parent.parent / "tools" / "benchmarks" / "peers"


@pytest.fixture
def peers(monkeypatch):
    """Imports a program of the comparison, as it imports its neighbours."""
    monkeypatch.syspath_prepend(str(PEERS))
    return importlib.import_module


@pytest.mark.parametrize(("name", "parameters"), [("cifar10", 343_946), ("spi", 1_098)])
def test_the_peers_train_the_network_of_the_engine(peers, name, parameters):
    work, (model, classes) = peers("work").WORKS[name], peers("ours").MODELS[name]
    generator = torch.Generator().manual_seed(1)
    x = torch.tensor([[0.0], [134.0], [7.0], [7.0]], dtype=torch.float64)
    if name == "cifar10":
        x = torch.randn(5, 32, 32, 3, dtype=torch.float64, generator=generator)
    network = networks.build(model, tuple(x.shape[1:]), classes)
    params = network.init(torch.Generator().manual_seed(0), torch.float64)
    module = work.net().double()
    # A module of embeddings has a row for each item, the engine's network a column.
    turned = {key: v.T if key.startswith("embedding") else v for key, v in params.items()}
    module.load_state_dict(turned)
    assert sum(value.numel() for value in module.parameters()) == network.parameters == parameters
    expected = network.apply(params, x)
    torch.testing.assert_close(module(work.examples(x)), expected, rtol=1e-12, atol=1e-12)


def test_made_up_answers_have_the_form_of_the_real_ones(peers, monkeypatch):
    monkeypatch.syspath_prepend(str(PEERS.parent))
    found = peers("bench_peers").answers(None)
    x, work = found["train_x"], peers("work").WORKS["spi"]
    assert x.shape == (3200 * 108, 1)
    assert found["train_y"].shape == (3200 * 108,)
    assert found["test_x"].shape == (2700, 1)
    assert set(np.unique(found["train_y"])) == {0, 1}
    first, last = work.shares(len(x))[0], work.shares(len(x))[-1]
    for rows in (first, last):  # nobody answers a statement twice
        assert len(np.unique(x[rows])) == len(rows) == 108
        assert set(np.unique(x[rows])) <= set(range(135))


def test_models_kept_for_evaluation_are_those_that_were_trained_and_change_nothing_else(peers):
    plain = simulations.simulation("dp_fedavg", plan=simulations.plan(rounds=1))
    keeping = replace(plain, method=peers("ours").keeping_dp_fedavg())
    progress, releases, models_before_and_after = simulations.spied(keeping)
    simulations.assert_equal(progress.params, simulations.params_after(plain), tolerance=0)
    begun, uploads = models_before_and_after[0][0], releases[0][0]
    trained = {name: begun[name] + uploads.update[name] for name in begun}
    simulations.assert_equal(simulations.personal_models(keeping, progress), trained, tolerance=0)
