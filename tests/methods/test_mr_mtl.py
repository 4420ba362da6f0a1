"""MR-MTL: two rounds against an independent NumPy program, its reductions, and where the server's
model is."""

import pytest

import numpy_mlp
from simulations import assert_equal, finished, linear, personal_models, plan, simulation, spied

WEIGHT, LR, CLIP = 0.6, 0.2, 0.2


@pytest.mark.parametrize("anchor", ["own", "server"])
def test_golden_rounds_and_personal_model(anchor):
    """From the second round on a client starts away from the mean."""
    world = linear("mr_mtl", {"weight": WEIGHT, "anchor": anchor}, CLIP, LR, rounds=2)
    own = {}

    def trained(mean, client, round):
        begin, slope = own.get(client, mean), numpy_mlp.pulled(WEIGHT, mean)
        return numpy_mlp.local_pass(world, client, round, begin, slope, lr=LR)

    def update(mean, client, round):
        before = own.get(client, mean)
        own[client] = trained(mean, client, round)
        return numpy_mlp.less(own[client], before if anchor == "own" else mean)

    done, mean = numpy_mlp.assert_golden(world, update)
    numpy_mlp.assert_close(done.states, [own[client] for client in range(4)])
    expected = [trained(mean, client, 2) for client in range(4)]
    numpy_mlp.assert_close(personal_models(world, done), expected)


def test_who_takes_no_step_sends_zeros_however_far_the_mean_is():
    """One client has no rows, and one fewer than a batch."""
    settings = {"sizes": (5, 0, 3), "drop_last": True, "backend": "vmap"}
    world = simulation("mr_mtl", {"anchor": "server"}, **settings)
    _, seen, states = spied(world)
    params, own = states[-2]
    assert all((own[name][1] != params[name]).any() for name in params)
    for uploads, _, _ in seen:
        for value in uploads.update.values():
            assert value[0].any()
            assert not value[1:].any()


def test_without_clip_and_noise_the_server_has_the_mean_of_all_models():
    """Of all clients, of whom half are drawn in each round."""
    quiet = plan(sample_rate=0.5, rounds=4, clip_norm=1e9, noise_multiplier=0.0)
    world = simulation("mr_mtl", {"weight": 0.5}, plan=quiet)
    done = finished(world)
    means = {name: value.mean(0) for name, value in done.states.items()}
    assert max(float((done.states[name] - means[name]).abs().max()) for name in means) > 0.1
    assert_equal(done.params, means)
