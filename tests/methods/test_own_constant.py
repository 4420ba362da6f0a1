"""The own constant: against counts by hand, for every kind of label."""

import numpy as np
import pytest
import torch

from pflpipe.simulation import evaluation
from simulations import finished, open_plan, personal_models, simulation, with_rows


def world(labels=None, **training):
    found = simulation("own_constant", plan=open_plan(rounds=1), backend="vmap", **training)
    return found if labels is None else with_rows(found, y=labels(found.train.y))


def models(found):
    return personal_models(found, finished(found))


def test_everybody_answers_its_own_most_frequent_class():
    found = world()
    biases = models(found)["head.bias"].numpy()
    scores = evaluation.accuracies(found, finished(found))
    for client, (bias, score) in enumerate(zip(biases, scores, strict=True)):
        counts = np.bincount(found.train.y[found.split.train[client]], minlength=3) + 0.5
        np.testing.assert_allclose(bias, np.log(counts / counts.sum()), rtol=1e-12)
        own = found.test.y[found.split.test[client]].numpy()
        assert score["personal_own"] == pytest.approx(100 * (own == counts.argmax()).mean())


def test_one_logit_is_the_log_odds_of_both_classes():
    found = world(lambda y: y.clamp(max=1), loss="binary")
    for client, bias in enumerate(models(found)["head.bias"]):
        ones = found.train.y[found.split.train[client]].double()
        odds = (ones.sum() + 0.5) / ((1 - ones).sum() + 0.5)
        torch.testing.assert_close(bias, odds.log().view(1), rtol=1e-12, atol=1e-12)


def test_of_numbers_it_is_the_mean_of_each():
    draws = torch.Generator().manual_seed(0)
    numbers = torch.randn(len(world().train.y), 3, generator=draws, dtype=torch.float64)
    found = world(lambda y: numbers, loss="squared_error")
    for client, bias in enumerate(models(found)["head.bias"]):
        torch.testing.assert_close(bias, found.train.y[found.split.train[client]].mean(0))


def test_it_is_the_most_frequent_class_whatever_the_features_are():
    """Nothing of x is read, and what no row says counts as equal."""
    found = world()
    blind = with_rows(found, found.train.x + torch.nan)
    for name, value in models(found).items():
        assert value.equal(models(blind)[name])
    empty = simulation("own_constant", plan=open_plan(2, rounds=1), backend="vmap", sizes=(0, 4))
    assert len(set(models(empty)["head.bias"][0].tolist())) == 1


def test_it_sends_nothing():
    done = finished(world())
    assert (done.releases, done.uploaded_bits) == (0, 0)
