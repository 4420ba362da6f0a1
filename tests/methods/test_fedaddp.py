"""FedADDP: one round against an independent NumPy program, and its noise scales."""

import math

import numpy as np
import pytest
import torch

import numpy_mlp
from pflpipe import trees
from pflpipe.methods import registry
from pflpipe.simulation import rounds
from simulations import (
    linear,
    plan,
    simulation,
    spied,
    with_states,
)

TAU, LAMBDA_1, LAMBDA_2, BETA, R_MIN, LR, CLIP = 0.3, 0.2, 0.4, 0.3, 0.02, 0.1, 2.0
HYPERPARAMETERS = {"tau": TAU, "lambda_1": LAMBDA_1, "lambda_2": LAMBDA_2}
HYPERPARAMETERS |= {"beta": BETA, "r_min": R_MIN}
PAPER = registry.departures("fedaddp", "paper", official_code=False)
PROFILES = pytest.mark.parametrize("departures", [(), PAPER], ids=["strict", "paper"])


def numpy_round(x, y, w_global, w_local, total, steps):
    """One client of FedADDP on a linear softmax model, written from the official code's steps
    without torch.

    Weights are dictionaries {"head.weight": [K, D], "head.bias": [K]}; ``total`` is the client's
    previous clip bound. Returns the mask of personal coordinates, start and end.
    """

    scores = np.exp(x @ w_local["head.weight"].T + w_local["head.bias"])
    error = scores / scores.sum(1, keepdims=True) - np.eye(w_local["head.bias"].size)[y]
    fisher = {"head.weight": (error**2).T @ x**2 / len(y), "head.bias": (error**2).mean(0)}
    masks = {k: (f - f.min()) / (f.max() - f.min()) >= TAU for k, f in fisher.items()}
    start = {k: np.where(masks[k], w_local[k], w_global[k]) for k in fisher}
    w = {k: v.copy() for k, v in start.items()}
    for rows in steps:
        for turn, weight in (("personal", LAMBDA_1), ("shared", LAMBDA_2)):
            slope = numpy_mlp.gradient(w, x[rows], y[rows])
            gaps = {k: w[k] - w_global[k] for k in w}
            lengths = {k: np.sqrt((g**2).sum()) for k, g in gaps.items()}
            sign = 1.0 if turn == "personal" else np.sign(sum(lengths.values()) - total)
            for k in w:
                pull = weight / 2 * sign * gaps[k] / lengths[k] if lengths[k] else 0.0
                w[k] = w[k] - LR * (masks[k] if turn == "personal" else ~masks[k]) * (
                    slope[k] + pull
                )
    return masks, start, w


@PROFILES
def test_golden_round(departures):
    world = linear("fedaddp", HYPERPARAMETERS, CLIP, LR, departures=departures)
    rng = np.random.default_rng(5)
    begun = rounds.start(world)
    # Local models that differ from the global one, as in later rounds.
    with_states(
        begun, lambda _, value: value + torch.from_numpy(rng.normal(size=value.shape) * 0.3).abs()
    )
    w_global = {name: value.numpy() for name, value in begun.params.items()}
    sizes = np.array([len(rows) for rows in world.split.train])
    expected = {name: value.copy() for name, value in w_global.items()}
    ends, totals, signs = [], [], set()
    for client in range(4):
        cut = world.work(client, 0)["train"]
        steps = [index[:count] for index, count in zip(cut.index, cut.count, strict=True)]
        x, y = numpy_mlp.rows(world, client)
        w_local = {name: begun.states[f"local.{name}"][client].numpy() for name in w_global}
        total = begun.states["clip_total"][client].item()
        masks, start, end = numpy_round(x, y, w_global, w_local, total, steps)
        signs.add(sum(np.sqrt(((start[k] - w_global[k]) ** 2).sum()) for k in start) > total)
        if departures:
            radius = {k: BETA / 2 * np.abs(end[k]) for k in end}
            for k in expected:
                clamped = np.clip(end[k], start[k] - radius[k], start[k] + radius[k])
                expected[k] += sizes[client] / sizes.sum() * (clamped - w_global[k])
        else:
            radius = {k: BETA / 2 * np.abs(w_global[k]) + R_MIN for k in end}
            update = {k: (end[k] - start[k]) * ~masks[k] for k in end}
            length = np.sqrt(sum(((update[k] / radius[k]) ** 2).sum() for k in end))
            for k in expected:
                expected[k] += update[k] * min(1, CLIP / length) / 4
        ends.append(end)
        totals.append(sum(np.sqrt(((2 * r) ** 2).sum()) for r in radius.values()))
    assert signs == {True, False}, "the pull works in both directions"
    done = rounds.run(world, begun)
    assert done.rows[0]["fraction_clipped"] > 0
    numpy_mlp.assert_close(done.params, expected)
    numpy_mlp.assert_close(trees.within("local.", dict(done.states)), ends)
    np.testing.assert_allclose(done.states["clip_total"].numpy(), totals, rtol=1e-10)


def test_in_the_paper_every_message_carries_the_whole_noise_of_its_own_bounds():
    world = simulation(
        "fedaddp", HYPERPARAMETERS, plan=plan(noise_multiplier=5.0, rounds=6), departures=PAPER
    )
    _, seen, _ = spied(world)
    units = []
    for uploads, _, released in seen:
        for name, update in uploads.update.items():
            centre, radius = uploads.extras[f"centre.{name}"], uploads.extras[f"radius.{name}"]
            noise = released.messages[name] - update.clamp(centre - radius, centre + radius)
            units.append((noise / (math.sqrt(4) * 5.0 * 2 * radius)).reshape(-1))  # four tensors
    units = torch.cat(units)
    assert abs(units.std().item() - 1) < 4 / math.sqrt(2 * units.numel())


def test_the_public_scale_is_finite_whatever_the_global_model_holds():
    world = simulation("fedaddp", HYPERPARAMETERS)
    params = {"head.bias": torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -2.0])}
    scale = world.method.scale(params, {}, world.task)["head.bias"]
    assert scale.isfinite().all()
    assert scale[2:].tolist() == pytest.approx([R_MIN, R_MIN, BETA + R_MIN])
