"""Methods that share a part of the model: what stays never leaves."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from pflpipe import cells
from pflpipe.errors import ConfigError
from pflpipe.learning.networks import Network
from pflpipe.methods import registry
from pflpipe.simulation import rounds
from simulations import CLASSES, personal_models, plan, simulation, spied, with_states

HEAD, BODY = ("head.weight", "head.bias"), ("fc1.weight", "fc1.bias", "norm1.weight", "norm1.bias")
NORM = ("norm1.weight", "norm1.bias")
PRIVATE = dict.fromkeys(("fedper", "fedrep", "centaur", "dp_pfeddsu"), HEAD)
SHARED = dict.fromkeys((*PRIVATE, "fedbabu"), BODY)
PRIVATE |= {"fedbn": NORM, "lg_fedavg": BODY, "fedbabu": ()}
SHARED |= {"fedbn": ("fc1.weight", "fc1.bias", *HEAD), "lg_fedavg": HEAD}
METHODS = sorted(PRIVATE)


def normalised(world):
    """The simulation with a network of one normalised layer and a head."""
    shapes = {"fc1.weight": (6, 5), "fc1.bias": (6,), "norm1.weight": (6,), "norm1.bias": (6,)}

    def body(params, x, key):
        z = F.linear(x, params["fc1.weight"], params["fc1.bias"])
        return F.relu(F.group_norm(z, 2, params["norm1.weight"], params["norm1.bias"]))

    shapes |= {"head.weight": (CLASSES, 6), "head.bias": (CLASSES,)}
    return dataclasses.replace(world, network=Network(shapes, body))


@pytest.mark.parametrize("name", METHODS)
def test_only_the_shared_parameters_are_uploaded_and_only_the_private_ones_kept(name):
    done, seen, _ = spied(normalised(simulation(name, backend="vmap")))
    for uploads, _, _ in seen:
        assert set(uploads.update) == set(SHARED[name])
    assert set(done.states) == set(PRIVATE[name])
    assert all(not torch.equal(value[0], value[1]) for value in dict(done.states).values())


@pytest.mark.parametrize("name", METHODS)
def test_an_upload_is_a_change_and_holds_no_private_value(name):
    """Without learning every upload is zero, however far the private values are from the
    server's."""
    world = normalised(simulation(name, lr=0.0, plan=plan(rounds=1)))
    begun = with_states(rounds.start(world), lambda _, value: value + 100.0)
    _, ((uploads, _, _),), _ = spied(world, begun)
    assert all(value.abs().max() == 0 for value in uploads.update.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_personal_model_is_the_released_part_with_the_clients_own(name):
    """Without further learning the personal model is the shared part as released, joined to the
    client's own part."""
    hyperparameters = {"head_lr": 0.0} if registry.info(name).factory().head_epochs else {}
    hyperparameters |= {"rt": False} if name == "dp_pfeddsu" else {}
    world = normalised(simulation(name, hyperparameters, backend="vmap"))
    done = rounds.run(world, rounds.start(world))
    still = dataclasses.replace(world, training=dataclasses.replace(world.training, lr=0.0))

    for key, value in personal_models(still, done).items():
        expected = done.states[key] if key in PRIVATE[name] else done.params[key]
        assert torch.equal(value, expected.expand_as(value))


# What a study may ask for


@pytest.mark.parametrize(
    ("method", "hidden", "layers"),
    [("fedbn", (8,), "normalisation layers"), ("centaur", (), "layers before the head")],
)
def test_a_network_without_the_layers_that_a_method_is_about_is_refused(method, hidden, layers):
    message = f"{method}: model; got 'mlp'; expected a network with {layers}"
    with pytest.raises(ConfigError, match=message):
        registry.check_model(method, cells.Model("mlp", hidden))


@pytest.mark.parametrize("name", METHODS)
def test_a_network_with_these_layers_is_accepted(name):
    registry.check_model(name, cells.Model("resnet20"))
