"""BLUR + LUS: a round against an independent NumPy program, and the personal model."""

import math

import numpy as np
import pytest

import numpy_mlp
from pflpipe.simulation import rounds
from simulations import assert_equal, finished, linear, personal_models, plan, simulation, spied

WEIGHT, KEEP, LR, CLIP = 0.8, 0.5, 0.3, 0.15


def numpy_update(x, y, begin, steps, score):
    """One client's sparse change of the model, whose only layer is the head; x and y are all its
    examples."""

    def bounded(w, x, y):
        outside = sum(((w[k] - begin[k]) ** 2).sum() for k in w) > CLIP**2
        return numpy_mlp.pulled(WEIGHT * outside, begin)(w, x, y)

    w = numpy_mlp.descend(begin, steps, bounded, lr=LR)
    update = numpy_mlp.less(w, begin)
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


def test_the_penalty_has_no_gradient_inside_the_ball():
    def norms(weight, clip_norm):
        rule = plan(noise_multiplier=0.0, clip_norm=clip_norm, rounds=1)
        world = simulation("blur_lus", {"weight": weight, "keep_ratio": 1.0}, plan=rule)
        row = finished(world).rows[0]
        return row["update_norm_mean"], row["update_norm_max"]

    free = norms(0.0, 0.01)
    assert norms(2.0, 1.01 * free[1]) == free


def test_the_personal_model_has_the_penalty_and_keeps_every_entry():
    world, whole = (
        simulation("blur_lus", {"weight": WEIGHT, "keep_ratio": keep}, plan=plan(rounds=1))
        for keep in (0.3, 1.0)
    )
    begun = rounds.start(world)
    _, ((uploads, _, _),), _ = spied(whole)
    expected = {name: begun.params[name] + value for name, value in uploads.update.items()}
    assert_equal(personal_models(world, begun), expected)
