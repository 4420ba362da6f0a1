"""One-shot ridge: against an independent NumPy program, pooled regression, and heads solved on a
client."""

import dataclasses

import numpy as np
import pytest
import torch

import numpy_mlp
import simulations
from pflpipe import cells
from pflpipe.learning import networks
from pflpipe.methods.one_shot_ridge import solved
from pflpipe.simulation import rounds
from simulations import assert_equal, params_after, personal_models, plan, quiet, simulation

PENALTY, SCALE, CLIP = 0.03, 0.7, 0.9


def design(w, world, client):
    """Features with a 1 behind, and one-hot labels."""
    x, y = numpy_mlp.rows(world, client)
    y = y if y.ndim == 1 else np.zeros(len(y), dtype=int)
    z = np.maximum(x @ w["fc1.weight"].T + w["fc1.bias"], 0)
    return np.hstack([z, np.ones((len(y), 1))]), np.eye(3)[y]


def with_head(w, head):
    return w | {"head.weight": head[:-1].T, "head.bias": head[-1]}


def test_golden_round():
    values = {"penalty": PENALTY, "cross_scale": SCALE}
    world = quiet("one_shot_ridge", values, clip_norm=CLIP, rounds=1)
    begun, w = numpy_mlp.start(world)
    gram, cross = 0.0, 0.0
    for client in range(4):
        z, y = design(w, world, client)
        units = {"gram": z.T @ z / len(z), "cross": z.T @ y / len(z) / SCALE}
        sent = numpy_mlp.clipped(units, CLIP)
        gram, cross = gram + sent["gram"] / 4, cross + SCALE * sent["cross"] / 4
    head = np.linalg.solve(gram + PENALTY * np.eye(5), cross)
    done = rounds.run(world, begun)
    assert done.rows[0]["fraction_clipped"] > 0
    released = {name: torch.stack([value] * 4) for name, value in done.params.items()}
    assert_equal(personal_models(world, done), released, 0)
    numpy_mlp.assert_close(done.params, with_head(w, head))


@pytest.mark.parametrize(("sums", "sizes"), [(False, (6, 6, 6)), (True, (9, 4, 1, 6))])
def test_without_clip_and_noise_it_is_ridge_regression_on_the_rows_of_all_clients_together(
    sums, sizes
):
    """Exact recovery, of means for clients of one size and of sums for any. Further rounds add
    nothing."""
    clients = len(sizes)
    quiet = plan(clients, noise_multiplier=0.0, clip_norm=1e9, rounds=2)
    values = {"penalty": PENALTY, "sums": sums}
    world = simulation("one_shot_ridge", values, plan=quiet, sizes=sizes, backend="vmap")
    _, w = numpy_mlp.start(world)
    parts = [design(w, world, client) for client in range(clients)]
    z, y = (np.vstack(part) for part in zip(*parts, strict=True))
    penalty = PENALTY * (clients if sums else len(z))
    rows = np.vstack([z, np.sqrt(penalty) * np.eye(5)])
    head = np.linalg.lstsq(rows, np.vstack([y, np.zeros((5, 3))]))[0]
    numpy_mlp.assert_close(params_after(world), with_head(w, head))


def test_of_one_client_it_is_the_head_that_dp_fedavg_fb_solves_on_the_client():
    """But for the penalty on the bias, which is next to nothing here."""
    quiet = plan(1, noise_multiplier=0.0, clip_norm=1e9, rounds=1)
    settings = {"plan": quiet, "sizes": (14,), "backend": "vmap", "lr": 0.0}
    one_shot = params_after(simulation("one_shot_ridge", {"penalty": 1e-6}, **settings))
    solver = {"head_solver": "ridge", "head_weight_decay": 1e-6}
    world = simulation("dp_fedavg_fb", solver, **settings)
    own = personal_models(world, simulations.finished(world))
    assert_equal(one_shot, {name: value[0] for name, value in own.items()}, 1e-4)


@pytest.mark.parametrize("loss", ["squared_error", "binary"])
def test_of_numbers_and_of_one_logit_it_is_ridge_regression_too(loss):
    quiet = plan(3, noise_multiplier=0.0, clip_norm=1e9, rounds=1)
    settings = {"plan": quiet, "sizes": (6, 6, 6), "backend": "vmap", "loss": loss}
    world = simulation("one_shot_ridge", {"penalty": PENALTY}, **settings)
    draws = torch.Generator().manual_seed(0)
    labels = torch.randn(len(world.train.y), 3, generator=draws, dtype=torch.float64)
    if loss == "binary":
        labels = (labels[:, 0] > 0).long()
        network = networks.build(cells.Model("mlp", (4,)), (5,), 1)
        world = dataclasses.replace(world, network=network)
    world = simulations.with_rows(world, y=labels)
    _, w = numpy_mlp.start(world)
    z = np.vstack([design(w, world, client)[0] for client in range(3)])
    y = labels[:18].numpy() if loss == "squared_error" else 2.0 * labels[:18, None].numpy() - 1
    head = np.linalg.solve(z.T @ z / 18 + PENALTY * np.eye(5), z.T @ y / 18)
    numpy_mlp.assert_close(params_after(world), with_head(w, head))


def test_it_sends_moments_and_no_parameters():
    world = simulation("one_shot_ridge", plan=plan(rounds=1))
    done, ((uploads, scale, released),), _ = simulations.spied(world)
    assert set(uploads.update) == set(released.sum) == {"gram", "cross"}
    assert scale.keys() == {"cross"}
    assert done.uploaded_bits == 32 * (5 * 5 + 5 * 3)
    assert done.params["fc1.weight"].equal(rounds.start(world).params["fc1.weight"])


def test_what_noise_makes_negative_in_the_gram_counts_as_zero():
    draw = torch.Generator().manual_seed(0)
    gram, cross = (torch.randn(6, n, generator=draw).double() for n in (6, 4))
    noise = gram - gram.T - torch.eye(6)  # its symmetric part is -1
    head = solved(noise, cross, PENALTY)
    expected = {"head.weight": cross[:-1].T / PENALTY, "head.bias": cross[-1] / PENALTY}
    assert_equal(head, expected)
