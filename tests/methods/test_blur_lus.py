"""BLUR + LUS: a round against an independent NumPy program, its reduction, its penalty and what it
keeps."""

import math

import numpy as np
import pytest
import torch

import numpy_mlp
from pflpipe import trees
from pflpipe.simulation import rounds
from simulations import linear, personal_models, quiet, simulation, spied

WEIGHT, KEEP, LR, CLIP = 0.8, 0.5, 0.3, 0.15
EVERYBODY = range(4)


def numpy_update(x, y, begin, steps, score):
    """One client's sparse change of the model, whose only layer is the head; x and y are all its
    examples."""

    def pulled(w, x, y):
        slope = numpy_mlp.gradient(w, x, y)
        outside = sum(((w[k] - begin[k]) ** 2).sum() for k in w) > CLIP**2
        return {k: slope[k] + WEIGHT * outside * (w[k] - begin[k]) for k in w}

    w = numpy_mlp.descend(begin, steps, pulled, lr=LR)
    update = {k: w[k] - begin[k] for k in w}
    slope = numpy_mlp.gradient(w, x, y)
    utility = {k: np.abs(update[k] * (slope[k] if score == "gradient" else 1.0)) for k in w}
    ranked = np.sort(np.concatenate([value.reshape(-1) for value in utility.values()]))[::-1]
    worst = ranked[math.ceil(KEEP * len(ranked)) - 1]
    return {k: np.where(utility[k] >= worst, update[k], 0.0) for k in w}


@pytest.mark.parametrize("score", ["gradient", "magnitude"])
def test_golden_round(score):
    world = linear("blur_lus", {"weight": WEIGHT, "keep_ratio": KEEP, "score": score}, CLIP, LR)

    def update(w, client, round):
        steps = numpy_mlp.steps(world, client, round, "train")
        return numpy_update(*numpy_mlp.rows(world, client), w, steps, score)

    numpy_mlp.assert_golden(world, update)


def first_update_norms(weight, clip_norm):
    world = quiet("blur_lus", {"weight": weight, "keep_ratio": 1.0}, clip_norm=clip_norm, rounds=1)
    done = rounds.run(world, rounds.start(world))
    return done.rows[0]["update_norm_mean"], done.rows[0]["update_norm_max"]


def test_the_penalty_has_a_gradient_outside_the_ball_and_none_inside():
    free, longest = first_update_norms(0.0, 0.01)
    assert first_update_norms(2.0, 0.01)[0] < 0.8 * free
    assert first_update_norms(2.0, 1.01 * longest) == (free, longest)


@pytest.mark.slow
def test_long_local_training_ends_where_the_penalty_balances_the_loss():
    """Outside the ball the objective is strictly convex: grad CE(w) + weight (w - w_global) = 0 at
    its end."""
    alone = {"clients": 1, "sizes": (9,), "batch_size": 0, "local_epochs": 300}
    world = linear("blur_lus", {"weight": WEIGHT}, CLIP, 0.5, **alone)
    begun = rounds.start(world)
    end = {name: value[0].numpy() for name, value in personal_models(world, begun).items()}
    change = {name: end[name] - value.numpy() for name, value in begun.params.items()}
    assert np.sqrt(sum((value**2).sum() for value in change.values())) > 2 * CLIP
    rows = world.split.train[0]
    for name, slope in numpy_mlp.gradient(
        end, world.train.x[rows].numpy(), world.train.y[rows].numpy()
    ).items():
        np.testing.assert_allclose(slope, -WEIGHT * change[name], atol=1e-10)


@pytest.mark.parametrize("score", ["gradient", "magnitude"])
def test_each_layer_keeps_its_share_and_the_noise_is_dense(score):
    _, seen, _ = spied(simulation("blur_lus", {"keep_ratio": 0.4, "score": score}, backend="vmap"))
    for uploads, _, released in seen:
        assert uploads.extras == {}
        assert all((value != 0).all() for value in released.sum.values())
        for names in trees.layers(uploads.update).values():
            kept = sum((uploads.update[name] != 0).flatten(1).sum(1) for name in names)
            size = sum(uploads.update[name][0].numel() for name in names)
            assert kept.max() == math.ceil(0.4 * size)


def test_the_personal_model_has_the_penalty_and_keeps_every_entry():
    world = simulation("blur_lus", {"weight": WEIGHT, "keep_ratio": 0.3}, backend="vmap")
    whole = simulation("blur_lus", {"weight": WEIGHT, "keep_ratio": 1.0}, backend="vmap")
    begun = rounds.start(world)

    def local_update(state, batches, others):
        return whole.method.local_update(begun.params, begun.server, state, batches, world.task)[
            0
        ].update

    update = world.run_clients(
        local_update, begun.states, EVERYBODY, [world.work(client, 0) for client in EVERYBODY]
    )
    for name, value in personal_models(world, begun).items():
        torch.testing.assert_close(value, begun.params[name] + update[name], rtol=1e-12, atol=1e-14)
