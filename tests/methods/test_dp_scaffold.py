"""DP-SCAFFOLD: rounds against an independent NumPy program, its reductions to DP-FedAvg, and what
control variates do."""

import numpy as np
import pytest
import torch

import numpy_mlp
from pflpipe import cells, trees
from pflpipe.learning.solvers import Schedule
from pflpipe.learning.task import Batches
from pflpipe.methods.dp_scaffold import CONTROL
from pflpipe.simulation import rounds
from simulations import assert_equal, params_after, personal_models, plan, quiet, simulation, spied

LR, CLIP, WEIGHT, SCALE = 0.2, 0.4, 0.7, 1.5
LINEAR = cells.Model("mlp", ())


@pytest.mark.parametrize("anchor", ["own", "server"])
def test_golden_rounds(anchor):
    """The second round is the first with a correction, the third the first after a correction."""
    world = quiet(
        "dp_scaffold",
        {"weight": WEIGHT, "control_scale": SCALE, "anchor": anchor},
        clip_norm=CLIP,
        rounds=3,
        lr=LR,
    )
    begun, w = numpy_mlp.start(world)
    c = {name: np.zeros_like(value) for name, value in w.items()}
    own = [c] * 4
    for round in range(3):
        total, kept = dict.fromkeys([*w, *(CONTROL + name for name in w)], 0.0), []
        for client in range(4):
            c_k = own[client]

            def corrected(v, x, y, c=c, c_k=c_k):
                slope = numpy_mlp.gradient(v, x, y)
                return {name: slope[name] + WEIGHT * (c[name] - c_k[name]) for name in v}

            steps = numpy_mlp.steps(world, client, round, "train")
            end = numpy_mlp.descend(w, steps, corrected, lr=LR)
            # What is left of the mean step when the correction is taken away: the mean gradient.
            kept.append(
                {
                    name: (w[name] - end[name]) / (len(steps) * LR) - WEIGHT * (c[name] - c_k[name])
                    for name in w
                }
            )
            start = c_k if anchor == "own" else c
            unit = SCALE / (2 * LR)  # two local epochs
            units = {name: end[name] - w[name] for name in w}
            units |= {CONTROL + name: (kept[-1][name] - start[name]) / unit for name in w}
            for name, value in numpy_mlp.clipped(units, CLIP).items():
                total[name] = total[name] + value * (unit if name.startswith(CONTROL) else 1) / 4
        w = {name: value + total[name] for name, value in w.items()}
        c = {name: value + total[CONTROL + name] for name, value in c.items()}
        own = kept
    done = rounds.run(world, begun)
    assert done.rows[2]["fraction_clipped"] > 0
    numpy_mlp.assert_close(done.params, w)
    numpy_mlp.assert_close(trees.within(CONTROL, done.server), c)
    numpy_mlp.assert_close(trees.within(CONTROL, dict(done.states)), own)


def test_the_first_round_corrects_nothing_and_the_second_does():
    def after(name, rounds):
        quiet = plan(noise_multiplier=0.0, clip_norm=1e9, rounds=rounds)
        return params_after(simulation(name, plan=quiet, backend="vmap"))

    assert_equal(after("dp_scaffold", 1), after("dp_fedavg", 1))
    first, second = after("dp_scaffold", 2), after("dp_fedavg", 2)
    assert max(float((first[name] - second[name]).abs().max()) for name in first) > 1e-3


@pytest.mark.slow
def test_the_server_ends_where_the_mean_of_the_clients_losses_is_least_and_dp_fedavg_does_not():
    """Six full-batch steps of softmax regression: only where the slope of the mean loss is 0 do
    corrected steps return to their start."""

    def slope(name):
        quiet = plan(noise_multiplier=0.0, clip_norm=1e9, rounds=40)
        sizes = (12, 15, 18, 14)  # more rows than numbers, so that the least loss is attained
        changes = {"sizes": sizes, "shape": (2,), "model": LINEAR, "batch_size": 0, "lr": 1.0}
        world = simulation(name, plan=quiet, local_epochs=6, backend="vmap", **changes)
        end = {name: value.numpy() for name, value in params_after(world).items()}
        rows = [
            (world.train.x[row].numpy(), world.train.y[row].numpy()) for row in world.split.train
        ]
        slopes = [numpy_mlp.gradient(end, *both) for both in rows]
        return max(np.abs(np.mean([one[key] for one in slopes], axis=0)).max() for key in end)

    assert slope("dp_scaffold") < 0.01 * slope("dp_fedavg")


def test_a_larger_scale_leaves_more_of_the_clip_to_the_model_and_more_noise_to_the_controls():
    def parts(scale):
        world = simulation("dp_scaffold", {"control_scale": scale}, plan=plan(rounds=1))
        _, ((_, units, released),), _ = spied(world)
        noise = {name: released.sum[name] - released.clean[name] for name in units}
        model = {name: released.clean[name] for name in world.network.shapes}
        return trees.norm(model).item(), trees.norm(noise).item()

    (small, quiet), (large, loud) = parts(0.5), parts(4.0)
    assert large > 1.2 * small
    assert loud == pytest.approx(8 * quiet)


def test_a_client_without_steps_sends_zeros_and_keeps_its_control_variate():
    world = simulation("dp_scaffold", backend="vmap")
    begun = rounds.start(world)
    state = {name: value[0] + 1 for name, value in begun.states.items()}
    server = {name: value + 2 for name, value in begun.server.items()}
    empty = Schedule(*(torch.zeros(0, 5).double(), *(torch.zeros(0, dtype=torch.long),) * 3))
    empty = Schedule(empty.x, empty.y, torch.zeros(0, 4, dtype=torch.long), empty.count, sizes=())
    batches = Batches(torch.tensor(0), empty, empty, None)
    hook = world.method.local_update
    upload, kept = hook(begun.params, server, state, batches, world.task)
    assert not any(value.any() for value in upload.update.values())
    assert_equal(kept, state, 0)


def test_control_variates_of_clients_never_reach_the_server_but_in_the_sum():
    world = simulation("dp_scaffold", plan=plan(rounds=2))
    done, seen, _ = spied(world)
    for uploads, _, _ in seen:
        assert uploads.extras == {}
        assert set(uploads.update) == set(world.method.upload(world.task))
    assert done.uploaded_bits == 2 * 2 * 32 * sum(value.numel() for value in done.params.values())


def test_the_personal_model_is_trained_without_correction():
    world, ordinary = simulation("dp_scaffold"), simulation("dp_fedavg")
    done = rounds.run(world, rounds.start(world))
    assert_equal(personal_models(world, done), personal_models(ordinary, done), 0)
