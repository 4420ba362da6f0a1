"""FedALA: a round against an independent NumPy program, and what its weights do."""

import numpy as np
import pytest
import torch

import counter_rng_by_hand
import numpy_mlp
import simulations
from numpy_mlp import HEAD
from pflpipe import cells, trees
from pflpipe.errors import ConfigError
from pflpipe.methods import registry
from pflpipe.simulation import rounds
from simulations import finished, params_after, plan, simulation, with_states

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


@pytest.mark.parametrize("p", [1, 2])
def test_golden_round(p):
    values = {"p": p, "eta": ETA, "share": SHARE, "start_epochs": PASSES}
    world = simulations.quiet("fedala", values, clip_norm=CLIP, rounds=1, sizes=SIZES, lr=LR)
    begun = later(rounds.start(world))
    before, ends, learned = begun.states, [], []

    def update(received, client, round):
        parts = [trees.within(prefix, before) for prefix in ("local.", "weight.")]
        local, weights = (numpy_mlp.arrays(part, client) for part in parts)
        steps = drawn_steps(world, client)
        start, weights = numpy_start(received, local, weights, steps, BEFORE[client])
        ends.append(numpy_mlp.local_pass(world, client, round, start, lr=LR))
        learned.append(weights)
        return numpy_mlp.less(ends[-1], received)

    done, _ = numpy_mlp.assert_golden(world, update, begun=begun)
    assert done.states["rounds"].tolist() == [count + 1 for count in BEFORE]
    kept = [{name: end[name] for name in (HEAD if p == 1 else end)} for end in ends]
    numpy_mlp.assert_close(trees.within("local.", done.states), kept)
    numpy_mlp.assert_close(trees.within("weight.", done.states), learned)


def test_weights_begin_at_1_where_a_client_starts_from_the_global_model():
    still = simulation("fedala", {"p": 2, "eta": 0.0}, backend="vmap")
    plain = simulation("dp_fedavg", backend="vmap")
    simulations.assert_equal(params_after(still), params_after(plain), 1e-12)


def test_weights_stay_between_0_and_1_and_reach_both():
    world = simulation("fedala", {"p": 2, "eta": 50.0}, plan=plan(rounds=4))
    found = finished(world).states["weight.fc1.weight"]
    assert found.min() == 0
    assert found.max() == 1


def test_more_layers_than_the_model_has_are_refused():
    with pytest.raises(ConfigError, match="fedala: p; got 3; expected at most 2"):
        registry.check_model("fedala", cells.Model("mlp", (4,)), {"p": 3})
