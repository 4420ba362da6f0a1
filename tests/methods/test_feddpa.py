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
from simulations import assert_equal, linear, personal_models, plan, shaken, simulation

TAU, LAMBDA_1, LAMBDA_2, LR, CLIP = 0.3, 0.2, 0.4, 0.1, 0.05


def numpy_round(x, y, w_global, w_local, steps, *, against_global, schedule):
    """One client of FedDPA on a linear softmax model, written from the paper without torch.

    Weights are dictionaries {"head.weight": [K, D], "head.bias": [K]}; returns start, end.
    """
    fisher = {name: np.zeros_like(value) for name, value in w_global.items()}
    for row in range(len(y)):
        for name, slope in numpy_mlp.gradient(w_local, x[[row]], y[[row]]).items():
            fisher[name] += slope**2 / len(y)
    masks = {k: (f - f.min()) / (f.max() - f.min()) >= TAU for k, f in fisher.items()}
    start = {k: np.where(masks[k], w_local[k], w_global[k]) for k in fisher}
    w = {k: v.copy() for k, v in start.items()}

    def pull(side):
        """Gradient of the change's norm: the masked joint norm, or the official sum of per-tensor
        norms to the global model."""
        if against_global:
            gaps = {k: w[k] - w_global[k] for k in w}
            lengths = {k: np.sqrt((g**2).sum()) for k, g in gaps.items()}
            slopes = {k: gaps[k] / lengths[k] if lengths[k] else 0 * gaps[k] for k in w}
            return sum(lengths.values()), slopes
        gaps = {k: (w[k] - start[k]) * side[k] for k in w}
        length = np.sqrt(sum((g**2).sum() for g in gaps.values()))
        return length, {k: g / length if length else 0 * g for k, g in gaps.items()}

    rest = {k: ~m for k, m in masks.items()}
    turns = ((masks, LAMBDA_1), (rest, LAMBDA_2))
    if schedule == "alternate":
        work = [(rows, turn) for rows in steps for turn in turns]
    else:
        work = [(rows, turn) for turn in turns for rows in steps]
    for rows, (side, weight) in work:
        slope = numpy_mlp.gradient(w, x[rows], y[rows])
        length, direction = pull(side)
        sign = 1.0 if side is masks else np.sign(length - CLIP)
        w = {k: w[k] - LR * side[k] * (slope[k] + weight / 2 * sign * direction[k]) for k in w}
    return start, w


@pytest.mark.parametrize("schedule", ["alternate", "two_phase"])
@pytest.mark.parametrize("official", [False, True])
def test_golden_round(official, schedule):
    names = ("sample_level_calibration", "data_size_weights", "update_against_global")
    departures = names if official else ()
    values = {"tau": TAU, "lambda_1": LAMBDA_1, "lambda_2": LAMBDA_2, "schedule": schedule}
    world = linear("feddpa", values, CLIP, LR, departures=departures)
    begun = shaken(rounds.start(world), np.random.default_rng(5), 0.3)
    w_global = {name: value.numpy() for name, value in begun.params.items()}
    sizes = np.array([len(rows) for rows in world.split.train])
    weights = sizes / sizes.sum() if official else np.full(4, 0.25)
    expected = {name: value.copy() for name, value in w_global.items()}
    ends = []
    for client in range(4):
        cut = world.work(client, 0)["train"]
        steps = [index[:count] for index, count in zip(cut.index, cut.count, strict=True)]
        x, y = numpy_mlp.rows(world, client)
        w_local = {name: value[client].numpy() for name, value in begun.states.items()}
        start, end = numpy_round(
            x, y, w_global, w_local, steps, against_global=official, schedule=schedule
        )
        origin = w_global if official else start
        update = {name: end[name] - origin[name] for name in end}
        length = np.sqrt(sum((value**2).sum() for value in update.values()))
        for name in expected:
            expected[name] += weights[client] * update[name] * min(1, CLIP / length)
        ends.append(end)
    done = rounds.run(world, begun)
    numpy_mlp.assert_close(done.params, expected)
    numpy_mlp.assert_close(done.states, ends)


def test_min_max_spans_zero_to_one_and_a_constant_tensor_is_shared():
    scaled = module.min_max({"a": torch.tensor([2.0, 4.0, 3.0]), "b": torch.full((3,), 7.0)})
    assert scaled["a"].tolist() == [0, 1, 0.5]
    assert scaled["b"].tolist() == [0, 0, 0]


OFFICIAL = registry.departures("feddpa", "paper", official_code=True)


def test_the_official_code_tests_the_models_from_before_the_last_aggregation():
    world = simulation("feddpa", {"tau": TAU}, backend="vmap", departures=OFFICIAL)
    done = rounds.run(world, rounds.start(world))
    assert_equal(personal_models(world, done), dict(done.states.items()), 0)


def test_the_official_code_tests_a_client_that_was_never_drawn_untrained():
    """Many clients of a study with few rounds: their accuracy is that of the first parameters."""
    some = plan(sample_rate=0.5, rounds=1)
    world = simulation("feddpa", {"tau": TAU}, backend="vmap", departures=OFFICIAL, plan=some)
    begun = rounds.start(world)
    first, drawn = begun.params, rounds.cohort(world, 0)
    assert 0 < drawn.sum() < len(drawn)
    tested = personal_models(world, rounds.run(world, begun))
    for client, was_drawn in enumerate(drawn):
        is_first = all(torch.equal(tested[name][client], value) for name, value in first.items())
        assert is_first != was_drawn


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
