"""DP-FedPGN: rounds against an independent NumPy program, its reduction to DP-FedAvg, and what a
message leaves out."""

import numpy as np
import pytest

import numpy_mlp
from pflpipe.simulation import rounds
from simulations import plan, quiet, simulation, spied

GAMMA, RHO, LR, CLIP = 0.6, 0.3, 0.2, 0.15


def smoothed(value, sigma):
    """The solution of the linear system of Laplacian smoothing, whose matrix is written out."""
    count = value.size
    matrix = np.eye(count)
    for place in range(count):
        for beside in (place - 1, (place + 1) % count):
            matrix[place, place] += sigma
            matrix[place, beside] -= sigma
    return np.linalg.solve(matrix, value.ravel()).reshape(value.shape)


@pytest.mark.parametrize("sigma", [0.0, 0.7])
def test_golden_rounds(sigma):
    """The second round is the first with a common direction; clients take different numbers of
    steps."""
    values = {"gamma": GAMMA, "rho": RHO, "smoothing": sigma}
    world = quiet("dp_fedpgn", values, clip_norm=CLIP, rounds=3, lr=LR)
    begun, w = numpy_mlp.start(world)
    last = {name: np.zeros_like(value) for name, value in w.items()}
    for round in range(3):
        length = np.linalg.norm(numpy_mlp.flat(last))
        step = {name: (1 - GAMMA) * value for name, value in last.items()}
        for client in range(4):
            steps = numpy_mlp.steps(world, client, round, "train")
            y, own = w, dict.fromkeys(w, 0.0)
            drift = {name: (1 - GAMMA) * value / len(steps) for name, value in last.items()}
            for batch in steps:
                there = {name: y[name] - RHO * last[name] / max(length, 1e-12) for name in y}
                slope = numpy_mlp.gradient(there, *batch)
                own = {name: own[name] - GAMMA * LR * slope[name] for name in own}
                y = {name: y[name] - GAMMA * LR * slope[name] + drift[name] for name in y}
            sent = numpy_mlp.clipped(own, CLIP)
            step = {name: step[name] + sent[name] / 4 for name in step}
        w, last = {name: w[name] + smoothed(step[name], sigma) for name in w}, step
    done = rounds.run(world, begun)
    assert done.rows[2]["fraction_clipped"] > 0
    numpy_mlp.assert_close(done.params, w)
    numpy_mlp.assert_close(done.server, last)


def test_what_is_public_takes_nothing_of_the_clip():
    """Without weight on its gradients a client has nothing of its own to say, however far it
    went."""
    world = simulation("dp_fedpgn", {"gamma": 0.0}, plan=plan(rounds=4))
    begun = rounds.start(world)
    begun.server = {name: value + 1 for name, value in begun.server.items()}
    _, seen, models = spied(world, begun)
    for uploads, _, _ in seen:
        assert max(float(value.abs().max()) for value in uploads.update.values()) < 1e-13
    assert float((models[1][0]["fc1.weight"] - models[0][0]["fc1.weight"]).abs().min()) > 0.1


@pytest.mark.parametrize("changes", [{"drop_last": True}, {"lr": 0.0}], ids=str)
def test_who_takes_no_step_or_none_that_moves_does_not_drift_either(changes):
    """One client has no rows, and one fewer than a batch."""
    world = simulation("dp_fedpgn", sizes=(5, 0, 3), backend="vmap", **changes)
    _, seen, _ = spied(world)
    for uploads, _, _ in seen:
        for value in uploads.update.values():
            assert value[0].any() == ("lr" not in changes)
            assert not value[1:].any()
