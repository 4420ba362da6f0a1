"""Small files with one damage each, for every source that can hold it.

``FRAMES`` damages a table: it becomes a CSV, TSV or Parquet file with a block, a DataFrame for
``clients_of``, or arrays. ``TEXTS`` damages the text of a CSV or TSV file, ``PICTURES`` a folder.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from PIL import Image

from tabled import table

PEOPLE = ("12", "7", "Ann", "Bo", "Zoé", "Eve")
ROWS = 12
TABLES = ("csv", "tsv", "parquet", "frame")
"""Sources with names of columns; ``arrays`` have none."""
EVERY = (*TABLES, "arrays")
OTHERS = table("dirty")
LAYOUT = OTHERS["LAYOUT"]


class Case(NamedTuple):
    """A damage: words of its error or warning, what makes a table, or one and its test table, of a
    clean one, what differs in the block, and the sources that can hold it."""

    words: str
    make: Callable[[pd.DataFrame], pd.DataFrame | tuple[pd.DataFrame, pd.DataFrame]]
    block: Mapping[str, object] = {}
    sources: Sequence[str] = EVERY


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


def of_columns(kind: str) -> dict[str, Case]:
    """Further columns by formulas, in which ``sick`` is the label and ``place`` a person's."""

    def made(name: str, formula: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
        def numbers(table: pd.DataFrame) -> pd.Series:
            places = table["person"].map(PEOPLE.index)
            return table.assign(sick=is_yes(table), place=places).eval(formula)

        return column(name, numbers)

    return {
        name: Case(words, made(*asked), block, TABLES if of == "tables" else EVERY)
        for name, (words, of, block, *asked) in OTHERS[kind].items()
    }


SPELLING = "1 in several spellings"
NOBODY = "expected the id of a user"
NUMBER = "a number such as 1234.5"
LONG = r"got 'z{40}\.\.\. in 1"
WRITTEN = ("csv", "tsv", "frame")
NUMBERS = {"classes": None, "label": None, "target": "dose", "vocabularies": {}}

FRAMES: Mapping[str, Case] = {
    **{name: Case(SPELLING, id_of(*ids)) for name, ids in OTHERS["spellings"].items()},
    **{f"nobody: {word}": Case(NOBODY, id_of("Ann", word)) for word in OTHERS["nobody"]},
    **{
        name: Case(words, cell(column, value), {}, sources or EVERY)
        for name, (column, value, words, sources) in OTHERS["cells"].items()
    },
    **of_columns("columns"),
    **{name: Case(words, same, block, TABLES) for name, (words, block) in OTHERS["blocks"].items()},
    "two blanks": Case("2 in several|1 in several", id_of("Ann", "Ann\t")),
    "a dash for a hyphen": Case("6 in several", lambda t: t.assign(person=pasted(t))),
    "a date with midnight": Case("6 in several spellings", dates),
    "test ids without zeros": Case("2 in several spellings", zeros),
    "test ids with a point": Case("2 in several spellings", respelled),
    "the same label in every row": Case("all rows have the same label", lambda t: t.assign(y="no")),
    "lists for ids": Case(
        "got '(list|ndarray)'",
        column("person", lambda t: [[p] for p in t["person"]]),
        {},
        TABLES[2:],
    ),
    "rounded ids": Case(
        NOBODY, column("person", lambda t: [2.0**54 + 2 * (a % 6) for a in t["age"]]), {}, ("csv",)
    ),
    "decimal commas": named(NUMBER, "dose", lambda t: t["dose"].astype(str).str.replace(".", ",")),
    "percent signs": named(NUMBER, "age", lambda t: t["age"].astype(str) + " %"),
    "signs between thousands": named(NUMBER, "age", lambda t: [f"{1000 * a:,}" for a in t["age"]]),
    "addresses": named("write texts: {ip: 64}", "ip", lambda t: [f"10.0.{a}.7" for a in t["age"]]),
    "a very long label": Case(f"classes; {LONG}", cell("y", "z" * 5000), {}, TABLES),
    "a very long number": Case(LONG, cell("age", "z" * 5000), {}, WRITTEN),
    "no id": Case("a value in every row", id_of("Ann", "")),
    "a word for the label": Case(
        "the label follows from said alone",
        column("said", lambda t: np.where(t["y"] == "yes", "ja", "nein")),
        {"vocabularies": {"city": ["Oslo", "Rome"], "said": ["ja", "nein"]}},
    ),
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
    "float32 ids": Case("whole numbers below 16777216", float32, {}, ("parquet", "frame")),
    "a column of words": named("without a vocabulary: note", "note", long_words),
    "no column of labels": Case("no column 'y'", lambda t: t.drop(columns="y"), {}, TABLES),
    "one name twice": Case("2 columns have the name 'age'", twice, {}, WRITTEN),
}
"""Damage of a table: words, how, what differs in the block, and the sources that can hold it."""

CLEAN: Mapping[str, Case] = {
    "as it is": Case("", same),
    **of_columns("clean columns"),
    "a test table": Case("", sides),
    "zeros in front": Case("", lambda t: t.replace({"person": {"Bo": "007"}})),
    "ids that are declared one": Case("", id_of("Ann", "ann"), {"ids": "merge"}, TABLES),
    "a table of few values": Case("", sides, {"features": ["city"]}, TABLES[:3]),
    "a number to predict": Case("", lambda t: t.drop(columns=["y", "city"]), NUMBERS, TABLES),
}

HEAD = "person,age,y\n"
BODY = clean()[["person", "age", "y"]].to_csv(index=False, header=False)


def text_of(
    head: str = HEAD,
    above: str = "",
    rows: bool = True,
    below: str = "",
    replace: Sequence[str] = (),
) -> str:
    """The text of a table: its names, lines above good ones, in which something is replaced, and
    lines below."""
    body = BODY.replace(*replace) if replace else BODY
    return head + above + body * rows + below


TEXTS: Mapping[str, tuple[str, str]] = {
    **{name: (case.pop("words"), text_of(**case)) for name, case in OTHERS["texts"].items()},
    "a long name twice": (r"have the name 'h{40}\.\.\.'", f"{'h' * 3000},{'h' * 3000}\n1,2\n"),
}
CLEAN_TEXTS: Mapping[str, str] = {
    **{name: text_of(**case) for name, case in OTHERS["clean texts"].items()},
    "lines of Windows": (HEAD + BODY).replace("\n", "\r\n"),
    "lines of a Mac": (HEAD + BODY).replace("\n", "\r"),
}


def pictures(folder: Path) -> Path:
    """Three people with four pictures of each of two classes."""
    rng = np.random.default_rng(0)
    for person, label, name in np.ndindex(3, 2, 4):
        place = folder / f"p{person}" / ["cat", "dog"][label]
        place.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{name}.png")
    return folder


def saved(change: Callable[[Image.Image], Image.Image]) -> Callable[[Path], object]:
    """Return a damage: a picture is changed."""
    return lambda folder: change(Image.open(folder / PICTURE)).save(folder / PICTURE)


def animated(folder: Path) -> None:
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "blue")]
    frames[0].save(folder / PICTURE, save_all=True, append_images=frames[1:])


def transparent(image: Image.Image) -> Image.Image:
    image.putalpha(Image.new("L", (8, 6), 0))
    return image


def linked(path: str, to: str = "nowhere") -> Callable[[Path], object]:
    return lambda folder: (folder / path).symlink_to(folder / to)


def hidden(name: str) -> Callable[[Path], object]:
    return lambda folder: shutil.copytree(folder / "p0/cat", folder / name)


def replaced(content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / PICTURE).write_bytes(content)


def moved(path: str, to: str) -> Callable[[Path], object]:
    return lambda folder: (folder / path).rename(folder / to)


PICTURE = "p2/dog/3.png"
UNREAD = "4 other files were not read"
PICTURES: Mapping[str, tuple[str, Callable[[Path], object]]] = {
    "copies of a notebook": (UNREAD, hidden(".ipynb_checkpoints/cat")),
    "copies in a person": (UNREAD, hidden("p0/.ipynb_checkpoints")),
    "a bin": (UNREAD, hidden(".Trash-1000/files/cat")),
    "a link to a person": ("some people have exactly the rows", linked("p9", "p0")),
    "a link to no picture": ("9.png cannot be read", linked("p0/cat/9.png")),
    "a link to no class": ("1 other files were not read", linked("p0/bird")),
    "a link to no person": ("1 other files were not read", linked("p8")),
    "an empty file": ("3.png cannot be read", replaced(b"")),
    "an animated picture": ("some pictures are animated", animated),
    "a transparent picture": ("some pictures are transparent", saved(transparent)),
    "no picture": ("3.png cannot be read; got .*Unidentified", replaced(b"GIF")),
    "16 bits": (
        "3.png cannot be read; .*more than 8 bits a channel",
        saved(lambda _: Image.fromarray(np.zeros((6, 8), np.uint16))),
    ),
    "another size": (
        r"3.png: .*\(6, 9, 3\).*\(6, 8, 3\), as .*0.png.*write size",
        saved(lambda _: Image.new("RGB", (9, 6))),
    ),
    "a grey picture": (r"3.png: .*\(6, 8\).*channels: 1 or 3", saved(lambda i: i.convert("L"))),
    "another class": ("classes; got 'bird", moved("p0/cat", "p0/bird")),
    "a picture above its class": (
        "p2/3.png: a picture in another place; expected pictures/person/class",
        moved(PICTURE, "p2/3.png"),
    ),
    "a person without pictures": ("p7: no picture", lambda f: (f / "p7/cat").mkdir(parents=True)),
    "people in two spellings": (SPELLING, lambda f: shutil.copytree(f / "p0", f / "P0")),
    "people without a name": (NOBODY, moved("p0", "unknown")),
}
