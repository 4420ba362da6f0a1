"""pFedFDA: two rounds against an independent NumPy program, and noise in the covariance."""

import numpy as np
import torch

import numpy_mlp
from numpy_mlp import BODY
from pflpipe.simulation import rounds
from pflpipe.trees import Update
from simulations import CLASSES, assert_equal, personal_models, plan, simulation, with_rows

LR, CLIP, RIDGE, UNITS = 0.2, 0.4, 0.1, {"means": 1.7, "covariance": 0.6}
VALUES = {"ridge": RIDGE, "mean_scale": UNITS["means"], "covariance_scale": UNITS["covariance"]}


def learnable(values=None, **changes):
    """A simulation with labels that follow from the rows, so that clients trust their own."""
    world = simulation("pfedfda", values, **changes)
    return with_rows(world, y=world.train.x[:, :CLASSES].argmax(1))


def classifier(means, covariance, y):
    """Log density of a Gaussian class, without the part that all classes share, and log prior."""
    precision = np.linalg.inv(covariance + RIDGE * np.eye(len(covariance)))
    share = np.array([np.mean(y == k) for k in range(CLASSES)]) + 1e-4
    prior = np.log(share / share.sum())
    bias = [prior[k] - mu @ precision @ mu / 2 for k, mu in enumerate(means)]
    return np.array([precision @ mu for mu in means]), np.array(bias)


def fitted(z, y, means):
    """Means and covariance of rows."""
    own = np.array([z[y == k].mean(0) if (y == k).any() else mu for k, mu in enumerate(means)])
    scatter = sum((np.outer(row - own[k], row - own[k]) for row, k in zip(z, y, strict=True)), 0.0)
    return own, scatter / max(len(y) - 1, 1)


def adapted(w, x, y, means, covariance):
    """The client's statistics, interpolated with the best beta."""
    z = np.maximum(x @ w["fc1.weight"].T + w["fc1.bias"], 0)
    odd = np.zeros(len(y), dtype=bool)
    odd[np.argsort(y, kind="stable")[1::2]] = True
    losses = []
    for beta in np.arange(11) / 10 if len(y) > 1 else [0.0]:
        loss = 0.0
        for half in (~odd, odd):
            own = fitted(z[half], y[half], means)
            pairs = (means, own[0]), (covariance, own[1])
            weight, bias = classifier(*((1 - beta) * old + beta * new for old, new in pairs), y)
            scores = z[~half] @ weight.T + bias
            logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
            loss -= logs[np.arange(len(logs)), y[~half]].sum() / max(len(logs), 1)
        losses.append(loss)
    beta = np.argmin(losses) / 10
    own = fitted(z, y, means)
    return beta, (1 - beta) * means + beta * own[0], (1 - beta) * covariance + beta * own[1]


def test_golden_rounds_and_personal_model():
    """The second round is the first with a covariance; client 2 has one row, so its beta is 0."""
    rule = plan(noise_multiplier=0.0, clip_norm=CLIP, rounds=2)
    world = learnable(VALUES, plan=rule, backend="vmap", lr=LR)
    server, betas = {"means": None, "covariance": np.zeros((4, 4))}, set()

    def with_head(w, y, means, covariance):
        weight, bias = classifier(means, covariance, y)
        return w | {"head.weight": weight, "head.bias": bias}

    def update(both, client, round):
        w = {name: both[name] for name in world.network.shapes}
        old = [both[name] for name in server]
        x, y = numpy_mlp.rows(world, client)
        start = with_head(w, y, *old)
        end = numpy_mlp.local_pass(world, client, round, start, lr=LR, names=BODY)
        beta, *new = adapted(end, x, y, *old)
        betas.add(beta)
        moved = {name: a - b for name, a, b in zip(server, new, old, strict=True)}
        units = {name: value / UNITS[name] for name, value in moved.items()}
        return {name: end[name] - w[name] for name in BODY} | units

    def clip(message, bound):
        sent = numpy_mlp.clipped(message, bound)
        return {name: value * UNITS.get(name, 1.0) for name, value in sent.items()}

    server["means"] = numpy_mlp.arrays(rounds.start(world).params)["head.weight"]
    done, both = numpy_mlp.assert_golden(world, update, server=server, clip=clip)
    assert len(betas) > 2
    assert not done.states
    server = {name: both[name] for name in server}
    numpy_mlp.assert_close(done.server, server)
    w, models = {name: both[name] for name in world.network.shapes}, []
    for client in range(4):
        x, y = numpy_mlp.rows(world, client)
        models.append(with_head(w, y, *adapted(w, x, y, **server)[1:]))
    numpy_mlp.assert_close(personal_models(world, done), models)


def test_what_noise_makes_negative_in_the_covariance_counts_as_zero():
    world = simulation("pfedfda", plan=plan())
    begun = rounds.start(world)
    released = {name: torch.zeros_like(begun.params[name]) for name in BODY}
    released |= {name: torch.zeros_like(value) for name, value in begun.server.items()}
    turned = torch.linalg.qr(torch.arange(16.0).reshape(4, 4).double().cos())[0]
    values = torch.tensor([-2.0, -1e-3, 0.5, 3.0]).double()
    noise = torch.arange(16.0).reshape(4, 4).double().sin()
    released["covariance"] = (turned * values) @ turned.T + noise - noise.T
    _, server = world.method.aggregate(begun.params, Update(released), begun.server, world.task)
    assert_equal({"": server["covariance"]}, {"": (turned * values.clamp(min=0)) @ turned.T}, 1e-12)
