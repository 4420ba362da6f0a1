"""Ditto: rounds against an independent NumPy program, and what it shares with local training."""

import numpy as np

import numpy_mlp
from pflpipe import cells
from pflpipe.simulation import rounds
from pflpipe.trees import within
from simulations import assert_equal, personal_models, plan, simulation

WEIGHT, LR, CLIP = 0.6, 0.2, 0.2
LINEAR = cells.Model("mlp", ())


def test_golden_rounds_of_own_models_that_begin_as_the_first_model_received():
    """Under a draw in which one client comes late and one never."""
    rule = plan(noise_multiplier=0.0, clip_norm=CLIP, sample_rate=0.5, rounds=3)
    settings = {"plan": rule, "backend": "vmap", "model": LINEAR, "lr": LR, "seed": 3}
    world = simulation("ditto", {"weight": WEIGHT}, **settings)
    begun, shared = numpy_mlp.start(world)
    own = {}

    def trained(client, round, begin, weight, shared):
        def pulled(w, x, y):
            slope = numpy_mlp.gradient(w, x, y)
            return {name: slope[name] + weight * (w[name] - shared[name]) for name in w}

        steps = numpy_mlp.steps(world, client, round, "train")
        return numpy_mlp.descend(begin, steps, pulled, lr=LR)

    drawn = [np.flatnonzero(rounds.cohort(world, round)).tolist() for round in range(3)]
    for round, clients in enumerate(drawn):
        sent = []
        for client in clients:
            end = trained(client, round, shared, 0.0, shared)
            own[client] = trained(client, round, own.get(client, shared), WEIGHT, shared)
            sent.append(numpy_mlp.clipped(numpy_mlp.less(end, shared), CLIP))
        shared = numpy_mlp.moved(shared, sent, 1 / 2) if sent else shared
    assert set(own) < set(range(4)), "one is never drawn"
    assert set(own) - set(drawn[0]), "one comes late"
    done = rounds.run(world, begun)
    numpy_mlp.assert_close(done.params, shared)
    begins = [own.get(client, shared) for client in range(4)]
    personal = [trained(client, 3, begins[client], WEIGHT, shared) for client in range(4)]
    numpy_mlp.assert_close(personal_models(world, done), personal)


def test_without_weight_every_clients_own_model_is_trained_alone():
    def states(name, **values):
        world = simulation(name, values, backend="vmap")
        return rounds.run(world, rounds.start(world)).states

    alone = dict(states("local_only"))
    assert_equal(within("own.", states("ditto", weight=0.0)), alone, 0)
    pulled = within("own.", states("ditto", weight=1.0))
    assert max(float((pulled[name] - alone[name]).abs().max()) for name in alone) > 1e-3
