"""Data sets as arrays: the known ones by name, the user's own as an .npz file or a function
``my_data.py:load`` that returns the same arrays; every array is checked before it is used.

``prepare`` makes ``data/<dataset>.npz``, the only file that later rules read, and beside it
``<dataset>.pin``, which keeps the name to these values:

- ``train_images`` uint8 [N, H, W] or [N, H, W, C] (channels last), or float32 [N, D] features or
  [N, T, C] sequences (time, then channels); ``train_labels`` int64 [N] in 0..K-1; ``test_images``,
  ``test_labels`` likewise; ``classes`` int64 scalar K; ``classes_found`` true, only where nobody
  declared K and it is one more than the largest label;
- ``mean``, ``std`` float64 [C] or [1]: the constants of ``normalise``, which follow from the data
  set's name and never from its values;
- ``train_users``, ``test_users`` int64 [N] in 0..U-1, numbered in the sorted order of the original
  ids, both or none. Every id of either is a user, those without training rows too.

A source without a test set gets a fixed one: 20 %, class-stratified; where there are users, 20 %
of each user's rows, whatever their class. Reading the finished file and ``normalise`` need NumPy
only, so that training does.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pflpipe.data import downloads, limits, outside, pins
from pflpipe.data.apportion import draw_out, held_out_size, hold_out
from pflpipe.errors import DataError, located, nearest
from pflpipe.files import AGAIN, atomic
from pflpipe.named import DATASETS as DATASETS
from pflpipe.named import DatasetInfo
from pflpipe.seeds import numpy_rng

TEST_FRACTION = 0.2  # of a source without a test set

IMAGES = ("train_images", "test_images")
LABELS = ("train_labels", "test_labels")
USERS = ("train_users", "test_users")
KEYS = (*IMAGES, *LABELS, *USERS, "classes")  # whatever else a user's file holds is not read
SCALE = ("mean", "std")
FOUND = "classes_found"

Shape = tuple[tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True)
class Arrays:
    """A data set in memory; see the module's first lines for shapes and types.

    ``declared``: whether the package or the source states K. Otherwise K follows from everybody's
    labels, which the ledger of a private run says (``study.plans``). ``mean``, ``std``: per-channel
    (or one for all) constants of ``normalise``, on the scale 0..1.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: int
    train_users: np.ndarray | None = None
    test_users: np.ndarray | None = None
    declared: bool = True
    mean: Sequence[float] = (0.5,)
    std: Sequence[float] = (0.5,)

    @property
    def users(self) -> np.ndarray | None:
        """All users in ascending order, int64 [U], or None."""
        if self.train_users is None or self.test_users is None:
            return None
        return np.union1d(self.train_users, self.test_users)


@dataclass(frozen=True)
class Header:
    """What a study must know of a data set before any job starts.

    Attributes:
        image_shape: (H, W, C) of uint8 images, (D,) of float features, (T, C) of sequences.
        classes: number of classes K.
        train_size: training examples, after the test set has been set aside.
        users: number of user ids, with and without training rows, or None.
        declared: as in ``Arrays``.
    """

    image_shape: tuple[int, ...]
    classes: int
    train_size: int
    users: int | None
    declared: bool = True


def info(dataset: str, own: Iterable[str] = ()) -> DatasetInfo:
    """Return what is known of a named data set; DataError names the nearest one of those and of the
    user's own."""
    if dataset not in DATASETS:
        raise DataError(
            f"dataset {dataset!r} is not known; {nearest(dataset, {*DATASETS, *own})}",
            do=f"for your own data set datasets.{dataset} in config.yaml to an .npz file, or to a "
            "function, my_data.py:load",
        )
    return DATASETS[dataset]


def source_file(source: Path) -> Path:
    """Return the file or folder that a source is or, of ``my_data.py:load``, is in."""
    return outside.file_of(str(source)) if _is_function(source) else source


def _is_function(source: Path | None) -> bool:
    return source is not None and outside.is_reference(str(source))


def describe(
    dataset: str,
    source: Path | None = None,
    made: Path | None = None,
    own: Iterable[str] = (),
) -> Header | None:
    """Return the header of a data set as ``prepare`` will make it from the same source, without
    reading any image.

    Only running a function would tell what it returns, and that is done once, when the data are
    made: before, its header is not known, and afterwards it is that of what was made.

    Args:
        dataset: its name.
        source: as for ``prepare``.
        made: where ``prepare`` puts it.
        own: names of the user's own data sets, for an unknown name that is near one of them.

    Returns:
        the header, or None: ``source`` is a function, and ``made`` does not exist.

    Raises:
        DataError: unknown name, missing source, or an .npz whose headers, labels or users are not
            in order.
    """
    if source is not None and _is_function(source):
        outside.check(str(source), DataError)
        return read_header(made, dataset) if made is not None and made.is_file() else None
    if source is not None and not source.is_dir():
        return read_header(source, dataset)
    known = info(dataset, own)
    return Header(known.image_shape, known.classes, known.train_size, known.users)


def read_header(path: Path, dataset: str | None = None) -> Header:
    """Check an .npz file without reading its images: the array headers, then the labels and users,
    which are small.

    Args:
        path: a user's file or a finished ``data/<dataset>.npz``.
        dataset: name of the data set; a known name fixes the image shape and the number of classes.
    """
    with located(str(path)):
        shapes = _checked_shapes(path, dataset)
        small = _read(path, (key for key in KEYS if key in shapes and key not in IMAGES))
        classes, declared = _check_labels(small, dataset)
        # Without users all rows are those of one.
        groups = small.get("train_users", np.zeros_like(small["train_labels"]))
        sizes = np.unique(groups, return_counts=True)[1]
        held_out = 0 if "test_labels" in small else _test_size(sizes)
    count = len(_user_ids(small)) if "train_users" in small else None
    shape, train_size = _image_shape(*shapes["train_images"]), int(sizes.sum()) - held_out
    return Header(shape, classes, train_size, count, declared and FOUND not in shapes)


def load_arrays(path: Path) -> Arrays:
    """Read a finished ``data/<dataset>.npz``.

    Raises:
        DataError: the file is missing, damaged, or not of the promised form; or it has other values
            than its pin, if that lies beside it.
    """
    shapes = _checked_shapes(path, None)
    missing = {*IMAGES, *LABELS, *SCALE, "classes"} - set(shapes)
    if missing:
        raise DataError(
            f"{path}: {min(missing)} is missing", do="make the file with workflow/scripts/data.py"
        )
    raw = _read(path, (key for key in KEYS if key in shapes))
    pin = path.with_suffix(".pin")
    if pin.exists() and not pins.fits(raw, pin):
        raise DataError(f"{path} has other values than were written", do=AGAIN)
    parts: dict[str, Any] = {key: raw[key] for key in (*IMAGES, *LABELS, *USERS) if key in raw}
    mean, std = (values.tolist() for values in _read(path, SCALE).values())
    return Arrays(
        **parts, classes=int(raw["classes"]), declared=FOUND not in shapes, mean=mean, std=std
    )


def prepare(dataset: str, source: Path | None, downloads_dir: Path, target: Path) -> None:
    """Make ``target`` (an .npz, written atomically) from a named data set or the user's own file.

    Args:
        dataset: a name of ``DATASETS``, or any name with ``source`` the user's own.
        source: the user's .npz file; or ``my_data.py:load``, a function without arguments that
            returns the arrays of such a file by name; or a folder with the original files of a
            named data set, nothing is then fetched; or None: the original files are taken from
            ``downloads_dir`` and fetched into it where missing.
        downloads_dir: where original files lie or are put.
        target: the file to make. Beside it lies its pin, the digest of the values that the name had
            first.

    Raises:
        DataError: see ``arrays_from`` and ``downloads.read_original``; or the values are not those
            of the pin, and then ``target`` is as it was.
    """
    if source is not None and _is_function(source):
        raw, location = _returned(str(source)), str(source)
    elif source is not None and not source.is_dir():
        shapes = _checked_shapes(source, dataset)
        keys = [key for key in KEYS if key in shapes]
        if FOUND in shapes:  # a finished file, under another name
            keys.remove("classes")
        raw, location = _read(source, keys), str(source)
    elif info(dataset).needs_network:
        raw = downloads.read_original(
            dataset,
            source or downloads_dir,
            target.parent if source else downloads_dir,
            may_download=source is None,
        )
        location = f"{dataset} in {source or downloads_dir}"
    elif source is None:
        raw, location = _digits(), dataset
    else:
        raise DataError(
            f"dataset {dataset!r}",
            got=f"the folder {source}",
            expected="no source, or an .npz file",
        )
    made = arrays_from(raw, location, dataset)
    arrays: dict[str, Any] = {
        key: np.asarray(value) for key in KEYS if (value := getattr(made, key)) is not None
    }
    pins.keep(dataset, arrays, target.with_suffix(".pin"))
    # Of the name, which has the pin.
    arrays |= {key: np.asarray(getattr(made, key)) for key in SCALE}
    if not made.declared:  # no value that training reads, so the pin is the same without it
        arrays[FOUND] = np.asarray(True)
    with atomic(target) as path:
        np.savez(path, **arrays)


def _returned(reference: str) -> dict[str, np.ndarray]:
    """Call the user's function ``file.py:load`` and return the arrays that pflpipe reads."""
    function = outside.load(reference, DataError)
    if not callable(function):
        raise DataError(reference, got=type(function).__name__, expected="a function")
    try:
        found = function()
    except Exception as problem:
        raise DataError(
            f"{reference} failed",
            got=outside.described(problem),
            do="it is called without arguments",
        ) from problem
    if not isinstance(found, Mapping):
        raise DataError(
            f"{reference} returned",
            got=type(found).__name__,
            expected="a dict of NumPy arrays: train_images, train_labels ...",
        )
    for name in KEYS:
        if name in found and not isinstance(found[name], np.ndarray | np.generic | int):
            raise DataError(
                f"{reference} returned {name}",
                got=type(found[name]).__name__,
                expected="a NumPy array",
                do="np.asarray, or .numpy() of a tensor, makes one",
            )
    return {name: np.asarray(found[name]) for name in KEYS if name in found}


def arrays_from(raw: dict[str, np.ndarray], location: str, dataset: str | None = None) -> Arrays:
    """Check arrays as a source gives them and bring them into the form of ``Arrays``.

    Args:
        raw: ``train_images``, ``train_labels`` and optionally ``test_images``, ``test_labels``,
            ``train_users``, ``test_users`` (integers or text), ``classes``.
        location: names the source in messages.
        dataset: name of the data set; a known name fixes the image shape and the number of classes.

    Raises:
        DataError: naming the location, the array, what was got and what is expected.
    """
    with located(location):
        _check_shapes({key: (value.shape, value.dtype) for key, value in raw.items()}, dataset)
        classes, declared = _check_labels(raw, dataset)
        images = {key: _checked_images(key, raw[key]) for key in IMAGES if key in raw}
    labels = {key: raw[key].astype(np.int64) for key in LABELS if key in raw}
    users: dict[str, np.ndarray | None] = dict.fromkeys(USERS)
    if "train_users" in raw:
        ids = _user_ids(raw)
        users |= {key: np.searchsorted(ids, raw[key]) for key in USERS if key in raw}
    everything: dict[str, Any] = {**images, **labels, **users}
    if "test_images" not in raw:
        with located(location):
            everything |= _split(everything, dataset or location)
    known = DATASETS.get(dataset or "")
    scale = {key: getattr(known, key) for key in SCALE} if known else {}
    return Arrays(**everything, classes=classes, declared=declared, **scale)


def normalise(images: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """Return network inputs: float32 [N, H, W, C] (channels last), or float32 features [N, D] and
    sequences [N, T, C] as they are.

    Args:
        images: uint8 [N, H, W] or [N, H, W, C], or float32 [N, D] or [N, T, C].
        mean, std: those of the data set, ``Arrays``.
    """
    if images.dtype != np.uint8:
        return images
    scaled = images.reshape(len(images), *_image_shape(images.shape, images.dtype))
    scaled = scaled.astype(np.float32)
    scaled /= np.float32(255)
    scaled -= np.asarray(mean, dtype=np.float32)
    scaled /= np.asarray(std, dtype=np.float32)
    return scaled


def _digits() -> dict[str, np.ndarray]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return {
        "train_images": np.rint(bunch.images * (255 / 16)).astype(np.uint8),
        "train_labels": bunch.target,
    }


def _test_size(sizes: np.ndarray) -> int:
    """Size of the fixed test set, given the rows of each user (or of all together)."""
    held_out = sum(held_out_size(int(size), TEST_FRACTION) for size in sizes)
    if held_out == 0:
        raise DataError(
            "train_images",
            got=f"{sizes.sum()} rows, at most {sizes.max()} of one user",
            expected="3 rows or more of one, to set a test set aside",
        )
    return held_out


def _split(arrays: dict[str, Any], name: str) -> dict[str, Any]:
    """Set the fixed test set aside; returns the keys that change."""
    labels, users = arrays["train_labels"], arrays["train_users"]
    test = np.zeros(len(labels), dtype=bool)
    groups = [np.arange(len(labels))]
    if users is not None:
        groups = np.split(np.argsort(users, kind="stable"), np.cumsum(np.bincount(users))[:-1])
    _test_size(np.array([len(rows) for rows in groups]))
    # The same test set for every study and seed, and no user's rows decide which ones of another
    # user are in it.
    for group, rows in enumerate(groups):
        rng = numpy_rng(0, "data", name, "test", group)
        test[rows] = (
            hold_out(labels[rows], TEST_FRACTION, rng)
            if users is None
            else draw_out(len(rows), TEST_FRACTION, rng)
        )
    parts = {"train": ~test, "test": test}
    return {
        f"{part}_{key}": arrays[f"train_{key}"][rows]
        for part, rows in parts.items()
        for key in ("images", "labels", "users")
        if arrays[f"train_{key}"] is not None
    }


def _image_shape(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """(H, W, C), (D,) or (T, C) of an array of images, features or sequences."""
    return (*shape[1:], 1) if len(shape) == 3 and dtype == np.uint8 else shape[1:]


def _shapes(path: Path) -> dict[str, Shape]:
    """Shape and dtype of every array of an .npz file, from the headers only.

    Nothing is allocated for what a header promises before the archive has been found to hold it,
    and the memory to have room for it: numpy would ask for 8 TB for a header of 10^12 labels, and
    a few megabytes may unpack to gigabytes of zeros.
    """
    total = 0
    try:
        with zipfile.ZipFile(path) as bundle:
            headers = {}
            for name in bundle.namelist():
                with bundle.open(name) as member:
                    version = np.lib.format.read_magic(member)
                    reader = (
                        np.lib.format.read_array_header_1_0
                        if version == (1, 0)
                        else np.lib.format.read_array_header_2_0
                    )
                    shape, _, dtype = reader(member)
                    size = member.tell() + dtype.itemsize * math.prod(shape)
                    held = bundle.getinfo(name).file_size
                    if size != held and not dtype.hasobject:
                        raise ValueError(f"{name} promises {size} bytes and has {held}")
                    total += held
                    headers[name.removesuffix(".npy")] = (shape, dtype)
    except FileNotFoundError:
        raise DataError(
            f"{path} does not exist", do="mend the path in config.yaml, or make the file"
        ) from None
    except Exception as error:  # of zipfile or numpy: there is no common base
        raise DataError(
            f"{path} cannot be read",
            got=str(error),
            expected="an .npz file written by numpy.savez, or a function, my_data.py:load",
        ) from error
    limits.check(total, str(path))
    return headers


def _read(path: Path, keys: Iterable[str]) -> dict[str, np.ndarray]:
    """Read arrays of an .npz file whose headers were read; pickled objects are refused, never
    loaded."""
    try:
        with np.load(path, allow_pickle=False) as bundle:
            return {key: bundle[key] for key in keys}
    except Exception as error:
        do = (
            "write the file again; for text use dtype 'U', for images one array, no lists of arrays"
        )
        raise DataError(
            f"{path} cannot be read",
            got=str(error),
            expected="plain arrays without pickled objects",
            do=do,
        ) from error


def _checked_shapes(path: Path, dataset: str | None) -> dict[str, Shape]:
    """Return ``_shapes`` after ``_check_shapes``."""
    shapes = _shapes(path)
    with located(str(path)):
        _check_shapes(shapes, dataset)
    return shapes


def _check_shapes(arrays: dict[str, Shape], dataset: str | None) -> None:
    """Check which arrays there are, and their shapes and dtypes."""
    for key in (IMAGES[0], LABELS[0]):
        if key not in arrays:
            raise DataError(
                f"{key} is missing",
                got=sorted(arrays),
                do="store train_images and train_labels",
            )
    for first, second in (IMAGES[::-1], USERS[::-1]):
        if first in arrays and second not in arrays:
            raise DataError(f"{second} is missing", got=f"{first} alone")
    if (IMAGES[1] in arrays) != (LABELS[1] in arrays):
        raise DataError("test_images and test_labels", got="one of them", expected="both, or none")
    if USERS[0] in arrays and (USERS[1] in arrays) != (IMAGES[1] in arrays):
        raise DataError(
            "test_users",
            expected="one user for each test image, as for the training images",
        )
    known = DATASETS.get(dataset or "")
    for key in (key for key in KEYS if key in arrays):
        shape, dtype = arrays[key]
        if dtype.hasobject:
            raise DataError(
                key,
                got="pickled Python objects",
                expected="a plain array",
                do="store it with a number or 'U' dtype",
            )
        if key == "classes":
            if shape != () or dtype.kind not in "iu":
                raise DataError("classes", got=f"{dtype} {list(shape)}", expected="one integer")
        elif key in IMAGES:
            _check_image_shape(key, shape, dtype)
            expected = known.image_shape if known else _image_shape(*arrays["train_images"])
            if _image_shape(shape, dtype) != expected:
                reason = f"as {dataset} has" if known else "as train_images has"
                raise DataError(
                    key,
                    got=f"images {_image_shape(shape, dtype)}",
                    expected=f"{expected}, {reason}",
                )
        else:
            part = key.split("_")[0]
            rows = arrays[f"{part}_images"][0][0]
            if shape != (rows,):
                raise DataError(
                    key,
                    got=f"shape {shape}",
                    expected=f"({rows},), one for each image of {part}_images",
                )
            if dtype.kind not in ("iuU" if key in USERS else "iu"):
                kinds = "integers or text (dtype 'U')" if key in USERS else "integers"
                raise DataError(key, got=f"dtype {dtype}", expected=kinds)


def _check_image_shape(key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Accept uint8 [N,H,W], uint8 [N,H,W,C] with C <= 4, and floats [N,D] or [N,T,C]."""
    images = dtype == np.uint8 and (len(shape) == 3 or (len(shape) == 4 and shape[3] <= 4))
    features = dtype.kind == "f" and len(shape) in (2, 3)
    if not (images or features):
        raise DataError(
            key,
            got=f"{dtype} {list(shape)}",
            expected=(
                "uint8 [N, H, W], uint8 [N, H, W, C] with the channels last, float [N, D] features "
                "or float [N, T, C] sequences"
            ),
            do="bring images to 0..255 as uint8, and floats to features or sequences",
        )
    if 0 in shape:
        raise DataError(key, got=f"an empty array {list(shape)}", expected="at least one example")


def _check_labels(raw: dict[str, np.ndarray], dataset: str | None) -> tuple[int, bool]:
    """Check labels, classes and users by value; return the number of classes, and whether it is
    declared."""
    highest = max(int(raw[key].max()) for key in LABELS if key in raw)
    rows = len(raw["train_labels"])
    known = DATASETS.get(dataset or "")
    declared = known is not None or "classes" in raw
    classes = known.classes if known else int(raw["classes"]) if declared else highest + 1
    if classes < 2:
        raise DataError("train_labels", got=f"{classes} class(es)", expected="at least 2")
    if not declared and classes > rows:
        raise DataError(
            "train_labels",
            got=f"label {highest} among {rows} examples",
            expected="labels 0..K-1",
            do="number the classes 0..K-1, or store their number as `classes`",
        )
    for key in LABELS:
        if key in raw and (raw[key].min() < 0 or raw[key].max() >= classes):
            got = f"labels {raw[key].min()} to {raw[key].max()}"
            raise DataError(key, got=got, expected=f"0 to {classes - 1}")
    if "test_users" in raw:
        _check_users(raw["train_users"], raw["test_users"])
    return classes, declared


def _user_ids(raw: Mapping[str, np.ndarray]) -> np.ndarray:
    """All ids of a source with users, sorted."""
    return np.union1d(raw["train_users"], raw.get("test_users", raw["train_users"]))


def _check_users(train: np.ndarray, test: np.ndarray) -> None:
    """Refuse ids of two kinds; int64 and uint64 are two, because together they would be compared as
    rounded floats."""
    if (train.dtype.kind == "U") != (test.dtype.kind == "U") or np.result_type(
        train.dtype, test.dtype
    ).kind == "f":
        raise DataError(
            "test_users",
            got=f"dtype {test.dtype}",
            expected=f"{train.dtype}, as train_users has",
        )


def _checked_images(key: str, images: np.ndarray) -> np.ndarray:
    """uint8 images as they are, floats as float32 after a check for NaN and infinity."""
    if images.dtype == np.uint8:
        return images
    with np.errstate(over="ignore"):
        features = images.astype(np.float32)
    finite = np.isfinite(features).reshape(len(features), -1).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        got = (
            f"NaN, infinity or a number beyond float32 in {int((~finite).sum())} rows, the first "
            f"{row}"
        )
        raise DataError(key, got=got, expected="finite numbers", do="clean the features")
    return features
