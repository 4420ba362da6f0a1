"""Item effects: against an independent NumPy program, Rasch's likelihood, and brute force on small
tables."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from scipy import optimize

import numpy_mlp
import pflpipe
from pflpipe import cells
from pflpipe.errors import ConfigError
from pflpipe.methods import registry
from pflpipe.methods.item_effects import offset
from pflpipe.simulation import rounds
from pflpipe.simulation.clients import Examples
from simulations import TABLE, assert_equal, personal_models, plan, quiet, simulation, spied

ITEMS, MOST = 5, 3
NUMBERS = {"loss": "squared_error"}


def labels(world):
    """The same people with numbers for answers, some of them beyond the bound."""
    draws = torch.Generator().manual_seed(1)
    y = torch.randn(len(world.train.y), 3, generator=draws, dtype=torch.float64)
    return dataclasses.replace(world, train=Examples(world.train.x, y))


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
    world = quiet("item_effects", {"answers": MOST, "bound": 0.8}, **settings)
    world = world if one_hot else labels(world)
    total, counts = np.zeros((ITEMS, 3)), np.zeros(ITEMS)
    for client in range(4):
        answered, given = means_of(world, client, one_hot)
        factor = min(1, math.sqrt(MOST / answered.sum()))
        total, counts = total + factor * given, counts + factor * answered
    means = total / np.maximum(counts, 0.1 * counts.mean())[:, None]
    outputs = np.log(np.maximum(means, 0.01)) if one_hot else means * 0.8 * math.sqrt(3)
    done = rounds.run(world, rounds.start(world))
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
    best = optimize.minimize_scalar(
        lambda a: (np.logaddexp(0, z + a) - y * (z + a))[real].sum() + a**2 / 2
    ).x
    one = [torch.from_numpy(z)[:, None], torch.from_numpy(y), torch.from_numpy(real)]
    np.testing.assert_allclose(offset(*one, False, 1.0), [best], atol=1e-6)
    numbers = offset(one[0], one[1].double(), one[2], True, 0.5)
    np.testing.assert_allclose(numbers, [(y - z)[real].sum() / (8 + 4)])


def test_a_personal_model_is_the_released_one_with_another_bias():
    world = simulation("item_effects", plan=plan(rounds=1), backend="vmap")
    done = rounds.run(world, rounds.start(world))
    models = personal_models(world, done)
    for name in ("embedding.weight", "head.weight"):
        assert_equal({name: models[name]}, {name: done.params[name].expand_as(models[name])}, 0)
    assert (models["head.bias"].std(0) > 0).all()
    none = simulation("item_effects", {"spread": 1e-6}, plan=plan(rounds=1), backend="vmap")
    released = {name: value.expand(4, *value.shape) for name, value in done.params.items()}
    assert_equal(personal_models(none, done), released, 1e-9)


@pytest.mark.parametrize("numbers", [False, True])
def test_no_person_of_a_small_table_sends_more_than_the_clip_norm(numbers):
    """Brute force: every set of answered items, with answers as long as there are any."""
    sets = [s for n in range(1, ITEMS + 1) for s in itertools.combinations(range(ITEMS), n)]
    sizes = tuple(map(len, sets))
    rule = plan(len(sizes), rounds=1, clip_norm=0.7)
    settings = {"plan": rule, "sizes": sizes} | (NUMBERS if numbers else {})
    world = simulation("item_effects", {"answers": MOST, "bound": 0.8}, **settings)
    x = world.train.x.clone()
    x[: sum(sizes), 0] = torch.tensor([float(item) for s in sets for item in s])
    y = torch.full((len(x), 3), -2.0, dtype=torch.float64) if numbers else world.train.y
    world = dataclasses.replace(world, train=Examples(x, y))
    _, ((uploads, scale, _),), _ = spied(world)
    lengths = (uploads.update["totals"] / scale["totals"]).flatten(1).norm(dim=1)
    full = torch.tensor(sizes) >= MOST
    torch.testing.assert_close(lengths[full], lengths.new_full([int(full.sum())], 0.7))
    assert (lengths[~full] < 0.7).all()


def test_what_is_no_table_of_people_and_items_is_refused_in_one_line():
    for model, got in ((cells.Model("mlp", (6,)), "mlp"), (cells.Model("linear"), "linear")):
        with pytest.raises(ConfigError, match=rf"method item_effects: model; got '{got}'.*people"):
            registry.check_model("item_effects", model)
    with pytest.raises(ConfigError, match=r"model.hidden; got .*4.*expected at least 6"):
        registry.check_model("item_effects", TABLE, outputs=6)
    people = [(torch.rand(4, 3), torch.tensor([0, 1, 0, 1])) for _ in range(3)]
    training = cells.Training(1, 1, 0, "sgd", 0.1)
    noise = cells.Privacy(noise_multiplier=1.0, delta=1e-3, clip_norm=0.5)
    with pytest.raises(ConfigError, match=r"model; got 'mlp'; expected embedding"):
        pflpipe.train(
            "item_effects",
            people,
            model=cells.Model("mlp", (6,)),
            training=training,
            privacy=noise,
            classes=2,
            secret="a",
        )
