"""The private prior: against minima found by SciPy, and for people who differ from each other by a
known law."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import optimize

from pflpipe.errors import ConfigError
from pflpipe.learning import networks
from pflpipe.simulation import rounds
from simulations import LINEAR, personal_models, plan, simulation, spied, with_rows

QUIET = {"noise_multiplier": 0.0, "rounds": 1}
SETTINGS = {"spread": 0.8, "length": 1.0, "noise": 0.7}


def world(loss="cross_entropy", **changes):
    settings = {"backend": "vmap", "model": LINEAR, "loss": loss}
    found = simulation("private_prior", SETTINGS, plan=plan(**(QUIET | changes)), **settings)
    draws = torch.Generator().manual_seed(1)
    y = torch.randn(len(found.train.y), 3, generator=draws, dtype=torch.float64)
    if loss == "cross_entropy":
        return found
    if loss == "binary":
        found = dataclasses.replace(found, network=networks.build(LINEAR, (5,), 1))
        y = (y[:, 0] > 0).long()
    return with_rows(found, y=y)


def best(found, client, loss, mean, variance):
    """The mode of a client's head ``[K, F + 1]``, by a general minimiser."""
    rows = found.split.train[client]
    z = np.hstack([found.train.x[rows].numpy(), np.ones((len(rows), 1))])
    y = found.train.y[rows].numpy()

    def objective(flat):
        head = flat.reshape(mean.shape)
        scores = z @ head.T
        prior = ((head - mean) ** 2 / variance).sum() / 2
        if loss == "squared_error":
            return ((y - scores) ** 2).sum() / (2 * SETTINGS["noise"] ** 2) + prior
        if loss == "binary":
            return (np.logaddexp(0, scores[:, 0]) - y * scores[:, 0]).sum() + prior
        return (np.logaddexp.reduce(scores, 1) - scores[np.arange(len(y)), y]).sum() + prior

    return optimize.minimize(objective, mean.flatten(), tol=1e-12).x.reshape(mean.shape)


def left(found, client, loss, head, variance):
    """What a client's rows leave of a prior's variance: row by row, the Hessian at ``head``."""
    outputs, width = head.shape
    hessian = np.diag(1 / np.full(head.shape, variance).flatten())
    for row in found.split.train[client]:
        z = np.append(found.train.x[row].numpy(), 1.0)
        if loss == "squared_error":
            inner = np.eye(outputs) / SETTINGS["noise"] ** 2
        elif loss == "binary":
            p = 1 / (1 + np.exp(-head[0] @ z))
            inner = np.array([[p * (1 - p)]])
        else:
            p = np.exp(head @ z) / np.exp(head @ z).sum()
            inner = np.diag(p) - np.outer(p, p)
        hessian += np.kron(inner, np.outer(z, z))
    return np.diag(np.linalg.inv(hessian)).reshape(outputs, width)


def shortened(message):
    """A message of at most the length 1."""
    return message * min(1, 1 / np.linalg.norm(message))


def joined(params):
    """A head, or that of every client, as ``[..., K, F + 1]``."""
    return np.concatenate([params["head.weight"], params["head.bias"][..., None]], -1)


@pytest.mark.parametrize("loss", ["cross_entropy", "binary", "squared_error"])
def test_golden_round(loss):
    """Messages, server and home, with messages that reach their length and others that do not."""
    found = world(loss)
    done, ((uploads, scale, _),), _ = spied(found)
    outputs = found.network.shapes["head.weight"][0]
    zero = np.zeros((outputs, 6))
    heads = [best(found, client, loss, zero, zero + 0.8**2) for client in range(4)]
    sizes = [np.linalg.norm(head) for head in heads]
    assert min(sizes) < 1 < max(sizes)
    sent, squares = [shortened(head) for head in heads], []
    for client, (head, estimate) in enumerate(zip(heads, sent, strict=True)):
        rest = left(found, client, loss, head, 0.8**2)
        squares.append(shortened(estimate**2 + rest - 0.8**2))
    np.testing.assert_allclose(uploads.update["estimate"], sent, atol=1e-5)
    np.testing.assert_allclose(uploads.update["square"], squares, atol=1e-5)
    assert scale["estimate"].item() == pytest.approx(math.sqrt(2) / 0.5)
    assert scale["square"].item() == pytest.approx(math.sqrt(2) / 0.5)
    mean = np.mean(sent, 0)
    variance = np.maximum(0.8**2 + np.mean(squares, 0) - mean**2, 1e-4)
    np.testing.assert_allclose(done.server["variance"], variance, atol=1e-5)
    np.testing.assert_allclose(joined(done.params), mean, atol=1e-5)
    mean = uploads.update["estimate"].mean(0).numpy()
    variance = done.server["variance"].numpy()
    own = [best(found, client, loss, mean, variance) for client in range(4)]
    found_own = joined(personal_models(found, done))
    np.testing.assert_allclose(found_own, own, atol=1e-4 if loss == "binary" else 1e-5)


def test_no_message_is_longer_than_the_clip_norm_whatever_the_rows_are():
    """With a wide first prior, rows change it by more than length^2: there the message fills C."""
    rule = plan(3, **QUIET, clip_norm=0.7)
    wide = SETTINGS | {"spread": 20.0}
    found = simulation("private_prior", wide, plan=rule, sizes=(9, 9, 1), model=LINEAR)
    x = torch.zeros_like(found.train.x)
    x[:9, 0], x[9:18] = (found.train.y[:9] == 1).double(), found.train.x[9:18]
    _, ((uploads, scale, _),), _ = spied(with_rows(found, x))
    squares = [(v / scale[n]).flatten(1).square().sum(1) for n, v in uploads.update.items()]
    lengths = sum(squares).sqrt()
    assert (lengths <= 0.7 * (1 + 1e-12)).all()
    assert lengths.max() > 0.7 * (1 - 1e-12)
    estimates = uploads.update["estimate"].flatten(1).norm(dim=1)
    torch.testing.assert_close(estimates[:2], estimates.new_full([2], 1.0))


@pytest.mark.parametrize("epsilon_noise", [0.0, 2.0])
def test_few_own_rows_are_completed_by_what_others_are_like(epsilon_noise):
    """200 people whose heads differ by a known law: the posterior is nearer to each one's head than
    what it finds alone, and than the mean."""
    rng = np.random.default_rng(0)
    clients, rows = 200, 6
    around, deviations = np.array([1.0, -1.0, 0, 0, 0, 2.0]), np.array([0, 0, 0, 1, 1, 0])
    truth = around + deviations * rng.normal(size=(clients, 6))
    x = rng.normal(size=(clients, rows, 5))
    y = np.einsum("crf,cf->cr", x, truth[:, :5]) + truth[:, 5:] + rng.normal(size=x.shape[:2])
    rule = plan(clients, **(QUIET | {"noise_multiplier": epsilon_noise}))
    settings = {"loss": "squared_error", "model": LINEAR, "backend": "vmap", "plan": rule}
    values = {"spread": 2.0, "length": 4.0, "noise": 1.0}
    found = simulation("private_prior", values, sizes=(rows,) * clients, **settings)
    found = dataclasses.replace(found, network=networks.build(LINEAR, (5,), 1))
    kept = clients * rows
    inputs = found.train.x.clone()
    inputs[:kept] = torch.from_numpy(x.reshape(kept, 5))
    labels = torch.zeros(len(inputs), dtype=torch.float64)
    labels[:kept] = torch.from_numpy(y.reshape(kept))
    found = with_rows(found, inputs, labels)
    done, ((uploads, _, _),), _ = spied(found)
    models = personal_models(found, done)

    def distance(heads):
        return ((heads - truth) ** 2).sum(1).mean()

    alone = uploads.update["estimate"][:, 0].numpy()
    own, everybody = joined(models)[:, 0], joined(done.params)
    assert distance(own) < 0.8 * min(distance(alone), distance(everybody))


def test_a_head_that_newton_could_not_hold_is_refused_in_one_line():
    wide = simulation("private_prior", plan=plan(rounds=1), model=LINEAR, shape=(200,))
    with pytest.raises(ConfigError, match="newton for a head of 603 numbers; expected at most 512"):
        rounds.run(wide, rounds.start(wide))
