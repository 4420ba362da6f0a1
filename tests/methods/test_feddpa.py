"""FedDPA: one round against an independent NumPy program, its masks, its regularisers and its
departures."""

import dataclasses

import numpy as np
import pytest
import torch

import numpy_mlp
from pflpipe.methods import feddpa as module
from pflpipe.methods import registry
from pflpipe.simulation import rounds
from simulations import assert_equal, finished, linear, personal_models, plan, shaken, simulation

TAU, LAMBDA_1, LAMBDA_2, LR, CLIP = 0.3, 0.2, 0.4, 0.1, 0.05
OFFICIAL = registry.departures("feddpa", "paper", official_code=True)


def numpy_round(x, y, w_global, w_local, steps, *, against_global, schedule):
    """One client of FedDPA on a linear softmax model, written from the paper without torch.

    Weights are dictionaries {"head.weight": [K, D], "head.bias": [K]}; returns start, end.
    """
    fisher = numpy_mlp.fisher(w_local, x, y)
    masks = {k: (f - f.min()) / (f.max() - f.min()) >= TAU for k, f in fisher.items()}
    w = start = {k: np.where(masks[k], w_local[k], w_global[k]) for k in fisher}

    def pull(side):
        """Gradient of the change's norm: the masked joint norm, or the official sum of per-tensor
        norms to the global model."""
        if against_global:
            gaps = numpy_mlp.less(w, w_global)
            lengths = {k: np.sqrt((g**2).sum()) for k, g in gaps.items()}
            slopes = {k: gaps[k] / lengths[k] if lengths[k] else 0 * gaps[k] for k in w}
            return sum(lengths.values()), slopes
        gaps = {k: (w[k] - start[k]) * side[k] for k in w}
        length = np.sqrt(sum((g**2).sum() for g in gaps.values()))
        return length, {k: g / length if length else 0 * g for k, g in gaps.items()}

    rest = {k: ~m for k, m in masks.items()}
    turns = ((masks, LAMBDA_1), (rest, LAMBDA_2))
    work = [(batch, turn) for turn in turns for batch in steps]
    if schedule == "alternate":
        work = [(batch, turn) for batch in steps for turn in turns]
    for batch, (side, weight) in work:
        slope = numpy_mlp.gradient(w, *batch)
        length, direction = pull(side)
        sign = 1.0 if side is masks else np.sign(length - CLIP)
        w = {k: w[k] - LR * side[k] * (slope[k] + weight / 2 * sign * direction[k]) for k in w}
    return start, w


@pytest.mark.parametrize("schedule", ["alternate", "two_phase"])
@pytest.mark.parametrize("official", [False, True])
def test_golden_round(official, schedule):
    values = {"tau": TAU, "lambda_1": LAMBDA_1, "lambda_2": LAMBDA_2, "schedule": schedule}
    world = linear("feddpa", values, CLIP, LR, departures=OFFICIAL if official else ())
    begun = shaken(rounds.start(world), np.random.default_rng(5), 0.3)
    before, ends = begun.states, []

    def update(w, client, round):
        w_local, steps = (
            numpy_mlp.arrays(before, client),
            numpy_mlp.steps(world, client, 0, "train"),
        )
        how = {"against_global": official, "schedule": schedule}
        start, end = numpy_round(*numpy_mlp.rows(world, client), w, w_local, steps, **how)
        ends.append(end)
        return numpy_mlp.less(end, w if official else start)

    shares = numpy_mlp.weights(world, by_size=official)
    done, _ = numpy_mlp.assert_golden(world, update, begun=begun, shares=shares)
    numpy_mlp.assert_close(done.states, ends)


def test_min_max_spans_zero_to_one_and_a_constant_tensor_is_shared():
    scaled = module.min_max({"a": torch.tensor([2.0, 4.0, 3.0]), "b": torch.full((3,), 7.0)})
    assert scaled["a"].tolist() == [0, 1, 0.5]
    assert scaled["b"].tolist() == [0, 0, 0]


def test_the_official_code_tests_the_models_from_before_the_last_aggregation():
    """Also of a client that was never drawn, which is untrained: many clients of a study with few
    rounds."""
    some = plan(sample_rate=0.5, rounds=1)
    world = simulation("feddpa", {"tau": TAU}, backend="vmap", departures=OFFICIAL, plan=some)
    done, first = finished(world), rounds.start(world).params
    tested = personal_models(world, done)
    assert_equal(tested, dict(done.states), 0)
    is_first = tested["head.bias"].eq(first["head.bias"]).all(1)
    assert is_first.tolist() == (~rounds.cohort(world, 0)).tolist()
    assert 0 < is_first.sum() < len(is_first)


def test_the_official_code_trains_without_dropout_and_with_transforms():
    """The body's key is that of dropout, and a transform has its own."""

    def keys(departures):
        world = simulation("feddpa", {"tau": TAU}, backend="vmap", departures=departures)
        dropped, moved, body = [], [], world.network.body

        def seen(params, x, key):
            dropped.append(key is not None)
            return body(params, x, key)

        def transform(x, key):
            moved.append(True)
            return x + 1

        network = dataclasses.replace(world.network, body=seen)
        other = dataclasses.replace(world, network=network, augment=transform)
        rounds.one_round(other, rounds.start(other))
        return any(dropped), any(moved)

    assert keys(()) == (True, True)
    assert keys(OFFICIAL) == (False, True)
