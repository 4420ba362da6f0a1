"""DP-FedAvg's global model: DP-FedAvg's training, and one model for all."""

import dataclasses

import pytest
import torch

from pflpipe.cells import Server
from pflpipe.simulation import rounds
from pflpipe.simulation.server import with_optimizer
from simulations import assert_equal, params_after, personal_models, simulation


@pytest.mark.parametrize("server", [Server(), Server("momentum", lr=0.6, momentum=0.7)])
def test_it_trains_as_dp_fedavg_to_the_bit(server):
    found, expected = (
        params_after(dataclasses.replace(world, method=with_optimizer(world.method, server)))
        for world in (
            simulation(name, backend="vmap") for name in ("dp_fedavg_global", "dp_fedavg")
        )
    )
    assert_equal(found, expected, 0)


def test_the_personal_model_of_every_client_is_the_released_one_to_the_bit():
    world = simulation("dp_fedavg_global", backend="vmap")
    done = rounds.run(world, rounds.start(world))
    clients = world.plan.clients
    released = {name: torch.stack([value] * clients) for name, value in done.params.items()}
    assert_equal(personal_models(world, done), released, 0)
