"""Small files with one damage each, for every source that can hold it.

``FRAMES`` damages a table: it becomes a CSV, TSV or Parquet file with a block, a DataFrame for
``clients_of``, or arrays. ``TEXTS`` damages the text of a CSV or TSV file, ``PICTURES`` a folder.
"""

import shutil
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from PIL import Image

PEOPLE = ("12", "7", "Ann", "Bo", "Zoé", "Eve")
ROWS = 12
LAYOUT = {
    "user": "person",
    "label": "y",
    "classes": ["no", "yes"],
    "vocabularies": {"city": ["Oslo", "Rome"]},
}


TABLES = ("csv", "tsv", "parquet", "frame")
"""Sources with names of columns; ``arrays`` have none."""


class Case(NamedTuple):
    """A damage: words of its error or warning, what makes a table, or one and its test table, of a
    clean one, what differs in the block, and the sources that can hold it."""

    words: str
    make: Callable[[pd.DataFrame], pd.DataFrame | tuple[pd.DataFrame, pd.DataFrame]]
    block: Mapping[str, object] = {}
    sources: Sequence[str] = (*TABLES, "arrays")


def clean() -> pd.DataFrame:
    """Twelve rows of each of six people; nothing follows from anything else."""
    rng = np.random.default_rng(0)
    count = ROWS * len(PEOPLE)
    return pd.DataFrame(
        {
            "person": np.repeat(PEOPLE, ROWS),
            "age": rng.integers(18, 90, count),
            "dose": np.round(rng.normal(size=count), 4),
            "city": rng.choice(["Oslo", "Rome"], count),
            "y": rng.choice(["no", "yes"], count),
        }
    )


def id_of(old: str, new: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Return a damage: half of the rows of a person have another id."""

    def damage(table: pd.DataFrame) -> pd.DataFrame:
        rows = table.index[table["person"] == old][::2]
        table.loc[rows, "person"] = new
        return table

    return damage


def column(name: str, values: Callable[[pd.DataFrame], object]) -> Callable:
    return lambda table: table.assign(**{name: values(table)})


def named(words: str, name: str, values: Callable[[pd.DataFrame], object]) -> Case:
    """Return the damage of a column in a source with names of columns."""
    return Case(words, column(name, values), {}, TABLES)


def follows(name: str, values: Callable[[pd.DataFrame], object], **block: object) -> Case:
    """Return a column from which the label follows."""
    return Case(f"the label follows from {name} alone", column(name, values), block)


def cell(name: str, value: object) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def damage(table: pd.DataFrame) -> pd.DataFrame:
        table = table.astype({name: object})
        table.loc[5, name] = value
        return table

    return damage


def sides(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two thirds of each person's rows, and the others."""
    is_test = np.arange(len(table)) % 3 == 0
    return table[~is_test], table[is_test]


def respelled(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    train, test = sides(table)
    return train, test.assign(person=test["person"].replace({"7": "7.0", "12": "12.0"}))


def copied(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    train, test = sides(table)
    return train, pd.concat([test, train.iloc[:6]])


def strangers(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    train, test = sides(table)
    return train[train["person"] != "Eve"], test


def same(table: pd.DataFrame) -> pd.DataFrame:
    return table


def zeros(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Test ids whose zeros in front a program has left out."""
    train, test = sides(table)
    return train.assign(person=train["person"].replace({"7": "007", "12": "012"})), test


def dates(table: pd.DataFrame) -> pd.DataFrame:
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(table["person"].map(PEOPLE.index), "D")
    written = days.astype(str)
    return table.assign(person=written.where(np.arange(len(table)) % 2 == 0, written + " 00:00:00"))


def float32(table: pd.DataFrame) -> pd.DataFrame:
    numbers = 16777212 + table["person"].map(PEOPLE.index)
    return table.assign(person=numbers.astype("float32"))


def pasted(table: pd.DataFrame) -> pd.Series:
    """Ids with a hyphen, of which a program for texts has made a dash in every second row."""
    ids = "p-" + table["person"]
    return ids.where(np.arange(len(table)) % 2 == 0, ids.str.replace("-", "\u2013"))


def one_label(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(y="no")


def long_words(table: pd.DataFrame) -> pd.Series:
    return "word " * 2000 + table["age"].astype(str)


def twice(table: pd.DataFrame) -> pd.DataFrame:
    return table.rename(columns={"dose": "age"})


def twin(table: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([table, table[table["person"] == "Ann"].assign(person="Ann2")])


def standardised(table: pd.DataFrame) -> pd.DataFrame:
    numbers = table[["age", "dose"]]
    return table.assign(**((numbers - numbers.mean()) / numbers.std(ddof=0)))


def is_yes(table: pd.DataFrame) -> pd.Series:
    return (table["y"] == "yes").astype(int)


SPELLING = "1 in several spellings"
NOBODY = "expected the id of a user"
NUMBERS = {"classes": None, "label": None, "target": "dose", "vocabularies": {}}

FRAMES: Mapping[str, Case] = {
    "a point": Case(SPELLING, id_of("7", "7.0")),
    "a sign": Case(SPELLING, id_of("7", "+7")),
    "a blank behind": Case(SPELLING, id_of("Ann", "Ann ")),
    "a blank that breaks no line": Case(SPELLING, id_of("Ann", "Ann\u00a0")),
    "a blank of no width": Case(SPELLING, id_of("Ann", "An\u200bn")),
    "a mark of order": Case(SPELLING, id_of("Ann", "\ufeffAnn")),
    "two blanks": Case("2 in several|1 in several", id_of("Ann", "Ann\t")),
    "a composed letter": Case(SPELLING, id_of("Zoé", unicodedata.normalize("NFD", "Zoé"))),
    "wide digits": Case(SPELLING, id_of("12", "１２")),
    "a capital": Case(SPELLING, id_of("Ann", "ANN")),
    "a dash for a hyphen": Case("6 in several", lambda t: t.assign(person=pasted(t))),
    "quotes": Case(SPELLING, id_of("Ann", "'Ann'")),
    "a date with midnight": Case("6 in several spellings", dates),
    "test ids without zeros": Case("2 in several spellings", zeros),
    "test ids with a point": Case("2 in several spellings", respelled),
    **{
        f"nobody: {word}": Case(NOBODY, id_of("Ann", word))
        for word in (
            *("NULL", "NA", "N/A", "#N/A", "?", "-1", "None", "nan", "unknown"),
            *("n.a.", "[NULL]", "(none)", "missing", "undefined", "anonymous", "--", "."),
            *("-999", "#REF!", "#DIV/0!", "#NAME?", "inf", "1.23457E+11", "1e+05", "Total", "Mean"),
        )
    },
    "the same label in every row": Case("all rows have the same label", one_label),
    "the user as the label": Case(
        "a column for each of user, label",
        same,
        {"label": "person", "classes": list(PEOPLE), "features": ["age"]},
        TABLES,
    ),
    "large numbers": named("float32 rounds", "big", lambda t: 2**62 + 3 * (t["age"] % 7)),
    "lists for ids": Case(
        "got '(list|ndarray)'",
        column("person", lambda t: [[p] for p in t["person"]]),
        {},
        TABLES[2:],
    ),
    "rounded ids": Case(
        NOBODY, column("person", lambda t: [2.0**54 + 2 * (a % 6) for a in t["age"]]), {}, ("csv",)
    ),
    "decimal commas": named(
        "a number such as 1234.5", "dose", lambda t: t["dose"].astype(str).str.replace(".", ",")
    ),
    "percent signs": named("a number such as 1234.5", "age", lambda t: t["age"].astype(str) + " %"),
    "signs between thousands": named(
        "a number such as 1234.5", "age", lambda t: [f"{1000 * age:,}" for age in t["age"]]
    ),
    "addresses": named("write texts: {ip: 64}", "ip", lambda t: [f"10.0.{a}.7" for a in t["age"]]),
    "a very long label": Case(r"classes; got 'z{40}\.\.\. in 1", cell("y", "z" * 5000), {}, TABLES),
    "a very long number": Case(
        r"got 'z{40}\.\.\. in 1", cell("age", "z" * 5000), {}, ("csv", "tsv", "frame")
    ),
    "no id": Case("a value in every row", id_of("Ann", "")),
    "the label of a merge": Case("feature y_y has the name", column("y_y", is_yes), {"label": "y"}),
    "the label twice": Case("feature y.1 has the name", column("y.1", is_yes)),
    "the label as a number": follows("sick", is_yes),
    "the label with a sign": follows("mood", lambda t: 3 - 5 * is_yes(t)),
    "a later result": follows("score", lambda t: 50 + 40 * is_yes(t) - t["age"] / 3),
    "a result of few values": follows("grade", lambda t: 2 * (t["age"] % 3) + is_yes(t)),
    "a word for the label": follows(
        "said",
        lambda t: np.where(t["y"] == "yes", "ja", "nein"),
        vocabularies={"city": ["Oslo", "Rome"], "said": ["ja", "nein"]},
    ),
    "the target in another unit": follows(
        "grams", lambda t: 1000 * t["dose"], **NUMBERS, features=["age", "grams"]
    ),
    "numbers of rows": Case("every row has another", column("n", lambda t: range(len(t)))),
    "keys of rows": named(
        "every row has another", "key", lambda t: (np.arange(len(t)) * 37 + 5) % 997
    ),
    "a number of each person": named(
        "each person has a value of patient_id",
        "patient_id",
        lambda t: t["person"].map(lambda p: 13 * PEOPLE.index(p) + 5),
    ),
    "a date": Case("float32 rounds", column("day", lambda t: 20200101 + t["age"] % 29)),
    "standardised": Case("every feature has mean 0", standardised, {"features": ["age", "dose"]}),
    "test rows of training": Case("the test rows are the training", lambda t: (t, t)),
    "copies on both sides": Case("test rows are copies of training rows of their person", copied),
    "copies under other ids": Case(
        "copies of training rows of other people",
        lambda t: (t, t.assign(person=np.roll(t["person"], ROWS))),
    ),
    "ids that are declared exact": Case(
        "as they are written", id_of("Ann", "ann"), {"ids": "exact"}, TABLES
    ),
    "people who never train": Case("some people have test rows only", strangers),
    "a person twice": Case("some people have exactly the rows", twin),
    "the user as a feature": Case(
        "got 'age, person, the user|got 'person", same, {"features": ["age", "person"]}, TABLES
    ),
    "the label as a feature": Case("got 'y, the user", same, {"features": ["age", "y"]}, TABLES),
    "float32 ids": Case("whole numbers below 16777216", float32, {}, ("parquet", "frame")),
    "a missing number": Case("missing values of 'age'|NaN", cell("age", np.nan)),
    "an infinite number": Case("column 'age'", cell("age", np.inf)),
    "a word among numbers": Case("column 'age'", cell("age", "old"), {}, ("csv", "tsv", "frame")),
    "an undeclared word": Case("vocabularies.city", cell("city", "Bern"), {}, TABLES),
    "an undeclared label": Case("classes", cell("y", "perhaps"), {}, TABLES),
    "no label": Case("column 'y'", cell("y", ""), {}, TABLES),
    "a column of words": named("without a vocabulary: note", "note", long_words),
    "no column of labels": Case("no column 'y'", lambda t: t.drop(columns="y"), {}, TABLES),
    "one name twice": Case("2 columns have the name 'age'", twice, {}, ("csv", "tsv", "frame")),
}
"""Damage of a table: words, how, what differs in the block, and the sources that can hold it."""

CLEAN: Mapping[str, Case] = {
    "as it is": Case("", same),
    "a test table": Case("", sides),
    "zeros in front": Case("", lambda t: t.replace({"person": {"Bo": "007"}})),
    "ids that are declared one": Case("", id_of("Ann", "ann"), {"ids": "merge"}, TABLES),
    "a constant": Case("", column("site", lambda t: 3)),
    "the age of each person": Case(
        "", column("born", lambda t: 1950 + 7 * t["person"].map(PEOPLE.index))
    ),
    "incomes": Case("", column("income", lambda t: 20000 + 17 * ((np.arange(len(t)) * 37) % 1009))),
    "a table of few values": Case("", sides, {"features": ["city"]}, TABLES[:3]),
    "a range for a date": Case(
        "",
        column("day", lambda t: 20200101 + t["age"] % 29),
        {"ranges": {"day": [20200101, 20200131]}},
        TABLES,
    ),
    "a number to predict": Case("", lambda t: t.drop(columns=["y", "city"]), NUMBERS, TABLES),
}

HEAD = "person,age,y\n"
BODY = clean()[["person", "age", "y"]].to_csv(index=False, header=False)
TEXTS: Mapping[str, tuple[str, str]] = {
    "a longer line": ("line 3; got '4 values'", HEAD + "a,1,no\na,2,no,9\n" + BODY),
    "all lines longer": ("line 2; got '4 values'", HEAD + BODY.replace("\n", ",9\n")),
    "a stray quote": ("got 'no.{1,2}b", HEAD + 'a,1,"no\nb,2,yes\nc,3,no"\n' + BODY),
    "a quote in a column that is left out": (
        "a value holds several lines",
        'person,age,y,note\na,1,no,"ill\nb,2,yes,well"\n' + BODY.replace("\n", ",fine\n"),
    ),
    "an open quote": ("EOF inside string", HEAD + BODY + 'a,1,"no\n'),
    "a name twice": (
        "2 columns have the name 'y'",
        "person,y,age,y\n" + BODY.replace("\n", ",no\n"),
    ),
    "another separator": ("the separator of line 1", (HEAD + BODY).replace(",", ";")),
    "no names": ("no column 'person'", BODY),
    "names alone": ("0 rows with 1 feature", HEAD),
    "nothing": ("EmptyDataError", ""),
    "a short line": ("column 'y'; got 'no value", HEAD + BODY + "a,30\n"),
    "a long name twice": (r"have the name 'h{40}\.\.\.'", f"{'h' * 3000},{'h' * 3000}\n1,2\n"),
    "a byte of zero": ("line 2; got 'bytes of zero'", HEAD + "Ann,3\0,no\n" + BODY),
    "a line of Excel": ("the separator of line 1; got 'sep=;'", "sep=;\n" + HEAD + BODY),
    "a second line of names": ("column 'age'; got 'Years in 1", HEAD + "Who,Years,no\n" + BODY),
    "a total": ("got .'Total' in 1 row", HEAD + BODY + "Total,3000,yes\n"),
    "a decimal comma": ("got '4 values'|no number|column 'age'", HEAD + 'a,"1,5",no\n' + BODY),
}
CLEAN_TEXTS: Mapping[str, str] = {
    "a mark of order": "\ufeff" + HEAD + BODY,
    "lines of Windows": (HEAD + BODY).replace("\n", "\r\n"),
    "empty lines": HEAD + BODY.replace("\n", "\n\n"),
    "quotes": HEAD + BODY.replace("no", '"no"'),
    "blanks behind labels": HEAD + BODY.replace("no", "no "),
    "lines of a Mac": (HEAD + BODY).replace("\n", "\r"),
    "signs before numbers": HEAD + BODY.replace(",4", ",+4"),
    "blanks behind commas": HEAD + BODY.replace(",", ", "),
    "empty values at the end": HEAD + BODY.replace("\n", ",\n"),
    "a text of two lines": "person,age,y,note\n" + BODY.replace("\n", ',"ill,\nas said"\n'),
}


def pictures(folder: Path) -> Path:
    """Three people with four pictures of each of two classes."""
    rng = np.random.default_rng(0)
    for person, label, name in np.ndindex(3, 2, 4):
        place = folder / f"p{person}" / ["cat", "dog"][label]
        place.mkdir(parents=True, exist_ok=True)
        save(rng, place / f"{name}.png")
    return folder


def save(rng: np.random.Generator, path: Path, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    image.save(path, **options)


def animated(folder: Path) -> None:
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "blue")]
    frames[0].save(folder / "p0/cat/0.png", save_all=True, append_images=frames[1:])


def transparent(folder: Path) -> None:
    image = Image.open(folder / "p0/cat/0.png").convert("RGBA")
    image.putalpha(Image.new("L", (8, 6), 0))
    image.save(folder / "p0/cat/0.png")


def linked_person(folder: Path) -> None:
    (folder / "p9").symlink_to(folder / "p0", target_is_directory=True)


def hidden(name: str) -> Callable[[Path], object]:
    return lambda folder: shutil.copytree(folder / "p0/cat", folder / name)


def replaced(path: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / path).write_bytes(content)


def of_16_bits(folder: Path) -> None:
    Image.fromarray(np.zeros((6, 8), np.uint16)).save(folder / "p0/cat/0.png")


def larger(folder: Path) -> None:
    Image.new("RGB", (9, 6)).save(folder / "p0/cat/0.png")


def dead_link(path: str) -> Callable[[Path], object]:
    return lambda folder: (folder / path).symlink_to("nowhere")


PICTURES: Mapping[str, tuple[str, Callable[[Path], object]]] = {
    "copies of a notebook": ("4 other files were not read", hidden(".ipynb_checkpoints/cat")),
    "copies in a person": ("4 other files were not read", hidden("p0/.ipynb_checkpoints")),
    "a bin": ("4 other files were not read", hidden(".Trash-1000/files/cat")),
    "a link to a person": ("some people have exactly the rows", linked_person),
    "a link to no picture": ("9.png cannot be read", dead_link("p0/cat/9.png")),
    "a link to no class": ("1 other files were not read", dead_link("p0/bird")),
    "a link to no person": ("1 other files were not read", dead_link("p8")),
    "an empty file": ("0.png cannot be read", replaced("p0/cat/0.png", b"")),
    "an animated picture": ("some pictures are animated", animated),
    "a transparent picture": ("some pictures are transparent", transparent),
    "no picture": ("0.png cannot be read", replaced("p0/cat/0.png", b"GIF")),
    "16 bits": ("more than 8 bits", of_16_bits),
    "another size": ("height, width, channels", larger),
    "another class": ("classes; got 'bird", lambda f: (f / "p0/cat").rename(f / "p0/bird")),
    "a picture above its class": (
        "in another place",
        lambda f: (f / "p0/cat/0.png").rename(f / "p0/0.png"),
    ),
    "a person without pictures": ("no picture", lambda f: (f / "p7/cat").mkdir(parents=True)),
    "people in two spellings": (SPELLING, lambda f: shutil.copytree(f / "p0", f / "P0")),
    "people without a name": (NOBODY, lambda f: (f / "p0").rename(f / "unknown")),
}
