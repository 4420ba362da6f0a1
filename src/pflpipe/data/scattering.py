"""Two-dimensional scattering: features of images that no data are needed to learn.

The features are local averages of the moduli of wavelet coefficients, and of the moduli of their
wavelet coefficients (Bruna and Mallat, "Invariant Scattering Convolution Networks", IEEE TPAMI
2013). Tramer and Boneh ("Differentially Private Learning Needs Better Features (or Much More
Data)", ICLR 2021) train private linear models on them. Filters, subsampling and the order of the
coefficients are those of kymatio (Andreux et al., JMLR 2020), so that features of others can be
compared.
"""

import functools
import itertools
import math

import numpy as np
import torch
from torch import Tensor

from pflpipe.data.features import ANGLES

_PERIODS = range(-2, 3)  # the periodic filters are sums of shifted copies; further ones are zero


def scatter(images: Tensor, scales: int) -> Tensor:
    """Return the scattering coefficients of order 0, 1 and 2.

    Args:
        images: float ``[N, H, W]``; H and W are multiples of ``2**scales``.
        scales: J, the number of scales; averages are over windows of about ``2**J`` pixels.

    Returns:
        ``[N, coefficients(J), H / 2**J, W / 2**J]``: the average, then the moduli by scale (fine
        first) and angle, then the moduli of moduli by first and second wavelet.
    """
    step = 2**scales
    height, width = (size + 2 * step for size in images.shape[-2:])
    average, wavelets = _filters(height, width, scales, images.dtype)
    padded = torch.nn.functional.pad(images[:, None], (step,) * 4, mode="reflect")[:, 0]

    def moduli(spectrum: Tensor, scale: int, wavelet: int) -> Tensor:
        # The spectrum of the modulus at a coarser scale, whose resolution suffices for it.
        scale_of = wavelet // ANGLES
        filtered = spectrum * _low(wavelets[wavelet], scale)
        modulus = torch.fft.ifft2(_subsampled(filtered, scale_of - scale)).abs()
        spectrum_of_it: Tensor = torch.fft.fft2(modulus)
        return spectrum_of_it

    def averaged(spectrum: Tensor, scale: int) -> Tensor:
        coarse = _subsampled(spectrum * _low(average, scale), scales - scale)
        whole: Tensor = torch.fft.ifft2(coarse).real
        return whole[:, 1:-1, 1:-1]

    spectrum = torch.fft.fft2(padded)
    orders: list[list[Tensor]] = [[averaged(spectrum, 0)], [], []]
    for first in range(ANGLES * scales):
        scale = first // ANGLES
        once = moduli(spectrum, 0, first)
        orders[1].append(averaged(once, scale))
        for second in range(ANGLES * (scale + 1), ANGLES * scales):
            orders[2].append(averaged(moduli(once, scale, second), second // ANGLES))
    return torch.stack(list(itertools.chain(*orders)), dim=1)


@functools.cache
def _filters(
    height: int, width: int, scales: int, dtype: torch.dtype
) -> tuple[Tensor, list[Tensor]]:
    """Return the spectra, which are real, of the averaging filter and of all wavelets."""
    wavelets = []
    for scale, turn in itertools.product(range(scales), range(ANGLES)):
        angle = (ANGLES // 2 - 1 - turn) * math.pi / ANGLES
        shape = (height, width, 0.8 * 2**scale, angle)
        wave = _gabor(*shape, frequency=0.75 * math.pi / 2**scale, slant=4 / ANGLES)
        envelope = _gabor(*shape, slant=4 / ANGLES)
        # A wavelet has mean 0: a constant image has no modulus.
        wavelets.append(wave - wave.sum() / envelope.sum() * envelope)
    average = _gabor(height, width, 0.8 * 2 ** (scales - 1))
    spectra = [torch.from_numpy(np.fft.fft2(each).real).to(dtype) for each in (average, *wavelets)]
    return spectra[0], spectra[1:]


def _gabor(
    height: int,
    width: int,
    sigma: float,
    angle: float = 0.0,
    frequency: float = 0.0,
    slant: float = 1.0,
) -> np.ndarray:
    """Return a Gaussian of width ``sigma`` times a plane wave, complex ``[H, W]``, periodic.

    Args:
        height, width: of the period, H and W.
        sigma: standard deviation along the wave, in pixels.
        angle: direction of the wave, in radians.
        frequency: of the wave, in radians a pixel.
        slant: ``sigma`` over the standard deviation across the wave.
    """
    total = np.zeros((height, width), complex)
    for down, right in itertools.product(_PERIODS, _PERIODS):
        y, x = np.mgrid[:height, :width] + np.array([down * height, right * width])[:, None, None]
        along = y * math.cos(angle) + x * math.sin(angle)
        across = x * math.cos(angle) - y * math.sin(angle)
        distance = (along**2 + (slant * across) ** 2) / (2 * sigma**2)
        total += np.exp(1j * frequency * along - distance)
    normal: np.ndarray = total * slant / (2 * math.pi * sigma**2)
    return normal


def _low(spectrum: Tensor, scale: int) -> Tensor:
    """Return the low frequencies of a filter, for signals of every ``2**scale``-th pixel."""
    for axis in (-2, -1):
        size = spectrum.shape[axis]
        half = size >> (scale + 1)
        keep = torch.cat([torch.arange(half), torch.arange(size - half, size)])
        spectrum = spectrum.index_select(axis, keep)
    return spectrum


def _subsampled(spectrum: Tensor, halvings: int) -> Tensor:
    """Return the spectrum ``[N, h, w]`` of every ``2**halvings``-th pixel."""
    for _ in range(halvings):  # a mean over a strided view takes four times as long
        for axis in (-2, -1):
            lower, upper = spectrum.chunk(2, dim=axis)
            spectrum = (lower + upper) * 0.5
    return spectrum
