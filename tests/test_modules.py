"""Networks from outside: a module trains as a network written here does, on both backends; and a
clear no to what cannot be private or repeated."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.func import vmap

import malformed
import tabled
from pflpipe import cells, options
from pflpipe.errors import ConfigError
from pflpipe.learning import architectures, networks
from pflpipe.methods import registry
from pflpipe.simulation import evaluation, rounds
from pflpipe.simulation.simulation import Simulation
from pflpipe.study import config
from pflpipe.study.check import validate
from pflpipe.study.settings import model_name
from simulations import CLASSES, finished, params_after, simulation

TABLES = tabled.table("test_modules")

MLP = cells.Model("mlp", (4,))
EXAMPLES = Path(__file__).resolve().parents[1] / "docs/examples"


@pytest.fixture
def net(tmp_path, monkeypatch):
    """Return a function that writes my_net.py, an mlp with further layers, and gives its model."""
    monkeypatch.chdir(tmp_path)

    def net(layers="pass", forward="pass", **options):
        Path("my_net.py").write_text(TABLES["NET"].format(layers=layers, forward=forward))
        return cells.Model("my_net.py:Net", options=options)

    return net


def written(monkeypatch, folder, text):
    """The model of a text, in a file of its own."""
    monkeypatch.chdir(folder)
    Path("own.py").write_text(text)
    return cells.Model("own.py:Net")


def build(model, shape=(5,), classes=CLASSES):
    return networks.build(model, shape, classes)


def starting(world: Simulation) -> Simulation:
    """The same simulation whose parameters start as those of the mlp."""
    own = networks.build(MLP, tuple(world.train.x.shape[1:]), CLASSES)
    start = own.init(torch.Generator().manual_seed(3))
    return replace(world, network=replace(world.network, start=lambda seed: start))


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("shape", [(5,), (2, 3, 1)])
def test_a_copy_of_the_mlp_has_the_bits_of_the_mlp(net, backend, shape):
    how = {"shape": shape, "backend": backend}
    worlds = [simulation("dp_fedavg", model=model, **how) for model in (MLP, net())]
    own, other = (finished(starting(world)).params for world in worlds)
    assert list(own) == list(other) == ["fc1.weight", "fc1.bias", "head.weight", "head.bias"]
    assert all(torch.equal(own[name], other[name]) for name in own)


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_module_may_view_a_matrix_of_its_own_which_is_trained(net, backend):
    """Views need memory in the order of the axes, in which a solver's vector has no matrix."""
    model = net("self.mix = nn.Parameter(torch.ones(2, 2))", "z = z * self.mix.view(-1)")
    names = list(build(model).shapes)
    assert names[0] == "mix"
    assert architectures.norm_names(names) == ()
    world = simulation("dp_fedavg", model=model, backend=backend)
    assert (finished(world).params["mix"] != 1).all()


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("method", ["feddpa", "dp_fedsim", "dp_fedavg_fb"])
def test_a_copy_of_the_mlp_has_its_fisher_information_and_features(net, method, backend):
    """These methods look into the network: at its layers, or at what comes before its head."""
    worlds = [simulation(method, model=model, backend=backend) for model in (MLP, net())]
    left, right = (finished(starting(world)) for world in worlds)
    torch.testing.assert_close(left.params, right.params, rtol=1e-9, atol=1e-12)


def test_normalisation_layers_and_the_head_are_found_under_our_names(net):
    model = net("self.bn = nn.GroupNorm(2, 4)", "z = self.bn(z[:, :, None]).flatten(1)")
    names = architectures.parameter_names(model)
    assert names == tuple(build(model).shapes)
    assert architectures.norm_names(names) == ("norm_bn.weight", "norm_bn.bias")
    assert names[-2:] == networks.HEAD
    registry.check_model("fedbn", model)
    with pytest.raises(ConfigError, match="method fedbn: model"):
        registry.check_model("fedbn", net())


TWO_LAYERS = TABLES["TWO_LAYERS"]


def test_the_module_says_which_layer_is_its_head(tmp_path, monkeypatch):
    model = written(monkeypatch, tmp_path, TWO_LAYERS.format(head="head = 'out'", more=""))
    shapes = build(model).shapes
    assert list(shapes) == ["first.weight", "first.bias", *networks.HEAD]
    assert shapes["head.weight"] == (CLASSES, 4)
    for head, message in (
        ("pass", "got 'a head with 4 outputs'; expected 3, the data set's classes"),
        ("head = 'no'", "got \"head = 'no'\"; expected one of out, first"),
    ):
        model = written(monkeypatch, tmp_path, TWO_LAYERS.format(head=head, more=""))
        with pytest.raises(ConfigError, match=message):
            build(model)


def test_initial_parameters_follow_from_the_seed_and_leave_the_global_generator_alone(net):
    network = build(net())
    torch.manual_seed(5)
    before = torch.get_rng_state()
    draws = [network.init(torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(draws[0][name], draws[1][name]) for name in draws[0])
    assert not torch.equal(draws[0]["fc1.weight"], draws[2]["fc1.weight"])
    assert float(draws[0]["fc1.weight"].abs().max()) <= 5**-0.5, "the module's own initialisation"


def test_dropout_follows_from_the_key_and_rows_do_not_depend_on_the_batch(net):
    layers = "self.one = nn.Dropout(0.5); self.two = nn.Dropout(0.5)"
    halves = "z = torch.cat([self.one(z + 1)[:, :2], self.two(z + 1)[:, :2]], 1)"
    network = build(net(layers, halves))
    params = network.init(torch.Generator().manual_seed(0), torch.float64)
    x = torch.randn(64, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    key = torch.tensor(7)
    z = network.body(params, x, key)
    assert network.keyed, "without it training would give no keys, and drop nothing"
    assert torch.equal(z, network.body(params, x, key))
    assert torch.equal(z[:9], network.body(params, x[:9], key))
    assert not torch.equal(z, network.body(params, x, key + 1))
    assert (network.body(params, x, None) != 0).all(), "nothing is dropped in evaluation"
    assert 0.4 < float((z == 0).double().mean()) < 0.6
    assert not torch.equal(z[:, :2] == 0, z[:, 2:] == 0), "each layer has a stream of its own"
    both = vmap(lambda key: network.body(params, x, key))(torch.tensor([7, 8]))
    assert torch.equal(both[0], z)


def test_constant_buffers_stay_and_follow_the_examples_dtype(net):
    model = net("self.register_buffer('twos', torch.full((4,), 2.0))", "z = z * self.twos")
    network = build(model)
    params = network.init(torch.Generator().manual_seed(0), torch.float64)
    assert "twos" not in params
    assert network.apply(params, torch.zeros(2, 5, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(("layers", "forward", "message"), TABLES["REFUSED"])
def test_what_cannot_be_private_or_repeated_is_refused_with_its_reason(
    net, layers, forward, message
):
    model = net(layers, forward)
    with pytest.raises(ConfigError, match=message) as caught:
        build(model)
    assert "model my_net.py:Net" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_head_that_shares_its_weights_is_refused(tmp_path, monkeypatch):
    tied = TWO_LAYERS.format(head="head = 'out'", more="self.out.weight = self.first.weight")
    with pytest.raises(ConfigError, match="shares its weights"):
        build(written(monkeypatch, tmp_path, tied), (4,), 4)


@pytest.mark.parametrize(("model", "message"), TABLES["NOT_THERE"])
def test_a_file_or_a_name_that_is_not_there_is_told_in_one_line(net, model, message):
    net()
    Path("broken.py").write_text("class Net(\n")
    Path("failing.py").write_text("Net = 1 / 0\n")
    with pytest.raises(ConfigError, match=message) as caught:
        build(options.build(cells.Model, model))
    assert "\n" not in str(caught.value)


def test_an_edited_file_is_read_again(net):
    assert "fc1.bias" in build(net()).shapes
    assert "more.bias" in build(net("self.more = nn.Linear(4, 4)")).shapes


@pytest.mark.docs
@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("name", "shape", "given"),
    [
        ("small_cnn.py:SmallCNN", (8, 6, 3), {"width": 8}),
        ("resnet18.py:resnet18", (32, 32, 3), {"groups": 2}),
        ("resnet18.py:resnet18", (8, 8, 1), {}),
    ],
)
def test_the_examples_of_the_documentation_train_a_round(name, shape, given, backend):
    model = cells.Model(f"{EXAMPLES}/{name}", options=given)
    short = {"sizes": (2, 1), "local_epochs": 1, "dtype": torch.float32}
    world = simulation("fedbn", model=model, shape=shape, backend=backend, **short)
    progress = rounds.start(world)
    before = dict(progress.params)
    rounds.one_round(world, progress)
    moved = [key for key, value in before.items() if not torch.equal(value, progress.params[key])]
    assert "head.weight" in moved
    assert not set(moved) & set(world.task.norm_names), "they stay on the clients"
    assert world.task.norm_names
    evaluation.accuracies(world, progress)


@pytest.mark.slow
def test_parameters_that_lie_channels_last_give_a_module_what_view_needs(tmp_path, monkeypatch):
    """The loop's solver keeps kernels channels last; plain modules flatten with ``view``."""
    model = written(monkeypatch, tmp_path, TABLES["VIEWING"])
    how = {"model": model, "shape": (5, 4, 3)}
    worlds = [simulation("feddpa", backend=backend, **how) for backend in ("loop", "vmap")]
    torch.testing.assert_close(*map(params_after, worlds), rtol=1e-9, atol=1e-12)


def test_a_module_is_given_images_channels_first(tmp_path, monkeypatch):
    network = build(written(monkeypatch, tmp_path, TABLES["CHANNELS_FIRST"]), (2, 4, 3))
    x = torch.arange(24.0).reshape(1, 2, 4, 3)
    params = network.init(torch.Generator())
    assert network.body(params, x, None).tolist() == [x.permute(0, 3, 1, 2).flatten().tolist()]


def test_the_document_shows_the_example_as_it_is():
    text = (EXAMPLES.parent / "adding_a_network.md").read_text()
    assert f"```python\n{(EXAMPLES / 'small_cnn.py').read_text()}```" in text


def test_a_study_finds_the_network_beside_its_own_file(tmp_path, monkeypatch):
    malformed.write_good(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies/small_cnn.py").write_text((EXAMPLES / "small_cnn.py").read_text())
    model = {"name": "small_cnn.py:SmallCNN", "options": {"width": 8}}
    words = {"model": model, "methods": [{"name": "fedbn"}], "seeds": [0]}
    malformed.write(tmp_path / "studies/good.yaml", malformed.STUDY | words)
    (cell,) = validate(config.load(), ["good"])["good"].everything.cells
    assert cell.model == cells.Model("studies/small_cnn.py:SmallCNN", options={"width": 8})
    assert cells.Cell.from_dict(json.loads(json.dumps(cell.to_dict()))) == cell
    assert model_name(cell) == "SmallCNN-width=8"
