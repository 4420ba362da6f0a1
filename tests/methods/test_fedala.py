"""FedALA: a round against an independent NumPy program, and what its weights do."""

import dataclasses

import numpy as np
import pytest
import torch

import counter_rng_by_hand
import numpy_mlp
from numpy_mlp import HEAD
from pflpipe import cells, trees
from pflpipe.errors import ConfigError
from pflpipe.methods import registry
from pflpipe.simulation import rounds
from simulations import (
    assert_equal,
    params_after,
    personal_models,
    plan,
    quiet,
    simulation,
    with_states,
)

ETA, SHARE, PASSES, LR, CLIP = 0.7, 0.9, 3, 0.2, 0.3
SIZES = (9, 4, 1, 40)
BEFORE = (0, 4, 1, 1)
"""Rounds that the clients have trained in: none, many, and twice one, before the first ALA."""


def later(begun):
    """Give the clients local models and weights as in later rounds."""
    rng = np.random.default_rng(5)

    def change(name, value):
        if name == "rounds":
            return torch.tensor(BEFORE)
        if name.startswith("weight."):
            return torch.from_numpy(rng.random(value.shape))
        return value + torch.from_numpy(rng.normal(size=value.shape))

    return with_states(begun, change)


def drawn_steps(world, client):
    """The minibatches on which a client learns its weights: some of its rows, 32 at a time."""
    rows, key = world.split.train[client], int(world.work(client, 0)["train"].keys[0])
    draws = [counter_rng_by_hand.uniform(key, 2**16, place) for place in range(len(rows))]
    chosen = rows[np.argsort(draws)[: int(SHARE * len(rows))]]
    cuts = [chosen[at : at + 32] for at in range(0, len(chosen), 32)]
    return [(world.train.x[cut].numpy(), world.train.y[cut].numpy()) for cut in cuts]


def numpy_start(received, local, weights, steps, trained_rounds):
    """Where a client starts and its weights, line by line from Algorithm 1."""
    if trained_rounds == 0:
        return received, weights
    weights = dict(weights)

    def start():
        return received | {
            name: local[name] + (received[name] - local[name]) * weights[name] for name in weights
        }

    for _ in range(PASSES if trained_rounds == 1 else 1):
        for x, y in steps:
            slope = numpy_mlp.gradient(start(), x, y)
            for name in weights:
                moved = weights[name] - ETA * slope[name] * (received[name] - local[name])
                weights[name] = np.clip(moved, 0, 1)
    return start(), weights


def of(states, prefix, client):
    return {name: value[client].numpy() for name, value in trees.within(prefix, states).items()}


@pytest.mark.parametrize("p", [1, 2])
def test_golden_round(p):
    values = {"p": p, "eta": ETA, "share": SHARE, "start_epochs": PASSES}
    world = quiet("fedala", values, clip_norm=CLIP, rounds=1, sizes=SIZES, lr=LR)
    begun = later(rounds.start(world))
    before, received = begun.states, {name: value.numpy() for name, value in begun.params.items()}
    top = HEAD if p == 1 else tuple(received)
    expected, ends, learned = dict(received), [], []
    for client in range(4):
        local, weights = (of(before, prefix, client) for prefix in ("local.", "weight."))
        start, weights = numpy_start(
            received, local, weights, drawn_steps(world, client), BEFORE[client]
        )
        steps = numpy_mlp.steps(world, client, 0, "train")
        ends.append(numpy_mlp.descend(start, steps, numpy_mlp.gradient, lr=LR))
        learned.append(weights)
        change = numpy_mlp.clipped(
            {name: ends[-1][name] - received[name] for name in received}, CLIP
        )
        expected = {name: expected[name] + change[name] / 4 for name in expected}
    done = rounds.run(world, begun)
    numpy_mlp.assert_close(done.params, expected)
    assert done.states["rounds"].tolist() == [count + 1 for count in BEFORE]
    kept = [{name: end[name] for name in top} for end in ends]
    numpy_mlp.assert_close(trees.within("local.", done.states), kept)
    numpy_mlp.assert_close(trees.within("weight.", done.states), learned)


def test_weights_begin_at_1_where_a_client_starts_from_the_global_model():
    still = simulation("fedala", {"p": 2, "eta": 0.0}, backend="vmap")
    assert_equal(params_after(still), params_after(simulation("dp_fedavg", backend="vmap")), 1e-12)


def test_weights_stay_between_0_and_1_and_reach_both():
    world = simulation("fedala", {"p": 2, "eta": 50.0}, plan=plan(rounds=4))
    found = rounds.run(world, rounds.start(world)).states["weight.fc1.weight"]
    assert found.min() == 0
    assert found.max() == 1


def test_a_client_that_was_never_drawn_starts_from_the_released_model():
    world = simulation("fedala", backend="vmap", plan=plan(sample_rate=0.5, rounds=1), seed=3)
    done = rounds.run(world, rounds.start(world))
    fresh = (done.states["rounds"] == 0).nonzero().flatten().tolist()
    assert 0 < len(fresh) < 4
    plain = dataclasses.replace(world, method=registry.info("dp_fedavg").factory())
    models, expected = personal_models(world, done), personal_models(plain, done)
    for name, value in models.items():
        same = [torch.equal(value[client], expected[name][client]) for client in range(4)]
        assert [client for client in range(4) if same[client]] == fresh


def test_more_layers_than_the_model_has_are_refused():
    with pytest.raises(ConfigError, match="fedala: p; got 3; expected at most 2"):
        registry.check_model("fedala", cells.Model("mlp", (4,)), {"p": 3})
