"""PPSGD: a round against an independent NumPy program, its reduction to DP-FedAvg, and that own
heads stay at home."""

import itertools

import numpy as np
import torch
import torch.nn.functional as F

import numpy_mlp
from pflpipe.simulation import rounds
from simulations import personal_models, plan, quiet, simulation, spied, with_states

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


def with_own_heads(begun):
    """Give the clients heads as in later rounds."""
    rng = np.random.default_rng(3)
    return with_states(
        begun, lambda _, value: value + torch.from_numpy(rng.normal(size=value.shape))
    )


def own_steps(rows):
    return [index[:count] for index, count in zip(rows.index, rows.count, strict=True)]


def numpy_of(tree, *place):
    return {name: value[place].numpy() for name, value in tree.items()}


def test_golden_round_and_personal_model():
    world = quiet("ppsgd", HEAD, clip_norm=CLIP, rounds=1, lr=LR)
    begun = with_own_heads(rounds.start(world))
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
    models = personal_models(world, done)
    numpy_mlp.assert_close(done.params, expected)
    for client in EVERYBODY:
        for name, value in numpy_of(done.states, client).items():
            np.testing.assert_allclose(value, heads[client][name], rtol=1e-10, atol=1e-13)
        again, _ = client_from(expected, heads[client], client, 1)
        for name, value in numpy_of(models, client).items():
            np.testing.assert_allclose(
                value, expected[name] + again.get(name, 0.0), rtol=1e-10, atol=1e-13
            )


def test_own_heads_never_leave_the_client():
    """With a global model that stands still (lr 0), all that clients learn is their own heads, and
    they upload zeros."""
    world = simulation("ppsgd", backend="vmap", lr=0.0)
    _, seen, models = spied(world)
    states = [own for _, own in models]
    assert set(states[0]) == {"head.weight", "head.bias"}
    assert not any(value.any() for value in states[0].values())
    for before, after in itertools.pairwise(states):
        assert (after["head.bias"] != before["head.bias"]).any(1).all()
    for uploads, _, _ in seen:
        assert uploads.extras == {}
        assert set(uploads.update) == set(world.network.shapes)
        assert not any(value.any() for value in uploads.update.values())


def test_logits_of_the_personal_model_are_the_sum_of_both_heads():
    world = simulation("ppsgd", {"head_lr": 0.0})
    done = with_own_heads(rounds.run(world, rounds.start(world)))
    models, x = personal_models(world, done), world.test.x
    for client in EVERYBODY:
        found = world.network.apply({name: value[client] for name, value in models.items()}, x)
        own = F.linear(
            world.network.body(done.params, x, None),
            *[done.states[name][client] for name in ("head.weight", "head.bias")],
        )
        torch.testing.assert_close(
            found, world.network.apply(done.params, x) + own, rtol=1e-12, atol=1e-13
        )


def test_the_own_head_is_trained_by_the_optimizer_that_is_named():
    world = simulation(
        "ppsgd", {"head_optimizer": "adam", "head_lr": 0.01}, sizes=(3,), plan=plan(1, rounds=1)
    )
    own = rounds.run(world, rounds.start(world)).states["head.bias"][0]
    torch.testing.assert_close(
        own.abs(), torch.full_like(own, 0.01), rtol=1e-6, atol=0
    )  # Adam's first step has size lr
