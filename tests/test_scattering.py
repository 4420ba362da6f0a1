"""Scattering coefficients are those of an independent program, and those of a moved or constant
image are as they must be.

``GOLDEN`` was printed by kymatio 0.3.0:

    import numpy as np
    import scipy.special
    scipy.special.sph_harm = None  # imported for the three-dimensional part
    from kymatio.numpy import Scattering2D

    rng = np.random.default_rng(0)
    for scales in (1, 2, 3):
        images = rng.integers(0, 256, (2, 16, 24)) / 255
        found = Scattering2D(J=scales, shape=(16, 24))(images)
        print(found.shape, found[1].sum(axis=(1, 2))[:: max(1, found.shape[1] // 8)].tolist())
"""

import math

import numpy as np
import pytest
import torch

import tabled
from pflpipe.data import features, scattering

GOLDEN = tabled.table("scattering")


def orders(scales: int) -> np.ndarray:
    """The number of wavelets behind each coefficient."""
    first = features.ANGLES * scales
    second = features.coefficients(scales) - 1 - first
    return np.repeat([0, 1, 2], [1, first, second])


def test_coefficients_are_those_of_kymatio():
    rng = np.random.default_rng(0)
    for scales, (shape, sums) in GOLDEN.items():
        images = torch.from_numpy(rng.integers(0, 256, (2, 16, 24)) / 255)
        coefficients = scattering.scatter(images, scales).numpy()
        assert coefficients.shape == tuple(shape)
        # kymatio divides each filter by 3.1415 where the integral of a Gaussian has pi.
        theirs = coefficients[1].sum(axis=(1, 2)) * (math.pi / 3.1415) ** (orders(scales) + 1)
        np.testing.assert_allclose(theirs[:: max(1, shape[1] // 8)], sums, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_image_has_its_value_and_no_moduli(dtype):
    coefficients = scattering.scatter(torch.full((1, 16, 16), 0.7, dtype=dtype), 2)[0]
    assert coefficients.dtype == dtype
    torch.testing.assert_close(coefficients[0], torch.full_like(coefficients[0], 0.7))
    assert coefficients[1:].abs().max() < 1e-6


def test_images_do_not_mix():
    images = torch.rand(5, 16, 16, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([scattering.scatter(images[i : i + 1], 2) for i in range(5)])
    torch.testing.assert_close(scattering.scatter(images, 2), alone)
