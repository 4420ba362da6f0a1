"""Clients without rows, with one row, and with rows of one class take part in every method with
every kind of network: they end no run, and who has no rows sends zeros."""

import functools
import math
from dataclasses import replace

import pytest
import torch

import tabled
from pflpipe import cells, options
from pflpipe.errors import ConfigError
from pflpipe.learning import architectures, losses, networks
from pflpipe.learning.architectures import ResNet
from pflpipe.methods import registry
from pflpipe.methods.registry import NAMES
from pflpipe.simulation import clients
from simulations import assert_equal, open_plan, personal_models, plan, simulation, spied

TABLES = tabled.table("test_few_rows")

EMPTY, ONE_CLASS = 1, 3
SIZES = (5, 0, 1, 4)
"""Rows of each client: a usual one, EMPTY, one with a single row, and ONE_CLASS. In steps of 4 rows
the usual one also has a step of a single row."""
CLASSES = 3

Model = cells.Model
NETWORKS = {
    name: (options.build(Model, model), tuple(shape))
    for name, (model, shape) in TABLES["NETWORKS"].items()
}
"""Name -> a network of every kind, and the shape of an example."""
PIXELS = {"cnn_femnist": 36, "cnn_svhn": 36, "cnn_cifar": 4, "cnn_centaur": 1}
"""Network with convolutions -> pixels of 16 x 16 that are left before its linear layers."""


def narrow(network: networks.Network, pixels: int) -> networks.Network:
    """The same layers of a network with two channels and features each, for images of which so many
    pixels are left before the first linear layer."""
    found = {}
    for name, (_, *inputs) in network.shapes.items():
        out = CLASSES if name.startswith("head") else 2
        if inputs:
            inputs[0] = {"conv1.weight": inputs[0], "fc1.weight": 2 * pixels}.get(name, 2)
        found[name] = (out, *inputs)
    return replace(network, shapes=found)


@pytest.fixture(autouse=True)
def small(tmp_path_factory, monkeypatch):
    """ResNets with narrow stages of one block each, little padding under vmap, and a file with
    networks of one's own."""
    monkeypatch.setitem(architectures.RESNETS, "resnet20", ResNet((2, 4, 6), 1, groups=2))
    monkeypatch.setitem(architectures.RESNETS, "resnet18", ResNet((2, 4, 6, 8), 1, groups=2))
    monkeypatch.setattr(clients, "MOST_ROWS", clients.LEAST_ROWS)
    folder = tmp_path_factory.getbasetemp() / "few_rows"  # one, so that the file is run once
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(TABLES["OWN"])
    monkeypatch.chdir(folder)


def built(model, shape, outputs):
    """The network; one with convolutions for other images than those of its paper, and narrow."""
    if model.name not in PIXELS:
        return networks.build(model, shape, outputs)
    images = (28, 28, 1) if model.name == "cnn_femnist" else (32, 32, 3)
    return narrow(networks.build(model, images, 10), PIXELS[model.name])


def classes(method):
    """The number of classes of a method's clients."""
    return 2 if registry.TWO_CLASSES in registry.info(method).about.needs else CLASSES


def usual(method):
    """A network with what a method needs."""
    needs = registry.info(method).about.needs
    kinds = {"norm": "resnet20", registry.ITEMS: "embedding of an index"}
    return next((network for part, network in kinds.items() if part in needs), "mlp")


def few(method, network, backend, hyperparameters=None, *, loss="cross_entropy", **training):
    """Two rounds of the four clients."""
    model, shape = NETWORKS[network]
    rule = (plan if registry.info(method).about.private else open_plan)(rounds=2)
    settings = {"local_epochs": 1, "lr": 0.01, "loss": loss} | training
    settings |= {"sizes": SIZES, "shape": shape, "model": None if model.name in PIXELS else model}
    world = simulation(method, hyperparameters, plan=rule, backend=backend, **settings)
    y, kind = world.train.y.clone(), losses.find(loss)
    y[world.split.train[ONE_CLASS]] = 0
    y = y.double() if kind.numbers else y.clamp(max=1 if kind.one_logit else classes(method) - 1)
    outputs = 1 if kind.numbers or kind.one_logit else classes(method)
    changed = {"network": built(model, shape, outputs), "train": clients.Examples(world.train.x, y)}
    return replace(world, **changed)


@functools.cache
def backends(network):
    """A loop, and vmap where it keeps the clients of a network apart on this machine."""
    chosen = few("dp_fedavg", network, "vmap").isolated("auto").backend
    return dict.fromkeys(("loop", chosen))


def messages(world):
    """What clients send in two rounds. All of it is finite, as are the loss, the releases, the
    states and the personal models. EMPTY sends zeros and keeps what it has."""
    done, seen, ((_, begun), (_, kept), *_) = spied(world)
    if world.method.absorb is None:  # else it sees its own noised message
        assert all(torch.equal(kept[name][EMPTY], begun[name][EMPTY]) for name in begun)
    found = {}
    for round, (uploads, _, _) in enumerate(seen, start=1):
        found |= {f"{name} of round {round}": value for name, value in uploads.update.items()}
    for name, value in found.items():
        assert value.isfinite().all(), name
        assert not value[EMPTY].any(), f"{name}: the client has nothing to say"
    assert done.diverged_round is None, "a release or a state"
    assert math.isfinite(done.rows[0]["loss"])
    assert all(value.isfinite().all() for value in personal_models(world, done).values())
    return found


def assert_trains(method, network, hyperparameters=None, **training):
    """Train in a loop, and under vmap with the same messages."""

    def sent(backend):
        return messages(few(method, network, backend, hyperparameters, **training))

    first, *others = map(sent, backends(network))
    for other in others:
        assert_equal(other, first, 1e-9)


def refused(method, network):
    """Whether the declaration of a method says that it is not for a network."""
    (model, _), entry = NETWORKS[network], registry.info(method)
    only_head, layers = model.name == "linear", entry.hyperparameters.values()
    by_name = any(item.option.layers and isinstance(item.default, str) for item in layers)
    return (
        (only_head and ("body" in entry.about.needs or by_name))
        or ("norm" in entry.about.needs and model.name not in architectures.RESNETS)
        or (model.normalisation == "batch" and entry.about.has_global_model)
        or (registry.ITEMS in entry.about.needs and model.name != "embedding")
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("network", NETWORKS)
def test_every_method_trains_every_kind_of_network(network, method):
    model, outputs = NETWORKS[network][0], classes(method)
    if refused(method, network):
        with pytest.raises(ConfigError):
            registry.check_model(method, model, outputs=outputs)
    else:
        registry.check_model(method, model, outputs=outputs)
        assert_trains(method, network)


def test_no_kind_of_network_is_left_out():
    assert {model.name for model, _ in NETWORKS.values()} >= set(architectures.NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("loss", sorted({*losses.BUILT_IN} - {"cross_entropy"}))
def test_every_method_trains_by_every_loss(loss, method):
    if {registry.CLASSES, registry.TWO_CLASSES}.intersection(registry.info(method).about.needs):
        with pytest.raises(ConfigError):
            registry.check_loss(method, loss, {})
    else:
        registry.check_loss(method, loss, {})
        assert_trains(method, usual(method), loss=loss)


VARIANTS = [
    (method, {name: value})
    for method in NAMES
    for name, item in registry.info(method).hyperparameters.items()
    for value in (item.option.choices or ((True, False) if item.type is bool else ()))
    if value != item.default
] + [(method, {}) for method in NAMES]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "hyperparameters"), VARIANTS, ids=str)
def test_every_variant_of_a_method_trains_with_decay_and_moments(method, hyperparameters):
    """Adam and weight decay move parameters without a gradient, so steps without rows must not be
    taken."""
    assert_trains(method, usual(method), hyperparameters, optimizer="adam", weight_decay=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("official", [False, True])
@pytest.mark.parametrize("method", NAMES)
def test_every_method_trains_as_published(method, official):
    about = registry.info(method).about
    if official and not about.official_departures:
        with pytest.raises(ConfigError):
            registry.departures(method, "paper", official)
        return
    steps = frozenset(registry.departures(method, "paper", official))
    network = usual(method)
    for backend in backends(network):
        messages(replace(few(method, network, backend), departures=steps))
