"""Methods whose server keeps more than the model (DP-SCAFFOLD, DP-FedPGN, DP-FedSOFIM): rounds
against independent NumPy programs, what a message leaves out, and how long a step is."""

import numpy as np
import pytest
import torch

import numpy_mlp
from pflpipe import trees
from pflpipe.methods import dp_fedsofim
from pflpipe.methods.dp_scaffold import CONTROL
from pflpipe.simulation import rounds
from pflpipe.trees import Update
from simulations import assert_equal, finished, plan, quiet, simulation, spied

LR, CLIP, RHO = 0.2, 0.15, 0.3
WEIGHT, SCALE = 0.7, 1.5
GAMMA, BETA = 0.6, 0.7


@pytest.mark.parametrize("anchor", ["own", "server"])
def test_golden_rounds_of_dp_scaffold(anchor):
    """The second round is the first with a correction, the third the first after a correction."""
    values = {"weight": WEIGHT, "control_scale": SCALE, "anchor": anchor}
    world = quiet("dp_scaffold", values, clip_norm=0.4, rounds=3, lr=LR)
    own, unit = {}, SCALE / (2 * LR)  # two local epochs
    control = {CONTROL + name: np.zeros(shape) for name, shape in world.network.shapes.items()}

    def update(w, client, round):
        c, w = trees.within(CONTROL, w), {name: w[name] for name in world.network.shapes}
        before = own.get(client, dict.fromkeys(c, 0.0))
        away = numpy_mlp.less(c, before)

        def corrected(v, x, y):
            slope = numpy_mlp.gradient(v, x, y)
            return {name: slope[name] + WEIGHT * away[name] for name in v}

        steps = numpy_mlp.steps(world, client, round, "train")
        change = numpy_mlp.less(numpy_mlp.descend(w, steps, corrected, lr=LR), w)
        # What is left of the mean step when the correction is taken away: the mean gradient.
        means = {name: -value / (len(steps) * LR) for name, value in change.items()}
        own[client] = {name: means[name] - WEIGHT * away[name] for name in w}
        moved = numpy_mlp.less(own[client], before if anchor == "own" else c)
        return change | {CONTROL + name: value / unit for name, value in moved.items()}

    def clip(message, bound):
        sent = numpy_mlp.clipped(message, bound)
        return sent | {name: unit * sent[name] for name in control}

    done, w = numpy_mlp.assert_golden(world, update, server=control, clip=clip)
    numpy_mlp.assert_close(trees.within(CONTROL, done.server), trees.within(CONTROL, w))
    numpy_mlp.assert_close(trees.within(CONTROL, dict(done.states)), [own[i] for i in range(4)])


def test_who_takes_no_step_in_dp_scaffold_sends_zeros_and_keeps_its_control_variate():
    """One client has no rows, and one fewer than a batch; the server's is another one."""
    settings = {"sizes": (5, 0, 3), "drop_last": True, "backend": "vmap"}
    world = simulation("dp_scaffold", plan=plan(3, rounds=1), **settings)
    begun = rounds.start(world)
    begun.server = {name: torch.ones_like(value) for name, value in begun.server.items()}
    before = dict(begun.states.items())
    done, ((uploads, _, _),), _ = spied(world, begun)
    for value in uploads.update.values():
        assert [bool(rows.any()) for rows in value] == [True, False, False]
    for name, value in done.states.items():
        assert not torch.equal(value[0], before[name][0])
        assert torch.equal(value[1:], before[name][1:])


def test_without_clip_and_noise_the_server_of_dp_scaffold_has_the_mean_of_all_control_variates():
    """Of all clients, of whom half are drawn in each round."""
    rule = plan(sample_rate=0.5, rounds=4, clip_norm=1e9, noise_multiplier=0.0)
    done = finished(simulation("dp_scaffold", plan=rule))
    means = {name: value.mean(0) for name, value in done.states.items()}
    assert min(float(value.abs().max()) for value in means.values()) > 1e-3
    assert_equal(done.server, means)


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
def test_golden_rounds_of_dp_fedpgn(sigma):
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


def test_what_is_public_in_dp_fedpgn_takes_nothing_of_the_clip():
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
def test_who_takes_no_step_in_dp_fedpgn_or_none_that_moves_does_not_drift_either(changes):
    """One client has no rows, and one fewer than a batch."""
    world = simulation("dp_fedpgn", sizes=(5, 0, 3), backend="vmap", **changes)
    _, seen, _ = spied(world)
    for uploads, _, _ in seen:
        for value in uploads.update.values():
            assert value[0].any() == ("lr" not in changes)
            assert not value[1:].any()


@pytest.mark.parametrize("direction", ["moment", "release"])
def test_golden_rounds_of_dp_fedsofim(direction):
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
    assert float(done.server[dp_fedsofim.WEIGHT]) == pytest.approx(1 - BETA**3)


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
