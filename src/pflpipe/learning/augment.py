"""Training transforms: random crop, flip and rotation of images, each a pure function of a
training step's key.

They are RandomCrop(padding=4), RandomHorizontalFlip and RandomRotation(20) of torchvision, applied
per example. Images are normalised before the transforms and not after, so pixels outside the image
get the normalised value of black instead of 0.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pflpipe.learning import counter_rng

MARGIN = 4  # pixels of black that a crop can reach on each side
DEGREES = 20.0  # largest rotation to either side


@dataclass(frozen=True)
class Augment:
    """The transforms of a study, in the order in which they are applied.

    Attributes:
        names: out of ``crop``, ``flip`` and ``rotate``.
        fill: value of a black pixel after normalisation ``[C]``, of the images' type and on their
            device.
    """

    names: tuple[str, ...]
    fill: Tensor

    def __call__(self, x: Tensor, key: Tensor) -> Tensor:
        """Return transformed images ``[B, H, W, C]``; row b depends only on the key, on b and on
        image b.

        Args:
            x: images ``[B, H, W, C]``, not modified.
            key: of the training step, an int64 scalar on the images' device.
        """
        for name in self.names:
            x = _TRANSFORMS[name](x, key, self.fill)
        return x


def _crop(x: Tensor, key: Tensor, fill: Tensor) -> Tensor:
    batch, height, width, _ = x.shape
    draw = counter_rng.uniform(key, counter_rng.CROP, (batch, 2))
    shift = (draw * (2 * MARGIN + 1)).to(torch.int64) - MARGIN
    rows = torch.arange(height, device=x.device).view(1, -1, 1) + shift[:, 0].view(-1, 1, 1)
    columns = torch.arange(width, device=x.device).view(1, 1, -1) + shift[:, 1].view(-1, 1, 1)
    return _take(x, rows, columns, fill)


def _flip(x: Tensor, key: Tensor, fill: Tensor) -> Tensor:
    turned = counter_rng.uniform(key, counter_rng.FLIP, (x.shape[0],)) < 0.5
    return torch.where(turned.view(-1, 1, 1, 1), x.flip(2), x)


def _rotate(x: Tensor, key: Tensor, fill: Tensor) -> Tensor:
    batch, height, width, _ = x.shape
    # In float64: the last bits of sin and cos depend on the batch's layout in memory, and in
    # float32 they could round to another pixel.
    draw = counter_rng.uniform(key, counter_rng.ROTATE, (batch,)).double()
    angle = (2 * draw - 1) * math.radians(DEGREES)
    cos, sin = angle.cos().view(-1, 1, 1), angle.sin().view(-1, 1, 1)
    middle, centre = (height - 1) / 2, (width - 1) / 2
    down = torch.arange(height, device=x.device).double().view(1, -1, 1) - middle
    right = torch.arange(width, device=x.device).double().view(1, 1, -1) - centre
    rows = (sin * right + cos * down + middle).round().to(torch.int64)
    columns = (cos * right - sin * down + centre).round().to(torch.int64)
    return _take(x, rows, columns, fill)


def _take(x: Tensor, rows: Tensor, columns: Tensor, fill: Tensor) -> Tensor:
    """Return each example's pixels at ``rows`` and ``columns`` (broadcast to ``[B, H, W]``), with
    ``fill`` outside the image."""
    # Clamped first and replaced afterwards: an index must be valid also where it is not used.
    batch, height, width, _ = x.shape
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    example = torch.arange(batch, device=x.device).view(-1, 1, 1)
    pixels = x[example, rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
    return torch.where(inside[..., None], pixels, fill)


_TRANSFORMS = {"crop": _crop, "flip": _flip, "rotate": _rotate}
