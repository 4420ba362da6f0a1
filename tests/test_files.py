"""Files appear whole or not at all."""

import math
import os

import pytest

from pflpipe import files
from pflpipe.errors import DataError
from pflpipe.files import atomic, intact, read_json, with_digest, write_json, write_text


def test_a_reader_of_the_old_file_never_sees_half_of_the_new_one(tmp_path):
    target = tmp_path / "table.csv"
    write_text(target, "old")
    with open(target) as reader:
        write_text(target, "new")
        assert reader.read() == "old"
    assert target.read_text() == "new"


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "table.csv"
    write_text(target, "old")

    def fail() -> None:
        with atomic(target) as path:
            path.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_temporary_file_has_the_suffix_and_the_file_the_mode_that_the_umask_leaves(tmp_path):
    umask = os.umask(0o027)
    try:
        with atomic(tmp_path / "new" / "arrays.npz") as path:
            assert path.suffix == ".npz"
            assert path.parent == tmp_path / "new"
            path.write_bytes(b"1")
    finally:
        os.umask(umask)
    assert (tmp_path / "new" / "arrays.npz").stat().st_mode & 0o777 == 0o640


def test_json_has_one_spelling_and_comes_back(tmp_path):
    assert files.canonical_json({"b": 1, "a": [1.5, None]}) == '{"a":[1.5,null],"b":1}'
    write_json(tmp_path / "a.json", {"b": "inf", "a": 1})
    assert read_json(tmp_path / "a.json") == {"a": 1, "b": "inf"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"a": math.nan})
    assert read_json(tmp_path / "a.json") == {"a": 1, "b": "inf"}


def test_csvs_are_joined_to_what_would_have_been_written_at_once(tmp_path):
    texts = ["a,b\n1,x\n2,\n", "a,b\n3,y\n"]
    parts = [tmp_path / "one.csv", tmp_path / "two.csv"]
    for part, text in zip(parts, texts, strict=True):
        write_text(part, with_digest(text))
    joined = tmp_path / "joined.csv"
    files.write_joined(joined, parts)
    assert joined.read_text() == with_digest("a,b\n1,x\n2,\n3,y\n")
    assert intact(joined) == joined
    # The name of the column is no digest.
    joined.write_text(joined.read_text().rpartition(",")[0] + ",sha256\n")
    with pytest.raises(DataError, match="other values than were written"):
        intact(joined)
    parts[1].write_text(parts[1].read_text().replace("y", "z"))
    with pytest.raises(DataError, match=r"two\.csv is damaged"):
        files.write_joined(joined, parts)
