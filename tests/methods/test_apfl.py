"""APFL: rounds against an independent NumPy program, and the share that adapts."""

import numpy as np
import pytest

import numpy_mlp
from pflpipe.simulation import rounds
from simulations import assert_equal, linear, personal_models, simulation

ALPHA, LR, CLIP = 0.3, 0.2, 0.2


@pytest.mark.parametrize("adaptive", [False, True])
def test_golden_rounds(adaptive):
    world = linear("apfl", {"alpha": ALPHA, "adaptive": adaptive}, CLIP, LR, rounds=2)
    begun, shared = numpy_mlp.start(world)
    own, shares = [shared] * 4, [ALPHA] * 4

    def mixed(share, v, w):
        return {name: share * v[name] + (1 - share) * w[name] for name in w}

    def trained(client, round, share, v, w):
        if adaptive:
            slope = numpy_mlp.gradient(mixed(share, v, w), *numpy_mlp.rows(world, client))
            rise = sum(((v[name] - w[name]) * slope[name]).sum() for name in w)
            share = min(max(share - LR * rise, 0.0), 1.0)
        for x, y in numpy_mlp.steps(world, client, round, "train"):
            of_w = numpy_mlp.gradient(w, x, y)
            of_mixture = numpy_mlp.gradient(mixed(share, v, w), x, y)
            w = {name: w[name] - LR * of_w[name] for name in w}
            v = {name: v[name] - LR * share * of_mixture[name] for name in v}
        return share, v, w

    for round in range(2):
        sent = []
        for client in range(4):
            begin = shares[client], own[client], shared
            shares[client], own[client], end = trained(client, round, *begin)
            sent.append(numpy_mlp.clipped(numpy_mlp.less(end, shared), CLIP))
        shared = numpy_mlp.moved(shared, sent)
    done = rounds.run(world, begun)
    numpy_mlp.assert_close(done.params, shared)
    numpy_mlp.assert_close({"": dict(done.states)["alpha"]}, {"": shares})
    assert (np.ptp(shares) > 1e-4) == adaptive
    ends = [trained(client, 2, shares[client], own[client], shared) for client in range(4)]
    numpy_mlp.assert_close(personal_models(world, done), [mixed(*end) for end in ends])


@pytest.mark.parametrize("seed", [0, 1])
def test_an_adapted_share_ends_nowhere_but_between_0_and_1(seed):
    world = simulation("apfl", seed=seed, lr=3.0)
    shares = dict(rounds.run(world, rounds.start(world)).states)["alpha"].tolist()
    assert {0.0, 1.0} & set(shares), "a step went over an end"
    assert all(0 <= share <= 1 for share in shares)


def test_a_client_that_was_never_in_training_begins_with_the_released_model():
    """Its two models see the same batches: with alpha 1 its own one is that of DP-FedAvg's
    client."""
    world, plain = simulation("apfl", {"alpha": 1.0}), simulation("dp_fedavg")
    done, new = rounds.run(plain, rounds.start(plain)), rounds.start(world)
    new.params, new.round = done.params, done.round
    assert_equal(personal_models(world, new), personal_models(plain, done))
