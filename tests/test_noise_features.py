"""tools/noise_features.py: the surrogate's extractor is the network of the study."""

import pytest
import torch

import noise_features
from pflpipe import cells
from pflpipe.learning import networks


def test_the_extractor_is_the_body_of_resnet20():
    network = networks.build(cells.Model("resnet20"), (32, 32, 3), 10)
    params = network.init(torch.Generator().manual_seed(0))
    body = [value for name, value in params.items() if name not in networks.HEAD]
    extractor = noise_features.extractor(noise_features.NORMS["GroupNorm"], 0.0, seed=0)
    with torch.no_grad():
        for own, value in zip(extractor.parameters(), body, strict=True):
            own.copy_(value)
    x = torch.randn(3, 32, 32, 3, generator=torch.Generator().manual_seed(1))
    (found,) = noise_features.features(extractor, x.permute(0, 3, 1, 2))
    torch.testing.assert_close(found, network.body(params, x, None), rtol=1e-4, atol=1e-5)


def test_batchnorm_has_the_averages_of_the_training_images():
    extractor = noise_features.extractor(noise_features.NORMS["BatchNorm"], 0.2, seed=0)
    draw = torch.Generator().manual_seed(1)
    train, test = (torch.randn(n, 3, 32, 32, generator=draw) for n in (6, 4))
    _, all_of_them = noise_features.features(extractor, train, test)
    _, one = noise_features.features(extractor, train, test[:1])
    torch.testing.assert_close(one, all_of_them[:1], rtol=1e-4, atol=1e-5)
    noise_features.features(extractor, test)
    _, after_another_client = noise_features.features(extractor, train, test)
    assert torch.equal(all_of_them, after_another_client)
    first = next(layer for layer in extractor.modules() if isinstance(layer, torch.nn.BatchNorm2d))
    mean = extractor[0](train).mean((0, 2, 3))
    torch.testing.assert_close(first.running_mean, mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", noise_features.NORMS)
def test_noise_of_this_deviation_is_added_to_every_parameter(norm):
    norm = noise_features.NORMS[norm]
    clean, noisy = (noise_features.extractor(norm, spread, seed=0) for spread in (0.0, 0.2))
    pairs = zip(noisy.parameters(), clean.parameters(), strict=True)
    added = torch.cat([(one - other).detach().flatten() for one, other in pairs])
    assert added.numel() == 271_824
    assert float(added.std()) == pytest.approx(0.2, rel=0.01)
    assert not (added == 0).any()
