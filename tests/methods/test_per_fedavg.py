"""Per-FedAvg: a round against an independent NumPy program, its reduction to DP-FedAvg, and its
gradient against the exact one."""

import numpy as np
import pytest
import torch

import numpy_mlp
from pflpipe import cells
from pflpipe.simulation import rounds
from simulations import assert_equal, open_plan, params_after, personal_models, plan, simulation

ALPHA, DELTA, LR, CLIP = 0.4, 0.05, 0.3, 0.2
LINEAR = cells.Model("mlp", ())
VARIANTS = ["fo", "hf"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_golden_round(variant):
    world = simulation(
        "per_fedavg",
        {"alpha": ALPHA, "variant": variant, "delta": DELTA},
        plan=plan(noise_multiplier=0.0, clip_norm=CLIP, rounds=1),
        backend="vmap",
        model=LINEAR,
        lr=LR,
    )
    begun = rounds.start(world)
    begin = {name: value.numpy() for name, value in begun.params.items()}

    def less(w, slope, rate):
        return {name: w[name] - rate * slope[name] for name in w}

    def trained(client):
        steps, w, at = numpy_mlp.steps(world, client, 0, "train"), begin, 0
        everything = [np.concatenate(part) for part in zip(*steps, strict=True)]
        for x, y in steps:
            places = [(at + turn * len(y) + np.arange(len(y))) for turn in (1, 2)]
            inner, third = ([part[p % len(everything[1])] for part in everything] for p in places)
            g = numpy_mlp.gradient(less(w, numpy_mlp.gradient(w, *inner), ALPHA), x, y)
            meta = g
            if variant == "hf":
                ahead = numpy_mlp.gradient(less(w, g, -DELTA), *third)
                behind = numpy_mlp.gradient(less(w, g, DELTA), *third)
                meta = {
                    name: g[name] - ALPHA * (ahead[name] - behind[name]) / (2 * DELTA) for name in g
                }
            w, at = less(w, meta, LR), at + len(y)
        return w

    expected = dict(begin)
    for client in range(4):
        end = trained(client)
        sent = numpy_mlp.clipped({name: end[name] - begin[name] for name in begin}, CLIP)
        expected = {name: value + sent[name] / 4 for name, value in expected.items()}
    done = rounds.run(world, begun)
    models = personal_models(world, done)
    for client, rows in enumerate(world.split.train):
        slope = numpy_mlp.gradient(
            expected, world.train.x[rows].numpy(), world.train.y[rows].numpy()
        )
        for name, value in less(expected, slope, ALPHA).items():
            close = {"rtol": 1e-9, "atol": 1e-12}
            np.testing.assert_allclose(done.params[name].numpy(), expected[name], **close)
            np.testing.assert_allclose(models[name][client].numpy(), value, **close)


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "optimizer"), [("fo", "sgd"), ("hf", "adam")])
def test_without_a_step_of_the_client_it_is_dp_fedavg_and_its_model_the_released_one(
    variant, optimizer
):
    settings = {"backend": "vmap", "optimizer": optimizer, "lr": 0.05, "weight_decay": 0.01}
    world = simulation("per_fedavg", {"alpha": 0.0, "variant": variant}, **settings)
    done = rounds.run(world, rounds.start(world))
    assert_equal(done.params, params_after(simulation("dp_fedavg", **settings)))
    for name, value in personal_models(world, done).items():
        assert torch.equal(value, done.params[name].expand_as(value))


def test_on_all_examples_it_steps_along_the_gradient_of_the_loss_after_one_step():
    """HF up to the square of delta; the exact one is that of autograd through the step."""
    world = simulation(
        "per_fedavg",
        {"alpha": ALPHA, "delta": 1e-4},
        plan=open_plan(1, rounds=1),
        backend="vmap",
        sizes=(9,),
        lr=LR,
        batch_size=0,
        local_epochs=1,
    )
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
