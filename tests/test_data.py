"""Data sets: the real readers on small files laid out as the originals, checked fetching, and every
refusal of bad arrays."""

import dataclasses
import functools
import gzip
import hashlib
import http.server
import io
import json
import pickle
import re
import socket
import sys
import tarfile
import threading
import zipfile
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import pooch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import malformed
import tabled
from called import called
from pflpipe.data import datasets, downloads, pins
from pflpipe.data.contract import STANDARDISED
from pflpipe.data.datasets import Header, arrays_from, describe, load_arrays, normalise, prepare
from pflpipe.errors import DataError

TABLES = tabled.table("test_data")

rng = np.random.default_rng(0)
GREY = rng.integers(0, 256, (12, 28, 28), dtype=np.uint8)
COLOUR = rng.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
LABELS = np.arange(12) % 10
TRAIN, TEST = slice(0, 8), slice(8, 12)


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def idx(values: np.ndarray, kind: int = 8) -> bytes:
    """The idx format of MNIST: magic (type 8 = uint8, 12 = int32, number of dimensions), sizes,
    numbers; big endian."""
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    plain = values.astype({8: ">u1", 12: ">i4"}[kind]).tobytes()
    return bytes([0, 0, kind, values.ndim]) + sizes + plain


def mnist_files(prefixes, images: np.ndarray, labels: np.ndarray) -> dict[str, bytes]:
    files = {}
    for prefix, part in zip(prefixes, (TRAIN, TEST), strict=True):
        files[f"{prefix}-images-idx3-ubyte"] = idx(images[part])
        files[f"{prefix}-labels-idx1-ubyte"] = idx(labels[part])
    return files


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def tar(files: dict[str, bytes], mode: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as bundle:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            bundle.addfile(member, io.BytesIO(content))
    return packed.getvalue()


# --- small originals, with torchvision's tables of digests set to theirs
# ---------------------------------


def mnist_original(monkeypatch, name):
    from torchvision import datasets

    cls = {"mnist": datasets.MNIST, "fashion_mnist": datasets.FashionMNIST}[name]
    files = mnist_files(("train", "t10k"), GREY, LABELS)
    plain = {f"{cls.__name__}/raw/{key}": value for key, value in files.items()}
    packed = {f"{key}.gz": gzip.compress(value) for key, value in plain.items()}
    digests = [(Path(key).name, md5(value)) for key, value in packed.items()]
    monkeypatch.setattr(cls, "resources", digests)
    return cls, plain, packed


def emnist_original(monkeypatch, name):
    from torchvision.datasets import EMNIST

    split = name.removeprefix("emnist_")
    prefixes, labels = (f"emnist-{split}-train", f"emnist-{split}-test"), LABELS
    plain = mnist_files(prefixes, GREY.swapaxes(1, 2), labels + (split == "letters"))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as bundle:
        for name, content in plain.items():
            bundle.writestr(f"gzip/{name}.gz", gzip.compress(content))
    monkeypatch.setattr(EMNIST, "md5", md5(packed.getvalue()))
    unpacked = {f"EMNIST/raw/{key}": value for key, value in plain.items()}
    return EMNIST, unpacked, {"EMNIST/raw/gzip.zip": packed.getvalue()}


def cifar_original(monkeypatch, name="cifar10"):
    from torchvision import datasets

    cls = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    key = {"cifar10": "labels", "cifar100": "fine_labels"}[name]
    flat = COLOUR.transpose(0, 3, 1, 2).reshape(12, -1)
    names = [file for file, _ in (*cls.train_list, *cls.test_list)]
    shares = [*np.array_split(np.arange(8), len(cls.train_list)), np.arange(8, 12)]
    plain = {}
    for file, rows in zip(names, shares, strict=True):
        content = {"data": flat[rows], key: LABELS[rows].tolist()}
        plain[f"{cls.base_folder}/{file}"] = pickle.dumps(content, protocol=2)
    meta = f"{cls.base_folder}/{cls.meta['filename']}"
    plain[meta] = pickle.dumps({cls.meta["key"]: ["a"] * 10})
    packed = {cls.filename: tar(plain, "w:gz")}
    digests = {Path(file).name: md5(content) for file, content in plain.items()}
    for part in ("train_list", "test_list"):
        monkeypatch.setattr(cls, part, [[file, digests[file]] for file, _ in getattr(cls, part)])
    monkeypatch.setattr(cls, "meta", {**cls.meta, "md5": digests[cls.meta["filename"]]})
    monkeypatch.setattr(cls, "tgz_md5", md5(packed[cls.filename]))
    return cls, plain, packed


def svhn_original(monkeypatch, name):
    from scipy.io import savemat
    from torchvision.datasets import SVHN

    plain, table = {}, {}
    for split, part in (("train", TRAIN), ("test", TEST)):
        file = io.BytesIO()
        labels = np.where(LABELS[part] == 0, 10, LABELS[part])  # SVHN writes the digit 0 as 10
        x, y = COLOUR[part].transpose(1, 2, 3, 0), labels[:, None].astype(np.uint8)
        savemat(file, {"X": x, "y": y})
        name = f"{split}_32x32.mat"
        plain[name] = file.getvalue()
        table[split] = [f"http://nowhere.invalid/{name}", name, md5(file.getvalue())]
    monkeypatch.setattr(SVHN, "split_list", table)
    return SVHN, plain, plain


GREYS = dict.fromkeys(("mnist", "fashion_mnist"), mnist_original)
GREYS |= dict.fromkeys(("emnist_letters", "emnist_digits"), emnist_original)
ORIGINALS = GREYS | dict.fromkeys(("cifar10", "cifar100"), cifar_original) | {"svhn": svhn_original}

TFF_WRITERS = {"f0001_10": [3, 61], "f0000_14": [0, 1, 2]}  # in no order, as a file may have them


def ink(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28), dtype=np.uint8)


def tff_files() -> dict[str, bytes]:
    files = {}
    for part, offset in (("train", 0), ("test", 10)):
        path = Path(f"{part}.h5")
        with h5py.File(path, "w") as file:
            for writer, labels in TFF_WRITERS.items():
                group = file.create_group(f"examples/{writer}")
                pixels = ink(labels[0] + offset, len(labels)).astype(np.float32)
                group["pixels"] = 1.0 - pixels / 255.0
                group["label"] = np.array(labels, dtype=np.int32)
        files[f"fed_emnist_{part}.h5"] = path.read_bytes()
    return files


def leaf_json(writers: dict[str, list[int]], offset: int) -> bytes:
    user_data = {}
    for writer, labels in writers.items():
        paper = 1.0 - ink(labels[0] + offset, len(labels)).reshape(len(labels), 784) / 255.0
        user_data[writer] = {"x": paper.tolist(), "y": labels}
    samples = [len(y) for y in writers.values()]
    found = {"users": list(writers), "num_samples": samples, "user_data": user_data}
    return json.dumps(found).encode()


pytestmark = pytest.mark.usefixtures("here")
DOWN, OUT = Path("down"), Path("out.npz")


@pytest.fixture
def no_network(monkeypatch):
    asked = mock.Mock(side_effect=AssertionError("the network was asked"))
    monkeypatch.setattr(pooch, "retrieve", asked)


def arrays_of(dataset: str, source: Path | None = None) -> datasets.Arrays:
    """The arrays that are made of the files of a data set."""
    prepare(dataset, source, DOWN, OUT)
    return load_arrays(OUT)


def assert_refused(words: str, dataset: str, source: Path | None = None) -> None:
    """Hold that no arrays are made of the files, and that one line says why."""
    with pytest.raises(DataError, match=words) as caught:
        prepare(dataset, source, DOWN, OUT)
    assert "\n" not in str(caught.value)
    assert not OUT.exists()


@pytest.fixture
def server(tmp_path):
    """A web server on this machine; returns its folder and its address."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield folder, f"http://127.0.0.1:{web.server_port}/"
        web.shutdown()
        thread.join()


def assert_is_the_original(dataset: str, source: Path | None = None) -> None:
    arrays, images = arrays_of(dataset, source), GREY if dataset in GREYS else COLOUR
    assert np.array_equal(arrays.train_images, images[TRAIN])
    assert np.array_equal(arrays.test_images, images[TEST])
    assert np.array_equal(arrays.train_labels, LABELS[TRAIN])
    assert np.array_equal(arrays.test_labels, LABELS[TEST])
    types = arrays.train_labels.dtype, arrays.train_images.dtype
    assert types == (np.int64, np.uint8)
    assert arrays.classes == datasets.DATASETS[dataset].classes


# --- originals
# -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", ORIGINALS)
@pytest.mark.parametrize("form", ["unpacked", "archives"])
def test_files_laid_out_as_torchvision_does_are_used_without_network(
    dataset, form, monkeypatch, no_network
):
    _, plain, packed = ORIGINALS[dataset](monkeypatch, dataset)
    write(DOWN, plain if form == "unpacked" else packed)
    before = sorted(DOWN.rglob("*"))
    assert_is_the_original(dataset)
    assert sorted(DOWN.rglob("*")) == before
    assert {file.name for file in Path().iterdir()} == {"down", "out.npz", "out.pin"}


@pytest.mark.parametrize("dataset", ["mnist", "emnist_letters", "cifar10", "svhn"])
def test_missing_originals_are_fetched_checked_and_kept(dataset, monkeypatch, server, capsys):
    cls, _, packed = ORIGINALS[dataset](monkeypatch, dataset)
    folder, address = server
    write(folder, {Path(name).name: content for name, content in packed.items()})
    if dataset == "mnist":  # the first mirror has nothing
        monkeypatch.setattr(cls, "mirrors", [f"{address}gone/", address])
    elif dataset == "svhn":
        served = {part: [address + row[1], *row[1:]] for part, row in cls.split_list.items()}
        monkeypatch.setattr(cls, "split_list", served)
    else:
        monkeypatch.setattr(cls, "url", address + Path(next(iter(packed))).name)
    assert_is_the_original(dataset)
    kept = {str(file.relative_to(DOWN)): file for file in DOWN.rglob("*") if file.is_file()}
    assert {name: file.read_bytes() for name, file in kept.items()} == packed
    assert f"downloading {address}" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"damaged"])
def test_a_damaged_download_is_refused_and_leaves_nothing(content, monkeypatch, server):
    cls, _, _ = cifar_original(monkeypatch)
    folder, address = server
    write(folder, {cls.filename: content})
    monkeypatch.setattr(cls, "url", address + cls.filename)
    assert_refused("digest differs", "cifar10")
    assert list(DOWN.iterdir()) == []


@pytest.mark.parametrize("dataset", [*ORIGINALS, "femnist"])
def test_without_network_the_error_says_in_one_line_what_to_put_where(dataset, monkeypatch):
    unreachable = mock.Mock(side_effect=OSError("Name or service not known"))
    monkeypatch.setattr(pooch, "retrieve", unreachable)
    told = f"{dataset}: .* cannot be downloaded; .* put .* into .*down"
    assert_refused(f"{told}.*datasets.{dataset} in config.yaml", dataset)


def test_a_silent_network_counts_as_absent(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, never answers
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        monkeypatch.setattr(downloads, "FEMNIST_URL", address)
        monkeypatch.setattr(downloads, "TIMEOUT", 0.05)
        assert_refused("timed out", "femnist")


def test_a_folder_as_source_is_read_and_never_written_or_filled(monkeypatch, no_network):
    _, _, packed = cifar_original(monkeypatch)
    source = write(Path("mine"), packed)
    assert_is_the_original("cifar10", source)
    assert [path.name for path in source.iterdir()] == list(packed)
    (source / "cifar-10-python.tar.gz").unlink()
    OUT.unlink()
    assert_refused("does not exist; put", "cifar10", source)
    assert not DOWN.exists()


@pytest.mark.parametrize("dataset", ["mnist", "cifar10", "svhn", "emnist_digits"])
@pytest.mark.parametrize("form", ["unpacked", "archives"])
def test_damaged_originals_are_named(dataset, form, monkeypatch, no_network):
    _, plain, packed = ORIGINALS[dataset](monkeypatch, dataset)
    files = plain if form == "unpacked" else packed
    name = max(files, key=lambda key: len(files[key]))
    write(DOWN, files | {name: files[name][:-40]})
    assert_refused(rf"{dataset}: .*(damaged|cannot be read).*remove", dataset)


def test_what_the_reader_of_an_original_says_is_told_whole(tmp_path):
    said = "torn " * 70

    def read(root: Path) -> downloads.Raw:
        raise ValueError(said)

    original = downloads.Original((), unpacked=Path.is_dir, read=read, layout="rows.bin")
    with pytest.raises(DataError, match=f"got 'ValueError: {said}'; expected rows.bin"):
        downloads.obtained("mine", original, tmp_path, tmp_path, may_download=False)


def test_a_folder_that_cannot_be_written_is_named():
    DOWN.write_text("")
    assert_refused("cannot be written to", "mnist")


# --- federated EMNIST
# ------------------------------------------------------------------------------------


def assert_is_femnist(arrays: datasets.Arrays) -> None:
    """Users are numbered in sorted order, f0000_14 first; their rows may be in any."""
    order = np.argsort(arrays.train_users, kind="stable")
    assert arrays.train_users[order].tolist() == [0, 0, 0, 1, 1]
    assert arrays.train_labels[order].tolist() == [0, 1, 2, 3, 61]
    images = np.concatenate([ink(0, 3), ink(3, 2)])
    assert np.array_equal(arrays.train_images[order], images), "bright"
    assert arrays.classes == 62


def test_femnist_is_read_from_the_files_of_tensorflow_federated(no_network):
    write(DOWN, tff_files())
    arrays = arrays_of("femnist")
    assert_is_femnist(arrays)
    assert arrays.train_users.tolist() == [0, 0, 0, 1, 1]
    assert np.array_equal(arrays.test_images, np.concatenate([ink(10, 3), ink(13, 2)]))


def test_femnist_is_fetched_and_read_from_its_archive(monkeypatch, server):
    folder, address = server
    archive = tar({f"folder/{name}": content for name, content in tff_files().items()}, "w:bz2")
    write(folder, {"fed_emnist.tar.bz2": archive})
    monkeypatch.setattr(downloads, "FEMNIST_URL", f"{address}fed_emnist.tar.bz2")
    assert_refused("digest differs from fe1ed5a502cea3a9", "femnist")
    monkeypatch.setattr(downloads, "FEMNIST_SHA256", hashlib.sha256(archive).hexdigest())
    assert_is_femnist(arrays_of("femnist"))


LEAF = [leaf_json({writer: labels}, 0) for writer, labels in TFF_WRITERS.items()]


@pytest.mark.parametrize("layout", ["all_data_{}.json", "all_data/all_data_{}.json"])
def test_femnist_is_read_from_leafs_json(layout, no_network):
    write(DOWN, {layout.format(i): part for i, part in enumerate(LEAF)})
    arrays = arrays_of("femnist", DOWN)
    labels = np.concatenate([arrays.train_labels, arrays.test_labels])
    assert sorted(labels.tolist()) == [0, 1, 2, 3, 61]
    # 20 % of each writer's rows: one of three, none of two
    assert arrays.test_users.tolist() == [0]


def test_femnist_is_read_from_leafs_json_with_a_test_set(no_network):
    files = {f"train/part_{i}.json": part for i, part in enumerate(LEAF)}
    write(DOWN, files | {"test/all.json": leaf_json(TFF_WRITERS, 10)})
    arrays = arrays_of("femnist", DOWN)
    assert_is_femnist(arrays)
    assert sorted(arrays.test_users.tolist()) == [0, 0, 0, 1, 1]


NO_CLASS = r"classes; got '(1.5 in 1 row|0.0 in 5 rows).*expected one of \[0, 1, 2,"
NO_INK = r"fed_emnist_test.h5: examples/f0000_14: pixels; .*expected 0 \(ink\) to 1"


def test_files_of_femnist_with_other_numbers_are_refused():
    """Labels that are no whole numbers, and pixels of another scale."""
    file = {"all_data_0.json": leaf_json({"f0000_14": [0, 1.5, 2]}, 0)}
    assert_refused(NO_CLASS, "femnist", write(Path("leaf"), file))
    for part, key, values, words in (
        ("train", "label", [0, 1.5, 2], NO_CLASS),
        ("test", "pixels", np.full((3, 28, 28), 255.0), NO_INK),
    ):
        write(DOWN, tff_files())
        with h5py.File(DOWN / f"fed_emnist_{part}.h5", "r+") as opened:
            del opened[f"examples/f0000_14/{key}"]
            opened[f"examples/f0000_14/{key}"] = values
        assert_refused(words, "femnist")


# --- digits and the fixed test set
# -----------------------------------------------------------------------


def test_digits_come_without_network_as_described(no_network):
    arrays = arrays_of("digits")
    assert arrays.test_images.shape == (359, 8, 8)
    assert arrays.train_images.dtype == np.uint8
    assert (arrays.train_images.max(), arrays.train_images.min()) == (255, 0)
    assert not DOWN.exists()
    read = datasets.read_header(OUT, "digits")
    assert describe("digits") == read == Header((8, 8, 1), 10, 1438, None)
    OUT.unlink()
    assert_refused("the folder", "digits", Path())


def test_the_fixed_test_set_is_stratified_disjoint_and_always_the_same():
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    images = np.arange(160, dtype=np.float32)[:, None]
    raw = {"train_images": images, "train_labels": labels}
    first, again = (arrays_from(raw, "mine", "mine") for _ in range(2))
    assert np.bincount(first.test_labels).tolist() == [20, 10, 2]
    whole = np.concatenate([first.train_images, first.test_images])
    assert np.array_equal(np.sort(whole, axis=0), images)
    assert np.array_equal(first.test_images, again.test_images)


def test_the_fixed_test_set_takes_a_fifth_of_every_user():
    users = np.array([f"user {i}" for i in np.repeat([3, 1, 2], [10, 20, 1])])
    x, y = np.zeros((31, 2), np.float32), np.arange(31) % 2
    raw = {"train_images": x, "train_labels": y, "train_users": users}
    arrays = arrays_from(raw, "mine", "mine")
    assert np.bincount(arrays.test_users, minlength=3).tolist() == [4, 0, 2]
    assert np.bincount(arrays.train_users).tolist() == [16, 1, 8]


def test_a_users_part_of_the_fixed_test_set_is_drawn_without_regard_to_class():
    """Class 0 is seen once by each of 1,000 users: it is set aside as often as other examples."""
    labels, users = np.tile([0] + [1] * 5 + [2] * 4, 1000), np.repeat(np.arange(1000), 10)
    x = np.zeros((10_000, 2), np.float32)
    raw = {"train_images": x, "train_labels": labels, "train_users": users}
    rate = (arrays_from(raw, "mine", "mine").test_labels == 0).sum() / 1000
    assert abs(rate - 0.2) < 4 * np.sqrt(0.2 * 0.8 / 1000)


# --- the user's own arrays
# -------------------------------------------------------------------------------


def own(**changes):
    """A fitting set of the user's own arrays, with changes; None removes."""
    arrays = malformed.arrays_of(TABLES["OWN"]) | changes
    return {key: value for key, value in arrays.items() if value is not None}


OWN = Path("own.npz")


def taken(arrays, name="mine"):
    """What is said of arrays before they are made, what is made of them, what is said of that, and
    what is printed."""
    np.savez(OWN, **arrays)
    before = describe(name, OWN)
    line = prepare(name, OWN, DOWN, OUT)
    return before, load_arrays(OUT), datasets.read_header(OUT), line


def test_own_npz_comes_through_with_users_numbered_in_sorted_order():
    before, arrays, after, _ = taken(own())
    assert before == after == Header((4, 4, 3), 3, 6, 3, declared=False)
    assert arrays.train_users.tolist() == [1, 0, 1, 0, 2, 2]
    assert arrays.test_users.tolist() == [2, 0, 0]
    assert arrays.test_labels.dtype == arrays.train_users.dtype == np.int64


OF_DIGITS = {"train_images": np.zeros((6, 8, 8), np.uint8), "test_images": None}
DECLARED = [("mine", {"classes": np.int64(count)}, True) for count in (3, 8)]
DECLARED += [("mine", {}, False), ("digits", OF_DIGITS | {"test_labels": None}, True)]


@pytest.mark.parametrize(("name", "changes", "declared"), DECLARED)
def test_a_data_set_knows_whether_its_number_of_classes_is_declared(name, changes, declared):
    """By its name, or by the arrays' key; before it is made, when it is made, and afterwards."""
    *found, _ = taken(own(**changes, train_users=None, test_users=None), name)
    assert [one.declared for one in found] == [declared] * 3


@pytest.mark.parametrize("name", datasets.DATASETS)
def test_the_package_declares_the_classes_of_the_data_sets_it_knows(name):
    assert describe(name).declared


SKEWED = np.random.default_rng(0).gamma(2.0, 3.0, (500, 3)).astype(np.float32)
EVEN = (SKEWED - SKEWED.mean(0)) / SKEWED.std(0)
SCALES = {
    "over all rows": (EVEN, True),
    "by pandas": ((SKEWED - SKEWED.mean(0)) / SKEWED.std(0, ddof=1), True),
    "over training rows": ((SKEWED - SKEWED[:400].mean(0)) / SKEWED[:400].std(0), True),
    "with a constant": (np.c_[EVEN, np.zeros(500)], True),
    "the channels of sequences": (EVEN.reshape(100, 5, 3), True),
    "all but one": (np.c_[EVEN, SKEWED[:, 0]], False),
    "by constants": ((SKEWED - 6) / 4, False),
    "constants alone": (np.zeros((500, 3)), False),
    "images": (np.zeros((500, 4, 4), np.uint8), False),
}


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("case", SCALES)
def test_a_data_set_knows_whether_its_rows_have_standardised_it(case, split):
    images, expected = SCALES[case]
    labels, first = np.arange(len(images)) % 3, len(images) * 4 // 5 if split else len(images)
    arrays = {"train_images": images[:first], "train_labels": labels[:first]}
    if split:
        arrays |= {"test_images": images[first:], "test_labels": labels[first:]}
    expected = expected and (split or case != "over training rows")
    _, *found, _ = taken(arrays)
    again = Path("again.npz")
    line = prepare("again", OUT, DOWN, again)
    assert line.endswith("not read: mean, std")
    for one in (*found, load_arrays(again)):
        assert (STANDARDISED in one.contract.warnings) == expected


def test_a_finished_file_under_another_name_declares_no_classes_that_were_found():
    again = arrays_of("again", prepared())
    assert (again.classes, again.declared) == (3, False)


def test_to_declare_the_classes_that_were_found_changes_no_value_of_a_pinned_name():
    first = prepared()
    pin = first.with_suffix(".pin").read_bytes()
    assert not load_arrays(first).declared
    assert load_arrays(prepared(classes=np.int64(3))).declared
    assert first.with_suffix(".pin").read_bytes() == pin


def test_a_user_with_test_rows_alone_is_a_user():
    before, arrays, after, _ = taken(own(test_users=np.array(["c", "aa", "z"])))
    assert before.users == after.users == 5
    assert arrays.train_users.tolist() == [2, 0, 2, 0, 3, 3]
    assert arrays.test_users.tolist() == [3, 1, 4]
    assert arrays.users.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.sampled_from("iuU"), st.integers(5, 60), st.integers(1, 5), st.integers(0, 9))
def test_header_equals_what_prepare_makes(tmp_path_factory, kind, size, count, seed):
    generator = np.random.default_rng(seed)
    users = generator.integers(0, count, size)
    raw = {
        "train_images": generator.normal(size=(size, 3)),
        "train_labels": np.append([0, 1], generator.integers(0, 4, size - 2)).astype(np.int8),
        "train_users": users.astype(str) if kind == "U" else users.astype(f"{kind}2"),
    }
    folder = tmp_path_factory.mktemp("header")
    np.savez(folder / "own.npz", **raw)
    try:
        prepare("mine", folder / "own.npz", folder, folder / "out.npz")
    except DataError as error:  # so few rows of each user that nothing can be set aside
        with pytest.raises(DataError, match=re.escape(str(error))):
            describe("mine", folder / "own.npz")
        return
    arrays = load_arrays(folder / "out.npz")
    sizes = arrays.classes, len(arrays.train_labels), len(np.unique(arrays.train_users))
    made = Header(arrays.train_images.shape[1:], *sizes, declared=False)
    assert describe("mine", folder / "own.npz") == made
    assert len(arrays.train_labels) + len(arrays.test_labels) == size
    assert arrays.train_images.dtype == np.float32


FLOATS = np.zeros((6, 5), np.float32)
BAD = tabled.table("bad_arrays")
BAD_INSIDE = {  # what a header cannot tell
    "NaN": (np.where(np.eye(6, 5) > 0, np.nan, FLOATS), "NaN.*in 5 rows, the first 0"),
    "infinity": (np.where(np.arange(6)[:, None] == 4, np.inf, FLOATS), "in 1 row, the first 4"),
    "beyond float32": (np.full((6, 5), 1e300), "beyond float32"),
    "too few rows for a test set": (FLOATS[:2], "test set"),
}


def assert_own_are_refused(words: str) -> None:
    """Hold that own.npz is refused in the same line before any job and in the job."""
    with pytest.raises(DataError, match=words) as before:
        describe("mine", OWN)
    assert "own.npz" in str(before.value)
    assert_refused(f"^{re.escape(str(before.value))}$", "mine", OWN)


@pytest.mark.parametrize("case", BAD)
def test_bad_arrays_are_refused_before_any_job_and_in_the_job(case):
    np.savez(OWN, **own(**malformed.arrays_of(BAD[case]["arrays"])))
    assert_own_are_refused(BAD[case]["words"])


@pytest.mark.parametrize("case", BAD_INSIDE)
def test_features_must_be_finite_and_enough_for_a_test_set(case):
    features, words = BAD_INSIDE[case]
    labels = np.arange(len(features)) % 2
    with pytest.raises(DataError, match=words):
        arrays_from({"train_images": features, "train_labels": labels}, "mine.npz", "mine")


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 torn"])
def test_what_is_not_an_npz_is_named(content):
    OWN.write_bytes(content)
    assert_own_are_refused(r"own\.npz cannot be read")


def test_a_torn_npz_is_named():
    pictures = own(train_images=COLOUR[:6], test_images=COLOUR[:3])
    np.savez_compressed(OWN, **pictures)
    content = bytearray(OWN.read_bytes())
    content[2000:2100] = bytes(100)  # in the middle of the compressed training images
    OWN.write_bytes(content)
    assert_refused(r"own\.npz cannot be read", "mine", OWN)


def test_a_missing_source_or_an_unknown_name_says_what_to_do():
    words = r"nowhere.npz does not exist; mend the path in config\.yaml"
    with pytest.raises(DataError, match=words):
        describe("mine", Path("nowhere.npz"))
    with pytest.raises(DataError, match=r"did you mean 'cifar10'.*datasets\.cifer10"):
        describe("cifer10")
    assert_refused("'mine' is not known", "mine", Path())


@pytest.mark.parametrize("name", ["cifar10", "digits"])
def test_a_known_name_pointed_at_a_file_keeps_its_classes_and_image_shape(name):
    shape = datasets.DATASETS[name].image_shape
    fitting = {"train_images": np.zeros((8, *shape), np.uint8), "train_labels": np.arange(8)}
    before, arrays, *_ = taken(fitting, name)
    assert before.classes == arrays.classes == 10  # although label 9 does not occur
    for changes, words in (
        ({"train_labels": np.full(8, 10)}, "expected 0 to 9"),
        ({"train_images": np.zeros((8, 5, 5), np.uint8)}, f"as {name} has"),
    ):
        np.savez(OWN, **fitting | changes)
        with pytest.raises(DataError, match=words):
            describe(name, OWN)


def test_an_unfinished_data_file_is_not_taken_for_a_finished_one():
    np.savez(OWN, train_images=FLOATS, train_labels=np.arange(6) % 2)
    with pytest.raises(DataError, match=r"classes is missing.*workflow/scripts/data\.py"):
        load_arrays(OWN)


@pytest.mark.parametrize("key", ["train_images", "train_labels", "test_users", "classes"])
def test_pickled_objects_are_refused_and_never_loaded(key):
    np.savez(OWN, **own() | {key: BOMBS})
    assert_own_are_refused(f"{key}; got 'an array of Python objects")
    assert not EXPLODED.exists()


def test_other_arrays_in_the_file_are_named_and_not_read():
    more = {"notes": BOMBS, "mean": np.zeros(3)}
    before, _, after, line = taken(own() | more)
    assert line.endswith("; not read: mean, notes")
    assert before == after
    assert not EXPLODED.exists()


EXPLODED = Path("exploded")


class Bomb:
    """What makes a file when it is unpickled."""

    def __reduce__(self):
        return (Path.touch, (EXPLODED,))


BOMBS = np.array([Bomb()] * 6, dtype=object)


# --- a name keeps its values
# -----------------------------------------------------------------------------


MINE = Path("data/mine.npz")


def prepared(**changes) -> Path:
    """Prepare the data set ``mine`` from the user's own arrays with changes."""
    np.savez(OWN, **own(**changes))
    prepare("mine", OWN, DOWN, MINE)
    return MINE


def assert_have_other_values(**changes) -> None:
    """Hold that the arrays with changes are refused under the name that others have."""
    with pytest.raises(DataError, match="other values"):
        prepared(**changes)


OTHER_VALUES = {n: malformed.arrays_of(case) for n, case in tabled.table("other_arrays").items()}
PIXEL = np.eye(1, 6 * 48, dtype=np.uint8).reshape(6, 4, 4, 3)
OTHER_VALUES |= {"a pixel": {"train_images": PIXEL}, "a test pixel": {"test_images": PIXEL[:3]}}


@pytest.mark.parametrize("case", OTHER_VALUES)
def test_other_values_under_an_old_name_are_refused_and_overwrite_nothing(case):
    """They would be released under the noise of the first ones, and the difference would have
    none."""
    target = prepared()
    before = {path.name: path.read_bytes() for path in target.parent.iterdir()}
    assert set(before) == {"mine.npz", "mine.pin"}
    words = r"data set 'mine' has other values.*mine\.pin; give .* a name of their own"
    with pytest.raises(DataError, match=words) as caught:
        prepared(**OTHER_VALUES[case])
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(f"delete {target.with_suffix('.pin')}")
    assert {path.name: path.read_bytes() for path in target.parent.iterdir()} == before
    target.unlink()  # Snakemake deletes the output of a job before it, and never the pin
    assert_have_other_values(**OTHER_VALUES[case])
    assert [path.name for path in target.parent.iterdir()] == ["mine.pin"]
    prepared()
    assert target.read_bytes() == before["mine.npz"]


def test_the_same_values_are_taken_again_however_their_file_is_written(capfd):
    features = rng.normal(size=(6, 300)).astype(np.float32)
    changes = {"train_images": features, "test_images": features[:3]}
    prepared(**changes)
    pin = MINE.with_suffix(".pin")
    before = pin.read_bytes(), pin.stat().st_mtime_ns
    turned = {
        "train_images": np.asfortranarray(features.astype(np.float64)),
        "train_labels": own()["train_labels"].astype(np.int8),
        # the same users by other ids in the same order
        "train_users": np.array([5, 3, 5, 3, 9, 9]),
        "test_users": np.array([9, 3, 3]),
        "notes": np.zeros(3),
    }
    np.savez_compressed(OWN, **dict(reversed(own(**changes | turned).items())))
    prepare("mine", OWN, DOWN, MINE)
    assert (pin.read_bytes(), pin.stat().st_mtime_ns) == before
    assert capfd.readouterr() == ("", "")


def test_the_digest_does_not_depend_on_how_much_is_copied_at_once(monkeypatch):
    prepared()
    for size in (1, 48, 100):
        monkeypatch.setattr(pins, "COPIED", size)
        prepared()
        assert_have_other_values(**OTHER_VALUES["a test pixel"])


def test_a_new_name_or_a_deleted_pin_admits_new_values():
    target = prepared()
    np.savez(OWN, **own(**OTHER_VALUES["a label"]))
    prepare("mine_2", OWN, DOWN, target.with_name("mine_2.npz"))
    target.with_suffix(".pin").unlink()
    prepared(**OTHER_VALUES["a label"])
    assert load_arrays(target).train_labels.tolist() == [0, 1, 2, 0, 1, 1]
    assert_have_other_values()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"0" * 64])
def test_a_damaged_pin_admits_nothing(content):
    target = prepared()
    target.with_suffix(".pin").write_bytes(content)
    assert_have_other_values()


def test_no_data_are_there_without_their_pin(monkeypatch):
    """A job that is killed between the two must not leave values that a run can use and no pin
    holds to."""
    np.savez_compressed(OWN, **own())
    monkeypatch.setattr(datasets.np, "savez", mock.Mock(side_effect=OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        prepare("mine", OWN, DOWN, MINE)
    assert [path.name for path in MINE.parent.iterdir()] == ["mine.pin"]


# --- normalise
# -------------------------------------------------------------------------------------------


def scale(name: str) -> tuple:
    """Return mean and std as a prepared file of the data set has them."""
    shape = datasets.DATASETS[name].image_shape if name in datasets.DATASETS else (1, 1)
    x, y = np.zeros((10, *shape), np.uint8), np.arange(10) % 2
    made = arrays_from({"train_images": x, "train_labels": y}, "x", name)
    return made.mean, made.std


def test_normalise_gives_channels_last_floats_with_the_constants_of_the_data_set():
    white = np.full((2, 32, 32, 3), 255, np.uint8)
    expected = (1 - np.array([0.4914, 0.4822, 0.4465])) / np.array([0.2023, 0.1994, 0.2010])
    assert normalise(white, *scale("cifar10")).dtype == np.float32
    assert np.allclose(normalise(white, *scale("cifar10"))[1, 5, 5], expected)
    black = np.zeros((1, 28, 28), np.uint8)
    assert np.allclose(normalise(black, *scale("femnist")), -0.1307 / 0.3081)
    for name, low in (("svhn", -1.0), ("mnist", -1.0), ("mine", -1.0), ("digits", 0.0)):
        scaled = normalise(np.array([[[0, 255]]], np.uint8), *scale(name))
        assert scaled.shape == (1, 1, 2, 1)
        assert scaled.ravel().tolist() == [low, 1.0]
    features = rng.normal(size=(3, 5)).astype(np.float32)
    assert normalise(features, *scale("mine")) is features


# --- the whole
# -------------------------------------------------------------------------------------------


def test_reading_data_and_partitions_needs_numpy_only():
    heavy = ("torch", "torchvision", "sklearn", "scipy", "h5py", "mlflow", "pandas")
    code = "import sys, pflpipe.data.datasets, pflpipe.data.partition\n"
    code += f"sys.exit(', '.join(m for m in {heavy} if m in sys.modules) or None)"
    assert called(sys.executable, "-c", code).stderr == ""


# --- a function that returns the arrays
# -------------------------------------------------------------------------------

LOADER = 'import numpy as np\n\n\ndef load():\n    return dict(np.load("own.npz"))\n'


@pytest.fixture
def loader():
    """A folder with own.npz, my_data.py, which returns its arrays, and a way to write another."""
    np.savez(OWN, **own())

    def write(text=LOADER):
        Path("my_data.py").write_text(text)
        return Path("my_data.py:load")

    write()
    return write


def test_a_function_gives_the_same_data_and_pin_as_a_file_with_its_arrays(loader):
    prepare("mine", Path("own.npz"), Path(), Path("file/mine.npz"))
    prepare("mine", loader(), Path(), Path("function/mine.npz"))
    assert Path("file/mine.pin").read_bytes() == Path("function/mine.pin").read_bytes()
    file, function = (dict(np.load(f"{folder}/mine.npz")) for folder in ("file", "function"))
    name, digest = str(function.pop("loader")).split()
    assert (name, len(digest)) == ("my_data.py:load", 64), "which the ledger and the table name"
    assert file.keys() == function.keys()
    assert all(np.array_equal(file[key], function[key]) for key in file)


def test_a_function_with_other_values_is_refused_and_one_written_otherwise_is_not(loader):
    prepare("mine", loader(), Path(), MINE)
    before = MINE.read_bytes()
    prepare("mine", loader(LOADER.replace("def load", "# the same\ndef load")), Path(), MINE)
    assert MINE.read_bytes() == before
    changed = LOADER.replace('npz"))', 'npz"), classes=4)')
    with pytest.raises(DataError, match="data set 'mine' has other values"):
        prepare("mine", loader(changed), Path(), MINE)
    assert MINE.read_bytes() == before


def test_a_function_is_not_run_to_be_described_and_its_data_are_once_they_are_made(loader):
    source, target = loader("raise SystemError\n\n\ndef load(): ...\n"), Path("data/mine.npz")
    assert describe("mine", source, target) is None
    assert datasets.source_file(source) == Path("my_data.py")
    prepare("mine", loader(), Path(), target)
    header = describe("mine", source, target)
    assert header.loader.startswith("my_data.py:load ")
    made = dataclasses.replace(header, loader="")
    assert made == Header((4, 4, 3), 3, 6, 3, declared=False)
    assert list(Path().glob("__pycache__")) == []


@pytest.mark.parametrize("case", tabled.table("bad_programs"), ids=lambda case: case["text"])
def test_what_a_function_cannot_give_is_told_in_one_line(loader, case):
    assert_refused(case["words"], "mine", loader(case["text"] + "\n"))


@pytest.mark.parametrize(("start", "code"), [("", "utf-8-sig"), ("# coding: latin-1\n", "latin-1")])
def test_a_file_is_read_in_the_encoding_in_which_python_reads_it(start, code, loader):
    source = loader()
    Path("my_data.py").write_bytes(f"{start}{LOADER}# Zoë\n".encode(code))
    assert describe("mine", source) is None
    prepare("mine", source, Path(), Path("data/mine.npz"))


KINDS = TABLES["KINDS"]


@pytest.mark.parametrize(("words", "shape"), KINDS.items(), ids=KINDS)
def test_a_line_says_what_arrays_were_taken_for(words, shape):
    images, rows = np.zeros(shape, "u1" if "images" in words else "f8"), np.arange(shape[0])
    arrays = {"train_images": images, "train_labels": rows % 10}
    arrays |= {"train_users": rows // 10} if "users" in words else {}
    arrays |= {} if "from the labels" in words else {"classes": 10}
    assert taken(arrays)[-1] == f"mine: {words}"


def test_a_missing_file_of_a_function_is_told_before_any_job(loader):
    for call in (describe, lambda name, source: prepare(name, source, Path(), Path("d/m.npz"))):
        with pytest.raises(DataError, match=r"nowhere\.py: no such file; mend the path"):
            call("mine", Path("nowhere.py:load"))
