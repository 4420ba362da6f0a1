"""No damage of a file passes without a word, and no clean file gets one (``dirty``)."""

import json
import re
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from PIL import Image

import dirty
import pflpipe
from pflpipe.data import contract, sources
from pflpipe.data.datasets import load_arrays
from pflpipe.errors import PflpipeError

pytestmark = pytest.mark.usefixtures("here")


def said(source: object) -> tuple[str, str]:
    """The error or the warnings of a source, and its other lines."""
    target = Path("data/mine.npz")
    try:
        line = sources.prepare("mine", source, Path("downloads"), target)
    except PflpipeError as error:
        return str(error), ""
    known = load_arrays(target).contract
    return "\n".join(known.warnings), "\n".join([line, *known.lines])


def of_tables(source: str, tables: list[pd.DataFrame], changes: Mapping[str, object]) -> str:
    """What is said of one table, or of one and its test table."""
    block = {key: value for key, value in (dirty.LAYOUT | changes).items() if value is not None}
    if source == "frame":
        with contract.collected() as warned:
            try:
                pflpipe.clients_of(tables[0], **block)
            except PflpipeError as error:
                return str(error)
        return "\n".join(warned)
    paths = [Path(f"{side}.{source}") for side in ("train", "test")]
    for path, table in zip(paths, tables, strict=False):
        if source == "parquet":
            table.to_parquet(path)
        else:
            table.to_csv(path, index=False, sep="\t" if source == "tsv" else ",")
    block |= {key: str(path) for key, path, _ in zip(("file", "test"), paths, tables, strict=False)}
    return said(block)[0]


def of_arrays(tables: list[pd.DataFrame], changes: Mapping[str, object]) -> str:
    """The same of arrays without names of columns."""
    arrays: dict[str, np.ndarray] = {"classes": np.asarray(2)}
    for side, table in zip(("train", "test"), tables, strict=False):
        target = changes.get("target")
        rest = table.drop(columns=[name for name in ("person", "y", target) if name in table])
        features = rest[changes.get("features", rest.columns)]
        words = [name for name in ("city", "said") if name in features]
        numbers = {name: features[name].factorize(sort=True)[0] for name in words}
        arrays[f"{side}_images"] = features.assign(**numbers).astype(float).to_numpy()
        arrays[f"{side}_labels"] = table[target].to_numpy() if target else dirty.is_yes(table)
        arrays[f"{side}_users"] = table["person"].to_numpy(dtype=str)
    if changes.get("target"):
        del arrays["classes"]
    np.savez("mine.npz", **arrays)
    return said(Path("mine.npz"))[0]


def of_case(source: str, case: dirty.Case) -> str:
    made = case.make(dirty.clean())
    tables = list(made) if isinstance(made, tuple) else [made]
    if source == "arrays":
        return of_arrays(tables, case.block)
    return of_tables(source, tables, case.block)


def pairs(cases: Mapping[str, dirty.Case]) -> list[tuple[str, str]]:
    """Each case with each source that can hold it; a list of clients has no test table."""
    found = []
    for name, case in cases.items():
        has_test = isinstance(case.make(dirty.clean()), tuple)
        found += [(name, one) for one in case.sources if not (has_test and one == "frame")]
    return found


@pytest.mark.parametrize(("name", "source"), pairs(dirty.FRAMES))
def test_a_damaged_table_is_never_taken_without_a_word(name, source):
    case = dirty.FRAMES[name]
    found = of_case(source, case)
    assert re.search(r"\w" if source == "arrays" else case.words, found)
    assert len(found) < 1000


@pytest.mark.parametrize(("name", "source"), pairs(dirty.CLEAN))
def test_a_clean_table_gets_no_warning(name, source):
    assert of_case(source, dirty.CLEAN[name]) == ""


TEXT = {"user": "person", "label": "y", "classes": ["no", "yes"], "features": ["age"]}


@pytest.mark.parametrize("ending", ["csv", "tsv"])
@pytest.mark.parametrize("name", dirty.TEXTS)
def test_a_damaged_text_is_never_taken_without_a_word(name, ending):
    words, text = dirty.TEXTS[name]
    Path(f"mine.{ending}").write_text(text if ending == "csv" else text.replace(",", "\t"))
    assert re.search(words, said(TEXT | {"file": f"mine.{ending}"})[0])


def test_a_warning_that_a_certificate_quotes_has_no_count():
    _, text = dirty.TEXTS["a quote in a column that is left out"]
    Path("mine.csv").write_text(text)
    warned, lines = said(TEXT | {"file": "mine.csv"})
    assert warned
    assert not re.search(r"\d", warned)
    assert "left out note; left out line 2 holds 2 lines" in lines
    with contract.collected() as found:
        warnings.warn("columns of 3 kinds", UserWarning, stacklevel=1)
    assert found == ["columns of ... kinds"]


def test_labels_that_only_test_rows_have_are_counted():
    train, test = dirty.sides(dirty.clean())
    train.assign(y="no").to_csv("train.csv", index=False)
    test.to_csv("test.csv", index=False)
    block = dirty.LAYOUT | {"file": "train.csv", "test": "test.csv"}
    assert "1 labels have test rows only" in said(block)[1]


@pytest.mark.parametrize("name", dirty.CLEAN_TEXTS)
def test_a_clean_text_gets_no_warning(name):
    Path("mine.csv").write_text(dirty.CLEAN_TEXTS[name], newline="")
    assert said(TEXT | {"file": "mine.csv"})[0] == ""


TRANSFORMED = types.SimpleNamespace(to_pandas=dirty.clean, format={"type": "custom"})
OTHERS = {
    "a dict of splits": ({"train": dirty.clean()}, "got 'dict'.*one split, such as table.'train'."),
    "a lazy frame": (object(), r"got 'object'.*collect\(\)"),
    "a transform": (TRANSFORMED, "a transform, which would be ignored"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_table_of_another_library_is_never_read_half(name):
    table, words = OTHERS[name]
    with pytest.raises(PflpipeError, match=words) as caught:
        pflpipe.clients_of(table, **dirty.LAYOUT)
    assert "\n" not in str(caught.value)


PICTURES = {"folder": "pictures", "classes": ["cat", "dog"]}


@pytest.mark.parametrize("name", dirty.PICTURES)
def test_a_damaged_folder_of_pictures_is_never_taken_without_a_word(name):
    words, damage = dirty.PICTURES[name]
    damage(dirty.pictures(Path("pictures").absolute()))
    told, lines = said(PICTURES)
    assert re.search(words, f"{told}\n{lines}")
    assert lines or "\n" not in told, "an error is one line"


def test_clean_pictures_get_no_warning_and_a_linked_class_is_read():
    folder = dirty.pictures(Path("pictures").absolute())
    (folder / "p0/cat").rename(folder.parent / "cats")
    (folder / "p0/cat").symlink_to(folder.parent / "cats", target_is_directory=True)
    warned, lines = said(PICTURES)
    assert warned == ""
    assert "24 rows of 3 users" in lines


def test_a_picture_is_upright_as_its_exif_says():
    folder = dirty.pictures(Path("pictures").absolute())
    exif = Image.Exif()
    exif[274] = 6  # turned by a quarter
    picture = Image.open(folder / "p0/cat/0.png")
    expected = np.asarray(picture)
    picture.transpose(Image.Transpose.ROTATE_90).save(folder / "p0/cat/0.png", exif=exif)
    assert said(PICTURES)[0] == ""
    images = load_arrays(Path("data/mine.npz"))
    every = np.concatenate([images.train_images, images.test_images])
    assert (every == expected).all(axis=(1, 2, 3)).sum() == 1


OF_3 = {"file": "mine.json", "classes": 3}


def leaf(users: list[str]) -> str:
    rng = np.random.default_rng(0)
    data = {user: {"x": rng.normal(size=(9, 3)).tolist(), "y": [0, 1, 2] * 3} for user in users}
    Path("mine.json").write_text(json.dumps({"users": users, "user_data": data}))
    return said(OF_3)[0]


def test_people_of_leaf_who_are_not_listed_are_counted():
    leaf(["a", "b", "c"])
    content = json.loads(Path("mine.json").read_text()) | {"users": ["a", "b"]}
    Path("mine.json").write_text(json.dumps(content))
    line = sources.prepare("fewer", OF_3, Path("downloads"), Path("data/fewer.npz"))
    assert "18 rows of 2 users" in line
    assert "1 more in user_data were not read" in line


@pytest.mark.parametrize("text", dirty.OTHERS["TWICE"])
def test_a_person_of_leaf_who_stands_twice_is_refused(text):
    Path("mine.json").write_text(text)
    assert "'a' stands 2 times" in said(OF_3)[0]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_table_in_another_encoding_is_saved_as_utf_8(encoding):
    Path("mine.csv").write_bytes((dirty.HEAD + dirty.BODY).encode(encoding))
    assert "save it as UTF-8" in said(TEXT | {"file": "mine.csv"})[0]


def tff(
    users: list[str], examples: Sequence[int] = (9,) * 3, labels: object = (0, 1, 2) * 3
) -> str:
    """What is said of a file whose users have so many examples and these labels."""
    with h5py.File("mine.h5", "w") as file:
        for user, count in zip(users, examples, strict=False):
            rng = np.random.default_rng(list(user.encode()))
            file[f"examples/{user}/x"] = rng.normal(size=(count, 3))
            file[f"examples/{user}/y"] = labels
    return said({"file": "mine.h5", "example": "x", "label": "y", "classes": 3})[0]


def test_labels_of_a_client_of_tff_are_as_many_as_its_examples_and_in_utf_8():
    assert "a has 4 x and 9 y" in tff(["a", "b"], (4, 14))
    assert "UnicodeDecodeError" in tff(["a"], (3,), [b"\xe9", b"a", b"b"])


def function(users: list[str]) -> str:
    Path("mine.py").write_text(dirty.OTHERS["FUNCTION"].format(users=users))
    return said(Path("mine.py:load"))[0]


@pytest.mark.parametrize("source", [leaf, tff, function])
def test_ids_of_every_source_are_one_spelling_of_a_known_person(source):
    assert source(["7", "007", "Ann"]) == ""
    assert re.search(dirty.SPELLING, source(["7", "7.0", "Ann"]))
    unknown = ["7", "NULL"] if source == tff else ["7", "N/A", "Ann"]
    assert re.search(dirty.NOBODY, source(unknown))
