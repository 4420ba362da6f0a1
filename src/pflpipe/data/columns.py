"""From the columns of a table to features, each by what is declared of it.

Nothing is read from all rows: words, ranges, parts of dates and what stands for a missing value are
declared, or are those of the person's own training rows (``fill``). Otherwise one person's rows
would change the features of all others.
"""

import functools
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from pflpipe.data import limits, vocabulary
from pflpipe.data.blocks import Fill
from pflpipe.data.contract import NO_VALUE, RowsWarning
from pflpipe.data.texts import Tokens
from pflpipe.errors import DataError, Problems, counted, nearest

MEDIAN, MOST_FREQUENT, INDICATOR = "median", "most_frequent", "indicator"
FITTED = (MEDIAN, MOST_FREQUENT)
"""What stands for a missing value and follows from the person's own rows."""
PARTS = {
    "year": None,
    "month": (1, 12),
    "day": (1, 31),
    "weekday": (0, 6),
    "hour": (0, 23),
    "minute": (0, 59),
}
"""Part of a date -> its range; that of a year is declared."""
NOTHING = ("", "#n/a", "-", "?", "<na>", *NO_VALUE)
"""What files have in place of a missing value, in small letters, unless it is a declared word."""
NAMELESS = "Unnamed: "
"""Beginning of the name that pandas gives to a column without one, as that of an index."""
_OF_MERGE = re.compile(r"(_x|_y|_left|_right|\.\d+)$")
"""End of the name that pandas gives to a column when another one has its name."""
_EXACT = {"float16": 2**11, "float32": 2**24}
"""Type of floats -> the whole number up to which they have all; others have those to 2**53."""
LEFT_OUT = "; left out "
"""In the line about a table, before the columns that are no features."""
_MOST_SHOWN = 10
DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?")
_WRITTEN = re.compile(r"[-+\u2212]?(\d+|\d{1,3}([.,' \u00a0]\d{3})+)([.,]\d+)?\s?%?")
"""A number with a decimal comma, signs between thousands, or a percent sign."""
_NESTED = (dict, list, tuple, set, bytes, np.ndarray)

Fitted = tuple[str, slice]
"""A rule of ``FITTED`` and the features whose missing values it fills, NaN until then."""


@dataclass(frozen=True)
class _Feature:
    """Values ``[N, d]``, what they were taken for, the rule of ``FITTED`` for their NaN, and the
    numbers of a column, or of its words, by name."""

    values: np.ndarray
    words: str
    rule: str = ""
    numbers: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """How columns become features.

    Attributes:
        features: the columns of features; by default all others that have a name.
        exclude: instead, the columns that are left out.
        vocabularies: column of words -> all that it may have.
        encoding: ``one_hot`` or ``index``: what a word of a vocabulary becomes.
        ranges: column of numbers, or ``<column>.<part>`` of a date -> the two values that become
            -1 and 1.
        texts: column of text -> words, or a file of them, each of which becomes a feature, 1 if the
            text has it; or a number of features, to which all words are hashed.
        dates: column of dates as in ISO 8601 -> parts, ``PARTS``, each of which becomes a feature.
        missing: what stands for a missing value, of one column or of all: ``median`` or
            ``most_frequent`` of the person's own training rows, a value, or ``indicator``, 0 and a
            further feature that is 1.
    """

    features: Sequence[str] = ()
    exclude: Sequence[str] = ()
    vocabularies: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    encoding: str = "one_hot"
    ranges: Mapping[str, Sequence[float]] = field(default_factory=dict)
    texts: Mapping[str, int | str | Sequence[str]] = field(default_factory=dict)
    dates: Mapping[str, Sequence[str]] = field(default_factory=dict)
    missing: Any = None

    def of(
        self, table: pd.DataFrame, own: Sequence[str], problems: Problems
    ) -> tuple[np.ndarray, str, dict[str, np.ndarray], Fill | None]:
        """Return the features float32 ``[N, D]``, what they were taken for, the numbers of each
        column by name, and ``fill`` if there is something to fill.

        Args:
            table: a row for each example.
            own: columns that are no features by default.
            problems: collects what is wrong with each column, and is raised at the end.
        """
        made: list[_Feature] = []
        undeclared: list[pd.Series] = []
        holes: dict[str, tuple[np.ndarray, str]] = {}
        taken = self._taken(table, own, problems)
        for name in taken:
            with problems.at():
                found = list(self._features(name, table[name], holes))
                made += found
                undeclared += [] if found else [table[name]]
        with problems.at():
            _refuse_text(undeclared, holes if self.missing is None else {})
        with problems.at():
            _refuse_holes(holes)
        problems.stop(_MOST_SHOWN)
        ends = np.cumsum([feature.values.shape[1] for feature in made])
        fitted = [
            (feature.rule, slice(int(end) - feature.values.shape[1], int(end)))
            for feature, end in zip(made, ends, strict=True)
            if feature.rule
        ]
        values = np.concatenate([feature.values for feature in made], axis=1)
        words = ", ".join(feature.words for feature in made)
        skipped = [name for name in table.columns if name not in (*own, *taken)]
        out = f"{LEFT_OUT}{some(map(_shown, skipped))}" if skipped else ""
        named = {name: values for feature in made for name, values in feature.numbers.items()}
        of_fitted = functools.partial(fill, fitted=fitted) if fitted else None
        return values.astype(np.float32), words + out, named, of_fitted

    def _taken(self, table: pd.DataFrame, own: Sequence[str], problems: Problems) -> list[str]:
        """Return the names of the columns that become features."""
        both = bool(self.features and self.exclude)
        DataError.unless(not both, "features and exclude", expected="one of them")
        taken = self.features or of_features(table, (*own, *self.exclude))
        fits = bool(len(table) and taken)
        got = f"{counted(len(table), 'row')} with {counted(len(taken), 'feature')}"
        DataError.unless(fits, "the table", got, "a line with the names, then rows")
        rules = self.missing if isinstance(self.missing, Mapping) else {}
        of_dates = [f"{name}.{part}" for name, parts in self.dates.items() for part in parts]
        named_ranges = [name for name in self.ranges if name not in of_dates]
        declared = (self.exclude, self.vocabularies, self.texts, self.dates, rules, named_ranges)
        for name in dict.fromkeys([*taken, *(name for names in declared for name in names)]):
            with problems.at():
                require_column(table, name)
        for name in dict.fromkeys([*taken, *self.vocabularies]):
            got, do = f"{name}, the user, label or target", "leave it out of features: [...]"
            with problems.at():
                DataError.unless(name not in own, "features", got, "other columns", do)
            if _OF_MERGE.sub("", name) in [_OF_MERGE.sub("", other) for other in own]:
                said = f"feature {name} has the name of one of {', '.join(own)} with another end"
                do = "leave it out if it is a copy of a merge"
                warnings.warn(f"{said}: {do}", RowsWarning, stacklevel=2)
        return [name for name in taken if name in table.columns]

    def _features(
        self, name: str, column: pd.Series, holes: dict[str, tuple[np.ndarray, str]]
    ) -> Iterator[_Feature]:
        """Yield the features of a column; none of text of which nothing is declared.

        ``holes`` gets the missing values for which nothing is declared, and a rule for them.
        """
        rule = self.missing.get(name) if isinstance(self.missing, Mapping) else self.missing
        if name in self.texts:
            yield self._of_text(name, column)
            absent = np.array([not text.strip() for text in spelled(column)])
        elif name in self.dates:
            dates = _dates(column)
            absent = dates.isna().to_numpy()
            for part in self.dates[name]:
                numbers = getattr(dates.dt, part).to_numpy(dtype=float, na_value=np.nan)
                yield self._of_numbers(f"{name}.{part}", numbers, rule, PARTS[part])
        elif name in self.vocabularies:
            words = spelled(column)
            absent = _absent(words, self.vocabularies[name])
            yield self._of_words(name, words, absent, rule)
        elif (numbers := _numbers(column)) is not None:
            absent = np.isnan(numbers)
            yield self._of_numbers(name, numbers, rule)
        else:
            return
        if rule is None and absent.any() and name not in self.texts:
            holes[name] = absent, MOST_FREQUENT if name in self.vocabularies else MEDIAN
        if rule == INDICATOR:
            yield _Feature(absent[:, None], f"{name} missing")

    def _of_text(self, name: str, column: pd.Series) -> _Feature:
        declared, texts = self.texts[name], list(spelled(column))
        width = declared if isinstance(declared, int) else Tokens(declared, 1).size
        limits.check(8 * width * len(texts), f"{width} features of {name}")
        if not isinstance(declared, int):
            return _Feature(Tokens(declared, 1).present(texts), f"{name} (words of {width - 2})")
        from sklearn.feature_extraction.text import HashingVectorizer  # late: it takes a second

        # A text has length 1. Nothing is fitted: a word has the same place in every table.
        hashed = HashingVectorizer(n_features=width).transform(texts).toarray()
        return _Feature(hashed, f"{name} (words hashed to {width})")

    def _of_words(self, name: str, words: np.ndarray, absent: np.ndarray, rule: Any) -> _Feature:
        declared, key = self.vocabularies[name], f"vocabularies.{name}"
        is_value = rule is not None and rule not in (*FITTED, INDICATOR)
        instead = str(rule if is_value else declared[0])
        places = vocabulary.number(np.where(absent, instead, words), declared, key)
        one_hot = self.encoding == "one_hot"
        values = np.eye(len(declared))[places] if one_hot else places[:, None].astype(float)
        if not is_value:
            values[absent] = np.nan if rule in FITTED else 0
        # A median of words is their most frequent one.
        fitted, said = MOST_FREQUENT * (rule in FITTED), f"{name} (one of {len(declared)})"
        return _Feature(values, said, fitted, {name: places})

    def _of_numbers(
        self,
        name: str,
        numbers: np.ndarray,
        rule: Any,
        natural: Sequence[float] | None = None,
    ) -> _Feature:
        absent, scale = np.isnan(numbers), self.ranges.get(name, natural)
        if rule in FITTED:
            do = f"write ranges: {{{name}: [lowest, highest]}}: its middle stands for their values"
            fits, got = scale is not None or not absent.any(), f"{absent.sum()} missing values"
            DataError.unless(
                fits, f"missing: {name}: {rule}", got, "what people without any have", do
            )
        elif rule not in (None, INDICATOR):
            fits = isinstance(rule, int | float) and not isinstance(rule, bool)
            expected = f"{', '.join((*FITTED, INDICATOR))} or a number"
            DataError.unless(fits, f"missing, of column {name!r}", rule, expected)
            numbers = np.where(absent, rule, numbers)
        values = scaled(name, numbers, scale)[:, None]
        if rule == INDICATOR:
            values[absent] = 0
        fitted = rule if rule in FITTED else ""
        return _Feature(values, ranged(name, scale), fitted, {name: values[:, 0]})


def of_features(table: pd.DataFrame, others: Sequence[str | None]) -> list[str]:
    """Return the columns that become features by default: those with a name but ``others``."""
    named = (name for name in table.columns if not name.startswith(NAMELESS))
    return [name for name in named if name not in others]


def fill(arrays: MutableMapping[str, Any], fitted: Sequence[Fitted]) -> None:
    """Fill missing values of each person with what follows from the person's own training rows, in
    place; of a person who has none, with 0, the middle of a range and none of the words.

    Args:
        arrays: ``train_images``, float32 ``[N, D]`` with NaN, ``train_users`` and those of the
            test.
        fitted: rules and features.
    """
    for rule, part in fitted:
        rows = arrays["train_images"][:, part]
        is_word = part.stop - part.start > 1
        given = (
            np.where(np.isnan(rows[:, :1]), np.nan, rows.argmax(1)[:, None]) if is_word else rows
        )
        own, users = pd.Series(given[:, 0]), arrays["train_users"]
        found = own.groupby(users).median() if rule == MEDIAN else _most_frequent(own, users)
        for side in ("train", "test"):
            values = found.reindex(arrays[f"{side}_users"]).to_numpy(dtype=float)[:, None]
            if is_word:
                values = (values == np.arange(part.stop - part.start)).astype(float)
            images = arrays[f"{side}_images"]
            absent = np.isnan(images[:, part])
            images[:, part] = np.where(absent, np.nan_to_num(values), images[:, part])


def _most_frequent(values: pd.Series, users: np.ndarray) -> pd.Series:
    """Return the most frequent value of each user, the smallest of several; none of a user without
    values."""
    counts = values.groupby([users, values.to_numpy()]).size()  # in ascending order
    return counts.groupby(level=0).idxmax().map(lambda pair: pair[1])


def some(names: Iterable[str]) -> str:
    """Return a list of names, of many the first ones."""
    listed = list(names)
    more = f" and {len(listed) - _MOST_SHOWN} more" if len(listed) > _MOST_SHOWN else ""
    return ", ".join(listed[:_MOST_SHOWN]) + more


def _shown(name: str) -> str:
    return "a column without a name" if name.startswith(NAMELESS) else name


def require_column(table: pd.DataFrame, name: str) -> None:
    """Raise DataError unless a table has a column."""
    if name not in table.columns:
        known = nearest(name, map(str, table.columns))
        if known.startswith("known") and len(table.columns) > _MOST_SHOWN:
            known = f"known: {some(map(vocabulary.short, table.columns))}"
        if name in table.index.names:
            known = "it is the index: give table.reset_index()"
        raise DataError(f"no column {name!r}", do=known)


def require(wrong: np.ndarray, column: pd.Series, expected: str, do: str) -> None:
    """Raise DataError if something is wrong in some rows of a column."""
    if wrong.any():
        row = int(np.argmax(wrong))
        value = "" if pd.isna(column.iloc[row]) else str(column.iloc[row]).strip()
        where = f"{counted(wrong.sum(), 'row')}, the first {row}"
        got = f"{vocabulary.short(value) or 'no value'} in {where}"
        raise DataError(
            f"column {column.name!r}", got=got, expected=f"{expected} in every row", do=do
        )


def text(column: pd.Series) -> np.ndarray:
    """Return ``spelled``; raise DataError for a missing value."""
    _require_plain(column, "take one of its values", (dict, list, tuple, np.ndarray))
    words, do = spelled(column), "leave these rows out"
    require(words == "", column, "a value", do)
    return words


def _require_plain(column: pd.Series, do: str, kinds: tuple[type, ...]) -> None:
    nested = [value for value in column if isinstance(value, kinds)]
    got = type(nested[0]).__name__ if nested else ""
    DataError.unless(not nested, f"column {str(column.name)!r}", got, "numbers or words", do)


def spelled(column: pd.Series) -> np.ndarray:
    """Return the values of a column as text ``[N]``, a missing one as ``""``; whole numbers have no
    point."""
    present = column.dropna()
    if pd.api.types.is_float_dtype(column) and (present % 1 == 0).all():
        # A float of a larger whole number may stand for several of them.
        most, high = _EXACT.get(str(column.dtype).lower(), 2**53), present.abs().max()
        what, got, do = f"column {column.name!r}", f"{column.dtype} {high:.0f}", "store integers"
        DataError.unless(not high >= most, what, got, f"whole numbers below {most}", do)
        column = column.astype("Int64")
    # A missing value among words would shorten them to a letter each.
    return np.where(column.isna(), "", column.astype(str).fillna("").to_numpy(dtype=str))


def numbers(column: pd.Series, scale: Sequence[float] | None = None) -> np.ndarray:
    """Return a column of numbers without a missing one as float64 ``[N]``, ``scaled``."""
    found = _numbers(column)
    if found is None:
        raise DataError(f"column {column.name!r}", got="a column of text", expected="numbers")
    require(np.isnan(found), column, "a finite number", "leave these rows out")
    return scaled(str(column.name), found, scale)


def scaled(name: str, values: np.ndarray, scale: Sequence[float] | None) -> np.ndarray:
    """Return values of which the two of ``scale`` become -1 and 1."""
    low, high = scale or (-1, 1)
    DataError.unless(low < high, f"ranges.{name}", [low, high], "the lower one first")
    made: np.ndarray = (2 * values - low - high) / (high - low)
    return made


def ranged(name: str, scale: Sequence[float] | None) -> str:
    """Return a column of numbers as the line has it: with its range, if it has one."""
    return name if scale is None else "{} ({:g} to {:g})".format(name, *scale)


def _numbers(column: pd.Series) -> np.ndarray | None:
    """Return a column of numbers as float64 ``[N]``, NaN where a value is missing, or None if it is
    one of text."""
    if pd.api.types.is_numeric_dtype(column):  # dates would become nanoseconds
        values = column.to_numpy(dtype=float, na_value=np.nan)
        absent = np.isnan(values)
    else:
        words = spelled(column)
        absent = _absent(words)
        values = pd.to_numeric(pd.Series(words), errors="coerce").to_numpy(dtype=float)
        if np.isnan(values).all() and not absent.all():
            return None
    require(~np.isfinite(values) & ~absent, column, "a finite number", "mend these rows")
    return values


def _absent(words: np.ndarray, declared: Sequence[Any] = ()) -> np.ndarray:
    nothing = [word for word in NOTHING if word not in map(str.casefold, map(str, declared))]
    distinct, places = np.unique(words, return_inverse=True)
    found: np.ndarray = np.isin([str(word).strip().casefold() for word in distinct], nothing)[
        places
    ]
    return found


def _dates(column: pd.Series) -> pd.Series:
    if pd.api.types.is_datetime64_any_dtype(column):
        return column
    words = spelled(column)
    absent = _absent(words)
    dates = pd.to_datetime(
        pd.Series(words).where(~absent), format="ISO8601", errors="coerce", utc=True
    )
    require(
        dates.isna().to_numpy() & ~absent, column, "a date such as 2020-01-31", "mend these rows"
    )
    return dates


def _refuse_holes(holes: Mapping[str, tuple[np.ndarray, str]]) -> None:
    """Raise DataError that shows what can be declared of missing values."""
    rows = {name: (absent.sum(), int(np.argmax(absent))) for name, (absent, _) in holes.items()}
    where = some(
        f"{name!r} ({counted(count, 'row')}, the first {row})"
        for name, (count, row) in rows.items()
    )
    rules = ", ".join(f"{name}: {rule}" for name, (_, rule) in list(holes.items())[:_MOST_SHOWN])
    others = f"or a value, or {INDICATOR}; a median needs ranges"
    ways = f"write missing: {{{rules}}} ({others}), or leave these rows out"
    DataError.unless(not holes, f"missing values of {where}", ..., "a value in every row", ways)


def _refuse_text(
    columns: Sequence[pd.Series], holes: MutableMapping[str, tuple[np.ndarray, str]]
) -> None:
    """Raise DataError that shows what can be declared of columns of text, and add the missing
    values of those of few words to ``holes``."""
    dates, texts, words = [], [], []
    for column in columns:
        name = str(column.name)
        _require_plain(column, f"write exclude: [{name}]", _NESTED)
        given = spelled(column)
        absent = _absent(given)
        distinct = np.unique(given[~absent])
        written = np.array([_WRITTEN.fullmatch(word) is not None for word in given])
        do = "write a point, and neither signs between thousands nor percent signs"
        require(written & (written | absent).all(), column, "a number such as 1234.5", do)
        if all(DATE.fullmatch(word) for word in distinct):
            dates.append(f"{name}: [year, month, weekday]")
        elif len(distinct) > vocabulary.MOST_LISTED:
            texts.append(f"{name}: 64")
        else:
            words.append(f"{name}: {vocabulary.listed(distinct)}")
            if absent.any():
                holes[name] = absent, MOST_FREQUENT
    ways = {"vocabularies": words, "dates": dates, "texts": texts}
    write = (f"{key}: {{{', '.join(lines[:_MOST_SHOWN])}}}" for key, lines in ways.items() if lines)
    names = [str(column.name) for column in columns]
    what = f"columns of text without a vocabulary: {some(names)}"
    expected = "all values that each may have, declared: rows of one person would decide it"
    left_out = f"exclude: [{', '.join(names[:_MOST_SHOWN])}]"
    do = f"write {', '.join(write)}, or leave them out by {left_out}; see docs/own_files.md"
    DataError.unless(not names, what, expected=expected, do=do)
