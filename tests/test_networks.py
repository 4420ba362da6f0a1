"""Networks: sizes printed in the papers' codes, the same numbers as torch modules, and a clear no
to what does not fit."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

import tabled
from pflpipe import cells, options
from pflpipe.errors import ConfigError
from pflpipe.learning import architectures, networks

TABLES = tabled.table("test_networks")

GREY, COLOUR = (28, 28, 1), (32, 32, 3)
SHAPES = {"cnn_femnist": GREY, "cnn_svhn": COLOUR, "cnn_cifar": COLOUR, "cnn_centaur": COLOUR}
KEY = torch.tensor(7)


def build(name, shape=None, classes=10, **options):
    return networks.build(cells.Model(name, **options), shape or SHAPES[name], classes)


def drawn(network, dtype=torch.float64):
    return network.init(torch.Generator().manual_seed(0), dtype)


def normal(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Padding(nn.Module):
    """A shortcut without parameters: every second pixel, in the middle of channels of zeros."""

    def __init__(self, wide, narrow):
        super().__init__()
        self.before, self.channels = (narrow - wide) // 2, narrow

    def forward(self, x):
        height, width = ((side + 1) // 2 for side in x.shape[2:])
        found = x.new_zeros(len(x), self.channels, height, width)
        found[:, self.before : self.before + x.shape[1]] = x[:, :, ::2, ::2]
        return found


class Block(nn.Module):
    """A basic block of a ResNet with GroupNorm, written with modules; a shortcut is a convolution
    or ``Padding`` where the width changes."""

    def __init__(self, wide, narrow, stride, groups, padding):
        super().__init__()
        self.conv1 = nn.Conv2d(wide, narrow, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, narrow)
        self.conv2 = nn.Conv2d(narrow, narrow, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, narrow)
        self.shortcut = nn.Identity()
        if wide != narrow and padding:
            self.shortcut = Padding(wide, narrow)
        elif wide != narrow:
            convolution = nn.Conv2d(wide, narrow, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.GroupNorm(groups, narrow))

    def forward(self, x):
        inner = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (inner + self.shortcut(x)).relu()


class Recurrent(nn.Module):
    """A linear layer on the last hidden state of a GRU, of the vectors of tokens if there are
    any."""

    def __init__(self, channels, width, classes, items=0):
        super().__init__()
        self.vectors = nn.Embedding(items, channels) if items else nn.Identity()
        self.gru = nn.GRU(channels, width, batch_first=True)
        self.head = nn.Linear(width, classes)
        self.dtype = torch.int64 if items else torch.float64

    def forward(self, x):
        return self.head(self.gru(self.vectors(x.to(self.dtype)))[1][0])


def resnet(channels, widths, blocks, groups, classes, padding=False):
    wide = widths[0]
    first = nn.Conv2d(channels, wide, 3, padding=1, bias=False)
    parts = [first, nn.GroupNorm(groups, wide), nn.ReLU()]
    for width in widths:
        for number in range(blocks):
            stride = 2 if number == 0 and width != widths[0] else 1
            parts.append(Block(wide, width, stride, groups, padding))
            wide = width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, classes))


def dropout_cnn(channels, flat, classes, relu):
    """In evaluation, where nothing is dropped."""
    parts = [nn.Conv2d(channels, 32, 3), *[nn.ReLU()] * relu, nn.Conv2d(32, 64, 3), nn.ReLU()]
    parts += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(flat, 128), *[nn.ReLU()] * relu]
    return nn.Sequential(*parts, nn.Linear(128, classes))


def stacked(convolutions, linear):
    parts = [nn.Sequential(nn.Conv2d(*sizes), nn.ReLU(), nn.MaxPool2d(2)) for sizes in convolutions]
    parts.append(nn.Flatten())
    for wide, narrow in linear[:-1]:
        parts += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(*linear[-1]))


def cifar_modules():
    convolutions = [(3, 16, 3, 1, 1), (16, 32, 3, 1, 1), (32, 32, 3, 1, 1)]
    return stacked(convolutions, [(512, 512), (512, 128), (128, 10)])


def centaur_modules(width, classes):
    return stacked([(3, 64, 5), (64, 64, 5)], [(1600, width), (width, 32), (32, classes)])


def one_hot_modules():
    return nn.Sequential(nn.Linear(7, 3, bias=False), nn.Linear(3, 5))


def twin(name, modules, shape=None, classes=10, **options):
    """A network, what makes the same one of modules, and the shape of an example."""
    return build(name, shape, classes, **options), modules, shape or SHAPES[name]


# Small images where the network takes any.
WIDTHS = (16, 32, 64)
TWINS = {
    "cnn_femnist": twin("cnn_femnist", lambda: dropout_cnn(1, 9216, 62, False), classes=62),
    "relu_everywhere": twin(
        "cnn_femnist", lambda: dropout_cnn(1, 9216, 62, True), None, 62, relu_everywhere=True
    ),
    "cnn_svhn": twin("cnn_svhn", lambda: dropout_cnn(3, 12544, 10, True)),
    "cnn_cifar": twin("cnn_cifar", cifar_modules),
    "cnn_centaur": twin("cnn_centaur", lambda: centaur_modules(384, 10)),
    "cnn_centaur of 100": twin("cnn_centaur", lambda: centaur_modules(128, 100), classes=100),
    "resnet20": twin("resnet20", lambda: resnet(1, WIDTHS, 3, 8, 7), (11, 8, 1), 7),
    "resnet20 of option A": twin(
        "resnet20", lambda: resnet(1, WIDTHS, 3, 8, 7, True), (11, 8, 1), 7, shortcut="padding"
    ),
    "resnet18": twin("resnet18", lambda: resnet(3, (64, 128, 256, 512), 2, 32, 10), (9, 8, 3)),
    "mlp": twin("mlp", lambda: stacked([], [(24, 6), (6, 5)]), (4, 3, 2), 5, hidden=(6,)),
    "linear": twin("linear", lambda: stacked([], [(24, 5)]), (4, 3, 2), 5),
    "gru": twin("gru", lambda: Recurrent(3, 4, 5), (6, 3), 5, hidden=(4,)),
    "gru of tokens": twin("gru", lambda: Recurrent(3, 4, 5, 9), (6,), 5, hidden=(3, 4), items=9),
    "embedding": twin("embedding", one_hot_modules, (7,), 5, hidden=(3,), items=7),
}
WITH_DROPOUT = ["cnn_femnist", "relu_everywhere", "cnn_svhn"]


@pytest.mark.parametrize("name", TWINS)
def test_no_examples_have_no_logits(name):
    network, _, shape = TWINS[name]
    logits = network.apply(drawn(network, torch.float32), torch.zeros(0, *shape))
    assert logits.shape == (0, network.shapes["head.bias"][0])


@pytest.mark.parametrize(("model", "shape", "classes", "parameters"), TABLES["PARAMETERS"])
def test_parameter_counts(model, shape, classes, parameters):
    network = networks.build(options.build(cells.Model, model), tuple(shape), classes)
    params = network.init(torch.Generator().manual_seed(0))
    assert network.parameters == parameters == sum(value.numel() for value in params.values())
    assert network.apply(params, torch.zeros(2, *shape)).shape == (2, classes)


def test_every_network_has_a_twin_and_is_named_in_the_documents():
    words = (Path(__file__).resolve().parents[1] / "studies" / "README.md").read_text()
    assert {*architectures.NAMES} <= TWINS.keys()
    assert [name for name in architectures.NAMES if f"`{name}`" not in words] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", TWINS)
def test_values_and_gradients_are_those_of_torch_modules(name):
    """The twins pool after ReLU and keep PyTorch's own layers; their parameters come in the same,
    forward, order."""
    network, twin, shape = TWINS[name]
    with torch.device("meta"):
        module = twin().eval()
    params = {key: value + 0.1 * normal(*value.shape) for key, value in drawn(network).items()}
    assert sum(value.numel() for value in module.parameters()) == network.parameters
    shapes = [tuple(value.shape) for value in module.state_dict().values()]
    assert shapes == [*network.shapes.values()]
    leaves = {key: value.requires_grad_() for key, value in params.items()}
    twins = {
        key: value.detach().clone().requires_grad_()
        for key, value in zip(module.state_dict(), params.values(), strict=True)
    }
    images = normal(2, *shape)
    if name == "gru of tokens":
        images = (100 * images).floor().remainder(network.model.items)
    # mlp and linear flatten with the channels last.
    as_given = name in ("mlp", "linear", "gru", "gru of tokens")
    inputs = images if as_given else images.movedim(-1, 1)
    ours, theirs = network.apply(leaves, images), functional_call(module, twins, inputs)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)
    ours.square().mean().backward()
    theirs.square().mean().backward()
    for leaf, value in zip(leaves.values(), twins.values(), strict=True):
        torch.testing.assert_close(leaf.grad, value.grad, rtol=1e-8, atol=1e-10)


def test_an_embedding_of_an_index_is_that_of_its_one_hot_row_to_the_bit():
    network, _, _ = TWINS["embedding"]
    params, items = drawn(network, torch.float32), torch.tensor([6, 0, 3, 3])
    index, one_hot = items.float()[:, None], nn.functional.one_hot(items, 7).float()
    assert torch.equal(network.body(params, index, None), params["embedding.weight"].T[items])
    assert torch.equal(network.apply(params, index), network.apply(params, one_hot))
    nothing = torch.tensor([[-1.0], [7.0], [2.5], [torch.nan]])
    assert not network.body(params, nothing, None).any()


# Dropout


@pytest.mark.parametrize("name", WITH_DROPOUT)
def test_dropout_keeps_three_quarters_then_half_and_scales_what_it_keeps(name):
    """The first linear layer passes 128 of its inputs on, so that both dropouts are seen; 5
    deviations of the fraction kept."""
    network, _, shape = TWINS[name]
    params = drawn(network)
    params["fc1.weight"] = torch.eye(*params["fc1.weight"].shape, dtype=torch.float64)
    params["fc1.bias"] = torch.zeros_like(params["fc1.bias"])
    params["conv2.bias"] = params["conv2.bias"] + 10  # no feature is 0 of itself
    images = normal(1, *shape)
    plain = network.body(params, images, None).expand(100, 1, 128)
    dropped = vmap(lambda key: network.body(params, images, key))(torch.arange(100))
    assert (plain > 0).all()
    scaled = (plain / (0.75 * 0.5))[dropped > 0]
    torch.testing.assert_close(dropped[dropped > 0], scaled, rtol=1e-12, atol=0)
    assert abs((dropped > 0).double().mean() - 0.375) < 5 * (0.375 * 0.625 / plain.numel()) ** 0.5


@pytest.mark.parametrize("name", ["cnn_femnist", "cnn_svhn"])
def test_dropout_follows_from_the_key_and_the_row_alone(name):
    network, _, shape = TWINS[name]
    params, images = drawn(network), normal(4, *shape)
    dropped = network.apply(params, images, KEY)
    two = network.apply(params, images[:2], KEY)
    torch.testing.assert_close(two, dropped[:2], rtol=1e-12, atol=1e-14)
    assert not torch.allclose(network.apply(params, images, KEY + 1), dropped)
    same = network.apply(params, images[:1].expand(2, *shape), KEY)
    assert not torch.allclose(same[0], same[1]), "each row has a mask of its own"


@pytest.mark.parametrize("name", TWINS)
def test_the_networks_with_dropout_read_their_key_and_say_so_since_others_get_none(name):
    network, _, shape = TWINS[name]
    params, images = drawn(network), normal(2, *shape)
    reads = not torch.equal(network.apply(params, images, KEY), network.apply(params, images))
    assert network.keyed == reads == (name in WITH_DROPOUT)


# Initialisation and refusals


def test_vectors_of_tokens_start_as_those_of_torch():
    params = build("gru", (9,), 2, hidden=(30, 4), items=90).init(torch.Generator().manual_seed(0))
    values = params["tokens.weight"]
    assert abs(values.mean()) < 5 * 2700**-0.5
    assert abs(values.std() - 1) < 5 * 5400**-0.5


@pytest.mark.parametrize(("model", "shape", "fan_in"), TABLES["FAN_IN"])
def test_initialisation_has_the_bounds_of_torch_modules(model, shape, fan_in):
    network = networks.build(options.build(cells.Model, model), tuple(shape), 10)
    params = network.init(torch.Generator().manual_seed(0))
    for name, number in fan_in.items():
        for part in ("weight", "bias"):
            if f"{name}.{part}" in params:
                peak = params[f"{name}.{part}"].abs().max().item()
                assert 0.5 * number**-0.5 < peak <= number**-0.5
    assert "stage3.block3.conv2.bias" not in params
    for name, value in params.items():
        if name.split(".")[-2].startswith("norm"):
            assert (value == (1.0 if name.endswith("weight") else 0.0)).all()


@pytest.mark.parametrize(("model", "shape", "classes", "message"), TABLES["REFUSED"])
def test_a_model_that_does_not_fit_is_refused(model, shape, classes, message):
    with pytest.raises(ConfigError, match=message):
        networks.build(options.build(cells.Model, model), tuple(shape), classes)
