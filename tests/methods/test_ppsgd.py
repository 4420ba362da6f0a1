"""PPSGD: a round against an independent NumPy program."""

import numpy as np
import torch

import numpy_mlp
from pflpipe.simulation import rounds
from simulations import personal_models, plan, quiet, shaken, simulation

HEAD = {"head_epochs": 2, "head_lr": 0.3, "head_momentum": 0.5, "head_weight_decay": 0.1}
LR, CLIP = 0.2, 0.2
EVERYBODY = range(4)


def numpy_client(x, y, begin, own, head_steps, steps):
    """One client with a hidden ReLU layer, without torch: its own head after the head phase, and
    its change of the model.

    begin: fc1.weight [H, D], fc1.bias [H], head.weight [K, H], head.bias [K]; own: the last two.
    """

    def hidden(w, rows):
        return np.maximum(x[rows] @ w["fc1.weight"].T + w["fc1.bias"], 0)

    def error(w, rows):
        both = {k: w[k] + own[k] for k in own}
        scores = np.exp(hidden(w, rows) @ both["head.weight"].T + both["head.bias"])
        return (
            scores / scores.sum(1, keepdims=True) - np.eye(len(own["head.bias"]))[y[rows]]
        ) / len(rows)

    speed = dict.fromkeys(own, 0.0)
    for rows in head_steps:
        e = error(begin, rows)
        slope = {"head.weight": e.T @ hidden(begin, rows), "head.bias": e.sum(0)}
        speed = {
            k: HEAD["head_momentum"] * speed[k] + slope[k] + HEAD["head_weight_decay"] * own[k]
            for k in own
        }
        own = {k: own[k] - HEAD["head_lr"] * speed[k] for k in own}
    w = begin
    for rows in steps:
        e, z = error(w, rows), hidden(w, rows)
        back = e @ (w["head.weight"] + own["head.weight"]) * (z > 0)
        slope = {
            "fc1.weight": back.T @ x[rows],
            "fc1.bias": back.sum(0),
            "head.weight": e.T @ z,
            "head.bias": e.sum(0),
        }
        w = {k: w[k] - LR * slope[k] for k in w}
    return own, {k: w[k] - begin[k] for k in w}


def own_steps(rows):
    return [index[:count] for index, count in zip(rows.index, rows.count, strict=True)]


def numpy_of(tree, *place):
    return {name: value[place].numpy() for name, value in tree.items()}


def test_golden_round_and_personal_model():
    world = quiet("ppsgd", HEAD, clip_norm=CLIP, rounds=1, lr=LR)
    begun = shaken(rounds.start(world), np.random.default_rng(3))
    begin, before = numpy_of(begun.params), [numpy_of(begun.states, client) for client in EVERYBODY]

    def client_from(params, own, client, round):
        rows, work = world.split.train[client], world.work(client, round)
        x, y = world.train.x[rows].numpy(), world.train.y[rows].numpy()
        head, train = (own_steps(work[name]) for name in ("head", "train"))
        return numpy_client(x, y, params, own, head, train)

    expected = {name: value.copy() for name, value in begin.items()}
    heads = []
    for client in EVERYBODY:
        own, update = client_from(begin, before[client], client, 0)
        heads.append(own)
        length = np.sqrt(sum((value**2).sum() for value in update.values()))
        for name in expected:
            expected[name] += update[name] * min(1, CLIP / length) / 4
    done = rounds.run(world, begun)
    assert done.rows[0]["fraction_clipped"] > 0
    numpy_mlp.assert_close(done.params, expected)
    numpy_mlp.assert_close(done.states, heads)
    again = [client_from(expected, heads[client], client, 1)[0] for client in EVERYBODY]
    models = [{name: expected[name] + own.get(name, 0.0) for name in expected} for own in again]
    numpy_mlp.assert_close(personal_models(world, done), models)


def test_the_own_head_is_trained_by_the_optimizer_that_is_named():
    values = {"head_optimizer": "adam", "head_lr": 0.01}
    world = simulation("ppsgd", values, sizes=(3,), plan=plan(1, rounds=1))
    own = rounds.run(world, rounds.start(world)).states["head.bias"][0]
    # Adam's first step has size lr.
    torch.testing.assert_close(own.abs(), torch.full_like(own, 0.01), rtol=1e-6, atol=0)
