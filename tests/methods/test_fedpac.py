"""FedPAC: two rounds against an independent NumPy program, and what a joint release of two parts
is."""

import dataclasses

import numpy as np
import pytest

import numpy_mlp
from numpy_mlp import BODY, HEAD
from pflpipe.errors import PrivacyError
from pflpipe.simulation import rounds
from simulations import CLASSES, finished, personal_models, quiet, shaken, simulation

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
    solver = {"lr": 0.3, "momentum": 0.5, "decay": 0.1}
    batches = numpy_mlp.steps(world, client, round, "head")
    steps = [(features(received, x), y) for x, y in batches]
    return received | numpy_mlp.descend(own, steps, numpy_mlp.gradient, **solver)


def test_golden_rounds_and_personal_model():
    """The second round is the first in which features are pulled."""
    values = {"weight": WEIGHT, "centroid_scale": SCALE, **OF_HEAD}
    world = quiet("fedpac", values, clip_norm=CLIP, rounds=2, lr=LR)
    begun = shaken(rounds.start(world), np.random.default_rng(3))
    own = [numpy_mlp.arrays(begun.states, client) for client in range(4)]

    def update(both, client, round):
        centroids, w = both["centroids"], {name: both[name] for name in (*BODY, *HEAD)}
        start = head_phase(world, w, own[client], client, round)
        own[client] = {name: start[name] for name in HEAD}
        slope = aligned(centroids)
        end = numpy_mlp.local_pass(world, client, round, start, slope, lr=LR, names=BODY)
        x, y = numpy_mlp.rows(world, client)
        z = features(end, x)
        means = [z[y == k].mean(0) if k in y else row for k, row in enumerate(centroids)]
        units = {"centroids": (np.stack(means) - centroids) / SCALE}
        return {name: end[name] - w[name] for name in BODY} | units

    def clip(message, bound):
        sent = numpy_mlp.clipped(message, bound)
        return sent | {"centroids": SCALE * sent["centroids"]}

    server = {"centroids": np.zeros((CLASSES, 4))}
    done, w = numpy_mlp.assert_golden(world, update, begun=begun, server=server, clip=clip)
    numpy_mlp.assert_close(done.server, {"centroids": w.pop("centroids")})
    numpy_mlp.assert_close(done.states, own)
    personal = [head_phase(world, w, own[client], client, 2) for client in range(4)]
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
        finished(world)
