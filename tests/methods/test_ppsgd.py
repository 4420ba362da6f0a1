"""PPSGD: a round against an independent NumPy program."""

import numpy as np
import torch

import numpy_mlp
from pflpipe.simulation import rounds
from simulations import finished, personal_models, plan, quiet, shaken, simulation

HEAD = {"head_epochs": 2, "head_lr": 0.3, "head_momentum": 0.5, "head_weight_decay": 0.1}
OF_HEAD = {"lr": 0.3, "momentum": 0.5, "decay": 0.1}
LR, CLIP = 0.2, 0.2


def summed(w, own):
    return w | {name: w[name] + own[name] for name in numpy_mlp.HEAD}


def test_golden_round_and_personal_model():
    world = quiet("ppsgd", HEAD, clip_norm=CLIP, rounds=1, lr=LR)
    begun = shaken(rounds.start(world), np.random.default_rng(3))
    own = [numpy_mlp.arrays(begun.states, client) for client in range(4)]

    def own_head(w, client, round):
        def slope(v, x, y):
            return numpy_mlp.gradient(summed(w, v), x, y)

        head = own[client]
        return numpy_mlp.local_pass(world, client, round, head, slope, "head", **OF_HEAD)

    def update(w, client, round):
        own[client] = own_head(w, client, round)

        def slope(v, x, y):
            return numpy_mlp.gradient(summed(v, own[client]), x, y)

        return numpy_mlp.less(numpy_mlp.local_pass(world, client, round, w, slope, lr=LR), w)

    done, w = numpy_mlp.assert_golden(world, update, begun=begun)
    numpy_mlp.assert_close(done.states, own)
    models = [summed(w, own_head(w, client, 1)) for client in range(4)]
    numpy_mlp.assert_close(personal_models(world, done), models)


def test_the_own_head_is_trained_by_the_optimizer_that_is_named():
    values = {"head_optimizer": "adam", "head_lr": 0.01}
    world = simulation("ppsgd", values, sizes=(3,), plan=plan(1, rounds=1))
    own = finished(world).states["head.bias"][0]
    # Adam's first step has size lr.
    torch.testing.assert_close(own.abs(), torch.full_like(own, 0.01), rtol=1e-6, atol=0)
