"""Golden rounds of the plain methods, and of FedBN with a norm layer small enough for a NumPy
program of a few lines."""

import dataclasses

import numpy as np
import pytest

import numpy_mlp
from pflpipe.learning.networks import Network
from pflpipe.simulation import rounds
from simulations import CLASSES, open_plan, plan, quiet, simulation

LR, CLIP = 0.2, 0.3


@pytest.mark.parametrize("name", ["local_only", "fedavg", "dp_fedavg", "dp_fedavg_fb"])
def test_golden_rounds_of_the_plain_methods(name):
    private = name.startswith("dp_")
    rule = plan(noise_multiplier=0.0, clip_norm=CLIP, rounds=2) if private else open_plan(rounds=2)
    world = simulation(name, plan=rule, backend="vmap", lr=LR, momentum=0.5)
    begun, shared = numpy_mlp.start(world)
    clients = range(world.plan.clients)
    sizes = np.array([len(rows) for rows in world.split.train])
    weights = sizes / sizes.sum() if name == "fedavg" else np.full(len(sizes), 1 / len(sizes))
    own = [shared for _ in clients]
    for round in range(2):
        starts = own if name == "local_only" else [shared for _ in clients]
        steps = [numpy_mlp.steps(world, client, round, "train") for client in clients]
        how = {"lr": LR, "momentum": 0.5}
        own = [numpy_mlp.descend(starts[i], steps[i], numpy_mlp.gradient, **how) for i in clients]
        if name != "local_only":
            changes = [numpy_mlp.less(end, shared) for end in own]
            if private:
                changes = [numpy_mlp.clipped(change, CLIP) for change in changes]
            mean = {key: sum(weights[i] * changes[i][key] for i in clients) for key in shared}
            shared = {key: shared[key] + mean[key] for key in shared}
    done = rounds.run(world, begun)
    numpy_mlp.assert_close(done.params, shared)
    if name == "local_only":
        numpy_mlp.assert_close(done.states, own)


def scaled_regression():
    """Softmax regression on features that one norm layer scales and shifts: ``z = x * a + b``."""
    shapes = {"norm1.weight": (5,), "norm1.bias": (5,)}
    shapes |= {"head.weight": (CLASSES, 5), "head.bias": (CLASSES,)}
    return Network(shapes, lambda w, x, key: x * w["norm1.weight"] + w["norm1.bias"])


def slopes(w, x, y):
    z = x * w["norm1.weight"] + w["norm1.bias"]
    scores = np.exp(z @ w["head.weight"].T + w["head.bias"])
    error = (scores / scores.sum(1, keepdims=True) - np.eye(CLASSES)[y]) / len(y)
    back = error @ w["head.weight"]
    return {
        "norm1.weight": (back * x).sum(0),
        "norm1.bias": back.sum(0),
        "head.weight": error.T @ z,
        "head.bias": error.sum(0),
    }


def test_golden_rounds_of_fedbn_whose_norm_parameters_stay_on_the_client():
    world = quiet("fedbn", clip_norm=CLIP, rounds=2, lr=LR)
    world = dataclasses.replace(world, network=scaled_regression())
    begun, shared = numpy_mlp.start(world)
    norm = ("norm1.weight", "norm1.bias")
    clients = range(world.plan.clients)
    own = [{key: shared[key] for key in norm} for _ in clients]
    for round in range(2):
        steps = [numpy_mlp.steps(world, client, round, "train") for client in clients]
        ends = [numpy_mlp.descend(shared | own[i], steps[i], slopes, lr=LR) for i in clients]
        own = [{key: end[key] for key in norm} for end in ends]
        heads = [{key: end[key] - shared[key] for key in numpy_mlp.HEAD} for end in ends]
        changes = [numpy_mlp.clipped(head, CLIP) for head in heads]
        shared = numpy_mlp.moved(shared, changes)
    done = rounds.run(world, begun)
    assert done.states.keys() == set(norm)
    numpy_mlp.assert_close(done.params, shared)
    numpy_mlp.assert_close(done.states, own)
