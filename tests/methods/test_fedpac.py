"""FedPAC: two rounds against an independent NumPy program, and what a joint release of two parts
is."""

import dataclasses

import numpy as np
import pytest

import numpy_mlp
from pflpipe.errors import PrivacyError
from pflpipe.simulation import rounds
from simulations import CLASSES, personal_models, quiet, shaken, simulation

BODY, HEAD = ("fc1.weight", "fc1.bias"), numpy_mlp.HEAD
OF_HEAD = {"head_epochs": 2, "head_lr": 0.3, "head_momentum": 0.5, "head_weight_decay": 0.1}
LR, CLIP, WEIGHT, SCALE = 0.2, 0.4, 0.8, 2.5


def features(w, x):
    return np.maximum(x @ w["fc1.weight"].T + w["fc1.bias"], 0)


def aligned(centroids):
    """Slope of the cross-entropy and of the squared distance of features to the centroids of their
    classes, per feature; a centroid of zeros has no pull."""

    def slope(w, x, y):
        gap = features(w, x) - centroids[y]
        gap *= centroids[y].any(1, keepdims=True)
        back = 2 * WEIGHT * gap / gap.size * (features(w, x) > 0)
        found = numpy_mlp.gradient(w, x, y)
        found["fc1.weight"] = found["fc1.weight"] + back.T @ x
        found["fc1.bias"] = found["fc1.bias"] + back.sum(0)
        return found

    return slope


def head_phase(world, received, own, client, round):
    """The received extractor with the client's head, trained on features that do not change."""
    x = features(received, world.train.x[world.split.train[client]].numpy())
    solver = {"lr": 0.3, "momentum": 0.5, "decay": 0.1}
    y = world.train.y[world.split.train[client]].numpy()
    cut = world.work(client, round)["head"]
    places = [index[:count] for index, count in zip(cut.index, cut.count, strict=True)]
    steps = [(x[place], y[place]) for place in places]
    return received | numpy_mlp.descend(own, steps, numpy_mlp.gradient, **solver)


def numpy_round(world, received, centroids, heads, round):
    """One round of all clients, uploads clipped in their public units, without noise."""
    change = {name: 0.0 * value for name, value in received.items() if name in BODY}
    change["centroids"] = np.zeros_like(centroids)
    kept = []
    for client in range(4):
        start = head_phase(world, received, heads[client], client, round)
        kept.append({name: start[name] for name in HEAD})
        steps = numpy_mlp.steps(world, client, round, "train")
        end = numpy_mlp.descend(start, steps, aligned(centroids), lr=LR, names=BODY)
        x, y = numpy_mlp.rows(world, client)
        units = {name: end[name] - received[name] for name in BODY}
        z = features(end, x)
        means = [z[y == k].mean(0) if k in y else row for k, row in enumerate(centroids)]
        units["centroids"] = (np.stack(means) - centroids) / SCALE
        for name, value in numpy_mlp.clipped(units, CLIP).items():
            change[name] += value * (SCALE if name == "centroids" else 1) / 4
    received = received | {name: received[name] + change[name] for name in BODY}
    return received, centroids + change["centroids"], kept


def test_golden_rounds_and_personal_model():
    """The second round is the first in which features are pulled."""
    values = {"weight": WEIGHT, "centroid_scale": SCALE, **OF_HEAD}
    world = quiet("fedpac", values, clip_norm=CLIP, rounds=2, lr=LR)
    begun = shaken(rounds.start(world), np.random.default_rng(3))
    received = {name: value.numpy() for name, value in begun.params.items()}
    heads = [{name: begun.states[name][i].numpy() for name in HEAD} for i in range(4)]
    centroids = np.zeros((CLASSES, 4))
    for round in range(2):
        received, centroids, heads = numpy_round(world, received, centroids, heads, round)
    done = rounds.run(world, begun)
    assert done.rows[1]["fraction_clipped"] > 0
    numpy_mlp.assert_close(done.params, received)
    numpy_mlp.assert_close(done.server, {"centroids": centroids})
    numpy_mlp.assert_close(done.states, heads)
    personal = [head_phase(world, received, heads[client], client, 2) for client in range(4)]
    numpy_mlp.assert_close(personal_models(world, done), personal)


@pytest.mark.parametrize("change", ["missing", "unknown", "of another shape"])
def test_an_upload_with_other_parts_than_it_says_stops_the_run(change):
    world = simulation("fedpac")
    said = {"missing": {}, "unknown": {"counts": (CLASSES,)}}
    said |= {"of another shape": {"centroids": (2,)}}
    method = dataclasses.replace(world.method, parts=lambda task: said[change])
    spoiled = dataclasses.replace(world, method=method)
    begun = rounds.start(world)
    with pytest.raises(PrivacyError, match="centroids"):
        rounds.run(spoiled, begun)


def test_parts_are_not_clipped_one_by_one_where_the_ledger_counts_layers():
    world = simulation("fedpac", departures=("per_tensor_clip",))
    with pytest.raises(PrivacyError, match=r"per_tensor_clip.*centroids"):
        rounds.run(world, rounds.start(world))
