"""CENTAUR, and FedRep which is its algorithm: two rounds and the personal models against a NumPy
program."""

import pytest

import numpy_mlp
from pflpipe.simulation import rounds
from simulations import personal_models, quiet

LR, CLIP = 0.2, 0.3
HEAD_PHASE = {"head_epochs": 3, "head_lr": 0.1, "head_momentum": 0.6, "head_weight_decay": 0.05}
BODY = ("fc1.weight", "fc1.bias")


@pytest.mark.parametrize("name", ["centaur", "fedrep"])
def test_golden_rounds(name):
    world = quiet(name, HEAD_PHASE, clip_norm=CLIP, rounds=2, lr=LR, momentum=0.9, weight_decay=0.1)
    begun, w = numpy_mlp.start(world)
    body, clients = {key: w[key] for key in BODY}, range(world.plan.clients)
    heads = [{key: w[key] for key in numpy_mlp.HEAD} for _ in clients]

    def with_head(client, round):
        steps = numpy_mlp.steps(world, client, round, "head")
        words = {"lr": 0.1, "momentum": 0.6, "decay": 0.05, "names": numpy_mlp.HEAD}
        return numpy_mlp.descend(body | heads[client], steps, numpy_mlp.gradient, **words)

    for round in range(2):
        changes = []
        for client in clients:
            start = with_head(client, round)
            heads[client] = {key: start[key] for key in numpy_mlp.HEAD}
            steps = numpy_mlp.steps(world, client, round, "train")
            end = numpy_mlp.descend(
                start, steps, numpy_mlp.gradient, lr=LR, momentum=0.9, decay=0.1, names=BODY
            )
            changes.append(numpy_mlp.clipped({key: end[key] - body[key] for key in BODY}, CLIP))
        body = numpy_mlp.moved(body, changes)
    done = rounds.run(world, begun)
    numpy_mlp.assert_close({key: done.params[key] for key in BODY}, body)
    numpy_mlp.assert_close(done.states, heads)
    personal = [with_head(client, 2) for client in clients]
    numpy_mlp.assert_close(personal_models(world, done), personal)
