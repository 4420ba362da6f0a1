"""Item effects: against an independent NumPy program, Rasch's likelihood, and brute force on small
tables."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize

import numpy_mlp
import simulations
from pflpipe.methods.item_effects import offset
from simulations import assert_equal, finished, personal_models, plan, simulation, spied, with_rows

ITEMS, MOST = 5, 3
NUMBERS = {"loss": "squared_error"}


def labels(world):
    """The same people with numbers for answers, some of them beyond the bound."""
    draws = torch.Generator().manual_seed(1)
    y = torch.randn(len(world.train.y), 3, generator=draws, dtype=torch.float64)
    return with_rows(world, y=y)


def means_of(world, client, one_hot):
    """Which items a person answered, and the means of its answers to each."""
    rows = world.split.train[client]
    items = world.train.x[rows, 0].numpy().astype(int)
    y = world.train.y[rows].numpy()
    given = np.eye(3)[y] if one_hot else np.clip(y, -0.8, 0.8) / (0.8 * math.sqrt(3))
    count = np.bincount(items, minlength=ITEMS)
    total = np.zeros((ITEMS, 3))
    np.add.at(total, items, given)
    return (count > 0).astype(float), total / np.maximum(count, 1)[:, None]


@pytest.mark.parametrize("one_hot", [True, False])
def test_golden_round_without_noise(one_hot):
    settings = {"rounds": 1, "clip_norm": 0.7} | ({} if one_hot else NUMBERS)
    world = simulations.quiet("item_effects", {"answers": MOST, "bound": 0.8}, **settings)
    world = world if one_hot else labels(world)
    total, counts = np.zeros((ITEMS, 3)), np.zeros(ITEMS)
    for client in range(4):
        answered, given = means_of(world, client, one_hot)
        factor = min(1, math.sqrt(MOST / answered.sum()))
        total, counts = total + factor * given, counts + factor * answered
    means = total / np.maximum(counts, 0.1 * counts.mean())[:, None]
    outputs = np.log(np.maximum(means, 0.01)) if one_hot else means * 0.8 * math.sqrt(3)
    done = finished(world)
    assert done.rows[0]["fraction_clipped"] == 0
    vectors = np.vstack([outputs.T, np.zeros((1, ITEMS))])
    head = {"head.weight": np.eye(3, 4), "head.bias": np.zeros(3)}
    numpy_mlp.assert_close(done.params, {"embedding.weight": vectors} | head)


def test_noise_draws_items_towards_their_mean_by_its_variance():
    """The released outputs are Stein's, computed again from the release."""
    rule = plan(noise_multiplier=0.5, rounds=1)
    world = labels(simulation("item_effects", {"answers": MOST}, plan=rule, **NUMBERS))
    done, ((_, scale, released),), _ = spied(world)
    total = released.sum["totals"].numpy()
    noise = scale["totals"].item() * 0.5 * 0.5 / 4
    counts = np.maximum(total[:, :1], max(0.1 * total[:, 0].mean(), 1e-12))
    raw, centre = total[:, 1:] / counts, total[:, 1:].sum(0) / counts.sum()
    weights = np.broadcast_to((noise / counts) ** -4, raw.shape)
    own = np.maximum(np.average((raw - centre) ** 2 - (noise / counts) ** 2, 0, weights), 0)
    means = centre + own / (own + (noise / counts) ** 2) * (raw - centre)
    found = done.params["embedding.weight"][:3].T.numpy() / math.sqrt(3)
    np.testing.assert_allclose(found, means, rtol=1e-10)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_offset_of_a_person_is_the_mode_of_its_posterior(classes):
    rng = np.random.default_rng(classes)
    outputs, y = rng.normal(size=(9, classes)), rng.integers(0, classes, 9)
    real = np.arange(9) < 7

    def objective(a):
        logits = outputs + a
        losses = np.logaddexp.reduce(logits, 1) - logits[np.arange(9), y]
        return losses[real].sum() + (a**2).sum() / 0.7**2  # a difference has twice the variance

    best = optimize.minimize(objective, np.zeros(classes), tol=1e-12).x
    given = map(torch.from_numpy, (outputs, y, real))
    np.testing.assert_allclose(offset(*given, False, 0.7), best, atol=1e-6)


def test_the_offset_of_one_logit_is_rasch_and_that_of_numbers_a_shrunken_mean():
    rng = np.random.default_rng(0)
    z, y, real = rng.normal(size=9), rng.integers(0, 2, 9), np.arange(9) < 8

    def objective(a):
        return (np.logaddexp(0, z + a) - y * (z + a))[real].sum() + a**2 / 2

    best = optimize.minimize_scalar(objective).x
    one = [torch.from_numpy(z)[:, None], torch.from_numpy(y), torch.from_numpy(real)]
    np.testing.assert_allclose(offset(*one, False, 1.0), [best], atol=1e-6)
    numbers = offset(one[0], one[1].double(), one[2], True, 0.5)
    np.testing.assert_allclose(numbers, [(y - z)[real].sum() / (8 + 4)])


def test_a_personal_model_is_the_released_one_with_another_bias():
    world = simulation("item_effects", plan=plan(rounds=1), backend="vmap")
    done = finished(world)
    models = personal_models(world, done)
    for name in ("embedding.weight", "head.weight"):
        assert_equal({name: models[name]}, {name: done.params[name].expand_as(models[name])}, 0)
    assert (models["head.bias"].std(0) > 0).all()
    none = simulation("item_effects", {"spread": 1e-6}, plan=plan(rounds=1), backend="vmap")
    released = {name: torch.stack([value] * 4) for name, value in done.params.items()}
    assert_equal(personal_models(none, done), released, 1e-9)
