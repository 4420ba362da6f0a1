"""FedPer, and LG-FedAvg which keeps the other half: two rounds and the personal models against a
NumPy program."""

import pytest

import numpy_mlp
from pflpipe.simulation import rounds
from simulations import personal_models, quiet

LR, CLIP = 0.2, 0.3
BODY = ("fc1.weight", "fc1.bias")


@pytest.mark.parametrize(("name", "private"), [("fedper", numpy_mlp.HEAD), ("lg_fedavg", BODY)])
def test_golden_rounds(name, private):
    world = quiet(name, clip_norm=CLIP, rounds=2, lr=LR, weight_decay=0.1)
    begun, shared = numpy_mlp.start(world)
    clients = range(world.plan.clients)
    own = [{key: shared[key] for key in private} for _ in clients]

    def local_pass(client, round):
        steps = numpy_mlp.steps(world, client, round, "train")
        return numpy_mlp.descend(shared | own[client], steps, numpy_mlp.gradient, lr=LR, decay=0.1)

    for round in range(2):
        ends = [local_pass(client, round) for client in clients]
        own = [{key: end[key] for key in private} for end in ends]
        changes = [
            numpy_mlp.clipped(
                {key: end[key] - shared[key] for key in shared if key not in private}, CLIP
            )
            for end in ends
        ]
        shared = numpy_mlp.moved(shared, changes)
    done = rounds.run(world, begun)
    numpy_mlp.assert_close(done.params, shared)
    numpy_mlp.assert_close(done.states, own)
    personal = [local_pass(client, 2) for client in clients]
    numpy_mlp.assert_close(personal_models(world, done), personal)
