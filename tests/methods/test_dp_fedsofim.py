"""DP-FedSOFIM: rounds against an independent NumPy program that inverts the matrix, and the length
of a step."""

import numpy as np
import pytest
import torch

import numpy_mlp
from pflpipe import trees
from pflpipe.methods.dp_fedsofim import WEIGHT
from pflpipe.simulation import rounds
from pflpipe.trees import Update
from simulations import assert_equal, plan, quiet, simulation

BETA, RHO, LR, CLIP = 0.7, 0.3, 0.2, 0.15


@pytest.mark.parametrize("direction", ["moment", "release"])
def test_golden_rounds(direction):
    """The first round is the one whose average has a single release."""
    values = {"beta": BETA, "rho": RHO, "direction": direction}
    world = quiet("dp_fedsofim", values, clip_norm=CLIP, rounds=3, lr=LR)
    begun, w = numpy_mlp.start(world)
    means = []
    for round in range(3):
        mean = 0.0
        for client in range(4):
            change = numpy_mlp.less(numpy_mlp.local_pass(world, client, round, w, lr=LR), w)
            mean = mean + numpy_mlp.flat(numpy_mlp.clipped(change, CLIP)) / 4
        means.append(mean)
        weights = BETA ** np.arange(round, -1, -1)
        moment = np.average(means, axis=0, weights=weights)
        fisher = RHO * np.eye(len(mean)) + np.outer(moment, moment) / CLIP**2
        step = RHO * np.linalg.solve(fisher, moment if direction == "moment" else mean)
        sizes = np.cumsum([value.size for value in w.values()])[:-1]
        parts = zip(w.items(), np.split(step, sizes), strict=True)
        w = {name: value + part.reshape(value.shape) for (name, value), part in parts}
    done = rounds.run(world, begun)
    assert done.rows[2]["fraction_clipped"] > 0
    numpy_mlp.assert_close(done.params, w)
    assert float(done.server[WEIGHT]) == pytest.approx(1 - BETA**3)


@pytest.mark.parametrize("length", [0.1, 1.0, 30.0])
def test_along_the_moment_a_step_is_never_longer_than_half_the_root_of_rho_in_units_of_the_clip(
    length,
):
    world = simulation("dp_fedsofim", {"rho": RHO}, plan=plan(clip_norm=CLIP))
    begun = rounds.start(world)
    draw = torch.Generator().manual_seed(0)
    shapes = world.network.shapes.items()
    noise = {name: torch.randn(shape, generator=draw).double() for name, shape in shapes}
    released = Update({name: length * value / trees.norm(noise) for name, value in noise.items()})
    params, _ = world.method.aggregate(begun.params, released, begun.server, world.task)
    step = trees.sub(params, begun.params)
    expected = length * RHO * CLIP**2 / (RHO * CLIP**2 + length**2)
    assert_equal(step, {name: expected / length * value for name, value in released.items()})
    assert trees.norm(step) <= CLIP * np.sqrt(RHO) / 2
