"""Columns of a table become features by what is declared of them: missing values, dates, texts and
columns that are left out."""

import io
import sys
import types
import unicodedata
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest

import malformed
import pflpipe
import tabled
from pflpipe.data import blocks, sources
from pflpipe.data.datasets import Arrays, load_arrays
from pflpipe.errors import DataError, PflpipeError

pytestmark = pytest.mark.usefixtures("here")
TABLES = tabled.table("test_columns")

PEOPLE = ["ann", "bo", "cy"]
ROWS = 10
BLOCK = TABLES["BLOCK"]
HOLES = (2, 5)


def table() -> pd.DataFrame:
    """Ten rows of each person; ann and bo have no age and no city in two, cy has none at all."""
    rows = range(len(PEOPLE) * ROWS)
    ages = [str(20 + 7 * (row % 10) + row // 10) for row in rows]
    cities = [["Rome", "Turin", "Turin"][row % 3] for row in rows]
    made = pd.DataFrame({"person": np.repeat(PEOPLE, ROWS), "age": ages, "city": cities})
    made["y"] = np.arange(len(rows)) % 2
    for start in (0, ROWS):
        made.loc[[start + hole for hole in HOLES], ["age", "city"]] = ["NA", ""]
    made.loc[2 * ROWS :, ["age", "city"]] = ""
    return made


def prepared(name: str, made: pd.DataFrame, **changes: object) -> tuple[str, Arrays]:
    """The line about a table, and its arrays, made in a folder of this name."""
    made.to_csv("rows.csv", index=False)
    target = Path(name) / "mine.npz"  # the test rows depend on the name of the data set
    line = sources.prepare("mine", BLOCK | changes, Path("downloads"), target)
    return line, load_arrays(target)


def features_of(arrays: Arrays) -> np.ndarray:
    return np.concatenate([arrays.train_images, arrays.test_images])


def clients_of(frame: pd.DataFrame, **layout: object) -> list[tuple[np.ndarray, np.ndarray]]:
    return pflpipe.clients_of(frame, **{"user": "person", "label": "y", "classes": 2} | layout)


def with_ages(made: pd.DataFrame) -> pd.DataFrame:
    """The rows with a number of their own, by which they are found again."""
    return made.assign(row=np.arange(len(made)))


@pytest.mark.parametrize("rule", ["median", "most_frequent"])
def test_a_missing_value_is_what_follows_from_the_persons_own_training_rows(rule):
    made = with_ages(table())
    made.loc[ROWS : ROWS + 4, "age"] = "31"  # the most frequent one of bo
    _, arrays = prepared("mine", made, missing={"age": rule, "city": "most_frequent"})
    made["scaled"] = pd.to_numeric(made["age"], errors="coerce") / 50 - 1
    for person in range(3):
        train = arrays.train_images[arrays.train_users == person]
        every = np.concatenate([train, arrays.test_images[arrays.test_users == person]])
        own, known = (made.iloc[rows[:, -1].astype(int)] for rows in (train, every))
        expected, word = 0, np.zeros(3)
        if person < 2:
            ages, cities = own["scaled"], own["city"][own["city"] != ""]
            expected = ages.median() if rule == "median" else ages.mode()[0]
            word = np.array(["Oslo", "Rome", "Turin"]) == cities.mode()[0]
        np.testing.assert_allclose(every[:, 0], known["scaled"].fillna(expected), rtol=1e-6)
        missing = (known["city"] == "").to_numpy()
        assert (every[missing, 1:-1] == word).all()
        assert missing.sum() == (2 if person < 2 else ROWS)


def test_the_rows_of_one_person_change_the_features_of_no_other():
    made = with_ages(table())
    _, first = prepared("first", made, missing="median")
    made.loc[:2, ["age", "city"]] = ["99", "Oslo"]
    _, second = prepared("first_2", made, missing="median")
    tables = map(features_of, (first, second))
    by_row = [dict(zip(rows[:, -1].astype(int), rows.tolist(), strict=True)) for rows in tables]
    changed = {row for row, values in by_row[0].items() if by_row[1][row] != values}
    assert changed
    assert changed <= set(range(ROWS))


def test_a_declared_value_or_an_indicator_stands_for_a_missing_one():
    rules = {"age": 40, "city": "Oslo"}
    line, arrays = prepared("value", with_ages(table()), missing=rules)
    rows = features_of(arrays).tolist()
    filled = {(*values,) for *values, row in rows if row % ROWS in HOLES}
    assert filled == {(np.float32(-0.2).item(), 1.0, 0.0, 0.0)}
    line, arrays = prepared("mark", with_ages(table()), missing="indicator")
    names = "age (0 to 100), age missing, city (one of 3), city missing, row, row missing"
    assert line.endswith(f"features {names}")
    for age, missing, *city, no_city, row, _ in features_of(arrays).tolist():
        is_missing = row >= 2 * ROWS or row % ROWS in HOLES
        assert missing == no_city == is_missing
        assert is_missing == (not any(city))
        assert not is_missing or age == 0


def test_without_users_nothing_is_fitted_and_frames_know_no_test_rows():
    frame = table()
    without = {key: value for key, value in BLOCK.items() if key != "user"}
    for rule in ("median", {"city": "most_frequent"}):
        with pytest.raises(DataError, match=r"missing; got .*; write user: as well, or a value"):
            blocks.check(without | {"missing": rule})
    layout = {key: BLOCK[key] for key in ("classes", "ranges", "vocabularies")}
    with pytest.raises(DataError, match=r"missing; got 'median'; write a value or indicator"):
        clients_of(frame, missing="median", **layout)
    clients = clients_of(frame, missing="indicator", **layout)
    assert clients[0][0].shape == (ROWS, 6)


def test_dates_become_their_declared_parts():
    made = table()[["person", "y"]]
    made["visit"] = pd.date_range("2020-02-27 05:00", periods=len(made), freq="25h").astype(str)
    parts = {"visit": ["year", "month", "weekday", "hour"]}
    ranges = {"visit.year": [2000, 2040]}
    line, arrays = prepared("dates", made, vocabularies={}, dates=parts, ranges=ranges)
    assert line.endswith(TABLES["OF_DATES"])
    days = pd.to_datetime(made["visit"])
    expected = {
        (0.0, (d.month - 1) / 5.5 - 1, d.weekday() / 3 - 1, d.hour / 11.5 - 1) for d in days
    }
    found = features_of(arrays).tolist()
    assert np.allclose(sorted(map(tuple, found)), sorted(expected), atol=1e-6)


def test_texts_beside_numbers_become_their_words_and_columns_are_left_out():
    made = table()[["person", "y"]]
    made["note"] = ["Good day!", "a bad, bad day", ""] * 10
    made["age"], made["id"] = np.arange(30), np.arange(30)
    rest = {"ranges": {}, "vocabularies": {}, "exclude": ["id"]}
    line, arrays = prepared("texts", made, texts={"note": ["good", "bad", "day"]}, **rest)
    assert line.endswith("features note (words of 3), age; left out id")
    words = [[1, 0, 1], [0, 1, 1], [0, 0, 0]]
    assert sorted(features_of(arrays).tolist()) == sorted([*words[i % 3], i] for i in range(30))
    Path("words.txt").write_text("good\nbad\nday\n")
    _, again = prepared("texts_2", made, texts={"note": "words.txt"}, **rest)
    assert np.array_equal(again.train_images, arrays.train_images)
    rest["exclude"] = ["id", "age"]
    line, arrays = prepared("hashed", made, texts={"note": 8}, **rest)
    assert line.endswith("features note (words hashed to 8); left out age, id")
    lengths = np.linalg.norm(arrays.train_images, axis=1)
    assert set(np.round(lengths, 5)) == {0, 1}
    assert len(np.unique(arrays.train_images, axis=0)) == 3
    _, part = prepared("part", made[:9], texts={"note": 8}, **rest)
    assert np.isin(part.train_images, arrays.train_images).all()


def problems(name: str, made: pd.DataFrame, **changes: object) -> list[str]:
    with pytest.raises(PflpipeError) as refused:
        prepared(name, made, **changes)
    return str(refused.value).split("\nerror: ")


def test_all_problems_of_a_file_are_said_at_once():
    made = table()
    made["visit"] = "2020-01-01"
    made["note"] = [f"text {'of many words ' * 20}{row}" for row in range(30)]
    made.loc[4, "age"] = "old"
    made["y"] = made["y"].replace({1: 7})
    made = pd.concat([made, made.assign(note=made["note"] + "!")], ignore_index=True)
    lines = problems("bad", made, classes=[0, 1])
    assert all(line.startswith("rows.csv") for line in lines)
    for part, line in zip(TABLES["PROBLEMS"], lines, strict=True):
        assert part in line
    lines = problems("words", table(), vocabularies={}, ranges={})
    assert 'write vocabularies: {city: ["Rome", "Turin"]}, or' in lines[0]
    assert "write missing: {age: median, city: most_frequent} (or" in lines[1]


def test_problems_of_many_columns_are_said_on_a_screen():
    wide = pd.DataFrame({f"c{i}": [f"word {row}" for row in range(9)] for i in range(60)})
    wide = wide.assign(person="a", y=0, **{f"d{i}": "" for i in range(60)})
    text = "\nerror: ".join(problems("wide", wide, vocabularies={}, ranges={"z": [0, 1]}))
    assert len(text) < 24 * 80 * 2
    assert text.count("and 50 more") == 2


def test_a_missing_text_of_a_frame_shortens_no_other():
    frame = table()[["person", "y"]].assign(note=["good", None, "bad"] * 10)
    clients = clients_of(frame, texts={"note": ["good", "bad"]})
    assert clients[0][0][:3].tolist() == [[1, 0], [0, 0], [0, 1]]
    clients = clients_of(frame, missing="indicator", vocabularies={"note": ["good", "bad"]})
    assert clients[0][0][:3].tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_labels_of_a_table_need_not_be_written_as_their_declaration_is():
    made = table()[["person", "y"]].assign(age=np.arange(30))
    none = {"vocabularies": {}}
    _, whole = prepared("whole", made, **none)
    _, point = prepared("point", made.assign(y=made["y"].astype(float)), **none)
    assert np.array_equal(whole.train_labels, point.train_labels)
    with pytest.raises(DataError, match=r"write classes: \[0, 1\]"):
        prepared("none", made.assign(y=made["y"].astype(float)), classes=None, **none)
    names = ["é", "è"]
    written = [unicodedata.normalize("NFD", names[label]) for label in made["y"]]
    _, composed = prepared("accents", made.assign(y=written), classes=names, **none)
    assert np.array_equal(whole.train_labels, composed.train_labels)


def test_a_column_of_pictures_or_lists_is_one_short_line():
    frame = table()[["person", "y"]].assign(image=[{"bytes": b"x" * 100_000}] * 30)
    with pytest.raises(DataError, match=r"column 'image'; got 'dict'; .*exclude: \[image\]") as one:
        clients_of(frame)
    assert len(str(one.value)) < 200


def test_a_folder_of_parquet_files_is_not_taken_for_a_missing_file():
    Path("rows.parquet/u=a").mkdir(parents=True)
    table().to_parquet("rows.parquet/u=a/0.parquet")
    with pytest.raises(DataError, match=r"rows.parquet; got 'a folder'; expected one file; write"):
        prepared("mine", table(), file="rows.parquet")


def hub_copy(folder: str, name: str = "train.parquet") -> None:
    """A folder in the layout of Hugging Face's hub."""
    Path(folder, "data").mkdir(parents=True, exist_ok=True)
    made = table().assign(y=lambda rows: rows["y"].map({0: "no", 1: "yes"}))
    made.to_parquet(Path(folder, "data", name), index=False)


OF_HUB = {**BLOCK, "classes": ["no", "yes"], "missing": "median", "hub": "copy"}
del OF_HUB["file"]


def test_a_folder_of_the_hub_is_the_same_data_as_its_table():
    pytest.importorskip("datasets", reason="the library is not installed")
    hub_copy("copy")
    line = sources.prepare("mine", OF_HUB, Path("downloads"), Path("hub/mine.npz"))
    found = load_arrays(Path("hub/mine.npz"))
    assert line.startswith("mine: 30 rows of 3 users, 2 classes, 4 features; user person; label y")
    _, same = prepared("table", table(), missing="median")
    assert np.array_equal(found.train_images, same.train_images)
    assert np.array_equal(found.test_labels, same.test_labels)
    words = r"hub: copy, split tests, cannot be read; got .*mend hub, rev"
    with pytest.raises(DataError, match=words):
        sources.prepare("mine", OF_HUB | {"split": "tests"}, Path("d"), Path("x.npz"))


def test_a_table_of_the_hub_is_that_of_a_commit_and_its_schema_declares_its_classes(monkeypatch):
    names = types.SimpleNamespace(names=["no", "yes"])
    found = {"format": {"type": None}, "features": {"y": names}, "to_pandas": table}
    split = types.SimpleNamespace(data=types.SimpleNamespace(nbytes=1), **found)
    library = types.SimpleNamespace(load_dataset=mock.Mock(return_value=split))
    monkeypatch.setitem(sys.modules, "datasets", library)
    block = OF_HUB | {"hub": "lab/people", "revision": "a" * 40, "test": "held_out"}
    del block["classes"]
    sources.prepare("mine", block, Path("downloads"), Path("mine.npz"))
    made = load_arrays(Path("mine.npz"))
    assert (made.classes, made.declared) == (2, True)
    options = {"revision": "a" * 40, "cache_dir": "downloads/hub"}
    asked = [mock.call("lab/people", None, split=of, **options) for of in ("train", "held_out")]
    assert library.load_dataset.call_args_list == asked
    monkeypatch.setitem(sys.modules, "datasets", None)
    words = "hub: lab/people; got 'no Python package datasets'; pip install 'datasets>=4'"
    with pytest.raises(DataError, match=words):
        sources.prepare("mine", block, Path("downloads"), Path("mine.npz"))


def test_a_branch_of_the_hub_is_no_revision_and_a_folder_has_none():
    for hub, revision in (("lab/people", None), ("copy", "a" * 40)):
        hub_copy("copy")
        block = OF_HUB | {"hub": hub} | ({"revision": revision} if revision else {})
        with pytest.raises(DataError, match="revision; got"):
            blocks.check(block)
    assert blocks.files(OF_HUB) == [Path("copy/data/train.parquet")]


def test_a_terminal_that_knows_only_ascii_shows_a_data_set(monkeypatch, ran):
    table().to_csv("rows.csv", index=False)
    config = {"studies": ["none"], "datasets": {"mine": BLOCK | {"missing": "indicator"}}}
    malformed.write(Path("config.yaml"), config)
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", shown)
    ran("data", "mine")
    shown.seek(0)
    assert "rows by class:\n  0 ???" in shown.read()
