"""BLUR + LUS: a round against an independent NumPy program, and the personal model."""

import math

import numpy as np
import pytest

import numpy_mlp
from simulations import finished, linear, personal_models, plan, simulation

WEIGHT, KEEP, LR, CLIP = 0.8, 0.5, 0.3, 0.15


def trained(world, client, round, begin):
    """A client's model, pulled to the one that it received where it is further away than C."""

    def bounded(w, x, y):
        outside = sum(((w[k] - begin[k]) ** 2).sum() for k in w) > CLIP**2
        return numpy_mlp.pulled(WEIGHT * outside, begin)(w, x, y)

    return numpy_mlp.local_pass(world, client, round, begin, bounded, lr=LR)


@pytest.mark.parametrize("score", ["gradient", "magnitude"])
def test_golden_round_and_personal_model(score):
    """Of an update the entries of most use are sent; a personal model has all."""
    world = linear("blur_lus", {"weight": WEIGHT, "keep_ratio": KEEP, "score": score}, CLIP, LR)

    def update(begin, client, round):
        w = trained(world, client, round, begin)
        slope = numpy_mlp.gradient(w, *numpy_mlp.rows(world, client))
        change = numpy_mlp.less(w, begin)
        weights = slope if score == "gradient" else dict.fromkeys(slope, 1.0)
        utility = {k: np.abs(change[k] * weights[k]) for k in w}
        ranked = np.sort(numpy_mlp.flat(utility))[::-1]
        worst = ranked[math.ceil(KEEP * len(ranked)) - 1]
        return {k: np.where(utility[k] >= worst, change[k], 0.0) for k in w}

    done, w = numpy_mlp.assert_golden(world, update)
    personal = [trained(world, client, 1, w) for client in range(4)]
    numpy_mlp.assert_close(personal_models(world, done), personal)


def test_the_penalty_has_no_gradient_inside_the_ball():
    def norms(weight, clip_norm):
        rule = plan(noise_multiplier=0.0, clip_norm=clip_norm, rounds=1)
        world = simulation("blur_lus", {"weight": weight, "keep_ratio": 1.0}, plan=rule)
        row = finished(world).rows[0]
        return row["update_norm_mean"], row["update_norm_max"]

    free = norms(0.0, 0.01)
    assert norms(2.0, 1.01 * free[1]) == free
