"""Checks of a data set's arrays: which there are, their shapes and types, their values.

A slip that NumPy would pass over in silence (a mask, a missing user, an empty class, a misspelt
name) is an error that says what to do. ``pflpipe.train`` applies the same checks to tensors.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from pflpipe.data import contract
from pflpipe.errors import DataError, counted, nearest
from pflpipe.facts.datasets import DATASETS

IMAGES = ("train_images", "test_images")
LABELS = ("train_labels", "test_labels")
USERS = ("train_users", "test_users")
COUNTS = ("classes", "vocabulary")
KEYS = (*IMAGES, *LABELS, *USERS, *COUNTS)
FOUND = "classes_found"
CONTRACT = "contract"
UNIT = "unit_word"
LOADER = "loader"

MOST_CLASSES = 1_000_000
"""Limit of the number of classes: the weights of a larger head would fill the memory."""

_MISSPELT = re.compile("train|test|image|label|user|clas", re.IGNORECASE)
"""Parts of a name that is meant to be one of ``KEYS``; an array such as ``notes`` is not read."""
_NUMBERING = "number the classes 0..K-1, such as np.searchsorted(np.unique(labels), labels)"
_REMEDIES = {
    "images": "make one array of numbers, for images of one size np.stack(rows)",
    "labels": _NUMBERING,
    "users": "make text of it by .astype(str), or integers by .astype(int)",
    **dict.fromkeys(COUNTS, "store one integer"),
}

Shape = tuple[tuple[int, ...], np.dtype[Any]]


def example_shape(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Return (H, W, C), (D,), (T, C) or (T,) of an array of images, features, sequences or
    tokens."""
    if channels_first(shape, dtype):
        return (*shape[2:], shape[1])
    return (*shape[1:], 1) if len(shape) == 3 and dtype == np.uint8 else shape[1:]


def channels_first(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether an array is uint8 ``[N, 1 or 3, H, W]``."""
    return dtype == np.uint8 and is_channels_first(shape[1:])


def is_channels_first(image_shape: tuple[int, ...]) -> bool:
    """Return whether an image is ``[1 or 3, H, W]``. A last axis of at most 4 is one of
    channels."""
    return len(image_shape) == 3 and image_shape[0] in (1, 3) and image_shape[2] > 4


def as_array(name: str, values: object, content: str = "") -> np.ndarray:
    """Return values as an array of numbers or text.

    Args:
        name: names the values in messages.
        values: an array, or something of which NumPy makes one.
        content: images, labels, users or classes; by default the last part of the name.

    Raises:
        DataError: a masked array, because its mask would be ignored, or an array of Python objects.
    """
    expected = "an array whose values all count"
    do = "leave the masked rows out, or set their values by .filled(value)"
    is_masked = isinstance(values, np.ma.MaskedArray)
    DataError.unless(not is_masked, name, "a masked array", expected, do)
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError(name, got="rows of several lengths", expected="one array") from None
    if array.dtype.hasobject:
        types = sorted({type(value).__name__ for value in array.flat})
        raise _of_objects(name, content, f" ({', '.join(types)})")
    return array


def _of_objects(name: str, content: str = "", types: str = "") -> DataError:
    return DataError(
        name,
        got=f"an array of Python objects{types}, as pandas keeps text",
        expected="an array of numbers or text",
        do=_REMEDIES[content or name.rpartition("_")[2]],
    )


def check_names(arrays: Collection[str]) -> None:
    """Raise DataError unless the required arrays are there, with those that belong together, and no
    name looks like a misspelt one."""
    for key in (IMAGES[0], LABELS[0]):
        got, do = sorted(map(str, arrays)), "store train_images and train_labels"
        DataError.unless(key in arrays, f"{key} is missing", got, do=do)
    for key in arrays:
        if key not in (*KEYS, FOUND) and _MISSPELT.search(str(key)):
            raise DataError(f"unknown array {key!r}", do=nearest(str(key), KEYS))
    for first, second in (IMAGES[::-1], USERS[::-1]):
        fits = first not in arrays or second in arrays
        DataError.unless(fits, f"{second} is missing", f"{first} alone")
    fits = (IMAGES[1] in arrays) == (LABELS[1] in arrays)
    DataError.unless(fits, "test_images and test_labels", "one of them", "both, or none")
    fits = USERS[0] not in arrays or (USERS[1] in arrays) == (IMAGES[1] in arrays)
    expected = "one user for each test image, as for the training images"
    DataError.unless(fits, "test_users", expected=expected)


def check_shapes(arrays: Mapping[str, Shape], dataset: str | None) -> None:
    """Raise DataError unless names, shapes and dtypes of the arrays are in order.

    Args:
        arrays: shape and dtype of each array.
        dataset: name of the data set; a known name fixes the shape of an example.
    """
    check_names(arrays)
    known = DATASETS.get(dataset or "")
    for key in (key for key in KEYS if key in arrays):
        shape, dtype = arrays[key]
        if dtype.hasobject:  # in a file they are pickled, and pflpipe never loads them
            raise _of_objects(key)
        if key in COUNTS:
            fits = shape == () and dtype.kind in "iu"
            DataError.unless(fits, key, f"{dtype} {list(shape)}", "one integer")
        elif key in IMAGES:
            _check_image_shape(key, shape, dtype, "vocabulary" in arrays)
            shape_of_all = known.image_shape if known else example_shape(*arrays["train_images"])
            own = example_shape(shape, dtype)
            expected = f"{shape_of_all}, as {dataset if known else 'train_images'} has"
            DataError.unless(own == shape_of_all, key, f"images {own}", expected)
        else:
            part, _, content = key.partition("_")
            rows = arrays[f"{part}_images"][0][0]
            numbers = key in LABELS and dtype.kind == "f"
            fits = shape == (rows,) or (numbers and shape[:1] == (rows,) and len(shape) == 2)
            expected = f"({rows},), one for each image of {part}_images"
            DataError.unless(fits, key, f"shape {shape}", expected)
            kinds, expected = "iuf", "integers or floats"
            if key in USERS:
                kinds, expected = "iuU", "integers or text (dtype 'U')"
            got, do = f"dtype {dtype}", _REMEDIES[content]
            DataError.unless(dtype.kind in kinds, key, got, expected, do)


def _check_image_shape(
    key: str, shape: tuple[int, ...], dtype: np.dtype[Any], tokens: bool
) -> None:
    """Accept uint8 [N,H,W], uint8 [N,H,W,C] with C <= 4, uint8 [N,C,H,W] with C 1 or 3, and floats
    [N,D] or [N,T,C]; with ``tokens`` only integers [N,T]."""
    got = f"{dtype} {list(shape)}"
    if tokens:
        fits = dtype.kind in "iu" and len(shape) == 2 and 0 not in shape
        DataError.unless(fits, key, got, "integers [N, T], tokens of the vocabulary")
        return
    images = dtype == np.uint8 and (len(shape) == 3 or (len(shape) == 4 and shape[3] <= 4))
    images |= channels_first(shape, dtype)
    features = dtype.kind == "f" and len(shape) in (2, 3)
    expected = (
        "uint8 [N, H, W], uint8 [N, H, W, C], uint8 [N, 1 or 3, H, W] with the channels first, "
        "float [N, D] features or float [N, T, C] sequences"
    )
    do = (
        "bring images to 0..255 as uint8, and floats to features or sequences; tokens are integers "
        "[N, T] beside vocabulary, the number of different ones"
    )
    DataError.unless(images or features, key, got, expected, do)
    got = f"an empty array {list(shape)}"
    DataError.unless(0 not in shape, key, got, "at least one example")


def are_numbers(labels: np.ndarray) -> bool:
    """Return whether labels are real numbers, and not classes."""
    return labels.dtype.kind == "f"


def number_of_classes(arrays: Mapping[str, np.ndarray], dataset: str | None) -> tuple[int, bool]:
    """Return the number of classes K, and whether the package or the source declares it. Of labels
    that are real numbers, K is how many each example has.

    Args:
        arrays: labels, and users and ``classes`` if there are any; other arrays are not read.
        dataset: name of the data set; a known name fixes K.

    Raises:
        DataError: labels outside 0..K-1, a class without examples if K is not declared, or an
            impossible K; or some labels are classes and others real numbers.
    """
    labels = {key: arrays[key] for key in LABELS if key in arrays}
    forms = {are_numbers(rows) and rows.shape[1:] for rows in labels.values()}
    if forms != {False}:
        width = labels["train_labels"].shape[1:] or (1,)
        if len(forms) > 1 or dataset in DATASETS or arrays.get("classes", width[0]) != width[0]:
            got = ", ".join(f"{rows.dtype} {list(rows.shape)}" for rows in labels.values())
            expected = "integers, or floats of one shape without classes"
            raise DataError("labels", got=got, expected=expected, do=_NUMBERING)
        return width[0], True
    distinct = np.unique(np.concatenate([rows.astype(np.int64) for rows in labels.values()]))
    known = DATASETS.get(dataset or "")
    declared = known is not None or "classes" in arrays
    classes = int(distinct[-1]) + 1
    if declared:
        classes = known.classes if known else int(arrays["classes"])
    for key, rows in labels.items():
        low, high = rows.min(), rows.max()
        fits, got = low >= 0 and high < classes, f"labels {low} to {high}"
        DataError.unless(fits, key, got, f"0 to {classes - 1}")
    if not declared:
        check_every_class(distinct, "train_labels")
    check_class_count(classes)
    return classes, declared


def check_class_count(classes: int) -> None:
    """Raise DataError for a number of classes that no network can have."""
    expected = f"at least 2, at most {MOST_CLASSES}"
    DataError.unless(2 <= classes <= MOST_CLASSES, "classes", classes, expected)


def check_every_class(labels: np.ndarray, name: str) -> None:
    """Raise DataError if a class below the largest label has no example. The number of classes
    would then follow from a numbering that starts at 1 or has gaps.

    Args:
        labels: distinct non-negative labels, ascending.
        name: names them in messages.
    """
    absent = np.flatnonzero(labels != np.arange(len(labels)))
    if len(absent):
        got = f"labels {labels[0]} to {labels[-1]}, none of them {absent[0]}"
        do = f"{_NUMBERING}, or declare their number, classes = {labels[-1] + 1}"
        raise DataError(name, got=got, expected="every class of 0..K-1", do=do)


def check_users(arrays: Mapping[str, np.ndarray], ids: str = "") -> dict[str, np.ndarray]:
    """Return the ids of users as ``contract.people`` does; raise DataError also for training and
    test ids of two kinds."""
    users = {key: arrays[key] for key in USERS if key in arrays}
    types = [names.dtype for names in users.values()]
    # int64 and uint64 are two kinds: together they would be compared as rounded floats.
    if len({dtype.kind == "U" for dtype in types}) > 1 or (
        types and np.result_type(*types).kind == "f"
    ):
        got, expected = f"dtype {types[1]}", f"{types[0]}, as train_users has"
        raise DataError("test_users", got=got, expected=expected)
    return contract.people(users, ids)


def user_ids(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return all ids of a source with users, sorted."""
    return np.union1d(arrays["train_users"], arrays.get("test_users", arrays["train_users"]))


def as_tokens(key: str, rows: np.ndarray, vocabulary: int) -> np.ndarray:
    """Return tokens as int32 ``[N, T]``; raise DataError for one outside 0..vocabulary-1."""
    low, high, do = rows.min(), rows.max(), "declare a larger vocabulary"
    fits, got = low >= 0 and high < vocabulary, f"tokens {low} to {high}"
    DataError.unless(fits, key, got, f"0 to {vocabulary - 1}", do)
    return rows.astype(np.int32)


def finite_images(key: str, images: np.ndarray) -> np.ndarray:
    """Return uint8 images with the channels last, floats as float32; raise DataError for NaN or
    infinity."""
    if channels_first(images.shape, images.dtype):
        return np.ascontiguousarray(np.moveaxis(images, 1, -1))
    if images.dtype == np.uint8:
        return images
    with np.errstate(over="ignore"):
        features = images.astype(np.float32)
    finite = np.isfinite(features).reshape(len(features), -1).all(axis=1)
    if not finite.all():
        rows = f"{counted(int((~finite).sum()), 'row')}, the first {int(np.argmin(finite))}"
        got = f"NaN, infinity or a number beyond float32 in {rows}"
        raise DataError(key, got=got, expected="finite numbers", do="clean the features")
    return features


def as_labels(key: str, labels: np.ndarray) -> np.ndarray:
    """Return classes as int64, real numbers as float32; raise DataError for NaN or infinity."""
    return finite_images(key, labels) if are_numbers(labels) else labels.astype(np.int64)
