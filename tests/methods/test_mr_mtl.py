"""MR-MTL: two rounds against an independent NumPy program, its reductions, and where the server's
model is."""

import pytest

import numpy_mlp
from pflpipe.simulation import rounds
from simulations import assert_equal, linear, personal_models, plan, simulation, spied

WEIGHT, LR, CLIP = 0.6, 0.2, 0.2


@pytest.mark.parametrize("anchor", ["own", "server"])
def test_golden_rounds_and_personal_model(anchor):
    """From the second round on a client starts away from the mean."""
    world = linear("mr_mtl", {"weight": WEIGHT, "anchor": anchor}, CLIP, LR, rounds=2)
    begun, mean = numpy_mlp.start(world)
    own = [mean] * 4

    def trained(round):
        def pulled(w, x, y):
            slope = numpy_mlp.gradient(w, x, y)
            return {name: slope[name] + WEIGHT * (w[name] - mean[name]) for name in w}

        steps = [numpy_mlp.steps(world, client, round, "train") for client in range(4)]
        return [numpy_mlp.descend(own[i], steps[i], pulled, lr=LR) for i in range(4)]

    for round in range(2):
        ends = trained(round)
        sent = [
            numpy_mlp.clipped(numpy_mlp.less(end, start), CLIP)
            for start, end in zip(own if anchor == "own" else [mean] * 4, ends, strict=True)
        ]
        mean = numpy_mlp.moved(mean, sent)
        own = ends
    done = rounds.run(world, begun)
    assert done.rows[1]["fraction_clipped"] > 0
    numpy_mlp.assert_close(done.params, mean)
    numpy_mlp.assert_close(done.states, own)
    numpy_mlp.assert_close(personal_models(world, done), trained(2))


def test_without_weight_every_clients_model_is_that_of_local_training_to_the_bit():
    settings = {"plan": plan(sample_rate=0.5), "backend": "vmap"}
    pairs = ("mr_mtl", {"weight": 0.0}), ("local_only", {})
    worlds = [simulation(name, values, **settings) for name, values in pairs]
    own, alone = (rounds.run(world, rounds.start(world)).states for world in worlds)
    assert_equal(dict(own), dict(alone), 0)


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
    done = rounds.run(world, rounds.start(world))
    means = {name: value.mean(0) for name, value in done.states.items()}
    assert max(float((done.states[name] - means[name]).abs().max()) for name in means) > 0.1
    assert_equal(done.params, means)
