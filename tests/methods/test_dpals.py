"""Private alternating least squares: against an independent NumPy program, planted factors, and
brute force on small tables."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from pflpipe import cells
from pflpipe.methods.dpals import SHARES, started
from simulations import finished, personal_models, plan, simulation, spied, with_rows

ITEMS, MOST, RANK = 5, 3, 2
LENGTHS = {"counts": math.sqrt(MOST), "gram": 2.0, "cross": math.sqrt(2 * MOST)}
LENGTHS = {name: length / math.sqrt(SHARES[name]) for name, length in LENGTHS.items()}
UNIT = math.sqrt(0.5 / RANK)


def world(**changes):
    rule = plan(**({"noise_multiplier": 0.1, "rounds": 2, "clip_norm": 0.7} | changes))
    options = {"answers": MOST, "rank": RANK}
    return simulation("dpals", options, plan=rule, backend="vmap")


def answered(found, client):
    """A person's answers -1, 0 or 1, the mean of several to one item, and which there are."""
    rows = found.split.train[client]
    items, labels = found.train.x[rows, 0].numpy().astype(int), found.train.y[rows].numpy()
    x, o = np.zeros(ITEMS), np.zeros(ITEMS)
    for item in set(items):
        x[item], o[item] = (2 * labels[items == item] - 1).mean(), 1
    return x, o


def factors(v, x, o):
    """The least squares of a person: rows of one for each answer and each factor."""
    at = np.flatnonzero(o)
    rows = np.vstack([v[at, 1:], np.eye(RANK) / UNIT])
    return np.linalg.lstsq(rows, np.append((x - v[:, 0])[at], np.zeros(RANK)))[0]


def message(v, x, o):
    f = factors(v, x, o)
    u = np.append(1, f / max(np.linalg.norm(f), 1))
    w = min(1, math.sqrt(MOST / o.sum()))
    pairs = itertools.combinations_with_replacement(range(RANK + 1), 2)
    gram = [u[a] * u[b] * (1 if a == b else math.sqrt(2)) for a, b in pairs]
    return {"counts": w * o, "gram": np.array(gram), "cross": w * np.outer(x, u)}


def served(found, deviations, people):
    """The server's steps in NumPy, one item after the other."""
    counts, mean_count = found["counts"], found["counts"].mean()
    own = max(np.mean((counts - mean_count) ** 2) - deviations["counts"] ** 2, 0)
    counts = mean_count + own / (own + deviations["counts"] ** 2) * (counts - mean_count)
    counts = np.maximum(counts, 0.1 * mean_count)
    second = np.zeros((RANK + 1, RANK + 1))
    pairs = itertools.combinations_with_replacement(range(RANK + 1), 2)
    for value, (a, b) in zip(found["gram"], pairs, strict=True):
        second[a, b] = second[b, a] = value / (1 if a == b else math.sqrt(2))
    values, axes = np.linalg.eigh(second / second[0, 0])
    edge = deviations["gram"] * math.sqrt(2 * (RANK + 1))
    second = axes @ np.diag(np.maximum(values, max(edge, 1e-6))) @ axes.T
    inverse = np.linalg.inv(second)
    mean = found["cross"].sum(0) / counts.sum()
    common, around = inverse @ mean, 1 - mean[0] ** 2
    noise, rests = deviations["cross"] ** 2 * np.eye(RANK + 1), []
    top, bottom = np.zeros(RANK + 1), np.zeros(RANK + 1)
    for n, cross in zip(counts, found["cross"], strict=True):
        rest = cross - n * mean
        law = noise + around * n * second / people  # of rest, if the item is like all
        unsure = np.diag(inverse @ law @ inverse) / n**2
        top += ((inverse @ rest / n) ** 2 - unsure) / unsure**2
        bottom += 1 / unsure**2
        rests.append((n, rest, law))
    between = np.diag(np.maximum(top / bottom, 0))
    v = []
    for n, rest, law in rests:
        gain = between @ (n * second) @ np.linalg.inv(n * second @ between @ (n * second) + law)
        v.append(common + gain @ rest)
    v = np.array(v)
    values, axes = np.linalg.eigh(second[1:, 1:])
    root = axes @ np.diag(np.sqrt(values)) @ axes.T / UNIT
    return np.hstack([v[:, :1], v[:, 1:] @ root]), v @ second[0]


def logits(expected):
    expected = expected.clip(-0.98, 0.98)
    return np.log((1 + expected) / (1 - expected))


def test_golden_rounds():
    """Messages, server and home; the noise is taken from the releases, each of its own round."""
    found = world()
    done, steps, _ = spied(found)
    deviations = {name: length * 0.1 / 4 for name, length in LENGTHS.items()}
    v = started(ITEMS, RANK).double().numpy()
    for uploads, scale, released in steps:
        for name, length in LENGTHS.items():
            assert scale[name].item() == pytest.approx(length / 0.7)
        for client in range(4):
            for name, value in message(v, *answered(found, client)).items():
                np.testing.assert_allclose(uploads.update[name][client], value, rtol=1e-6)
        sums = {name: value.numpy() for name, value in released.sum.items()}
        v, expected = served(sums, deviations, 4)
    np.testing.assert_allclose(done.server["vectors"], v, rtol=1e-6, atol=1e-8)
    table = done.params["embedding.weight"].numpy()
    np.testing.assert_allclose(table[1], logits(expected), rtol=1e-6, atol=1e-8)
    models = personal_models(found, done)["embedding.weight"].numpy()
    for client in range(4):
        own = v[:, 0] + v[:, 1:] @ factors(v, *answered(found, client))
        np.testing.assert_allclose(models[client][1], logits(own), rtol=1e-6, atol=1e-8)


def test_more_rounds_find_factors_that_one_round_cannot():
    """150 people of two kinds, whose usual answers are opposite, but for a fifth of them, each to
    10 of 30 items."""
    rng, people, count = np.random.default_rng(0), 150, 30
    usual = np.where(np.arange(people)[:, None] % 2 == 1, 1, -1) * rng.choice([-1, 1], count)
    truth = usual * np.where(rng.random((people, count)) < 0.2, -1, 1) > 0
    order = rng.permuted(np.tile(np.arange(count), (people, 1)), axis=1)
    rows = np.sort(order[:, :10], 1) + count * np.arange(people)[:, None]
    x = torch.from_numpy(np.tile(np.arange(count), people)[:, None]).double()
    right = []
    for number in (1, 2):
        rule = plan(people, noise_multiplier=0.0, clip_norm=9.0, rounds=number)
        model = cells.Model("embedding", (4,), items=count)
        about = {"plan": rule, "sizes": (10,) * people, "backend": "vmap", "model": model}
        found = simulation("dpals", {"answers": 10, "rank": RANK}, shape=(1,), **about)
        found = with_rows(found, x, torch.from_numpy(truth.flatten().astype(int)))
        split = dataclasses.replace(found.split, train=list(rows))
        found = dataclasses.replace(found, split=split)
        models = personal_models(found, finished(found))
        said = models["embedding.weight"][:, 1].numpy() > 0
        right.append(np.take_along_axis(said == (usual > 0), order[:, 10:], 1).mean())
    assert right[0] < 0.8 < 0.95 < right[1]
