"""Images that nobody took: disks of one colour that hide each other, the dead leaves model.

Disks whose radii have density r^-3 give edges at all scales, as photographs have them (Lee,
Mumford, Huang, "Occlusion Models for Natural Images: A Statistical Study of a Scale-Invariant Dead
Leaves Model", IJCV 2001). Networks have learned features from such images without any photograph
(Baradad et al., "Learning to See by Looking at Noise", NeurIPS 2021).
"""

import numpy as np

from pflpipe.seeds import numpy_rng

DISKS = 100
"""Disks of an image."""
SMALLEST = 1.0
"""Smallest radius in pixels; the largest is half of the shorter side."""


def images(count: int, shape: tuple[int, ...], part: int) -> np.ndarray:
    """Return uint8 images ``[count, H, W, C]``, the same for the same arguments.

    Args:
        shape: of one image, ``(H, W, C)``.
        part: number of this batch; other numbers give other images.
    """
    height, width, channels = shape
    rng = numpy_rng(0, "dead_leaves", part)
    rows, columns = np.mgrid[:height, :width]
    # The inverse of the distribution function of a density r^-3 between two radii.
    least, largest = SMALLEST**-2, (min(height, width) / 2) ** -2
    colour = (count, 1, 1, channels)
    drawn = np.broadcast_to(rng.uniform(0, 256, colour), (count, height, width, channels))
    for _ in range(DISKS):
        radius = (least - rng.uniform(size=(count, 1, 1)) * (least - largest)) ** -0.5
        # Centres beyond the border too, so that the border is as often covered as the middle.
        down = rng.uniform(-height / 2, 1.5 * height, (count, 1, 1))
        across = rng.uniform(-width / 2, 1.5 * width, (count, 1, 1))
        inside = (rows - down) ** 2 + (columns - across) ** 2 <= radius**2
        drawn = np.where(inside[..., None], rng.uniform(0, 256, colour), drawn)
    return drawn.astype(np.uint8)
