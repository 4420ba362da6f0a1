"""APPFL: two rounds against an independent NumPy program, and personal layers."""

import numpy as np
import pytest

import numpy_mlp
import tabled
from pflpipe import cells
from pflpipe.errors import ConfigError
from pflpipe.learning import architectures
from pflpipe.methods import appfl as module
from pflpipe.methods import registry
from pflpipe.simulation import rounds
from simulations import plan, simulation, spied, with_states

TABLES = tabled.table("test_appfl")

HEAD = numpy_mlp.HEAD
PAPER = module.ABOUT.paper_departures
BODY = ("fc1.weight", "fc1.bias")
LR, EPOCHS = 0.3, 2
STEP_BOUND, CLIP = {1: 0.8, 2: 0.25}, 0.4  # by the norm


def laplace(**changes):
    return plan(mechanism="laplace", norm=1, **changes)


@pytest.mark.parametrize(
    "profile", ["paper, laplace", "paper, gaussian", "strict, laplace", "strict, gaussian"]
)
def test_two_golden_rounds(profile):
    make, order = (plan, 2) if profile.endswith("gaussian") else (laplace, 1)
    published = profile.startswith("paper")
    bound = STEP_BOUND[order] * EPOCHS if published else CLIP
    settings = {"departures": PAPER if published else (), "lr": LR, "local_epochs": EPOCHS}
    rule = make(noise_multiplier=0.0, clip_norm=bound, rounds=2)
    world = simulation("appfl", plan=rule, backend="vmap", **settings)
    begun, w_global = numpy_mlp.start(world)
    heads = [{name: w_global[name] for name in numpy_mlp.HEAD} for _ in range(4)]
    shortened = []
    for round in range(2):
        messages = []
        for client in range(4):
            begin, steps = w_global | heads[client], numpy_mlp.steps(world, client, round, "train")
            if published:
                end, bites = numpy_mlp.bounded(begin, steps, STEP_BOUND[order], order, lr=LR)
                message = {name: end[name] - w_global[name] for name in BODY}
            else:
                end = numpy_mlp.descend(begin, steps, numpy_mlp.gradient, lr=LR)
                message = {name: end[name] - w_global[name] for name in BODY}
                length = np.linalg.norm(
                    np.concatenate([value.ravel() for value in message.values()]), order
                )
                message = {name: value * min(1.0, CLIP / length) for name, value in message.items()}
                bites = [length > CLIP]
            shortened += bites
            messages.append(message)
            heads[client] = {name: end[name] for name in numpy_mlp.HEAD}
        w_global = w_global | {
            name: w_global[name] + sum(message[name] for message in messages) / 4 for name in BODY
        }
    assert 0 < sum(shortened) < len(shortened)
    done = rounds.run(world, begun)
    numpy_mlp.assert_close(done.params, w_global)
    numpy_mlp.assert_close(done.states, heads)


@pytest.mark.parametrize("departures", [(), PAPER], ids=["strict", "paper"])
@pytest.mark.parametrize(
    ("layers", "shared"), [("head", BODY), ("fc1", HEAD), ("", (*BODY, *HEAD)), (" fc , ", HEAD)]
)
def test_personal_layers_are_never_sent_and_always_kept(layers, shared, departures):
    world = simulation("appfl", {"personal_layers": layers}, departures=departures, lr=0.0)
    begun = rounds.start(world)
    assert set(begun.states) == set(begun.params) - set(shared)
    with_states(begun, lambda _, value: value + 100.0)
    sent = spied(world, begun)[1][0][0]
    assert set(sent.update) == set(shared)
    assert sent.extras == {}
    assert not any(
        value.any() for value in sent.update.values()
    )  # without learning nothing of a private value shows


# What a study may ask for


@pytest.mark.parametrize(
    ("layers", "message"), TABLES["layers that the model does not have are named"]
)
def test_layers_that_the_model_does_not_have_are_named(layers, message):
    with pytest.raises(ConfigError, match=message):
        registry.check_model("appfl", cells.Model("cnn_cifar"), {"personal_layers": layers})
    world = simulation(
        "appfl", {"personal_layers": layers}, model=cells.Model("cnn_cifar"), shape=(32, 32, 3)
    )
    with pytest.raises(ConfigError, match=message):
        rounds.start(world)


@pytest.mark.parametrize("layers", ["", "head", "conv1,head", "fc", "conv, head"])
def test_beginnings_of_layer_names_are_accepted(layers):
    registry.check_model("appfl", cells.Model("cnn_cifar"), {"personal_layers": layers})
    shapes = architectures.shapes(cells.Model("cnn_cifar"), (32, 32, 3), 10)
    kept = architectures.layers_named(shapes, layers, "personal_layers")
    words = [word.strip() for word in layers.split(",") if word]
    assert kept == tuple(name for name in shapes if any(name.startswith(word) for word in words))
