"""Per-FedAvg: a round against an independent NumPy program, its reduction to DP-FedAvg, and its
gradient against the exact one."""

import numpy as np
import pytest
import torch

import numpy_mlp
from pflpipe.simulation import rounds
from simulations import assert_equal, linear, open_plan, personal_models, simulation

ALPHA, DELTA, LR, CLIP = 0.4, 0.05, 0.3, 0.2


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_golden_round(variant):
    world = linear("per_fedavg", {"alpha": ALPHA, "variant": variant, "delta": DELTA}, CLIP, LR)

    def less(w, slope, rate):
        return {name: w[name] - rate * slope[name] for name in w}

    def update(begin, client, round):
        steps, w, at = numpy_mlp.steps(world, client, round, "train"), begin, 0
        everything = [np.concatenate(part) for part in zip(*steps, strict=True)]
        for x, y in steps:
            places = [(at + turn * len(y) + np.arange(len(y))) for turn in (1, 2)]
            inner, third = ([part[p % len(everything[1])] for part in everything] for p in places)
            g = numpy_mlp.gradient(less(w, numpy_mlp.gradient(w, *inner), ALPHA), x, y)
            meta = g
            if variant == "hf":
                ahead = numpy_mlp.gradient(less(w, g, -DELTA), *third)
                behind = numpy_mlp.gradient(less(w, g, DELTA), *third)
                curve = {name: (ahead[name] - behind[name]) / (2 * DELTA) for name in g}
                meta = less(g, curve, ALPHA)
            w, at = less(w, meta, LR), at + len(y)
        return numpy_mlp.less(w, begin)

    done, expected = numpy_mlp.assert_golden(world, update)
    slopes = [numpy_mlp.gradient(expected, *numpy_mlp.rows(world, client)) for client in range(4)]
    personal = [less(expected, slope, ALPHA) for slope in slopes]
    numpy_mlp.assert_close(personal_models(world, done), personal)


def test_on_all_examples_it_steps_along_the_gradient_of_the_loss_after_one_step():
    """HF up to the square of delta; the exact one is that of autograd through the step."""
    values, rule = {"alpha": ALPHA, "delta": 1e-4}, open_plan(1, rounds=1)
    settings = {"sizes": (9,), "lr": LR, "batch_size": 0, "local_epochs": 1}
    world = simulation("per_fedavg", values, plan=rule, backend="vmap", **settings)
    begun = rounds.start(world)
    w = {name: value.clone().requires_grad_() for name, value in begun.params.items()}
    x, y = world.train.x[:9], world.train.y[:9]

    def loss(params):
        return torch.nn.functional.cross_entropy(world.network.apply(params, x, None), y)

    inner = torch.autograd.grad(loss(w), list(w.values()), create_graph=True)
    stepped = {name: w[name] - ALPHA * g for name, g in zip(w, inner, strict=True)}
    exact = torch.autograd.grad(loss(stepped), list(w.values()))
    found = rounds.run(world, begun).params
    expected = {name: w[name].detach() - LR * g for name, g in zip(w, exact, strict=True)}
    assert_equal(found, expected, 1e-7)
    first = torch.autograd.grad(loss(stepped), list(stepped.values()))
    gaps = [float((a - b).abs().max()) for a, b in zip(first, exact, strict=True)]
    assert max(gaps) > 1e-2, "the Hessian matters here"
