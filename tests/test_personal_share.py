"""tools/personal_share.py: the share of FedDPA's personal coordinates."""

import pytest
import torch

import personal_share
from pflpipe.simulation import rounds
from simulations import simulation


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_the_share_counts_coordinates_with_much_fisher_information(backend):
    world = simulation("feddpa", {"tau": 0.2}, backend=backend)
    done = rounds.run(world, rounds.start(world))
    found = personal_share.share(world, done, 0.2)

    def by_hand(client):
        """Squared gradients of the client's examples one by one, at its last model."""
        model = {name: value[client] for name, value in done.states.items()}
        rows = torch.from_numpy(world.split.train[client])
        total = dict.fromkeys(model, 0.0)
        for x, y in zip(world.train.x[rows], world.train.y[rows], strict=True):
            leaves = {name: value.clone().requires_grad_() for name, value in model.items()}
            scores = world.network.apply(leaves, x.unsqueeze(0))
            loss = torch.nn.functional.cross_entropy(scores, y.unsqueeze(0))
            slopes = torch.autograd.grad(loss, list(leaves.values()))
            total = {n: total[n] + g.square() for n, g in zip(total, slopes, strict=True)}
        scaled = [(v - v.min()) / (v.max() - v.min()) for v in total.values()]
        return sum(int((value >= 0.2).sum()) for value in scaled)

    counts = [by_hand(client) for client in range(world.plan.clients)]
    expected = 100 * sum(counts) / len(counts) / world.network.parameters
    assert 0 < found < 100
    assert found == pytest.approx(expected)
    assert personal_share.share(world, done, 0.0) == 100
