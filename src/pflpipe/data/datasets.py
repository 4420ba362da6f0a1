"""Data sets as arrays: named ones, and the user's own from an .npz file or a function
``my_data.py:load`` that returns the same arrays. Every array is checked before it is used.

``prepare`` makes ``data/<dataset>.npz``, the only file that later rules read, and next to it
``<dataset>.pin``, a digest of the values that belong to this name:

- ``train_images`` uint8 [N, H, W] or [N, H, W, C] (channels last), or float32 [N, D] features or
  [N, T, C] sequences (time, then channels); ``train_labels`` int64 [N] in 0..K-1, or real numbers
  to predict, float32 [N] or [N, K]; ``test_images``, ``test_labels`` likewise; ``classes`` int64
  scalar K; ``classes_found`` true, only if K is not declared and therefore one more than the
  largest label; ``contract`` text, JSON of ``contract.Contract``; ``unit_word`` text, only if the
  source names what a user is;
- ``vocabulary`` int64 scalar V, only if examples are tokens: ``train_images`` is int32 [N, T] in
  0..V-1 then;
- ``mean``, ``std`` float64 [C] or [1]: the constants of ``normalise``, which follow from the data
  set's name and never from its values;
- ``train_users``, ``test_users`` int64 [N] in 0..U-1, numbered in the sorted order of the original
  ids, both or none. Every id of either is a user, also one without training rows.

A source without a test set gets a fixed one: 20 %, stratified by class, or with users 20 % of each
user's rows whatever their class. Reading the finished file and ``normalise`` need only NumPy, so
that training needs nothing else.
"""

import dataclasses
import json
import math
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pflpipe.code import guard, meaning, reference, user_files
from pflpipe.data import checks, contract, downloads, limits, per_client, pfllib, pins
from pflpipe.data.apportion import draw_out, held_out_size, hold_out
from pflpipe.data.blocks import Fill
from pflpipe.data.checks import IMAGES, KEYS, LABELS, USERS, Shape, example_shape
from pflpipe.data.contract import UNKNOWN, Columns, Contract
from pflpipe.errors import DataError, counted, located, nearest
from pflpipe.facts.datasets import DATASETS as DATASETS
from pflpipe.facts.datasets import DatasetInfo
from pflpipe.files import AGAIN, atomic, canonical_json
from pflpipe.seeds import numpy_rng

TEST_FRACTION = 0.2  # of a source without a test set
SCALE = ("mean", "std")


@dataclass(frozen=True)
class Arrays:
    """A data set in memory; the module's docstring has shapes and types.

    ``declared``: whether the package or the source states K. Otherwise K follows from all labels,
    and the ledger of a private run says so (``study.plans``). ``contract``: what is known of the
    rows, of whose warnings the ledger has the text. ``unit``: the word for a user in the ledger.
    ``loader``: name and SHA-256 of the user's function that returned the
    arrays, or empty. ``mean``, ``std``: per-channel (or one for all) constants of ``normalise``, on
    the scale 0..1.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: int
    train_users: np.ndarray | None = None
    test_users: np.ndarray | None = None
    vocabulary: int | None = None
    declared: bool = True
    contract: Contract = UNKNOWN
    unit: str = "user"
    loader: str = ""
    mean: Sequence[float] = (0.5,)
    std: Sequence[float] = (0.5,)

    @property
    def numbers(self) -> bool:
        """Whether labels are real numbers, of which each example has ``classes``."""
        return checks.are_numbers(self.train_labels)

    @property
    def users(self) -> np.ndarray | None:
        """All users in ascending order, int64 [U], or None."""
        if self.train_users is None or self.test_users is None:
            return None
        return np.union1d(self.train_users, self.test_users)

    def __str__(self) -> str:
        """Rows, users, classes, and the kind and shape of an example."""
        rows = len(self.train_labels) + len(self.test_labels)
        users = "" if self.users is None else f" of {len(self.users):,} users"
        classes = f"{self.classes} classes" + ("" if self.declared else " (from the labels)")
        if self.numbers:
            classes = f"{counted(self.classes, 'number')} to predict"
        shape = example_shape(self.train_images.shape, self.train_images.dtype)
        if self.train_images.dtype == np.uint8:
            example = "images of {} x {} pixels" + " in {} channels" * (shape[-1] > 1)
        elif self.vocabulary is not None:
            example = f"sequences of {{}} tokens of {self.vocabulary:,}"
        else:
            features = "{} features" if shape != (1,) else "{} feature"
            example = "sequences of {} steps with {} channels" if len(shape) == 2 else features
        return f"{rows:,} rows{users}, {classes}, {example.format(*shape)}"


@dataclass(frozen=True)
class Header:
    """What a study must know of a data set before any job starts.

    Attributes:
        image_shape: (H, W, C) of uint8 images, (D,) of float features, (T, C) of sequences, (T,)
            of tokens.
        classes: number of classes K; of labels that are real numbers, how many an example has.
        train_size: training examples, after the test set has been set aside.
        users: number of user ids, with and without training rows, or None.
        declared: as in ``Arrays``.
        contract: as in ``Arrays``; known once the file is made.
        loader: as in ``Arrays``; known once the file is made.
        numbers: whether labels are real numbers.
        vocabulary: number of different tokens; None if examples are none.
        unit: as in ``Arrays``; known once the file is made.
    """

    image_shape: tuple[int, ...]
    classes: int
    train_size: int
    users: int | None
    declared: bool = True
    contract: Contract = field(default=UNKNOWN, compare=False)
    loader: str = ""
    numbers: bool = False
    vocabulary: int | None = None
    unit: str = "user"


def info(dataset: str, listed: Iterable[str] = ()) -> DatasetInfo:
    """Return what is known of a named data set; DataError names the nearest one of these and of
    those that config.yaml lists."""
    if dataset not in DATASETS:
        what = f"dataset {dataset!r} is not known; {nearest(dataset, {*DATASETS, *listed})}"
        set_it = f"for your own data set datasets.{dataset} in config.yaml to an .npz file, or to a"
        do = f"{set_it} function, my_data.py:load, or to a block with file: or folder:"
        raise DataError(what, do=do)
    return DATASETS[dataset]


def source_file(source: Path) -> Path:
    """Return the file or folder of a source; for ``my_data.py:load`` the file."""
    return user_files.file_of(str(source)) if _is_function(source) else source


def _is_function(source: Path | None) -> bool:
    return source is not None and reference.is_reference(str(source))


def describe(
    dataset: str,
    source: Path | None = None,
    made: Path | None = None,
    listed: Iterable[str] = (),
) -> Header | None:
    """Return the header of a data set as ``prepare`` will make it from the same source, without
    reading any image.

    A function runs only once, when the data are made. Its header is unknown before, and later it is
    the header of the file that was made.

    Args:
        dataset: its name.
        source: as for ``prepare``.
        made: where ``prepare`` puts it.
        listed: data sets of config.yaml, of which the error about an unknown name guesses one.

    Returns:
        the header, or None if ``source`` is a function and ``made`` does not exist.

    Raises:
        DataError: unknown name, missing source, or an .npz whose headers, labels or users are not
            in order.
    """
    if source is not None and _is_function(source):
        user_files.check(str(source), DataError)
        return read_header(made, dataset) if made is not None and made.is_file() else None
    if source is not None and not source.is_dir():
        return read_header(source, dataset)
    known = info(dataset, listed)
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
        small = read_arrays(path, (key for key in KEYS if key in shapes and key not in IMAGES))
        classes, declared = checks.number_of_classes(small, dataset)
        checks.check_users(small)
        # Without users all rows are those of one.
        labels = small["train_labels"]
        groups = small.get("train_users", np.zeros(len(labels)))
        sizes = np.unique(groups, return_counts=True)[1]
        held_out = 0 if "test_labels" in small else _test_size(sizes)
    count = len(checks.user_ids(small)) if "train_users" in small else None
    shape, train_size = example_shape(*shapes["train_images"]), int(sizes.sum()) - held_out
    notes = _notes(path, shapes)
    notes["declared"] &= declared
    notes |= {"numbers": checks.are_numbers(labels), "vocabulary": _vocabulary(small)}
    return Header(shape, classes, train_size, count, **notes)


def load_arrays(path: Path) -> Arrays:
    """Read a finished ``data/<dataset>.npz``.

    Raises:
        DataError: the file is missing, damaged, or not of the promised form; or its values are not
            those of the pin next to it.
    """
    shapes = _checked_shapes(path, None)
    for missing in sorted({*IMAGES, *LABELS, *SCALE, "classes"} - set(shapes)):
        do = "make the file with workflow/scripts/data.py"
        raise DataError(f"{path}: {missing} is missing", do=do)
    raw = read_arrays(path, (key for key in KEYS if key in shapes))
    pin = path.with_suffix(".pin")
    if pin.exists() and not pins.fits(raw, pin):
        raise DataError(f"{path} has other values than were written", do=AGAIN)
    parts: dict[str, Any] = {key: raw[key] for key in (*IMAGES, *LABELS, *USERS) if key in raw}
    mean, std = (values.tolist() for values in read_arrays(path, SCALE).values())
    parts |= {"classes": int(raw["classes"]), "vocabulary": _vocabulary(raw)}
    return Arrays(**parts, **_notes(path, shapes), mean=mean, std=std)


def prepare(dataset: str, source: Path | None, downloads_dir: Path, target: Path) -> str:
    """Make ``target`` (an .npz, written atomically) from a named data set or the user's own file,
    and return a line that says what the arrays are: rows, users, classes, kind and shape.

    Args:
        dataset: a name of ``DATASETS``, or any name with ``source`` the user's own.
        source: the user's .npz file; or ``my_data.py:load``, a function without arguments that
            returns the arrays of such a file by name; or a folder with the original files of a
            named data set, of which nothing is then fetched; or None: the original files are taken
            from ``downloads_dir`` and fetched into it where missing.
        downloads_dir: folder of the original files.
        target: the file to make. Its pin is next to it, the digest of the first values of the name.

    Raises:
        DataError: see ``arrays_from`` and ``downloads.read_original``; or the values are not those
            of the pin. ``target`` does not change then.
    """
    names: Collection[str] = ()
    loader = ""
    if source is not None and _is_function(source):
        names, raw, location = *_returned(str(source)), str(source)
        loader = f"{source} {meaning.sha256(user_files.file_of(str(source)))}"
    elif source is not None and not source.is_dir():
        names = shapes = _checked_shapes(source, dataset)
        raw, location = read_arrays(source, (key for key in KEYS if key in shapes)), str(source)
        loader = _notes(source, shapes)["loader"]  # of a finished file, under another name
    elif info(dataset).needs_network:
        folders = source or downloads_dir, target.parent if source else downloads_dir
        raw = downloads.read_original(dataset, *folders, may_download=source is None)
        location = f"{dataset} in {source or downloads_dir}"
    elif source is None:
        raw, location = _digits(), dataset
    else:
        what = f"dataset {dataset!r}"
        raise DataError(what, got=f"the folder {source}", expected="no source, or an .npz file")
    if checks.FOUND in names:  # a finished file, under another name
        del raw["classes"]
    made = dataclasses.replace(arrays_from(raw, location, dataset), loader=loader)
    unread = sorted(map(str, set(names) - {*KEYS, checks.FOUND, checks.CONTRACT, checks.LOADER}))
    moved = checks.channels_first(raw["train_images"].shape, raw["train_images"].dtype)
    line = write(dataset, made, target) + "; the channels came first" * moved
    return line + (f"; not read: {', '.join(unread)}" if unread else "")


def write(name: str, made: Arrays, target: Path) -> str:
    """Write ``target`` (an .npz) atomically, with the pin of a name next to it, and return a line
    that says what the arrays are.

    Raises:
        DataError: the values are not those of the pin. ``target`` does not change then.
    """
    arrays: dict[str, Any] = values(made)
    pins.keep(name, arrays, target.with_suffix(".pin"))
    # These follow from the name, so the digest need not cover them.
    arrays |= {key: np.asarray(getattr(made, key)) for key in SCALE}
    # Training does not read these, so the digest does not cover them.
    arrays |= {} if made.declared else {checks.FOUND: np.asarray(True)}
    arrays |= {checks.CONTRACT: np.asarray(canonical_json(dataclasses.asdict(made.contract)))}
    arrays |= {checks.UNIT: np.asarray(made.unit)} if made.unit != "user" else {}
    arrays |= {checks.LOADER: np.asarray(made.loader)} if made.loader else {}
    with atomic(target) as path:
        np.savez(path, **arrays)
    return f"{name}: {made}"


def values(arrays: Arrays) -> dict[str, np.ndarray]:
    """Return the arrays by name that a pin covers."""
    return {key: np.asarray(value) for key in KEYS if (value := getattr(arrays, key)) is not None}


def _returned(reference: str) -> tuple[list[str], dict[str, np.ndarray]]:
    """Call the user's function ``file.py:load`` and return the names of what it returns, and the
    arrays that pflpipe reads."""
    function = user_files.load(reference, DataError)
    DataError.unless(callable(function), reference, type(function).__name__, "a function")
    file, what = user_files.file_of(reference), f"{reference} returned"
    with guard.in_one_line(f"{reference}() failed in {file}", str(file.resolve()), DataError):
        returned = function()
        if isinstance(returned, list):  # here, because the user's code makes a Dataset's items
            with located(what):
                returned = per_client.arrays(returned)
        is_mapping = isinstance(returned, Mapping)
        arrays = dict(returned) if is_mapping else {}
    expected = (
        "a dict of NumPy arrays: train_images, train_labels ..., or a list with a pair (x, y) for "
        "each client"
    )
    DataError.unless(is_mapping, what, type(returned).__name__, expected)
    with located(what):
        checks.check_names(arrays)
        for name in arrays.keys() & set(KEYS):
            value = arrays[name]
            fits, got = isinstance(value, np.ndarray | np.generic | int), type(value).__name__
            do = "np.asarray, or .numpy() of a tensor, makes one"
            DataError.unless(fits, name, got, "a NumPy array", do)
        read = {key: checks.as_array(key, arrays[key]) for key in KEYS if key in arrays}
    return list(arrays), read


def arrays_from(
    raw: dict[str, np.ndarray],
    location: str,
    dataset: str | None = None,
    ids: str = "",
    named: Sequence[Mapping[str, np.ndarray]] = (),
    fill: Fill | None = None,
) -> Arrays:
    """Check arrays as a source gives them and bring them into the form of ``Arrays``.

    Args:
        raw: ``train_images``, ``train_labels`` and optionally ``test_images``, ``test_labels``,
            ``train_users``, ``test_users`` (integers or text), ``classes``, ``vocabulary``.
        location: names the source in messages.
        dataset: name of the data set; a known name fixes the image shape and the number of classes.
        ids: as in ``contract.people``.
        named: of a table, the columns of features of each side, by name.
        fill: called once the test rows are set aside.

    Raises:
        DataError: naming the location, the array, what was got and what is expected.
    """
    with located(location):
        shapes = {key: (value.shape, value.dtype) for key, value in raw.items()}
        checks.check_shapes(shapes, dataset)
        classes, declared = checks.number_of_classes(raw, dataset)
        raw = raw | checks.check_users(raw, ids)
        columns = Columns.of(_sides(raw), named)
        vocabulary, images = _vocabulary(raw), {}
        for key in (key for key in IMAGES if key in raw):
            if fill:
                images[key] = raw[key]
            elif vocabulary is None:
                images[key] = checks.finite_images(key, raw[key])
            else:
                images[key] = checks.as_tokens(key, raw[key], vocabulary)
        labels = {key: checks.as_labels(key, raw[key]) for key in LABELS if key in raw}
    users: dict[str, np.ndarray | None] = dict.fromkeys(USERS)
    if "train_users" in raw:
        people = checks.user_ids(raw)
        users |= {key: np.searchsorted(people, raw[key]) for key in USERS if key in raw}
    everything: dict[str, Any] = {**images, **labels, **users}
    if "test_images" not in raw:
        with located(location):
            everything |= _split(everything, dataset or location)
    if fill:
        fill(everything)
        with located(location):
            everything |= {key: checks.finite_images(key, everything[key]) for key in IMAGES}
    known = DATASETS.get(dataset or "")
    scale = {key: getattr(known, key) for key in SCALE} if known else {}
    everything |= {"classes": classes, "vocabulary": vocabulary, "declared": declared}
    written = {key: people[everything[key]] for key in USERS if "train_users" in raw}
    train, test = _sides(everything | written)
    everything["contract"] = contract.of_rows(train, test, columns, "test_images" not in raw)
    return Arrays(**everything, **scale)


def _sides(arrays: Mapping[str, np.ndarray]) -> list[contract.Side]:
    keys = zip(IMAGES, LABELS, USERS, strict=True)
    return [(arrays[x], arrays[y], arrays.get(ids)) for x, y, ids in keys if x in arrays]


def _vocabulary(arrays: Mapping[str, np.ndarray]) -> int | None:
    return int(arrays["vocabulary"]) if "vocabulary" in arrays else None


def normalise(images: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """Return network inputs: float32 [N, H, W, C] (channels last), or features, sequences and
    tokens as they are.

    Args:
        images: uint8 [N, H, W] or [N, H, W, C], float32 [N, D] or [N, T, C], or int32 [N, T].
        mean, std: those of the data set, ``Arrays``.
    """
    if images.dtype != np.uint8:
        return images
    scaled = images.reshape(len(images), *example_shape(images.shape, images.dtype))
    scaled = scaled.astype(np.float32)
    scaled /= np.float32(255)
    scaled -= np.asarray(mean, dtype=np.float32)
    scaled /= np.asarray(std, dtype=np.float32)
    return scaled


def _digits() -> dict[str, np.ndarray]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    return {"train_images": images, "train_labels": bunch.target}


def _test_size(sizes: np.ndarray) -> int:
    """Size of the fixed test set, given the rows of each user (or of all together)."""
    held_out = sum(held_out_size(int(size), TEST_FRACTION) for size in sizes)
    got = f"{sizes.sum()} rows, at most {sizes.max()} of one user"
    expected = "3 rows or more of one, to set a test set aside"
    DataError.unless(held_out > 0, "train_images", got, expected)
    return held_out


def _split(arrays: dict[str, Any], name: str) -> dict[str, Any]:
    """Set the fixed test set aside; return the arrays that change."""
    labels, users = arrays["train_labels"], arrays["train_users"]
    test = np.zeros(len(labels), dtype=bool)
    groups = [np.arange(len(labels))]
    if users is not None:
        groups = np.split(np.argsort(users, kind="stable"), np.cumsum(np.bincount(users))[:-1])
    _test_size(np.array([len(rows) for rows in groups]))
    # The test set is the same for every study and seed. Each user has a stream of its own, so that
    # no user's rows decide which rows of another one are in it.
    by_class = users is None and not checks.are_numbers(labels)
    for group, rows in enumerate(groups):
        rng = numpy_rng(0, "data", name, "test", group)
        if by_class:
            test[rows] = hold_out(labels[rows], TEST_FRACTION, rng)
        else:
            test[rows] = draw_out(len(rows), TEST_FRACTION, rng)
    parts = {"train": ~test, "test": test}
    return {
        f"{part}_{key}": arrays[f"train_{key}"][rows]
        for part, rows in parts.items()
        for key in ("images", "labels", "users")
        if arrays[f"train_{key}"] is not None
    }


def array_shapes(path: Path) -> dict[str, Shape]:
    """Shape and dtype of every array of an .npz file, from the headers only.

    No array is allocated before its size in the archive and the machine's memory are checked: NumPy
    would ask for 8 TB for a header of 10^12 labels, and a few megabytes may unpack to gigabytes of
    zeros.
    """
    total = 0
    headers: dict[str, Shape] = {}
    expected = "an .npz file written by numpy.savez; a function, my_data.py:load; or a block"
    with guard.foreign(f"{path} cannot be read", expected=expected, told=str):
        do = "mend the path in config.yaml, or make the file"
        DataError.unless(path.exists(), f"{path} does not exist", do=do)
        with zipfile.ZipFile(path) as bundle:
            for name in bundle.namelist():
                with bundle.open(name) as member:
                    form = np.lib.format
                    version = form.read_magic(member)
                    first, later = form.read_array_header_1_0, form.read_array_header_2_0
                    shape, _, dtype = (first if version == (1, 0) else later)(member)
                    size = member.tell() + dtype.itemsize * math.prod(shape)
                    held = bundle.getinfo(name).file_size
                    if size != held and not dtype.hasobject:
                        raise ValueError(f"{name} promises {size} bytes and has {held}")
                    total += held
                    headers[name.removesuffix(".npy")] = (shape, dtype)
    limits.check(total, str(path))
    return headers


def read_arrays(path: Path, keys: Iterable[str]) -> dict[str, np.ndarray]:
    """Read arrays of an .npz file whose headers were read; pickled objects are refused, never
    loaded."""
    form = "for text use dtype 'U', for images one array, no lists of arrays"
    expected, do = "plain arrays without pickled objects", f"write the file again; {form}"
    with (
        guard.foreign(f"{path} cannot be read", expected=expected, do=do, told=str),
        np.load(path, allow_pickle=False) as bundle,
    ):
        return {key: bundle[key] for key in keys}


def _notes(path: Path, shapes: Mapping[str, Shape]) -> dict[str, Any]:
    """Return what a finished file says of its arrays, as ``Arrays`` and ``Header`` have it."""
    texts = {key for key, (shape, dtype) in shapes.items() if shape == () and dtype.kind == "U"}
    are_text = [key for key in (checks.UNIT, checks.LOADER, checks.CONTRACT) if key in texts]
    text = {key: str(value) for key, value in read_arrays(path, are_text).items()}
    known = json.loads(text.get(checks.CONTRACT, "{}"))
    return {
        "declared": checks.FOUND not in shapes,
        "contract": Contract(**{key: tuple(lines) for key, lines in known.items()}),
        "unit": text.get(checks.UNIT, "user"),
        "loader": text.get(checks.LOADER, ""),
    }


def _checked_shapes(path: Path, dataset: str | None) -> dict[str, Shape]:
    """Return ``array_shapes`` after ``checks.check_shapes``."""
    shapes = array_shapes(path)
    with located(str(path)):
        DataError.unless(shapes.keys() != {"data"}, pfllib.WHAT, do=pfllib.DO)
        checks.check_shapes(shapes, dataset)
    return shapes
