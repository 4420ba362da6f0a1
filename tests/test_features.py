"""Data that are no pictures, and data of people: WISDM, SPI, Jester, MNIST by writer, and
sequences, from their files to accuracies."""

import gzip
import hashlib
import re
import struct
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import rdata
import torch

import pflpipe
import tabled
from pflpipe.cells import Model, Partition, Training
from pflpipe.data import datasets, downloads, partition
from pflpipe.data.datasets import load_arrays, prepare
from pflpipe.errors import ConfigError, DataError
from pflpipe.learning import architectures, networks
from pflpipe.study.check import check_augment
from test_data import GREY, idx, md5, mnist_original, tar, write

TABLES = tabled.table("test_features")

SHARED = Path(__file__).parents[2] / "shared" / "data"


def archived(monkeypatch, package: str, name: str, content: bytes) -> dict[str, bytes]:
    """The archive of a package with one file, whose digest becomes the known one."""
    packed = tar({name: content}, "w:gz")
    monkeypatch.setattr(downloads, f"{package}_SHA256", hashlib.sha256(packed).hexdigest())
    return {getattr(downloads, package): packed}


def rda(name: str, table: pd.DataFrame) -> bytes:
    """A file of R with one table."""
    with tempfile.NamedTemporaryFile(suffix=".rda") as file:
        rdata.write_rda(file.name, {name: table})
        return Path(file.name).read_bytes()


def original(name: str, root: Path) -> dict[str, np.ndarray]:
    """What a folder's original files say; they stay as they are."""
    before = sorted(root.rglob("*"))
    raw = downloads.read_original(name, root, root, may_download=False)
    assert sorted(root.rglob("*")) == before
    return raw


def answered(name: str, root: Path) -> list[tuple[int, int, int]]:
    """Person, item and label of every row."""
    raw = original(name, root)
    x, columns = raw["train_images"], ("train_users", "train_labels")
    assert (x.dtype, x.shape[1:]) == (np.float32, (1,))
    people, labels = (raw[column].tolist() for column in columns)
    return [*zip(people, x[:, 0].astype(int).tolist(), labels, strict=True)]


def assert_refused(name: str, root: Path | None, folder: Path, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        prepare(name, root, folder / "down", folder / "out.npz")
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- WISDM

HEADER = TABLES["HEADER"]
NAMES = re.findall(r'"([XYZ]\w+)" numeric', "".join(HEADER))
PEOPLE = [33] * 6 + [7] * 5 + [19]
ACTIVITIES = ["Walking", "Jogging", "Upstairs", "Downstairs", "Sitting", "Standing"] * 2


def wisdm_file(unknown: str = "XPEAK") -> bytes:
    rows = []
    for number, (person, activity) in enumerate(zip(PEOPLE, ACTIVITIES, strict=True)):
        values = dict.fromkeys(NAMES[:30], 0.25 - 0.1 * (number > 0))
        values |= dict.fromkeys(NAMES[30:], 9.81 * (number % 3))
        values |= {"XAVG": 0, "XPEAK": 1500, "YPEAK": 250, "ZPEAK": 4925, "RESULTANT": -4.905}
        words = {name: f"{value:g}" for name, value in values.items()}
        if number == 4:
            words[unknown] = "?"
        rows.append(f"{number},{person},{','.join(words.values())},{activity}")
    return "".join(f"{line}\r\n" for line in [*HEADER, "", "@data", *rows]).encode()


@pytest.mark.parametrize("form", ["unpacked", *downloads.WISDM_ARCHIVES])
def test_wisdm_is_read_from_its_original_in_units_of_no_ones_data(form, tmp_path):
    files = {downloads.WISDM_FILE: wisdm_file()}
    if form != "unpacked":
        files = {form: tar({downloads.WISDM_FILE: wisdm_file()}, "w:gz")}
    root = write(tmp_path / "in", files)
    raw = original("wisdm", root)
    x = raw["train_images"]
    assert (x.dtype, x.shape) == (np.float32, (12, *datasets.DATASETS["wisdm"].image_shape))
    expected = np.zeros((12, 42))
    expected[0, :30], expected[1:, :30] = 1.5, 0.5  # shares of 0.25 and 0.15
    expected[:, 30:] = (np.arange(12) % 3)[:, None]  # multiples of gravity
    expected[:, 32:35] = 1.5, 0.25, 4.925  # seconds
    expected[4, 32] = 0  # no peaks
    expected[:, 41] = -0.5
    np.testing.assert_allclose(x, expected, rtol=1e-6, atol=1e-6)
    assert raw["train_users"].tolist() == PEOPLE
    assert raw["train_labels"].tolist() == [5, 1, 4, 0, 2, 3] * 2
    line = prepare("wisdm", root, tmp_path, tmp_path / "out.npz")
    assert line == "wisdm: 12 rows of 3 users, 6 classes, 42 features"


def test_one_persons_rows_move_no_feature_of_another_one(tmp_path):
    lines = wisdm_file().splitlines(keepends=True)
    fewer = b"".join(line for line in lines if b",33," not in line)
    texts = {"all": wisdm_file(), "fewer": fewer}
    roots = [write(tmp_path / name, {downloads.WISDM_FILE: texts[name]}) for name in texts]
    one, other = (original("wisdm", root) for root in roots)
    kept = one["train_users"] != 33
    assert np.array_equal(one["train_images"][kept], other["train_images"])


# ---------------------------------------------------------------- SPI


def spi_answers() -> np.ndarray:
    """Answers [people, 10]; the first person answers 1 to 6 in order."""
    answers = np.random.default_rng(0).integers(1, 7, (7, 10))
    answers[0, :6] = np.arange(1, 7)
    return answers


def spi_file(answers: np.ndarray) -> bytes:
    """spi.rda as psychTools has it: covariates, some of them missing, then one column an item."""
    columns = {"age": np.where(np.arange(len(answers)) == 2, np.nan, 16.0), "sex": 1.0}
    columns |= {f"q_{253 + number}": column for number, column in enumerate(answers.T)}
    frame = pd.DataFrame(columns, index=pd.RangeIndex(1, len(answers) + 1), dtype=float)
    return rda("spi", frame)


@pytest.mark.parametrize("form", ["unpacked", "archive"])
@pytest.mark.parametrize(("name", "classes"), [("spi", 2), ("spi_levels", 6)])
def test_spi_is_read_from_its_package_as_one_row_for_each_answer(
    name, classes, form, tmp_path, monkeypatch
):
    answers = spi_answers()
    files = {downloads.SPI_FILE: spi_file(answers)}
    if form == "archive":
        files = archived(monkeypatch, "PSYCHTOOLS", downloads.SPI_FILE, spi_file(answers))
    expected = answers >= 4 if name == "spi" else answers - 1
    rows = [(*place, label) for place, label in np.ndenumerate(expected)]
    root = write(tmp_path / "in", files)
    assert answered(name, root) == rows
    line = prepare(name, root, tmp_path, tmp_path / "out.npz")
    assert line == f"{name}: 70 rows of 7 users, {classes} classes, 1 feature"


def test_another_psychtools_than_that_of_the_digest_is_refused(tmp_path, monkeypatch):
    files = archived(monkeypatch, "PSYCHTOOLS", downloads.SPI_FILE, spi_file(spi_answers()))
    monkeypatch.setattr(downloads, "PSYCHTOOLS_SHA256", "0" * 64)
    assert_refused("spi", write(tmp_path, files), tmp_path, "is damaged; expected digest 0000")


EPI = pd.DataFrame({"V1": [1.0, np.nan, 2.0], "V2": [np.nan, np.nan, 1.0]}, index=[1, 2, 3])


def test_epi_has_one_row_for_each_answer_and_nobody_without_any(tmp_path):
    root = write(tmp_path, {downloads.EPI_FILE: rda("epi", EPI)})
    assert answered("epi", root) == [(0, 0, 1), (2, 0, 0), (2, 1, 1)]


# ---------------------------------------------------------------- InstEval


def insteval(**changes: object) -> pd.DataFrame:
    """Nine ratings of four lecturers by three students; levels are texts of numbers, some of them
    without a rating, and the rows are in no order. ``changes`` are of one rating."""
    columns = {"s": pd.Categorical(list("213123132"), list("123"))}
    columns["d"] = pd.Categorical(TABLES["LECTURERS"], ["1", "6", "7", "9", "12"])
    columns |= {"dept": pd.Categorical(["5"] * 9, ["2", "5"]), "y": [1.0, 2, 3, 4, 5, 4, 3, 5, 1]}
    table = pd.DataFrame(columns, index=pd.RangeIndex(1, 10))
    for name, value in changes.items():
        table.loc[5, name] = value
    return table


def test_insteval_is_read_from_its_package_as_one_row_for_each_rating(tmp_path, monkeypatch):
    table = insteval()
    content = rda("InstEval", table.astype({"y": int}))
    unpacked = write(tmp_path / "unpacked", {downloads.INSTEVAL_FILE: content})
    write(tmp_path / "archive", archived(monkeypatch, "LME4", downloads.INSTEVAL_FILE, content))
    rows = zip(table["s"].cat.codes, table["d"].cat.codes, table["y"] >= 4, strict=True)
    expected = sorted(rows)
    for root in (unpacked, tmp_path / "archive"):
        assert sorted(answered("insteval", root)) == expected
    line = prepare("insteval", unpacked, tmp_path, tmp_path / "out.npz")
    assert line == "insteval: 9 rows of 3 users, 2 classes, 1 feature"


# ---------------------------------------------------------------- Jester


def jester_ratings() -> np.ndarray:
    """Ratings [people, 100] with 99 for what a person did not rate; the first three jokes are
    liked, neither liked nor disliked, and disliked."""
    rng = np.random.default_rng(0)
    ratings = np.where(rng.random((4, 100)) < 0.6, rng.uniform(-10, 10, (4, 100)).round(2), 99)
    ratings[:, :3] = 0.05, 0, -10
    return ratings


def jester_file(ratings: np.ndarray) -> bytes:
    """An Excel sheet with the number of ratings before each row, in the oldest of the formats (BIFF
    2), which is a list of records: kind, length, content."""
    table = np.column_stack([(ratings != 99).sum(1), ratings])
    records = [(0x0009, struct.pack("<HH", 2, 0x10))]  # a sheet begins
    for (row, column), value in np.ndenumerate(table):
        records.append((0x0003, struct.pack("<HHxxxd", row, column, value)))
    records.append((0x000A, b""))
    return b"".join(struct.pack("<HH", kind, len(text)) + text for kind, text in records)


def test_jester_is_read_from_its_sheet_as_one_row_for_each_rating(tmp_path):
    ratings = jester_ratings()
    root = write(tmp_path / "jester", {downloads.JESTER_FILE: jester_file(ratings)})
    rows = [(*place, ratings[*place] > 0) for place in np.argwhere(ratings != 99)]
    assert answered("jester", root) == rows
    assert [liked for *_, liked in rows[:3]] == [True, False, False]
    line = prepare("jester", root, tmp_path, tmp_path / "out.npz")
    assert line == f"jester: {len(rows)} rows of 4 users, 2 classes, 1 feature"


# ---------------------------------------------------------------- another file in its place

KINDS = ("wisdm", "spi", "epi", "insteval", "jester")
FILES = {name: getattr(downloads, f"{name.upper()}_FILE") for name in KINDS}
MISSING = np.where(spi_answers() == 3, np.nan, 3)
OTHERS = [
    ("wisdm", wisdm_file("YAVG"), r"train_images; got 'NaN.* in 1 row, the first 4'"),
    ("wisdm", wisdm_file()[:-60], "rows of other than 46 values"),
    ("wisdm", b"33,Jogging,491059,-0.69,12.68,0.50;\n", "no header"),
    ("spi", spi_file(spi_answers())[:-40], "cannot be read"),
    ("spi", spi_file(spi_answers() % 6), "answers other than 1 to 6"),
    ("spi", spi_file(MISSING), "answers other than 1 to 6"),
    ("epi", rda("epi", EPI.replace(2.0, 3.0)), "answers other than 1 and 2"),
    ("insteval", rda("InstEval", insteval(y=0)), "ratings other than 1 to 5"),
    ("insteval", rda("InstEval", insteval(y=np.nan)), "ratings other than 1 to 5"),
    ("insteval", rda("InstEval", insteval(s=None)), "ratings without student or lecturer"),
    ("insteval", rda("InstEval", insteval(s="2", d="7")), "two of one by the other"),
    ("jester", jester_file(jester_ratings())[:-4000], "cannot be read"),
    ("jester", jester_file(jester_ratings()[:, :-1]), "rows of other than 101 numbers"),
    ("jester", jester_file(jester_ratings() * 1.01), "ratings other than -10 to 10"),
    ("jester", b"PK\3\4 not a sheet", "cannot be read"),
]


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: f"{case[0]}: {case[2]}")
def test_another_file_in_the_place_of_the_original_is_refused(case, tmp_path):
    name, content, words = case
    assert_refused(name, write(tmp_path / "in", {FILES[name]: content}), tmp_path, words)


@pytest.mark.parametrize("name", ["wisdm", "jester"])
def test_without_its_file_a_data_set_that_is_not_downloaded_says_what_to_put_where(name, tmp_path):
    assert_refused(name, None, tmp_path, f"{name} is not downloaded.*put {FILES[name]}.*into")


# ---------------------------------------------------------------- MNIST by writer


def writers_files(monkeypatch: pytest.MonkeyPatch, classes: np.ndarray) -> dict[str, bytes]:
    """MNIST with 8 training and 4 test examples, and QMNIST's labels, 8 and 9 rows; torchvision's
    digests are set to theirs."""
    from torchvision.datasets import QMNIST

    _, _, files = mnist_original(monkeypatch, "mnist")
    rows, table = np.zeros((17, 8)), {}
    rows[:, 0], rows[:, 1], rows[:, 2] = classes, 4, 2100 + np.arange(17) // 2
    for part, some in (("train", rows[:8]), ("test", rows[8:])):
        name = f"QMNIST/raw/qmnist-{part}-labels-idx2-int.gz"
        files[name] = gzip.compress(idx(some, 12))
        table[part] = [("", ""), (f"http://nowhere.invalid/{name}", md5(files[name]))]
    monkeypatch.setattr(QMNIST, "resources", table)
    return files


@pytest.mark.parametrize("form", ["archives", "unpacked"])
def test_mnist_has_the_writers_that_qmnist_names(form, tmp_path, monkeypatch):
    files = writers_files(monkeypatch, np.arange(17) % 10)
    if form == "unpacked":
        files = {name[: -len(".gz")]: gzip.decompress(text) for name, text in files.items()}
    raw = original("mnist_writers", write(tmp_path, files))
    assert np.array_equal(raw["train_images"], GREY)
    assert raw["train_labels"].tolist() == (np.arange(12) % 10).tolist()
    assert raw["train_users"].tolist() == (2100 + np.arange(12) // 2).tolist()
    assert "test_images" not in raw


def test_labels_of_other_pictures_are_refused(tmp_path, monkeypatch):
    root = write(tmp_path / "in", writers_files(monkeypatch, (1 + np.arange(17)) % 10))
    assert_refused("mnist_writers", root, tmp_path, "classes; expected those of MNIST")


NO_PART = "needs the real data sets, which are no part of the project"
needs_real_data = pytest.mark.skipif(not SHARED.is_dir(), reason=NO_PART)


@needs_real_data
@pytest.mark.parametrize("name", ["mnist_writers", "wisdm"])
def test_what_is_known_of_a_name_is_what_its_data_have(name):
    source = SHARED / f"{name}.npz"
    assert datasets.read_header(source, name) == datasets.describe(name)


@pytest.mark.slow
@needs_real_data
@pytest.mark.parametrize("name", ["spi", "spi_levels"])
def test_what_is_known_of_spi_is_what_its_answers_give(name, tmp_path):
    answers = np.load(SHARED / "spi.npz")["answers"]
    root = write(tmp_path / "spi", {downloads.SPI_FILE: spi_file(answers)})
    prepare(name, root, tmp_path, tmp_path / "out.npz")
    assert datasets.read_header(tmp_path / "out.npz", name) == datasets.describe(name)


@pytest.mark.slow
@needs_real_data
def test_what_is_known_of_jester_is_what_its_ratings_give(tmp_path):
    ratings = np.load(SHARED / "jester1.npz")["rating_x100"]
    people, jokes = np.nonzero(ratings != 32767)
    arrays = {
        "train_images": jokes.astype(np.float32)[:, None],
        "train_labels": (ratings[people, jokes] > 0).astype(int),
        "train_users": people,
    }
    np.savez(tmp_path / "jester.npz", **arrays)
    assert datasets.read_header(tmp_path / "jester.npz", "jester") == datasets.describe("jester")


# ---------------------------------------------------------------- sequences

SMALL = TABLES["SMALL"]


def sequences(count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Sequences ``[n, 8, 3]``: the class is the channel that swings."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 3
    x = 0.1 * rng.normal(size=(count, 8, 3))
    x[np.arange(count), :, labels] += np.sin(np.arange(8))
    return x.astype(np.float32), labels


def test_sequences_come_through_as_they_are(tmp_path):
    x, y = sequences()
    np.savez(tmp_path / "own.npz", train_images=x, train_labels=y, train_users=np.arange(60) % 4)
    header = datasets.describe("mine", tmp_path / "own.npz")
    assert (header.image_shape, header.users) == ((8, 3), 4)
    prepare("mine", tmp_path / "own.npz", tmp_path, tmp_path / "out.npz")
    arrays = load_arrays(tmp_path / "out.npz")
    assert datasets.normalise(arrays.train_images, arrays.mean, arrays.std).shape == (48, 8, 3)
    assert len(partition.make(arrays, Partition("natural"), 0).train) == 4
    worse = x.copy()
    worse[5, 2, 1] = np.nan
    with pytest.raises(DataError, match="in 1 row, the first 5"):
        datasets.arrays_from({"train_images": worse, "train_labels": y}, "mine")
    with pytest.raises(ConfigError, match="images"):
        check_augment(("flip",), header.image_shape)
    with pytest.raises(ConfigError, match="choose mlp"):
        architectures.shapes(Model("cnn_femnist"), header.image_shape, 3)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["mlp", "outside"])
def test_a_federation_learns_sequences(network, tmp_path):
    (tmp_path / "small.py").write_text(SMALL)
    x, y = sequences()
    model = Model("mlp", (8,)) if network == "mlp" else Model(f"{tmp_path}/small.py:Conv1")
    shards = [(x[part], y[part]) for part in np.array_split(np.arange(60), 3)]
    settings = {"training": Training(8, 2, 5, "adam", 0.03), "device": "cpu", "backend": "vmap"}
    found = pflpipe.train("fedavg", shards, model=model, **settings)
    assert found.accuracies["global_common"] > 60
    assert tuple(found.simulation.train.x.shape[1:]) == (8, 3)


def test_a_network_from_outside_is_given_channels_first(tmp_path):
    (tmp_path / "small.py").write_text(SMALL)
    model = Model(f"{tmp_path}/small.py:Conv1")
    network = networks.build(model, (8, 3), 3)
    assert architectures.parameter_names(model) == tuple(network.shapes), "known without any data"
    params = network.init(torch.Generator().manual_seed(0))
    x = torch.from_numpy(sequences(4)[0])
    kernels = params["conv.weight"], params["conv.bias"]
    z = torch.nn.functional.conv1d(x.permute(0, 2, 1), *kernels).relu().mean(-1)
    expected = z @ params["head.weight"].T + params["head.bias"]
    torch.testing.assert_close(network.apply(params, x), expected)
