"""DP-FedSAM: rounds against an independent NumPy program, its reduction to DP-FedAvg and the official code's departures."""

import numpy as np
import pytest
import torch

from pflpipe import cells, federated, methods, privacy, trees
from simulations import plan, simulation

RHO, LR, MOMENTUM, DECAY, CLIP = 0.5, 0.2, 0.5, 0.1, 0.3
LINEAR = cells.Model("mlp", ())
BACKENDS = ["loop", "vmap"]
OFFICIAL = methods.departures("dp_fedsam", "paper", official_code=True)


def numpy_update(x, y, begin, steps):
    """One client's change of a linear softmax model {"head.weight": [K, D], "head.bias": [K]}: SAM with SGD, without torch."""

    def gradient(w, rows):
        scores = np.exp(x[rows] @ w["head.weight"].T + w["head.bias"])
        error = scores / scores.sum(1, keepdims=True) - np.eye(len(w["head.bias"]))[y[rows]]
        return {"head.weight": error.T @ x[rows] / len(rows), "head.bias": error.mean(0)}

    w = {k: v.copy() for k, v in begin.items()}
    speed = {k: np.zeros_like(v) for k, v in begin.items()}
    for rows in steps:
        slope = gradient(w, rows)
        length = np.sqrt(sum((g**2).sum() for g in slope.values()))
        slope = gradient({k: w[k] + RHO * slope[k] / (length + 1e-12) for k in w}, rows)
        speed = {k: MOMENTUM * speed[k] + slope[k] + DECAY * w[k] for k in w}
        w = {k: w[k] - LR * speed[k] for k in w}
    return {k: w[k] - begin[k] for k in w}


@pytest.mark.parametrize("departures", [(), OFFICIAL], ids=["strict", "official"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_golden_round(backend, departures):
    world = simulation(
        "dp_fedsam",
        {"rho": RHO},
        plan=plan(noise_multiplier=0.0, clip_norm=CLIP, rounds=1),
        backend=backend,
        model=LINEAR,
        departures=departures,
        lr=LR,
        momentum=MOMENTUM,
        weight_decay=DECAY,
    )
    begun = federated.start(world)
    begin = {name: value.numpy() for name, value in begun.params.items()}
    sizes = np.array([len(rows) for rows in world.split.train])
    weights = sizes / sizes.sum() if departures else np.full(len(sizes), 1 / len(sizes))
    expected = {name: value.copy() for name, value in begin.items()}
    for client, rows in enumerate(world.split.train):
        cut = world.work(client, 0)["train"]
        steps = [index[:count] - rows[0] for index, count in zip(cut.index, cut.count, strict=True)]
        update = numpy_update(world.train.x[rows].numpy(), world.train.y[rows].numpy(), begin, steps)
        joint = np.sqrt(sum((value**2).sum() for value in update.values()))
        for name, value in update.items():
            length = np.sqrt((value**2).sum()) if departures else joint
            expected[name] += weights[client] * value * min(1, CLIP / length)
    done = federated.run(world, begun)
    assert done.rows[0]["fraction_clipped"] > 0
    for name in expected:
        np.testing.assert_allclose(done.params[name].numpy(), expected[name], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_rho_zero_is_dp_fedavg(backend, optimizer):
    settings = {"backend": backend, "optimizer": optimizer, "lr": 0.05, "weight_decay": 0.01}
    worlds = simulation("dp_fedsam", {"rho": 0.0}, **settings), simulation("dp_fedavg", **settings)
    found, expected = (federated.run(world, federated.start(world)).params for world in worlds)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("departures", [(), OFFICIAL], ids=["strict", "official"])
def test_only_the_official_code_shows_sizes_to_the_server(departures, monkeypatch):
    seen, release = [], privacy.release

    def spy(generator, uploads, *rest):
        seen.append(uploads)
        return release(generator, uploads, *rest)

    monkeypatch.setattr(privacy, "release", spy)
    world = simulation("dp_fedsam", departures=departures)
    done = federated.run(world, federated.start(world))
    assert trees.is_finite(done.params)
    for uploads in seen:
        assert {name: value.tolist() for name, value in uploads.side.items()} == ({"size": [9, 4, 1, 6]} if departures else {})


def test_the_official_cohort_is_the_same_in_every_run():
    def participants(seed):
        world = simulation("dp_fedsam", departures=OFFICIAL, seed=seed, plan=plan(sample_rate=0.5, rounds=6))
        begun, moved = federated.start(world), []
        for _ in range(6):
            sent = begun.uploaded_bits
            federated.one_round(world, begun)
            moved.append((begun.timing[-1]["images"], begun.uploaded_bits - sent))
        return moved

    assert participants(0) == participants(1)
    assert len(set(participants(0))) > 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_personal_model_is_trained_with_the_same_steps(backend):
    world = simulation("dp_fedsam", {"rho": RHO}, backend=backend)
    done = federated.run(world, federated.start(world))
    everyone = range(world.plan.clients)

    def both(state, batches, others):
        update = world.method.local_update(done.params, done.server, state, batches, world.task)[0].update
        return world.method.personalize(done.params, done.server, state, batches, world.task), update

    personal, update = world.run_clients(both, done.states, everyone, [world.work(client, done.round) for client in everyone])
    for name, value in personal.items():
        torch.testing.assert_close(value, done.params[name] + update[name], rtol=1e-12, atol=1e-14)
        assert not torch.equal(value[0], done.params[name])
