"""DP-SCAFFOLD: rounds against an independent NumPy program, and a client without steps."""

import numpy as np
import pytest
import torch

import numpy_mlp
from pflpipe import cells, trees
from pflpipe.learning.solvers import Schedule
from pflpipe.learning.task import Batches
from pflpipe.methods.dp_scaffold import CONTROL
from pflpipe.simulation import rounds
from simulations import assert_equal, quiet, simulation

LR, CLIP, WEIGHT, SCALE = 0.2, 0.4, 0.7, 1.5
LINEAR = cells.Model("mlp", ())


@pytest.mark.parametrize("anchor", ["own", "server"])
def test_golden_rounds(anchor):
    """The second round is the first with a correction, the third the first after a correction."""
    values = {"weight": WEIGHT, "control_scale": SCALE, "anchor": anchor}
    world = quiet("dp_scaffold", values, clip_norm=CLIP, rounds=3, lr=LR)
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
