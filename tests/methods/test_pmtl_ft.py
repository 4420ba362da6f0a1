"""PMTL-FT: a round against an independent NumPy program, its reductions, and where its penalty leads."""

import numpy as np
import pytest
import torch

from pflpipe import cells, federated
from simulations import plan, simulation

WEIGHT, LR, CLIP = 0.3, 0.2, 0.2
LINEAR = cells.Model("mlp", ())
BACKENDS = ["loop", "vmap"]
EVERYBODY = range(4)


def numpy_gradient(x, y, w):
    """Gradient of the mean cross-entropy of a linear softmax model {"head.weight": [K, D], "head.bias": [K]}."""
    scores = np.exp(x @ w["head.weight"].T + w["head.bias"])
    error = (scores / scores.sum(1, keepdims=True) - np.eye(len(w["head.bias"]))[y]) / len(y)
    return {"head.weight": error.T @ x, "head.bias": error.sum(0)}


def own_examples(world, client):
    rows = world.split.train[client]
    return world.train.x[rows].numpy(), world.train.y[rows].numpy()


def personal(world, done):
    def hook(state, batches, others):
        return world.method.personalize(done.params, done.server, state, batches, world.task)

    return world.run_clients(hook, done.states, EVERYBODY, [world.work(client, done.round) for client in EVERYBODY])


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_golden_round(backend, detached):
    world = simulation(
        "pmtl_ft",
        {"weight": WEIGHT, "detached": detached},
        plan=plan(noise_multiplier=0.0, clip_norm=CLIP, rounds=1),
        backend=backend,
        model=LINEAR,
        lr=LR,
    )
    begun = federated.start(world)
    begin = {name: value.numpy() for name, value in begun.params.items()}
    expected = {name: value.copy() for name, value in begin.items()}
    for client in EVERYBODY:
        (x, y), cut, w = own_examples(world, client), world.work(client, 0)["train"], begin
        for index, count in zip(cut.index, cut.count, strict=True):
            rows = index[:count] - world.split.train[client][0]
            slope, pull = numpy_gradient(x[rows], y[rows], w), 0.0 if detached else 2 * WEIGHT
            w = {name: w[name] - LR * (slope[name] + pull * (w[name] - begin[name])) for name in w}
        length = np.sqrt(sum(((w[name] - begin[name]) ** 2).sum() for name in w))
        for name in expected:
            expected[name] += (w[name] - begin[name]) * min(1, CLIP / length) / 4
    done = federated.run(world, begun)
    assert 0 < done.rows[0]["fraction_clipped"] <= 1
    for name in expected:
        np.testing.assert_allclose(done.params[name].numpy(), expected[name], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_without_the_penalty_or_without_its_gradient_it_is_dp_fedavg_fb(backend, optimizer):
    settings = {"backend": backend, "optimizer": optimizer, "lr": 0.05, "weight_decay": 0.01}
    head = {"head_epochs": 2, "head_lr": 0.2, "head_momentum": 0.5, "head_weight_decay": 0.1}
    plain = simulation("dp_fedavg_fb", head, **settings)
    expected = federated.run(plain, federated.start(plain))
    for penalty in ({"weight": 0.0}, {"weight": 3.0, "detached": True}):
        world = simulation("pmtl_ft", head | penalty, **settings)
        done = federated.run(world, federated.start(world))
        models, others = personal(world, done), personal(plain, expected)
        for name, value in expected.params.items():
            torch.testing.assert_close(done.params[name], value, rtol=1e-13, atol=1e-13)
            torch.testing.assert_close(models[name], others[name], rtol=1e-13, atol=1e-13)


def test_the_detached_penalty_still_counts_in_the_loss():
    def first_loss(**penalty):
        world = simulation("pmtl_ft", penalty, plan=plan(rounds=1))
        return federated.run(world, federated.start(world)).rows[0]["loss"]

    assert first_loss(weight=3.0, detached=True) > first_loss(weight=0.0) + 0.01


@pytest.mark.parametrize("backend", BACKENDS)
def test_long_local_training_ends_where_the_penalty_balances_the_loss(backend):
    """The objective is strictly convex: its only stationary point solves grad CE(w) + 2 weight (w - w_global) = 0."""
    world = simulation(
        "pmtl_ft",
        {"weight": WEIGHT},
        plan=plan(1, noise_multiplier=0.0, clip_norm=1e9, rounds=1),
        backend=backend,
        sizes=(9,),
        model=LINEAR,
        lr=0.5,
        batch_size=0,
        local_epochs=300,
    )
    begun = federated.start(world)
    begin = {name: value.numpy() for name, value in begun.params.items()}
    end = {name: value.numpy() for name, value in federated.run(world, begun).params.items()}
    for name, slope in numpy_gradient(*own_examples(world, 0), end).items():
        assert np.abs(end[name] - begin[name]).max() > 0.01
        np.testing.assert_allclose(slope, -2 * WEIGHT * (end[name] - begin[name]), atol=1e-10)
