"""Tables, pictures and files of other programs become data sets by a block of config.yaml."""

import dataclasses
import json
import re
import sys
import warnings
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image

import dirty
import malformed
import pflpipe
import tabled
import warm
from called import called
from pflpipe.data import datasets, pfllib, sources, texts
from pflpipe.errors import DataError

ROOT = Path(__file__).resolve().parents[1]
BAD, TABLES = tabled.table("bad_sources"), tabled.table("test_sources")
ROWS = 40
TABLE = {"file": "answers.csv", "user": "person", "label": "y", "classes": [False, True]}
CITIES = {"vocabularies": {"city": ["Oslo", "Rome", "Turin"]}}
LEAF = {"file": "all.json", "classes": 3}
TFF = {"file": "all.h5", "example": "image", "label": "label", "classes": 3}
PICTURES = {"folder": "pictures", "classes": ["cat", "dog"]}


def answers() -> pd.DataFrame:
    """Ten rows of each of the people 7, 007, Bo and Ann."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"person": np.repeat(["7", "007", "Bo", "Ann"], ROWS // 4)})
    table["age"] = rng.integers(18, 90, ROWS)
    table["city"] = rng.choice(["Rome", "Oslo"], ROWS)
    table["y"] = rng.choice(["no", "Yes"], ROWS)
    return table


@pytest.fixture
def files(here: Path) -> Path:
    """A folder with a file of each kind."""
    table, rng = answers(), np.random.default_rng(1)
    dirty.pictures(Path("pictures"))
    Path("verses.csv").write_text(VERSES)
    table.to_csv("answers.csv")
    table.to_csv("answers.tsv", index=False, sep="\t")
    table.to_parquet("answers.parquet")
    users = {"u": [0, 1, 2, 0], "v": [2, 1, 0]}
    leaf("all.json", users)
    with h5py.File("all.h5", "w") as file:
        for user, labels in users.items():
            client = file.create_group(f"examples/{user}")
            client["image"] = rng.integers(0, 256, (len(labels), 8, 8, 3), dtype=np.uint8)
            client["label"] = np.array(labels)
            client["words"] = ["a text"] * len(labels)
    return here


def leaf(path: str, users: dict[str, list[int]]) -> None:
    data = {user: {"x": [[0.5, y] for y in labels], "y": labels} for user, labels in users.items()}
    sizes = [len(labels) for labels in users.values()]
    content = {"users": list(users), "num_samples": sizes, "user_data": data}
    Path(path).write_text(json.dumps(content))


def prepared(block: dict, name: str = "mine"):
    """The line about a data set, and its arrays."""
    target = Path("data") / f"{name}.npz"
    line = sources.prepare(name, block, Path("downloads"), target)
    return line, datasets.load_arrays(target)


def rows_of(arrays) -> list[tuple]:
    """All rows with their users and labels, in an order that does not depend on the test set."""
    names = ("users", "labels", "images")
    sides = ([getattr(arrays, f"{side}_{name}") for name in names] for side in ("train", "test"))
    return sorted((u, y, *x.ravel()) for part in sides for u, y, x in zip(*part, strict=True))


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_a_table_becomes_a_data_set_by_its_declared_columns(ending, files):
    own = {"file": f"answers.{ending}", "ranges": {"age": [10, 90]}}
    line, arrays = prepared(TABLE | CITIES | own)
    line, _, left_out = line.partition("; left out ")
    assert left_out == ("a column without a name" if ending == "csv" else "")
    shape = "mine: 40 rows of 4 users, 2 classes, 4 features; user person; label y; "
    assert line == f"{shape}features age (10 to 90), city (one of 3)"
    people = sorted(["7", "007", "Bo", "Ann"])
    expected = sorted(
        (people.index(p), y == "Yes", np.float32((a - 50) / 40), c == "Oslo", c == "Rome", False)
        for p, a, c, y in answers().itertuples(index=False)
    )
    assert np.allclose(rows_of(arrays), np.array(expected, float))
    assert arrays.declared


def test_a_word_can_be_an_index_and_columns_can_be_chosen(files):
    block = TABLE | CITIES | {"encoding": "index", "features": ["city"]}
    _, arrays = prepared(block)
    assert {(*x,) for x in arrays.train_images} == {(0.0,), (1.0,)}


def test_the_test_rows_may_be_in_a_file_of_their_own(files):
    leaf("test.json", {"u": [1, 1], "w": [2]})
    _, arrays = prepared(LEAF | {"test": "test.json"})
    assert (len(arrays.train_labels), arrays.test_labels.tolist()) == (7, [1, 1, 2])
    assert arrays.test_users.tolist() == [0, 0, 2]


def test_test_rows_with_other_columns_are_refused(files):
    answers()[["y", "city", "age", "person"]].to_csv("other.csv", index=False)
    words = r"other\.csv; got 'other columns than file'; write features"
    with pytest.raises(DataError, match=words):
        prepared(TABLE | CITIES | {"test": "other.csv"})
    line, _ = prepared(TABLE | CITIES | {"test": "other.csv", "features": ["age", "city"]})
    assert line.startswith("mine: 80 rows of 4 users")


def test_a_table_without_a_block_says_that_it_needs_one(files):
    with pytest.raises(DataError, match=r"expected an \.npz file .* or a block"):
        prepared(Path("answers.csv"))


VERSES = "ann,To be or not to BE,yes\nann,not,no\nbo,To err! or to be,yes\n" * 3
VERSES = f"person,verse,good\n{VERSES}"
WORDS = ["to", "be", "or", "not", "!"]
OF_WORDS = {"file": "verses.csv", "user": "person", "text": "verse", "vocabulary": WORDS}


@pytest.mark.parametrize("declared", ["in the block", "in a file"])
def test_texts_become_tokens_of_a_declared_vocabulary(declared, files):
    block = OF_WORDS | {"length": 4, "label": "good", "classes": ["no", "yes"]}
    if declared == "in a file":
        Path("words.txt").write_text("\n".join(WORDS) + "\n")
        block["vocabulary"] = "words.txt"
    line, arrays = prepared(block)
    assert "9 rows of 2 users, 2 classes, sequences of 4 tokens of 7; user person;" in line
    assert "text verse: 4 words of 7" in line
    # 0 in front of a short text, 1 for a word that is not declared; no more than four.
    once = [(0, 0, 0, 0, 0, 5), (0, 1, 2, 3, 4, 5), (1, 1, 2, 1, 6, 4)]
    assert rows_of(arrays) == sorted(once * 3)


def test_a_text_without_a_label_has_an_example_for_each_token_that_follows(files):
    _, arrays = prepared(OF_WORDS | {"length": 2})
    assert (arrays.classes, arrays.vocabulary, arrays.declared) == (7, 7, True)
    ann = [(0, 3, 0, 2), (0, 4, 2, 3), (0, 5, 3, 4), (0, 2, 4, 5), (0, 3, 5, 2)]
    bo = [(1, 6, 2, 1), (1, 4, 1, 6), (1, 2, 6, 4), (1, 3, 4, 2)]  # "err" is no label
    assert rows_of(arrays) == sorted((ann + bo) * 3)


def test_texts_of_leaf_and_tff_become_tokens(files):
    texts = {"u": ["to b", "o be", "brt "], "v": ["be o", "r to", "to b"]}
    data = {user: {"x": x, "y": [*"eto"]} for user, x in texts.items()}
    Path("texts.json").write_text(json.dumps({"users": [*texts], "user_data": data}))
    tokens = {"tokens": "characters", "vocabulary": [*"beot "], "length": 4}
    line, arrays = prepared({"file": "texts.json"} | tokens)
    assert "6 rows of 2 users, 7 classes, sequences of 4 tokens of 7; LEAF" in line
    spelt = {letter: number for number, letter in enumerate("beot ", start=2)}
    rows = [
        (user, spelt[label], *(spelt.get(letter, 1) for letter in text))
        for user, x in enumerate(texts.values())
        for text, label in zip(x, "eto", strict=True)
    ]
    assert rows_of(arrays) == sorted(rows)
    with h5py.File("texts.h5", "w") as file:
        for user, x in texts.items():
            file[f"examples/{user}/snippets"] = x
            file[f"examples/{user}/mood"] = [b"sad", b"gay", b"sad"]
    _, arrays = prepared({"file": "texts.h5", "text": "snippets"} | tokens, "following")
    assert len(rows_of(arrays)) == sum(len(text) - 1 for x in texts.values() for text in x) - 1
    mood = {"file": "texts.h5", "text": "snippets", "label": "mood", "classes": ["sad", "gay"]}
    _, arrays = prepared(mood | tokens, "moods")
    assert rows_of(arrays) == sorted((u, i % 3 == 1, *row) for i, (u, _, *row) in enumerate(rows))


@pytest.mark.parametrize(("changes", "words"), TABLES["BAD_TOKENS"])
def test_arrays_of_tokens_are_checked(changes, words):
    rows = {"train_images": np.arange(12).reshape(6, 2) % 4, "train_labels": np.arange(6) % 2}
    rows["vocabulary"] = np.array(4)
    made = datasets.arrays_from(rows, "mine")
    assert (made.train_images.dtype, made.vocabulary) == (np.int32, 4)
    with pytest.raises(DataError, match=words):
        datasets.arrays_from(rows | malformed.arrays_of(changes), "mine")


@pytest.mark.parametrize("changes", [{"length": 0}, {"tokens": "letters"}])
def test_rows_of_tokens_have_a_length_and_a_known_kind(changes):
    got = r"got 'length \d, tokens \w+'; expected length of at least 1, and words or characters"
    with pytest.raises(DataError, match=got):
        texts.Tokens(**{"vocabulary": ["a"], "length": 3} | changes)


ONCE = pflpipe.Training(rounds=1, local_epochs=1, batch_size=0, optimizer="sgd", lr=0.1)


def test_a_frame_of_texts_becomes_clients_that_train(files):
    table = pd.read_csv("verses.csv")
    layout = {"user": "person", "text": "verse", "length": 3}
    with pytest.raises(DataError, match=r"vocabulary no\.txt; got .FileNotFoundError.*a token in"):
        pflpipe.clients_of(table, vocabulary="no.txt", **layout)
    clients = pflpipe.clients_of(table, vocabulary=WORDS, **layout)
    model = pflpipe.Model("gru", (4, 5), items=7)
    result = pflpipe.train("fedavg", clients, model=model, classes=7, training=ONCE)
    assert 0 <= result.accuracies["personal_own"] <= 100


def test_a_file_of_leaf_becomes_a_data_set(files):
    line, arrays = prepared(LEAF)
    assert line.startswith("mine: 7 rows of 2 users, 3 classes, 2 features; LEAF")
    users = enumerate([[0, 1, 2, 0], [2, 1, 0]])
    assert rows_of(arrays) == sorted((user, y, 0.5, y) for user, labels in users for y in labels)


def test_a_file_of_tff_becomes_a_data_set(files):
    line, arrays = prepared(TFF)
    assert line.endswith("TFF: each of examples is a user; image, label label")
    written = []
    with h5py.File("all.h5") as file:
        for place, client in enumerate(file["examples"].values()):
            pairs = zip(client["image"][()], client["label"][()], strict=True)
            written += [(place, label, *image.ravel()) for image, label in pairs]
    assert rows_of(arrays) == sorted(written)


def test_a_function_may_return_a_pair_or_a_dataset_for_each_client(files):
    Path("mine.py").write_text(TABLES["PER_CLIENT"])
    _, arrays = prepared(Path("mine.py:load"))
    x = (np.arange(24).reshape(8, 3) / 10).astype(np.float32)
    users = [0] * 5 + [1] * 3
    assert rows_of(arrays) == sorted((u, i % 2, *x[i]) for i, u in enumerate(users))
    with pytest.raises(DataError, match=r"mine.py:wrong returned: client 1; got 'x \[2, 4\], y"):
        prepared(Path("mine.py:wrong"))


def test_a_folder_of_pictures_becomes_a_data_set(files):
    Path("pictures/p0/notes.txt").write_text("not a picture")
    line, arrays = prepared(PICTURES)
    assert line.startswith("mine: 24 rows of 3 users, 2 classes, images of 6 x 8 pixels in 3 ch")
    assert line.endswith("; 1 other files were not read")
    stored = {
        (person, label, *np.asarray(Image.open(path)).ravel())
        for person, label in np.ndindex(3, 2)
        for path in Path(f"pictures/p{person}/{['cat', 'dog'][label]}").iterdir()
    }
    assert set(rows_of(arrays)) == stored
    line, arrays = prepared(PICTURES | {"size": [4, 5], "channels": 1}, "small")
    assert arrays.train_images.shape[1:] == (4, 5)


def test_channels_first_are_the_same_data_as_channels_last(files):
    images = np.random.default_rng(0).integers(0, 256, (12, 6, 7, 3), dtype=np.uint8)
    rest = {"train_labels": np.arange(12) % 2, "classes": 2}
    np.savez("last.npz", train_images=images, **rest)
    np.savez("first.npz", train_images=np.moveaxis(images, -1, 1), **rest)
    line, last = prepared(Path("last.npz"))
    assert "channels" in line
    assert "first" not in line
    line, first = prepared(Path("first.npz"))  # under the same name: its pin is the same
    assert line.endswith("the channels came first")
    assert np.array_equal(first.train_images, last.train_images)
    assert len({sources.describe("x", Path(f), Path("no")) for f in ("first.npz", "last.npz")}) == 1


def test_the_lines_about_pfllibs_files_convert_them(files):
    rng = np.random.default_rng(0)
    for part, size in (("train", 6), ("test", 2)):
        Path(part).mkdir()
        for client in range(3):
            x = rng.integers(0, 256, (size, 1, 6, 6)).astype(np.float32) / 127.5 - 1
            y = np.arange(size) % 10
            np.savez_compressed(f"{part}/{client}.npz", data={"x": x, "y": y})
    with pytest.raises(DataError, match=r"loads no pickle.*import numpy") as refused:
        prepared(Path("train/0.npz"))
    program = "\n".join(pfllib.LINES)
    assert str(refused.value).endswith("; ".join(pfllib.LINES))
    assert program in (ROOT / "docs/own_files.md").read_text()
    called(warm.interpreter(), "-c", program)
    line, arrays = prepared(Path("pfllib.npz"))
    assert line.startswith("mine: 24 rows of 3 users, 10 classes, images of 6 x 6 pixels")
    assert arrays.test_users.tolist() == [0, 0, 1, 1, 2, 2]
    with np.load("train/2.npz", allow_pickle=True) as file:
        floats = file["data"].item()["x"][:, 0]
    assert np.allclose(arrays.train_images[12:, :, :, 0] / 127.5 - 1, floats, atol=1e-6)


BASES = {"table": TABLE | CITIES, "texts": OF_WORDS | {"length": 2}, "leaf": LEAF, "tff": TFF}
BASES |= {"pictures": PICTURES, "no table": {}}


def block_of(case: dict) -> dict:
    """A good block with other keys, or (null) without some."""
    block = BASES[case["of"]] | case.get("changes", {})
    return {key: value for key, value in block.items() if value is not None}


@pytest.mark.parametrize("case", BAD)
def test_a_source_that_is_not_in_order_is_one_clear_line(case, files):
    given = BAD[case]
    for path, text in given.get("write", {}).items():
        Path(path).write_text(text)
    if "cell" in given:
        column, value = given["cell"]
        table = answers().astype({column: object})
        table.loc[3, column] = value
        table.to_csv("answers.csv", index=False)
    with pytest.raises(DataError, match=given["words"]) as refused:
        prepared(block_of(given))
    assert "\n" not in str(refused.value)
    assert given["of"] != "table" or str(refused.value).startswith("answers.csv")
    assert not Path("data").exists()


def test_parquet_without_its_library_says_what_to_install(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "fastparquet", None)
    with pytest.raises(DataError, match="pip install pyarrow") as refused:
        prepared(TABLE | {"file": "answers.parquet"})
    assert "\n" not in str(refused.value)


@pytest.fixture
def data(files, ran):
    """Return a function that calls ``pflpipe data`` on a block and returns what it printed."""

    def data(block, code: int = 0) -> str:
        malformed.write(files / "config.yaml", {"studies": ["any"], "datasets": {"mine": block}})
        output = ran("data", "mine", code=code)
        assert output.err.count("\n") == (1 if code else 0)
        return output.err if code else output.out

    return data


def test_the_command_data_shows_what_was_understood_and_leaves_no_trace(data):
    shown = data(TABLE | CITIES)
    assert "user person; label y; features age, city (one of 3)" in shown
    assert "training float32 [32, 4], test [8, 4]" in shown
    assert re.search(r"features from 0 to \d\d: scale large ones by constants", shown)
    assert "rows of a user: 10 at least, quartiles 10, 10, 10, 10 at most" in shown
    assert re.search(r"10 █{40} 4\n", shown)
    counts = answers()["y"].value_counts()
    assert re.search(rf"False █+ {counts['no']}\n +True █+ {counts['Yes']}\n", shown)
    assert not Path("data").exists(), "the block may still change"


def test_the_command_data_counts_the_tokens_that_are_labels_by_name(data):
    printed = data(OF_WORDS | {"length": 2})
    assert re.search(r"other +0\n +'to' .* 6\n +'be' .* 9\n +'or' .* 6\n +'not' .* 3\n", printed)


def test_the_command_data_compares_the_values_with_those_of_the_name(data):
    prepared(LEAF)
    assert "These are the values with which the name was first used" in data(LEAF)
    assert "These are not the values with which" in data(LEAF | {"classes": 4})


@pytest.mark.parametrize("block", [TABLE | CITIES, LEAF, PICTURES], ids=["table", "leaf", "folder"])
def test_the_word_for_a_user_goes_with_the_data_and_changes_no_value(block, files):
    made = Path("data/mine.npz")
    _, plain = prepared(block)
    header, pin = datasets.read_header(made), made.with_suffix(".pin").read_text()
    _, named = prepared(block | {"unit": "patient"})
    assert rows_of(named) == rows_of(plain)
    assert (plain.unit, named.unit) == ("user", "patient")
    assert datasets.read_header(made) == dataclasses.replace(header, unit="patient")
    assert made.with_suffix(".pin").read_text() == pin
    with pytest.raises(DataError, match="none for mnist, a name that pflpipe knows"):
        prepared(block | {"unit": "patient"}, "mnist")


@pytest.mark.parametrize("case", TABLES["BAD_BLOCKS"])
def test_a_block_that_is_not_in_order_is_one_clear_line(case, data):
    given = TABLES["BAD_BLOCKS"][case]
    assert given["words"] in data(block_of(given), code=2)


@pytest.mark.slow
def test_the_script_of_the_workflow_takes_a_block_in_one_word(files):
    block = TABLE | CITIES

    def script(name: str, block: dict, code: int = 0):
        words = ["--dataset", name, "--target", f"data/{name}.npz", "--source", sources.text(block)]
        file = ROOT / "workflow/scripts/data.py"
        return called(warm.interpreter(), file, *words, code=code)

    assert script("mine", block).stdout.startswith("mine: 40 rows of 4 users")
    refused = script("mine", block | {"encoding": "index"}, code=2).stderr
    assert refused.startswith("error: data set 'mine' has other values than when it was first used")
    assert refused.count("\n") == 1
    answers().assign(yes=(answers()["y"] == "Yes").astype(int)).to_csv("answers.csv", index=False)
    warned = script("other", block).stdout
    assert "\nwarning: other: the label follows from yes alone" in warned


LAYOUT = {"user": "person", "label": "y", "classes": ["no", "Yes"], **CITIES}


def test_a_data_frame_becomes_clients_that_train():
    table = answers()
    clients = pflpipe.clients_of(table, **LAYOUT)
    assert [len(y) for _, y in clients] == [10] * 4
    x, y = clients[sorted(set(table["person"])).index("Ann")]
    own = table[table["person"] == "Ann"]
    assert x[:, 0].tolist() == own["age"].tolist()
    assert y.tolist() == (own["y"] == "Yes").astype(int).tolist()
    assert pflpipe.train("fedavg", clients, model="linear", training=ONCE).accuracies


def test_a_table_of_another_library_is_taken_as_its_data_frame():
    tables = answers(), pa.Table.from_pandas(answers())
    ours, theirs = (pflpipe.clients_of(table, **LAYOUT) for table in tables)
    for (x, y), (same_x, same_y) in zip(ours, theirs, strict=True):
        assert np.array_equal(x, same_x)
        assert np.array_equal(y, same_y)


def test_tensors_with_channels_first_are_moved_and_this_is_said():
    rng = torch.Generator().manual_seed(0)
    last = [(torch.randn(4, 32, 32, 3, generator=rng), torch.arange(4) % 2) for _ in range(2)]
    first = [(x.movedim(-1, 1), y) for x, y in last]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = pflpipe.federation("fedavg", last, model="cnn_cifar", training=ONCE)
    with pytest.warns(UserWarning, match=r"channels of \(3, 32, 32\) come first"):
        moved = pflpipe.federation("fedavg", first, model="cnn_cifar", training=ONCE)
    assert torch.equal(moved.train.x, expected.train.x)
