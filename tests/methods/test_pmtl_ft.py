"""PMTL-FT: a round against an independent NumPy program, and a penalty without a gradient."""

import pytest

import numpy_mlp
from pflpipe.simulation import rounds
from simulations import linear, plan, simulation

WEIGHT, LR, CLIP = 0.3, 0.2, 0.2


@pytest.mark.parametrize("detached", [False, True])
def test_golden_round(detached):
    world = linear("pmtl_ft", {"weight": WEIGHT, "detached": detached}, CLIP, LR)

    def update(begin, client, round):
        def pulled(w, x, y):
            slope, pull = numpy_mlp.gradient(w, x, y), 0.0 if detached else 2 * WEIGHT
            return {name: slope[name] + pull * (w[name] - begin[name]) for name in w}

        steps = numpy_mlp.steps(world, client, round, "train")
        return numpy_mlp.less(numpy_mlp.descend(begin, steps, pulled, lr=LR), begin)

    numpy_mlp.assert_golden(world, update)


def test_the_detached_penalty_still_counts_in_the_loss():
    def first_loss(**penalty):
        world = simulation("pmtl_ft", penalty, plan=plan(rounds=1))
        return rounds.run(world, rounds.start(world)).rows[0]["loss"]

    assert first_loss(weight=3.0, detached=True) > first_loss(weight=0.0) + 0.01
