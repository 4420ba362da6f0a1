"""BatchNorm: torch's layers in training, the averages of a client's own rows in tests, and nothing
of them in a message."""

import dataclasses
import hashlib
import math

import pytest
import torch

import noise_features
import pflpipe
from pflpipe import Model, Privacy, Training
from pflpipe.errors import ConfigError
from pflpipe.learning import architectures, networks
from pflpipe.learning.solvers import Schedule
from pflpipe.learning.task import Task
from pflpipe.methods import registry
from pflpipe.simulation import evaluation, rounds
from simulations import simulation
from test_networks import normal

BATCH = Model("resnet20", normalisation="batch")
SHAPE = (8, 9, 3)
SIZES = (9, 4, 1, 0)
"""Training rows of each client; one has a single row, one has none."""


def network_and_params():
    network = networks.build(BATCH, SHAPE, 10)
    params = network.init(torch.Generator().manual_seed(0), torch.float64)
    return network, {name: value + 0.1 * normal(*value.shape) for name, value in params.items()}


def twin(params):
    """The feature extractor of torchvision's blocks and torch's BatchNorm, with these numbers."""
    module = noise_features.extractor(noise_features.NORMS["BatchNorm"], 0.0, 0).double()
    own = [value for name, value in params.items() if not name.startswith("head")]
    with torch.no_grad():
        for theirs, ours in zip(module.parameters(), own, strict=True):
            theirs.copy_(ours)
    return module


def passes(x, *sizes):
    """One pass over the rows in minibatches of these sizes."""
    places = torch.arange(max(sizes))
    starts = torch.tensor([sum(sizes[:step]) for step in range(len(sizes))])
    index = (starts[:, None] + places).clamp(max=len(x) - 1)
    return Schedule(x, torch.zeros(len(x)), index, torch.tensor(sizes), sizes)


def test_training_averages_and_tests_are_those_of_torch():
    network, params = network_and_params()
    module, x = twin(params), normal(12, *SHAPE)
    leaves = {name: value.requires_grad_() for name, value in params.items()}
    for part in (x[:6], x[6:]):
        ours, theirs = network.body(leaves, part, None), module(part.movedim(-1, 1))
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
        ours.square().mean().backward()
        theirs.square().mean().backward()
    slopes = [leaf.grad for name, leaf in leaves.items() if not name.startswith("head")]
    for slope, parameter in zip(slopes, module.parameters(), strict=True):
        torch.testing.assert_close(slope, parameter.grad, rtol=1e-7, atol=1e-10)
    params = {name: value.detach() for name, value in leaves.items()}
    averages = network.averages(params, passes(x, 6, 6))
    assert len(averages) == len(architectures.norm_names(params))
    theirs = module.eval()(x.movedim(-1, 1))
    torch.testing.assert_close(network.body(params | averages, x, None), theirs)


def test_a_channel_of_one_number_is_its_own_mean_without_variance():
    """The last layers of a resnet18 see one pixel of an image of 8 x 8."""
    network = networks.build(Model("resnet18", normalisation="batch"), (8, 8, 1), 2)
    params, x = network.init(torch.Generator().manual_seed(0)), normal(3, 8, 8, 1).float()
    assert network.body(params, x[:1], None).isfinite().all()
    cuts = (x[:2], 2), (x[2:], 1), (x, 2, 1)
    two, one, both = (network.averages(params, passes(*cut)) for cut in cuts)
    assert not one["stage4.block2.norm2.variance"].any()
    torch.testing.assert_close(both, {name: (2 * two[name] + one[name]) / 3 for name in one})


def test_a_frozen_layer_is_one_of_those_whose_averages_are_made(tmp_path):
    from safetensors.torch import save_file

    network, params = network_and_params()
    file = tmp_path / "start.safetensors"
    save_file({name: value.float() for name, value in params.items()}, file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    start = {"init": str(file), "init_digest": digest, "freeze": ("conv1", "norm1")}
    model = dataclasses.replace(BATCH, **start)
    frozen, rows = networks.build(model, SHAPE, 10), passes(normal(5, *SHAPE).float(), 5)
    params_left = frozen.init(torch.Generator())
    assert "conv1.weight" not in params_left
    whole = {name: value.float() for name, value in params.items()}
    torch.testing.assert_close(frozen.averages(params_left, rows), network.averages(whole, rows))


def of_every_client(world, hook):
    found = []

    def told(state, batches, others):
        found.append(hook(batches))
        return batches.n

    for client in range(len(world.split.train)):
        world.run_clients(told, None, [client], [world.work(client, 0)])
    return found


def centaur():
    """A simulation and its first model."""
    world = simulation("centaur", sizes=SIZES, shape=SHAPE, model=BATCH)
    return world, world.network.init(torch.Generator().manual_seed(0), torch.float64)


def test_heads_are_trained_on_the_features_by_which_they_are_tested():
    world, params = centaur()

    def both(batches):
        return world.task.features(params, batches).x, world.task.for_tests(params, batches)

    found = of_every_client(world, both)
    for (features, with_averages), rows in zip(found, world.split.train, strict=True):
        if len(rows):
            alone = [world.network.body(with_averages, world.train.x[[i]], None) for i in rows]
            torch.testing.assert_close(features, torch.cat(alone))


def test_an_example_is_tested_without_regard_to_the_others_also_by_who_has_no_rows():
    world, params = centaur()
    x = normal(3, *SHAPE)
    for ready in of_every_client(world, lambda batches: world.task.for_tests(params, batches)):
        alone = world.network.apply(ready, x[:1])
        torch.testing.assert_close(world.network.apply(ready, x)[:1], alone)
        assert alone.isfinite().all()
    assert not ready["norm1.mean"].any()  # the last client has no rows
    assert (ready["norm1.variance"] == 1).all()


@pytest.mark.parametrize("method", ["centaur", "fedper"])  # with and without a head phase
def test_every_personal_model_is_tested_with_averages_also_that_of_a_new_client(
    method, monkeypatch
):
    world = simulation(method, sizes=SIZES, shape=SHAPE, model=BATCH)
    world = dataclasses.replace(world, split=dataclasses.replace(world.split, new=world.split))
    progress, score, seen = rounds.start(world), Task.score, []

    def noted(self, params, schedule):
        seen.append("norm1.mean" in params)
        return score(self, params, schedule)

    monkeypatch.setattr(Task, "score", noted)
    evaluation.accuracies(world, progress)  # own, validation and common rows
    assert seen.count(True) == 3 * len(SIZES)
    seen.clear()
    evaluation.accuracies_of_new(world, progress)
    assert seen.count(True) == len(SIZES)


def train(method="centaur", **changes):
    shards = [(normal(7, *SHAPE, seed=client).float(), torch.arange(7) % 2) for client in range(3)]
    settings = {"model": BATCH, "classes": 2, "device": "cpu", "secret": "one"}
    settings["training"] = Training(2, 1, batch_size=4, optimizer="sgd", lr=0.1)
    settings["privacy"] = Privacy(epsilon=8, delta=1e-3, clip_norm=0.5)
    return pflpipe.train(method, shards, **settings | changes)


@pytest.mark.slow
def test_a_private_run_sends_no_average_and_its_personal_models_are_those_that_were_tested():
    result = train()
    assert result.simulation.backend == "loop"
    assert set(result.params) == set(result.network.shapes)
    assert result.ledger.claim == "certified"
    personal = result.personal(1)
    assert "norm1.mean" in personal.params
    rows = result.simulation.split.test[1]
    x, y = result.simulation.test.x[rows], result.simulation.test.y[rows]
    right = 100 * (personal.predict(x) == y).double().mean().item()
    assert result.clients[1]["personal_own"] == pytest.approx(right)
    assert torch.equal(personal.predict(x)[:1], personal.predict(x[:1]))
    assert math.isnan(result.clients[1]["global_own"])


MINE = {"method": registry.info("centaur").factory(), "method_name": "mine"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"backend": "vmap"}, "backend; got .vmap.; expected loop, as BatchNorm"),
        ({"method": "dp_fedavg"}, "method dp_fedavg: model.normalisation; got .batch."),
        (MINE, "model.normalisation; got .batch."),
    ],
)
def test_where_the_averages_would_be_wrong_or_missing_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        train(**changes)


@pytest.mark.slow
def test_personal_models_are_not_saved_without_their_averages(tmp_path):
    result = train()
    with pytest.raises(ConfigError, match=r"save: personal; got .BatchNorm."):
        result.save(tmp_path, personal=True)
    result.save(tmp_path)
    assert pflpipe.load(tmp_path).params.keys() == result.params.keys()
