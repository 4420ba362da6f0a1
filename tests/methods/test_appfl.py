"""APPFL, and its clients that take a number of steps: two rounds against an independent NumPy
program; and personal layers."""

import numpy as np
import pytest

import numpy_mlp
import tabled
from numpy_mlp import BODY, HEAD
from pflpipe import cells
from pflpipe.errors import ConfigError
from pflpipe.learning import architectures
from pflpipe.methods import registry
from pflpipe.simulation import rounds
from simulations import plan, simulation

TABLES = tabled.table("test_appfl")

LR, EPOCHS, STEPS = 0.3, 2, 5
CNN = cells.Model("cnn_cifar")
NORMS = {"laplace": 1, "gaussian": 2}
STEP_BOUND, CLIP = {1: 0.8, 2: 0.25}, 0.4  # of a step as published by the norm, of a message
OF_STEPS = {1: 5.0, 2: 1.6}  # of all steps of ``appfl_steps``, by the norm


@pytest.mark.parametrize("mechanism", NORMS)
@pytest.mark.parametrize("profile", ["strict", "paper"])
@pytest.mark.parametrize("method", ["appfl", "appfl_steps"])
def test_two_golden_rounds(method, profile, mechanism):
    """APPFL bounds a message, as published each step. The steps of ``appfl_steps`` go on over pass
    after pass; each is shortened to C / S, all parameters together."""
    order, values = NORMS[mechanism], {}
    step, bound = (
        (STEP_BOUND[order], STEP_BOUND[order] * EPOCHS) if profile == "paper" else (0, CLIP)
    )
    if method == "appfl_steps":
        step, bound, values = OF_STEPS[order] / STEPS, OF_STEPS[order], {"local_steps": STEPS}
    rule = {"mechanism": mechanism, "norm": order, "noise_multiplier": 0.0, "clip_norm": bound}
    departures = registry.departures(method, profile, False)
    settings = {"departures": departures, "lr": LR, "local_epochs": EPOCHS}
    world = simulation(method, values, plan=plan(**rule, rounds=2), backend="vmap", **settings)
    own, bites = {}, []

    def update(w, client, round):
        end, steps = w | own.get(client, {}), numpy_mlp.steps(world, client, round, "train")
        assert method == "appfl" or len(steps) == STEPS
        if step:
            end, shortened = numpy_mlp.bounded(end, steps, step, order, lr=LR)
            bites.extend(shortened)
        else:
            end = numpy_mlp.descend(end, steps, numpy_mlp.gradient, lr=LR)
        own[client] = {name: end[name] for name in HEAD}
        return {name: end[name] - w[name] for name in BODY}

    def clip(message, bound):
        return message if step else numpy_mlp.clipped(message, bound, order)

    clips = False if method == "appfl_steps" else None
    done, _ = numpy_mlp.assert_golden(world, update, clip=clip, clips=clips)
    assert 0 < np.mean(bites or [row["fraction_clipped"] for row in done.rows]) < 1
    numpy_mlp.assert_close(done.states, [own[client] for client in range(4)])


# What a study may ask for


@pytest.mark.parametrize(
    ("layers", "message"), TABLES["layers that the model does not have are named"]
)
def test_layers_that_the_model_does_not_have_are_named(layers, message):
    with pytest.raises(ConfigError, match=message):
        registry.check_model("appfl", CNN, {"personal_layers": layers})
    world = simulation("appfl", {"personal_layers": layers}, model=CNN, shape=(32, 32, 3))
    with pytest.raises(ConfigError, match=message):
        rounds.start(world)


@pytest.mark.parametrize("layers", ["", "head", "conv1,head", "fc", "conv, head"])
def test_beginnings_of_layer_names_are_accepted(layers):
    registry.check_model("appfl", CNN, {"personal_layers": layers})
    shapes = architectures.shapes(CNN, (32, 32, 3), 10)
    kept = architectures.layers_named(shapes, layers, "personal_layers")
    words = [word.strip() for word in layers.split(",") if word]
    assert kept == tuple(name for name in shapes if any(name.startswith(word) for word in words))
