"""FedADDP: one round against an independent NumPy program, its bounds and noise scales, and what
leaves the client."""

import dataclasses
import math

import numpy as np
import pytest
import torch

import numpy_mlp
from pflpipe import trees
from pflpipe.methods import registry
from pflpipe.simulation import rounds
from simulations import (
    assert_equal,
    linear,
    params_after,
    plan,
    quiet,
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


def test_a_certified_upload_holds_shared_coordinates_alone_and_a_public_scale():
    world = simulation("fedaddp", HYPERPARAMETERS, plan=plan(clip_norm=1e9))
    _, seen, models = spied(world)
    zeros = 0
    for (uploads, scale, _), (params, _), (_, states) in zip(
        seen, models[:-1], models[1:], strict=True
    ):
        assert not uploads.extras
        for name, update in uploads.update.items():
            torch.testing.assert_close(scale[name], BETA / 2 * params[name].abs() + R_MIN)
            shared = update != 0
            zeros += int((~shared).sum())
            # A shared coordinate starts at the global model; a personal one ends elsewhere than its
            # upload says.
            ends = states[f"local.{name}"]
            torch.testing.assert_close(
                (params[name] + update)[shared], ends[shared], rtol=1e-12, atol=1e-14
            )
    assert zeros > 0


def test_the_papers_side_entries_are_centre_radius_and_size_of_the_trained_model():
    world = simulation("fedaddp", HYPERPARAMETERS, departures=PAPER)
    _, seen, models = spied(world)
    personal = False
    for (uploads, scale, _), (params, states), (_, new) in zip(
        seen, models[:-1], models[1:], strict=True
    ):
        names = list(params)
        assert not scale
        assert set(uploads.extras) == {
            "size",
            *(f"{kind}.{name}" for kind in ("centre", "radius") for name in names),
        }
        assert uploads.extras["size"].tolist() == [9, 4, 1, 6]
        for name in names:
            local, end = (tree[f"local.{name}"] for tree in (states, new))
            centre = uploads.extras[f"centre.{name}"]
            torch.testing.assert_close(uploads.update[name], end - params[name])
            torch.testing.assert_close(uploads.extras[f"radius.{name}"], BETA / 2 * end.abs())
            assert ((centre == 0) | (centre == local - params[name])).all()
            personal |= bool(centre.any())
    assert personal


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


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_without_personal_part_pulls_and_own_scales_it_is_dp_fedavg(optimizer):
    settings = {"backend": "vmap", "optimizer": optimizer, "lr": 0.05}
    plain = {"tau": 1.5, "lambda_1": 0.0, "lambda_2": 0.0}
    expected = simulation("dp_fedavg", **settings)
    found = simulation("fedaddp", plain | {"beta": 0.0, "r_min": 1.0}, **settings)
    assert_equal(params_after(found), params_after(expected))

    def scale(params, server, task):
        return {name: 0.2 * value.abs() + 0.03 for name, value in params.items()}

    scaled = dataclasses.replace(expected, method=dataclasses.replace(expected.method, scale=scale))
    found = simulation("fedaddp", plain | {"beta": 0.4, "r_min": 0.03}, **settings)
    assert_equal(params_after(found), params_after(scaled))


def test_both_pulls_have_a_gradient_and_the_second_aims_at_the_previous_bound():
    def distance(hyperparameters, total):
        plain = {"beta": 0.0, "lambda_1": 0.0, "lambda_2": 0.0}
        world = quiet("fedaddp", plain | hyperparameters, rounds=1)
        begun = rounds.start(world)
        with_states(begun, lambda name, value: value + total if name == "clip_total" else value)
        before = begun.params
        done = rounds.run(world, begun)
        return sum(
            trees.norm({k: done.states[f"local.{k}"][i] - v for k, v in before.items()}).item()
            for i in range(4)
        )

    shared = distance({"tau": 1.5}, 0.0)
    assert distance({"tau": 1.5, "lambda_2": 1.0}, 0.0) < 0.7 * shared
    assert distance({"tau": 1.5, "lambda_2": 1.0}, 100.0) > 1.3 * shared
    assert distance({"tau": 0.0, "lambda_1": 1.0}, 0.0) < 0.7 * distance({"tau": 0.0}, 0.0)


def test_the_public_scale_is_finite_whatever_the_global_model_holds():
    world = simulation("fedaddp", HYPERPARAMETERS)
    params = {"head.bias": torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -2.0])}
    scale = world.method.scale(params, {}, world.task)["head.bias"]
    assert scale.isfinite().all()
    assert scale[2:].tolist() == pytest.approx([R_MIN, R_MIN, BETA + R_MIN])
