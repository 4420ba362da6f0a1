"""One-release factors: against an independent NumPy program, the law of the normal distribution,
and brute force on small tables."""

import itertools
import math

import numpy as np
import pytest
import torch
from test_dpals import ITEMS, MOST, answered, logits

from pflpipe.methods.one_release_factors import EQUAL, SHARES, factors, predicted
from simulations import assert_equal, personal_models, plan, simulation, spied

PAIRS = list(itertools.combinations(range(ITEMS), 2))
OF_EQUAL = pytest.mark.parametrize(("equal", "shares"), [(False, SHARES), (True, EQUAL)])


def lengths(shares):
    longest = {name: MOST * (MOST - 1) / 2 if "pair" in name else MOST for name in shares}
    return {name: math.sqrt(longest[name] / share) for name, share in shares.items()}


def world(equal=False, **changes):
    rule = plan(**({"noise_multiplier": 0.1, "rounds": 1, "clip_norm": 0.7} | changes))
    settings = {"answers": MOST, "equal": equal}
    return simulation("one_release_factors", settings, plan=rule, backend="vmap")


def message(found, client):
    """A person's answers -1, 0 or 1, the mean of several to one item, and its message, by loops."""
    x, o = answered(found, client)
    k = o.sum()
    f, g = min(1, math.sqrt(MOST / k)), min(1, math.sqrt(MOST * (MOST - 1) / max(k * (k - 1), 1)))
    pairs = {"pair_counts": [g * o[a] * o[b] for a, b in PAIRS]}
    pairs |= {"pairs": [g * x[a] * x[b] for a, b in PAIRS]}
    return x, o, {"counts": f * o, "sums": f * x} | {n: np.array(v) for n, v in pairs.items()}


def fitted(found, deviations, rank):
    """The server's steps in NumPy, one number after the other."""

    def shrunk(values, centre, variance):
        weights = 1 / (np.zeros(len(values)) + variance + 1e-12) ** 2
        own = max(np.average((values - centre) ** 2 - variance, weights=weights), 0)
        share = own / np.where(own + variance > 0, own + variance, 1)
        return centre + share * (values - centre)

    def floored(counts):
        return np.maximum(counts, max(0.1 * max(counts.mean(), 0), 1e-12))

    counts = floored(shrunk(found["counts"], found["counts"].mean(), deviations["counts"] ** 2))
    sums, centre = found["sums"], found["sums"].sum() / counts.sum()
    means = shrunk(sums / counts, centre, (deviations["sums"] / counts) ** 2).clip(-0.98, 0.98)
    apart = np.array([counts[a] * counts[b] for a, b in PAIRS])
    apart = apart * (found["pair_counts"] @ apart) / (apart @ apart)
    pairs = floored(shrunk(found["pair_counts"], apart, deviations["pair_counts"] ** 2))
    covariance = np.zeros((ITEMS, ITEMS))
    for value, count, (a, b) in zip(found["pairs"], pairs, PAIRS, strict=True):
        covariance[a, b] = covariance[b, a] = value / count - means[a] * means[b]
    edge = 2 * math.sqrt(np.mean((deviations["pairs"] / pairs) ** 2) * ITEMS)
    common = np.zeros(ITEMS)
    for _ in range(20):
        values, vectors = np.linalg.eigh(covariance + np.diag(common))
        outer = np.zeros((ITEMS, ITEMS))
        for value, vector in list(zip(values, vectors.T, strict=True))[::-1][:rank]:
            if value > edge:
                outer += math.sqrt(value**2 - edge**2) * np.outer(vector, vector)
        common = np.minimum(np.diag(outer), 0.9 * (1 - means**2))
    scale = np.sqrt(common / np.where(np.diag(outer) > 0, np.diag(outer), 1))
    outer = outer * scale[:, None] * scale
    return means, outer, np.maximum(1 - means**2 - np.diag(outer), 0.05)


def normal(means, outer, own, x, o):
    """Expectation of the common part of normal answers given some: the textbook's formula."""
    at = np.flatnonzero(o)
    given = (outer + np.diag(own))[np.ix_(at, at)]
    return means + outer[:, at] @ np.linalg.solve(given, (x - means)[at])


@OF_EQUAL
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_golden_round(noise, equal, shares):
    """Messages, server and home; the noise is taken from the release."""
    found = world(noise_multiplier=noise, equal=equal)
    done, ((uploads, scale, released),), _ = spied(found)
    assert done.rows[0]["update_norm_max"] <= 0.7 * (1 + 1e-12)
    deviations = dict.fromkeys(SHARES, 0.0)
    deviations |= {name: length * noise / 4 for name, length in lengths(shares).items()}
    assert uploads.update.keys() == shares.keys()
    for name, length in lengths(shares).items():
        assert scale[name].item() == pytest.approx(length / 0.7)
        assert released.sum[name].shape == uploads.update[name].shape[1:]
    for client in range(4):
        for name, value in message(found, client)[2].items():
            if name in shares:
                np.testing.assert_allclose(uploads.update[name][client], value, rtol=1e-12)
    # As many of each item, and of each pair, if everybody answers MOST of all.
    sums = {"counts": np.full(ITEMS, MOST / ITEMS), "pair_counts": np.full(len(PAIRS), 0.3)}
    sums |= {name: value.numpy() for name, value in released.sum.items()}
    means, outer, own = fitted(sums, deviations, 30)
    table = done.params["embedding.weight"].numpy()
    np.testing.assert_allclose(table[1], logits(means), rtol=1e-8, atol=1e-10)
    assert (table[[0, 2, 3]] == 0).all()
    loadings = done.server["loadings"].numpy()
    np.testing.assert_allclose(loadings @ loadings.T, outer, rtol=1e-7, atol=1e-9)
    models = personal_models(found, done)
    for client in range(4):
        x, o, _ = message(found, client)
        expected = normal(means, outer, own, x, o)
        model = models["embedding.weight"][client].numpy()
        np.testing.assert_allclose(model[1], logits(expected), rtol=1e-6, atol=1e-8)
        assert_equal({"head": models["head.weight"][client]}, {"head": torch.eye(2, 4).double()}, 0)


def test_the_factors_of_answers_that_have_some_are_found_and_help():
    """Answers of 40 items are signs of two factors: a person's own answers predict the others,
    also of people who were not there."""
    rng = np.random.default_rng(0)
    loadings = rng.normal(size=(40, 2))
    x = np.sign(rng.normal(size=(900, 2)) @ loadings.T + 0.3 * rng.normal(size=(900, 40)))
    asked = rng.random(x.shape) < 0.7
    o, given = asked[:800].astype(float), np.where(asked, x, 0)[:800]
    first, second = np.triu_indices(40, 1)
    sums = {"counts": o.mean(0), "sums": given.mean(0)}
    sums |= {"pair_counts": (o.T @ o)[first, second] / 800}
    sums |= {"pairs": (given.T @ given)[first, second] / 800}
    noisy = {n: torch.from_numpy(v + rng.normal(0, 0.01, v.shape)) for n, v in sums.items()}
    means, found, own = factors(noisy, dict.fromkeys(SHARES, 0.01), 10)
    sizes = found.square().sum(0).sort(descending=True).values
    assert sizes[:2].sum() > 5 * sizes[2:].sum()
    right, plain = [], []
    for known, truth in zip(asked[800:], x[800:], strict=True):
        person = torch.from_numpy(known.astype(float)), torch.from_numpy(truth * known)
        guess = predicted(*person, means, found, own)
        right.append((guess.sign().numpy() == truth)[~known].mean())
        plain.append((means.sign().numpy() == truth)[~known].mean())
    assert np.mean(right) > 0.85 > 0.6 > np.mean(plain)
