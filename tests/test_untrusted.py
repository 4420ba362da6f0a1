"""Arrays and archives from elsewhere: nothing is allocated, written or run because a file says
so."""

import io
import itertools
import struct
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tabled
from pflpipe.data import datasets, downloads, limits
from pflpipe.errors import ConfigError, DataError
from pflpipe.study import documents


def npy(shape: tuple[int, ...], dtype: str, content: bytes = b"") -> bytes:
    """An array of the file format of NumPy 1.0 whose header promises this."""
    words = str({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    words += b" " * (-(10 + len(words) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(words)) + words + content


def archive(path: Path, kind: int = zipfile.ZIP_STORED, **members: bytes) -> Path:
    """An .npz of one good data set and these members."""
    images, labels = npy((60, 4, 4), "|u1", bytes(960)), npy((60,), "|u1", bytes(range(3)) * 20)
    good = {"train_images": images, "train_labels": labels}
    with zipfile.ZipFile(path, "w", kind) as bundle:
        for name, content in (good | members).items():
            bundle.writestr(f"{name}.npy", content)
    return path


PICKLE = b"cos\nsystem\n(S'touch pwned'\ntR."


PROMISES = [
    ({"train_labels": npy((10**12,), "<i8")}, "train_labels.npy promises 8000000000"),
    ({"train_images": npy((10**12, 4, 4), "|u1")}, "train_images.npy promises 16000000000"),
    ({"more": npy((10**12,), "<i8")}, "more.npy promises 8000000000"),
    ({"train_labels": npy((60,), "<i8", bytes(8))}, "train_labels.npy promises"),
    ({"train_labels": npy((60,), "|u1", bytes(10**5))}, "and has 100128"),
    ({"train_labels": npy((60, -1), "|u1")}, "mine.npz"),
    ({"train_labels": npy((60,), "|O", PICKLE)}, "Python objects"),
    ({"inner": b"PK\x03\x04 an archive in the archive"}, "magic string"),
    ({"long": b"\x93NUMPY\x02\x00" + struct.pack("<I", 10**6) + b" " * 10**6}, "mine.npz"),
]


@pytest.mark.parametrize(("members", "words"), PROMISES)
def test_what_a_header_promises_is_not_allocated(members, words, here):
    path = archive(here / "mine.npz", **members)
    for read in (
        lambda: datasets.read_header(path),
        lambda: datasets.prepare("mine", path, here, here / "made.npz"),
        lambda: datasets.load_arrays(path),
    ):
        with pytest.raises(DataError) as refused:
            read()
        assert words in str(refused.value)
        assert "\n" not in str(refused.value)
    assert [file.name for file in here.iterdir()] == ["mine.npz"]


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_bomb_is_refused_by_its_size_before_it_is_unpacked(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "most", lambda: 10**5)
    zeros = npy((10**5, 4, 1), "|u1", bytes(4 * 10**5))
    path = archive(tmp_path / "mine.npz", kind, train_images=zeros)
    assert path.stat().st_size < 20_000
    with pytest.raises(DataError, match=r"is too large; .*half of this machine"):
        datasets.read_header(path)


def test_the_limit_is_half_of_the_memory_of_this_machine():
    pages = Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]
    assert limits.most() == pytest.approx(int(pages) * 1024 / 2, rel=0.01)


def member(name: str, kind: str = "REGTYPE", link: str = "") -> tuple[Any, bytes]:
    about, content = tarfile.TarInfo(name), b"written" if kind == "REGTYPE" else b""
    about.type, about.linkname, about.size = getattr(tarfile, kind), link, len(content)
    return about, content


@pytest.mark.parametrize("members", tabled.table("test_untrusted"), ids=str)
def test_no_member_of_an_archive_leaves_the_folder_or_is_no_file(members, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    with tarfile.open(tmp_path / "it.tar", "w") as tar:
        for about, content in itertools.starmap(member, members):
            about.name = about.name.format(outside=tmp_path / "outside")
            about.linkname = about.linkname.format(outside=tmp_path / "outside")
            tar.addfile(about, io.BytesIO(content))
    it = downloads.Archive((), "it.tar", "")
    original = downloads.Original((it,), lambda _: False, lambda _: {}, "it.tar")
    if members == [["{outside}"]]:  # an absolute path is taken as one below the folder
        downloads._read("it", original, tmp_path, work)
    else:
        with pytest.raises(DataError, match=r"it: the files in .* cannot be read"):
            downloads._read("it", original, tmp_path, work)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["it.tar", "work"]
    assert not any(path.is_symlink() or path.is_fifo() for path in work.rglob("*"))


def test_the_one_archive_without_a_digest_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "WISDM_BYTES", 1000)
    about = tarfile.TarInfo(downloads.WISDM_FILE)
    about.size = 1001
    with tarfile.open(tmp_path / downloads.WISDM_ARCHIVES[0], "w:gz") as tar:
        tar.addfile(about, io.BytesIO(bytes(1001)))
    with pytest.raises(DataError, match="has more than 1000 bytes"):
        datasets.prepare("wisdm", tmp_path, tmp_path, tmp_path / "wisdm.npz")


@pytest.mark.parametrize("limit", [1000, 30_000])
def test_nesting_is_refused_whatever_the_interpreter_would_bear(limit, tmp_path):
    (tmp_path / "deep.yaml").write_text("[" * 5000)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, before))
    try:
        with pytest.raises(ConfigError, match="nested too deep"):
            documents.read_yaml(tmp_path / "deep.yaml")
    finally:
        sys.setrecursionlimit(before)


def test_merged_aliases_are_counted_before_they_are_merged(tmp_path):
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    (tmp_path / "a.yaml").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="more than 100000 values"):
        documents.read_yaml(tmp_path / "a.yaml")


def test_a_data_set_with_other_values_than_its_pin_is_not_trained_on(tmp_path):
    made = tmp_path / "made.npz"
    datasets.prepare("mine", archive(tmp_path / "mine.npz"), tmp_path, made)
    whole = datasets.load_arrays(made)
    images = whole.train_images.copy()
    images[0, 0, 0] += 1
    np.savez(made, **{**np.load(made), "train_images": images})
    with pytest.raises(DataError, match=r"made\.npz has other values than were written; remove it"):
        datasets.load_arrays(made)
