"""Networks: sizes printed in the papers' codes, the same numbers as torch modules, and a clear no to what does not fit."""

import pytest
import torch
from torch import nn

from pflpipe import cells, models
from pflpipe.errors import ConfigError


@pytest.mark.parametrize(
    ("model", "shape", "classes", "parameters"),
    [
        (cells.Model("mlp", (32,)), (8, 8, 1), 10, 2_410),
        (cells.Model("mlp", ()), (7,), 3, 24),
        (cells.Model("cnn_cifar"), (32, 32, 3), 10, 343_946),
    ],
)
def test_parameter_counts(model, shape, classes, parameters):
    network = models.build(model, shape, classes)
    params = network.init(torch.Generator().manual_seed(0))
    assert network.parameters == parameters == sum(value.numel() for value in params.values())
    assert network.apply(params, torch.zeros(2, *shape)).shape == (2, classes)


def test_cnn_cifar_computes_what_the_module_with_relu_before_pooling_computes():
    module = nn.Sequential()
    for wide, narrow in ((3, 16), (16, 32), (32, 32)):
        module += nn.Sequential(nn.Conv2d(wide, narrow, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    module += nn.Sequential(nn.Flatten(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10))
    module = module.double()
    network = models.build(cells.Model("cnn_cifar"), (32, 32, 3), 10)
    params = network.init(torch.Generator().manual_seed(0), torch.float64)
    module.load_state_dict(dict(zip(module.state_dict(), params.values(), strict=True)))
    leaves = {name: value.requires_grad_() for name, value in params.items()}
    pictures = torch.randn(4, 32, 32, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours, theirs = network.apply(leaves, pictures), module(pictures.permute(0, 3, 1, 2))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    for leaf, parameter in zip(leaves.values(), module.parameters(), strict=True):
        torch.testing.assert_close(leaf.grad, parameter.grad, rtol=1e-9, atol=1e-11)


def test_initialisation_has_the_bounds_of_torch_modules():
    params = models.build(cells.Model("cnn_cifar"), (32, 32, 3), 10).init(torch.Generator().manual_seed(0))
    for name, fan_in in (("conv1", 27), ("conv2", 144), ("fc1", 512), ("head", 128)):
        for part in ("weight", "bias"):
            peak = params[f"{name}.{part}"].abs().max().item()
            assert 0.5 * fan_in**-0.5 < peak <= fan_in**-0.5


@pytest.mark.parametrize(
    ("model", "shape", "classes", "message"),
    [
        (cells.Model("cnn_cifarr"), (32, 32, 3), 10, "did you mean 'cnn_cifar'"),
        (cells.Model("cnn_cifar"), (8, 8, 1), 10, r"got \(8, 8, 1\); expected shape \(32, 32, 3\)"),
        (cells.Model("cnn_cifar", (32,)), (32, 32, 3), 10, "model.hidden"),
        (cells.Model("mlp"), (8, 8, 1), 10, "model.hidden"),
        (cells.Model("mlp", (4,)), (8, 8, 1), 1, "at least 2 classes"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(model, shape, classes, message):
    with pytest.raises(ConfigError, match=message):
        models.build(model, shape, classes)
