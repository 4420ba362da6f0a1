"""Golden rounds of the plain methods, of those that split the network and of those that pull a
model to another one: against NumPy programs of a few lines."""

import dataclasses

import numpy as np
import pytest

import numpy_mlp
import simulations
from numpy_mlp import BODY, HEAD
from pflpipe.learning.networks import Network
from pflpipe.simulation import rounds, scores
from simulations import CLASSES, finished, open_plan, personal_models, plan, quiet, simulation

LR, CLIP = 0.2, 0.3
CLIENTS = range(4)


@pytest.mark.parametrize("name", ["dp_fedavg", "fedavg"])
def test_golden_rounds_of_the_plain_methods(name):
    how, rule = {"lr": LR, "momentum": 0.5}, plan(noise_multiplier=0.0, clip_norm=CLIP, rounds=2)
    rule = open_plan(rounds=2) if name == "fedavg" else rule
    world = simulation(name, plan=rule, backend="vmap", **how)

    def update(w, client, round):
        return numpy_mlp.less(numpy_mlp.local_pass(world, client, round, w, **how), w)

    shares = numpy_mlp.weights(world, by_size=name == "fedavg")
    free = {"clip": lambda message, bound: message, "clips": None} if name == "fedavg" else {}
    numpy_mlp.assert_golden(world, update, shares=shares, **free)


def test_golden_rounds_of_clients_that_train_alone():
    how = {"lr": LR, "momentum": 0.5}
    world = simulation("local_only", plan=open_plan(rounds=2), backend="vmap", **how)
    begun, w = numpy_mlp.start(world)
    own = [w for _ in CLIENTS]
    for round in range(2):
        own = [numpy_mlp.local_pass(world, i, round, own[i], **how) for i in CLIENTS]
    done = rounds.run(world, begun)
    numpy_mlp.assert_close(done.params, w)
    numpy_mlp.assert_close(done.states, own)


def scaled_regression():
    """Softmax regression on features that one norm layer scales and shifts: ``z = x * a + b``."""
    shapes = {"norm1.weight": (5,), "norm1.bias": (5,)}
    shapes |= {"head.weight": (CLASSES, 5), "head.bias": (CLASSES,)}
    return Network(shapes, lambda w, x, key: x * w["norm1.weight"] + w["norm1.bias"])


def slopes(w, x, y):
    z = x * w["norm1.weight"] + w["norm1.bias"]
    error = numpy_mlp.errors(w, z, y)
    back = error @ w["head.weight"]
    norm = {"norm1.weight": (back * x).sum(0), "norm1.bias": back.sum(0)}
    return norm | {"head.weight": error.T @ z, "head.bias": error.sum(0)}


def test_golden_rounds_of_fedbn_whose_norm_parameters_stay_on_the_client():
    world = quiet("fedbn", clip_norm=CLIP, rounds=2, lr=LR)
    world = dataclasses.replace(world, network=scaled_regression())
    own = {}

    def local_pass(w, client, round):
        begin = w | own.get(client, {})
        return numpy_mlp.local_pass(world, client, round, begin, slopes, lr=LR)

    def update(w, client, round):
        end = local_pass(w, client, round)
        own[client] = {key: end[key] for key in ("norm1.weight", "norm1.bias")}
        return {key: end[key] - w[key] for key in HEAD}

    done, w = numpy_mlp.assert_golden(world, update)
    numpy_mlp.assert_close(done.states, [own[client] for client in CLIENTS])
    expected = [local_pass(w, client, 2) for client in CLIENTS]
    numpy_mlp.assert_close(personal_models(world, done), expected)


# Methods that split the network

HEAD_PHASE = {"head_epochs": 3, "head_lr": 0.1, "head_momentum": 0.6, "head_weight_decay": 0.05}


@pytest.mark.parametrize(
    ("name", "kept", "trained", "phase", "momentum"),
    [
        ("fedper", HEAD, None, "", 0.0),
        ("lg_fedavg", BODY, None, "", 0.0),
        ("centaur", HEAD, BODY, "before each pass", 0.9),
        ("fedrep", HEAD, BODY, "before each pass", 0.9),
        ("fedbabu", (), BODY, "after the last round", 0.9),
        ("dp_fedavg_fb", (), None, "after the last round", 0.9),
    ],
)
def test_golden_rounds_and_personal_models_of_a_split_network(name, kept, trained, phase, momentum):
    values = HEAD_PHASE if phase else {}
    settings = {"lr": LR, "momentum": momentum, "weight_decay": 0.1}
    world = quiet(name, values, clip_norm=CLIP, rounds=2, **settings)
    how, own = {"lr": LR, "momentum": momentum, "decay": 0.1, "names": trained}, {}
    # Of nine rows in fours.
    assert not phase or len(world.work(0, 0)["head"].count) == 3 * HEAD_PHASE["head_epochs"]

    def with_head(w, client, round):
        words = {"lr": 0.1, "momentum": 0.6, "decay": 0.05, "names": HEAD}
        begin = w | own.get(client, {})
        return numpy_mlp.local_pass(world, client, round, begin, schedule="head", **words)

    def local_pass(w, client, round):
        begin = w | own.get(client, {})
        if phase == "before each pass":
            begin = with_head(w, client, round)
        return numpy_mlp.local_pass(world, client, round, begin, **how)

    def update(w, client, round):
        end = local_pass(w, client, round)
        own[client] = {key: end[key] for key in kept}
        return {key: end[key] - w[key] for key in (trained or w) if key not in kept}

    clips = None if name == "fedper" else True  # in its first round alone
    done, w = numpy_mlp.assert_golden(world, update, clips=clips)
    if kept:
        numpy_mlp.assert_close(done.states, [own[client] for client in CLIENTS])
    personal = with_head if phase else local_pass
    expected = [personal(w, client, 2) for client in CLIENTS]
    numpy_mlp.assert_close(personal_models(world, done), expected)


def test_the_global_model_of_fedbabu_is_tested_with_its_initial_head():
    world = simulation("fedbabu")
    rows = scores.accuracies(world, finished(world))
    assert all(np.isfinite(row["global_common"]) for row in rows)


# Methods that pull a client's model to the one that it received


@pytest.mark.parametrize(
    ("name", "values", "pull"),
    [
        ("fedprox", {"weight": 0.6}, 0.6),
        ("pmtl_ft", {"weight": 0.3, "detached": False}, 2 * 0.3),
        ("pmtl_ft", {"weight": 0.3, "detached": True}, 0.0),
    ],
)
def test_golden_round_of_a_pulled_model(name, values, pull):
    world = simulations.linear(name, values, 0.2, LR)

    def update(w, client, round):
        slope = numpy_mlp.pulled(pull, w)
        return numpy_mlp.less(numpy_mlp.local_pass(world, client, round, w, slope, lr=LR), w)

    numpy_mlp.assert_golden(world, update)


def test_the_detached_penalty_of_pmtl_ft_still_counts_in_the_loss():
    def first_loss(**penalty):
        world = simulation("pmtl_ft", penalty, plan=plan(rounds=1))
        return finished(world).rows[0]["loss"]

    assert first_loss(weight=3.0, detached=True) > first_loss(weight=0.0) + 0.01
