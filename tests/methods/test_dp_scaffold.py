"""DP-SCAFFOLD: rounds against an independent NumPy program."""

import numpy as np
import pytest

import numpy_mlp
from pflpipe import trees
from pflpipe.methods.dp_scaffold import CONTROL
from simulations import quiet

LR, CLIP, WEIGHT, SCALE = 0.2, 0.4, 0.7, 1.5


@pytest.mark.parametrize("anchor", ["own", "server"])
def test_golden_rounds(anchor):
    """The second round is the first with a correction, the third the first after a correction."""
    values = {"weight": WEIGHT, "control_scale": SCALE, "anchor": anchor}
    world = quiet("dp_scaffold", values, clip_norm=CLIP, rounds=3, lr=LR)
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
