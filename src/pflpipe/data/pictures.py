"""A folder of pictures, laid out as person/class/picture.png."""

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from pflpipe.code import guard
from pflpipe.data import limits, vocabulary
from pflpipe.data.blocks import Part
from pflpipe.data.contract import RowsWarning
from pflpipe.errors import DataError, located

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_GREY = ("1", "L", "LA")


def read(
    folder: Path,
    classes: int | Sequence[Any] | None = None,
    size: Sequence[int] | None = None,
    channels: int | None = None,
) -> Part:
    """Return pictures, labels and users, and a line that says what was read.

    Args:
        folder: of the people's folders, in each of which there is one for each class.
        classes: the names of the classes' folders, or how many there are, named 0, 1, ...
        size: height and width to which all pictures are resized. None: they have those of the
            first.
        channels: 1 or 3, which all pictures are given. None: they have those of the first.

    Returns:
        uint8 ``[N, H, W]`` or ``[N, H, W, 3]``, int64 ``[N]``, text ``[N]``, the line.

    Raises:
        DataError: another layout, a person without pictures, or a picture that cannot be read or
            has another size or other channels.
    """
    files, unread = _listed(folder)
    words = np.array([path.parent.name for path in files])
    with located(str(folder)):
        labels = vocabulary.number(words, classes, "classes")
    seen = Counter[str]()
    first = _pixels(files[0], size, channels, Counter())
    limits.check(len(files) * first.size, str(folder))
    images = np.empty((len(files), *first.shape), np.uint8)
    for row, path in enumerate(files):
        pixels = _pixels(path, size, channels, seen)
        fits, what = pixels.shape == first.shape, f"{path}: height, width, channels"
        expected = f"{first.shape}, as {files[0]} has"
        do = "write size: [height, width], and channels: 1 or 3, to bring all to one form"
        DataError.unless(fits, what, pixels.shape, expected, do)
        images[row] = pixels
    for what in +seen:
        warnings.warn(f"some pictures {what}", RowsWarning, stacklevel=2)
    note = f"a person's folder is a user, one in it a class; {unread} other files were not read"
    return Part(images, labels, np.array([path.parent.parent.name for path in files]), note)


def _listed(folder: Path) -> tuple[list[Path], int]:
    """Return the pictures in the order of their paths, and how many other files there are."""
    layout = f"{folder}/person/class/picture.png"
    # The second follows links to folders.
    every = sorted({*folder.rglob("*"), *folder.glob("*/*/*")})
    files = [path for path in every if not path.is_dir()]  # also links to what is not there
    pictures = [
        path
        for path in files
        if path.suffix.lower() in ENDINGS
        # Programs keep copies in hidden folders.
        and not any(part[0] == "." for part in path.relative_to(folder).parts)
    ]
    for path in pictures:
        fits = len(path.relative_to(folder).parts) == 3
        DataError.unless(fits, f"{path}: a picture in another place", expected=layout)
    people = [path for path in sorted(folder.iterdir()) if path.is_dir() and path.name[0] != "."]
    shown = {path.parent.parent for path in pictures}
    for place in (person for person in people or [folder] if person not in shown):
        raise DataError(f"{place}: no picture", expected=layout, do="or remove the folder")
    return pictures, len(files) - len(pictures)


def _pixels(
    path: Path, size: Sequence[int] | None, channels: int | None, seen: Counter[str]
) -> np.ndarray:
    """Return a picture as uint8 ``[H, W]`` or ``[H, W, 3]``, upright as its EXIF says; count in
    ``seen`` what it has besides that pixels do not show."""
    do = "mend it, or remove it"
    with guard.foreign(f"{path} cannot be read", do=do), Image.open(path) as picture:
        if picture.mode[0] in "IF":
            raise ValueError(f"mode {picture.mode}, which has more than 8 bits a channel")
        grey = channels == 1 or (channels is None and picture.mode in _GREY)
        is_animated = getattr(picture, "n_frames", 1) > 1
        seen["are animated, of which the first image was read"] += is_animated
        if picture.has_transparency_data:
            alpha = np.asarray(picture.convert("RGBA"))[..., 3]
            hidden = "are transparent in places, where hidden colours were read"
            seen[hidden] += bool(alpha.min() < 255)
        pixels = ImageOps.exif_transpose(picture).convert("L" if grey else "RGB")
        return np.asarray(pixels.resize((size[1], size[0])) if size else pixels)
