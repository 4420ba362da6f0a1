"""pFedMe: rounds against an independent NumPy program, and its reduction to DP-FedAvg."""

import numpy as np

import numpy_mlp
from pflpipe.simulation import rounds
from simulations import assert_equal, linear, personal_models, simulation

WEIGHT, STEPS, INNER, BETA, LR, CLIP = 2.0, 3, 0.1, 0.7, 0.3, 0.1


def test_two_golden_rounds():
    values = {"weight": WEIGHT, "steps": STEPS, "inner_lr": INNER, "beta": BETA}
    world = linear("pfedme", values, CLIP, LR, rounds=2, momentum=0.5)
    begun, shared = numpy_mlp.start(world)

    def stepped(theta, w, x, y):
        slope = numpy_mlp.gradient(theta, x, y)
        return {
            name: theta[name] - INNER * (slope[name] + WEIGHT * (theta[name] - w[name]))
            for name in w
        }

    def envelope(w, x, y):
        theta = w
        for _ in range(STEPS):
            theta = stepped(theta, w, x, y)
        return {name: WEIGHT * (w[name] - theta[name]) for name in w}

    for round in range(2):
        sent = []
        for client in range(4):
            steps = numpy_mlp.steps(world, client, round, "train")
            end = numpy_mlp.descend(shared, steps, envelope, lr=LR, momentum=0.5)
            sent.append(numpy_mlp.clipped(numpy_mlp.less(end, shared), CLIP))
        shared = numpy_mlp.moved(shared, sent, BETA / 4)
    done = rounds.run(world, begun)
    assert done.rows[0]["fraction_clipped"] > 0
    numpy_mlp.assert_close(done.params, shared)
    personal = [shared] * 4
    for client in range(4):
        for x, y in numpy_mlp.steps(world, client, 2, "train"):
            for _ in range(STEPS):
                personal[client] = stepped(personal[client], shared, x, y)
    numpy_mlp.assert_close(personal_models(world, done), personal)


def test_one_step_on_h_followed_to_its_end_is_dp_fedavg():
    """eta lambda = 1 and K = 1: w moves onto theta, which is one gradient step from w."""
    world = simulation(
        "pfedme", {"weight": 5.0, "steps": 1, "inner_lr": 0.3}, backend="vmap", lr=1 / 5.0
    )
    plain = simulation("dp_fedavg", backend="vmap", lr=0.3)
    found, expected = (rounds.run(each, rounds.start(each)) for each in (world, plain))
    assert_equal(found.params, expected.params, 1e-12)
    np.testing.assert_allclose(
        [row["loss"] for row in found.rows], [row["loss"] for row in expected.rows], rtol=1e-12
    )
