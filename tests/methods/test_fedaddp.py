"""FedADDP: one round against an independent NumPy program, and its noise scales."""

import math

import numpy as np
import pytest
import torch

import numpy_mlp
from pflpipe import trees
from pflpipe.methods import registry
from pflpipe.simulation import rounds
from simulations import linear, plan, simulation, spied, with_states

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

    fisher = numpy_mlp.fisher(w_local, x, y)
    masks = {k: (f - f.min()) / (f.max() - f.min()) >= TAU for k, f in fisher.items()}
    rest = {k: ~mask for k, mask in masks.items()}
    w = start = {k: np.where(masks[k], w_local[k], w_global[k]) for k in fisher}
    for batch in steps:
        for side, weight in ((masks, LAMBDA_1), (rest, LAMBDA_2)):
            slope = numpy_mlp.gradient(w, *batch)
            gaps = numpy_mlp.less(w, w_global)
            lengths = {k: np.sqrt((g**2).sum()) for k, g in gaps.items()}
            sign = 1.0 if side is masks else np.sign(sum(lengths.values()) - total)
            for k, length in lengths.items():
                pull = weight / 2 * sign * gaps[k] / length if length else 0.0
                w = w | {k: w[k] - LR * side[k] * (slope[k] + pull)}
    return masks, start, w


@PROFILES
def test_golden_round(departures):
    world = linear("fedaddp", HYPERPARAMETERS, CLIP, LR, departures=departures)
    rng = np.random.default_rng(5)

    def later(_, value):
        return value + torch.from_numpy(rng.normal(size=value.shape) * 0.3).abs()

    begun = with_states(rounds.start(world), later)
    before, ends, totals, signs = begun.states, [], [], set()

    def sent(w, client, round):
        w_local = numpy_mlp.arrays(trees.within("local.", before), client)
        total = before["clip_total"][client].item()
        steps = numpy_mlp.steps(world, client, round, "train")
        masks, start, end = numpy_round(*numpy_mlp.rows(world, client), w, w_local, total, steps)
        signs.add(sum(np.sqrt(((start[k] - w[k]) ** 2).sum()) for k in start) > total)
        ends.append(end)
        if departures:
            radius = {k: BETA / 2 * np.abs(end[k]) for k in end}
            clamped = {k: np.clip(end[k], start[k] - r, start[k] + r) for k, r in radius.items()}
            message = numpy_mlp.less(clamped, w)
        else:
            radius = {k: BETA / 2 * np.abs(w[k]) + R_MIN for k in end}
            units = {k: (end[k] - start[k]) * ~masks[k] / radius[k] for k in end}
            units = numpy_mlp.clipped(units, CLIP)
            message = {k: units[k] * radius[k] for k in units}
        totals.append(sum(np.sqrt(((2 * r) ** 2).sum()) for r in radius.values()))
        return message

    shares = numpy_mlp.weights(world, by_size=bool(departures))
    as_it_is = {"clip": lambda message, bound: message}
    done, _ = numpy_mlp.assert_golden(world, sent, begun=begun, shares=shares, **as_it_is)
    assert signs == {True, False}, "the pull works in both directions"
    numpy_mlp.assert_close(trees.within("local.", dict(done.states)), ends)
    np.testing.assert_allclose(done.states["clip_total"].numpy(), totals, rtol=1e-10)


def test_in_the_paper_every_message_carries_the_whole_noise_of_its_own_bounds():
    rule = plan(noise_multiplier=5.0, rounds=6)
    world = simulation("fedaddp", HYPERPARAMETERS, plan=rule, departures=PAPER)
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
