"""DP-FedSAM-top-k: a round against an independent NumPy program, what is kept, and where the noise lies in each profile."""

import math

import numpy as np
import pytest
import torch

from pflpipe import cells, federated, methods, privacy
from simulations import plan, simulation

RHO, KEEP, LR, CLIP = 0.3, 0.4, 0.3, 0.2
LINEAR = cells.Model("mlp", ())
BACKENDS = ["loop", "vmap"]
PAPER = methods.departures("dp_fedsam_topk", "paper", official_code=False)


def numpy_update(x, y, begin, steps):
    """One client's sparse change of a linear softmax model {"head.weight": [K, D], "head.bias": [K]}, without torch."""

    def gradient(w, rows):
        scores = np.exp(x[rows] @ w["head.weight"].T + w["head.bias"])
        error = scores / scores.sum(1, keepdims=True) - np.eye(len(w["head.bias"]))[y[rows]]
        return {"head.weight": error.T @ x[rows] / len(rows), "head.bias": error.mean(0)}

    w = {k: v.copy() for k, v in begin.items()}
    for rows in steps:
        slope = gradient(w, rows)
        length = np.sqrt(sum((g**2).sum() for g in slope.values()))
        slope = gradient({k: w[k] + RHO * slope[k] / (length + 1e-12) for k in w}, rows)
        w = {k: w[k] - LR * slope[k] for k in w}
    update = {k: w[k] - begin[k] for k in w}
    for value in update.values():
        flat = value.reshape(-1)
        flat[np.argsort(-np.abs(flat))[math.ceil(KEEP * flat.size) :]] = 0
    return update


def spied(world, monkeypatch):
    """Run all rounds and return the final progress, and each round's uploads and release."""
    seen, release = [], privacy.release

    def spy(generator, uploads, *rest):
        seen.append((uploads, release(generator, uploads, *rest)))
        return seen[-1][1]

    with monkeypatch.context() as patch:
        patch.setattr(privacy, "release", spy)
        return federated.run(world, federated.start(world)), seen


@pytest.mark.parametrize("departures", [(), PAPER], ids=["strict", "paper"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_golden_round(backend, departures):
    """Top-k, then the joint clip: what is kept is as long as C allows. Without noise both profiles release the same."""
    world = simulation(
        "dp_fedsam_topk",
        {"rho": RHO, "keep_ratio": KEEP},
        plan=plan(noise_multiplier=0.0, clip_norm=CLIP, rounds=1),
        backend=backend,
        model=LINEAR,
        departures=departures,
        lr=LR,
    )
    begun = federated.start(world)
    begin = {name: value.numpy() for name, value in begun.params.items()}
    expected = {name: value.copy() for name, value in begin.items()}
    for client, rows in enumerate(world.split.train):
        cut = world.work(client, 0)["train"]
        steps = [index[:count] - rows[0] for index, count in zip(cut.index, cut.count, strict=True)]
        update = numpy_update(world.train.x[rows].numpy(), world.train.y[rows].numpy(), begin, steps)
        length = np.sqrt(sum((value**2).sum() for value in update.values()))
        for name, value in update.items():
            expected[name] += value * min(1, CLIP / length) / 4
    done = federated.run(world, begun)
    assert done.rows[0]["fraction_clipped"] > 0
    for name in expected:
        np.testing.assert_allclose(done.params[name].numpy(), expected[name], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_keeping_everything_is_dp_fedsam_and_with_rho_zero_dp_fedavg(backend, optimizer, rho):
    settings = {"backend": backend, "optimizer": optimizer, "lr": 0.05, "weight_decay": 0.01}
    world = simulation("dp_fedsam_topk", {"rho": rho, "keep_ratio": 1.0}, **settings)
    plain = simulation("dp_fedsam", {"rho": rho}, **settings) if rho else simulation("dp_fedavg", **settings)
    found, expected = (federated.run(each, federated.start(each)).params for each in (world, plain))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_keeping_everything_in_the_paper_profile_is_dp_fedsam_with_noise_on_each_message(backend):
    world = simulation("dp_fedsam_topk", {"keep_ratio": 1.0}, departures=PAPER, backend=backend)
    plain = simulation("dp_fedsam", departures=("noise_per_participant",), backend=backend)
    found, expected = (federated.run(each, federated.start(each)).params for each in (world, plain))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_strict_uploads_are_sparse_and_carry_nothing_else_and_the_noise_is_dense(backend, monkeypatch):
    _, rounds = spied(simulation("dp_fedsam_topk", {"keep_ratio": KEEP}, backend=backend), monkeypatch)
    for uploads, released in rounds:
        assert uploads.side == {}
        for name, value in uploads.update.items():
            assert (value != 0).flatten(1).sum(1).max() == math.ceil(KEEP * value[0].numel())
            assert (released.sum[name] != 0).all()
    assert any((value == 0).all(0).any() for value in rounds[0][0].update.values())


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_papers_messages_are_silent_where_the_private_mask_is_false(backend, monkeypatch):
    world = simulation("dp_fedsam_topk", {"keep_ratio": KEEP}, backend=backend, departures=PAPER)
    done, rounds = spied(world, monkeypatch)
    for uploads, released in rounds:
        assert set(uploads.side) == {f"mask.{name}" for name in uploads.update}
        for name, value in uploads.update.items():
            mask = uploads.side[f"mask.{name}"]
            assert mask.flatten(1).sum(1).tolist() == [math.ceil(KEEP * value[0].numel())] * 4
            assert torch.equal(released.messages[name] != 0, mask)
    kept = sum(math.ceil(KEEP * value.numel()) for value in done.params.values())
    assert done.uploaded_bits == 3 * 4 * (32 * kept + world.network.parameters)
