"""The contract of the rows of a data set: whose row is it, what is in it, on which side is it.

It is computed once, from users, features, labels and sides, whatever the source. What would make a
privacy claim false, such as one person as two clients, is an error. What would make an accuracy
false, such as a feature that is the label, is a warning. All of it is a diagnostic of the rows, and
no epsilon covers it.
"""

from __future__ import annotations

import math
import re
import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from pflpipe.errors import DataError, counted

EXACT, MERGE = "exact", "merge"
NO_VALUE = ("n/a", "na", "nan", "nat", "none", "null")
"""Words that programs write for a missing value, in small letters."""
_SIGNS = r"[!-/:-@\[-`{-~]*"
_NOBODY = re.compile(
    rf"{_SIGNS}"
    rf"|{_SIGNS}({'|'.join(NO_VALUE)}|n\.a|unknown|missing|undefined|anonymous|inf){_SIGNS}"
    r"|-(1|9+)"  # pandas.factorize; SPSS
    r"|#[a-z/0]+[!?]"  # an error of Excel
    r"|-?\d(\.\d+)?e\+\d+"  # a number that a program has rounded
    r"|(sub|grand )?total|sum|mean|average"  # a row that others have made
)
"""What files have in place of the id of one person, in small letters."""
STANDARDISED = (
    "every feature has mean 0 and deviation 1 over all rows: statistics of private rows have made "
    "them, one client's rows move those of all others, and no epsilon covers that; scale features "
    "by constants"
)
AS_WRITTEN = (
    "ids count as they are written (ids: exact), also those that could be one person's or "
    "nobody's: for a person with two ids the epsilon is that of a group of two"
)
_ROWS, _OTHERS = 15, 5
"""Fewest rows, and rows without the commonest value, with which a relation that holds for all is
hardly chance."""
_COPIES = 0.02
"""Part of the test rows that may be copies, as some are in the best known sets of images."""
_WHOLE = re.compile(r"\+?(-?\d+)(?:\.0*)?")
_MIDNIGHT = re.compile(r"(\d{4}-\d\d-\d\d)[ t]00:00:00(\.0*)?")
OF_ROWS = re.compile(r"(?i:(^|[ _.-])(id|idx|index|key|no|nr|row|uuid)$)|[a-z]I[Dd]$")
"""End of the name of a column that numbers rows or people."""
_SHOWN = 5
_OF_PROGRAMS = (DeprecationWarning, FutureWarning, ImportWarning, PendingDeprecationWarning)

Side = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Examples ``[N, ...]``, labels ``[N]`` or ``[N, K]``, and the user of each row ``[N]`` or None."""


@dataclass(frozen=True)
class Columns:
    """The features of all rows of a source, in its order.

    Attributes:
        values: name -> numbers of each side, together ``[N]``, which may be views.
        labels, users: as in ``Side``, of all rows.
    """

    values: Mapping[str, Sequence[np.ndarray]]
    labels: np.ndarray
    users: np.ndarray | None

    @classmethod
    def of(cls, sides: Sequence[Side], named: Sequence[Mapping[str, np.ndarray]] = ()) -> Columns:
        """Return the named columns of each side; without, those of float features ``[N, D]``."""
        examples, labels, users = zip(*sides, strict=True)
        if not named and examples[0].ndim == 2 and examples[0].dtype.kind == "f":
            named = [{f"feature {i}": x[:, i] for i in range(x.shape[1])} for x in examples]
        values = {name: [part[name] for part in named] for name in (named or [{}])[0]}
        ids = None if users[0] is None else np.concatenate(users)
        return cls(values, np.concatenate(labels), ids)


class RowsWarning(UserWarning):
    """Something in a source that makes an accuracy false."""


@dataclass(frozen=True)
class Contract:
    """What is known of the rows.

    Attributes:
        lines: facts, each in one line.
        warnings: what would make an accuracy false, each a sentence without its end. Certificates
            quote them, so they have no counts and no ids.
    """

    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


UNKNOWN = Contract()
"""Of data that were made before there was one."""


@contextmanager
def collected() -> Iterator[list[str]]:
    """Yield a list that has, after the block, the texts of its warnings: of ``RowsWarning`` and of
    libraries, which otherwise only a log would have."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for category in _OF_PROGRAMS:
            warnings.simplefilter("ignore", category)
        yield found
    for item in caught:
        said = " ".join(str(item.message).split())
        # Of a library: its numbers are those of some rows, and certificates quote it.
        said = said if issubclass(item.category, RowsWarning) else re.sub(r"\d+", "...", said)
        found += [said] * (said not in found)


def people(users: Mapping[str, np.ndarray], ids: str = "") -> dict[str, np.ndarray]:
    """Return the user of each row, of all sides.

    Args:
        users: name of an array -> integers or text ``[N]``.
        ids: ``exact``: each id as it is written is a person, with a warning if it would be refused
            otherwise; ``merge``: ids that differ only in blanks, case, composition of letters or
            the point of a whole number are one person; empty: such ids are refused.

    Raises:
        DataError: an id that is nobody's, or several that could be one person's.
    """
    DataError.unless(ids in ("", EXACT, MERGE), "ids", ids, f"{EXACT} or {MERGE}")
    doubtful = False
    spelled: dict[str, set[str]] = defaultdict(set)
    merged = dict(users)
    found = {key: np.unique(names, return_inverse=True) for key, names in users.items()}
    spell = {key: _form if names.dtype.kind == "U" else str for key, names in users.items()}
    plain = _without_zeros({key: [*map(spell[key], found[key][0])] for key in found})
    for key, names in users.items():
        (distinct, row_of), forms = found[key], plain[key]
        # pandas.factorize gives -1, a cast of NaN the smallest integer.
        least = str(np.iinfo(names.dtype).min) if names.dtype.kind == "i" else ""
        is_nobody = [form == least or bool(_NOBODY.fullmatch(form)) for form in forms]
        unknown = np.array(is_nobody, bool)[row_of]
        # Rows of several unknown people would be protected as those of one.
        doubtful |= bool(unknown.any())
        if unknown.any() and ids != EXACT:
            row = int(np.argmax(unknown))
            got = f"{names[row].item()!r} in {counted(unknown.sum(), 'row')}, the first {row}"
            do = (
                "leave out the rows whose user is not known, or, if this is the id of a person, "
                f"write ids: {EXACT} in the block of config.yaml"
            )
            raise DataError(key, got=got, expected="the id of a user in every row", do=do)
        for form, name in zip(forms, distinct.tolist(), strict=True):
            spelled[form].add(str(name))
        if names.dtype.kind == "U" and ids == MERGE:
            merged[key] = np.array(forms)[row_of]
    several = [sorted(names) for names in spelled.values() if len(names) > 1]
    if ids == EXACT and (several or doubtful):
        warnings.warn(AS_WRITTEN, RowsWarning, stacklevel=2)
    if several and not ids:
        shown = ", ".join(" and ".join(map(ascii, names[:_SHOWN])) for names in several[:_SHOWN])
        do = (
            f"write ids: {MERGE} if each of them is one person, or ids: {EXACT} if they are "
            "several, in the block of config.yaml; in arrays write each person in one way"
        )
        got, expected = f"{len(several)} in several spellings: {shown}", "one for each person"
        raise DataError("ids of users", got=got, expected=expected, do=do)
    return merged


def _form(name: str) -> str:
    """Return an id without what a program or a hand changes by accident."""
    plain = unicodedata.normalize("NFKC", name)
    # Cf: blanks of no width, marks of direction, soft hyphens. Pd: dashes.
    kinds = {sign: unicodedata.category(sign) for sign in plain}
    plain = "".join("-" if kinds[s] == "Pd" else s for s in plain if kinds[s] != "Cf")
    # Excel keeps zeros in ="007".
    plain = " ".join(plain.split()).strip("='\"").casefold()
    found = _WHOLE.fullmatch(plain) or _MIDNIGHT.fullmatch(plain)
    return found[1] if found else plain


def _without_zeros(forms: Mapping[str, list[str]]) -> Mapping[str, list[str]]:
    """Return the forms of each array, without zeros in front if only these tell ids of one array
    from those of another. In one array 7 and 007 are two people."""
    plain = {
        key: [form.lstrip("0") or form if form.isdecimal() else form for form in listed]
        for key, listed in forms.items()
    }
    before, after = ([set(of[key]) for key in of] for of in (forms, plain))
    tell = [len(names) for names in before] != [len(names) for names in after]
    is_same = len(set().union(*before)) == len(set().union(*after))
    return forms if tell or is_same else plain


def of_rows(
    train: Side, test: Side, columns: Columns | None = None, drawn: bool = False
) -> Contract:
    """Return the contract of rows whose users are known.

    Args:
        train, test: the two sides.
        columns: the features of all rows as the source has them. None: those of the sides.
        drawn: whether pflpipe has drawn the test rows.
    """
    lines = ["a fifth of the rows was drawn for the test, of each person if known"] * drawn
    warned: list[str] = []
    columns = columns or Columns.of((train, test))
    if _are_standardised(train[0], test[0]):
        warned.append(STANDARDISED)
    _check_people(train[2], test[2], lines, warned)
    _check_columns(columns, lines, warned)
    _check_sides(train, test, columns, lines, warned)
    return Contract(tuple(lines), tuple(warned))


def _check_people(
    train: np.ndarray | None, test: np.ndarray | None, lines: list[str], warned: list[str]
) -> None:
    if train is None or test is None:
        return
    both = len(np.intersect1d(train, test))
    only, untrained = len(np.unique(train)) - both, len(np.unique(test)) - both
    lines.append(
        f"people: {both + only + untrained:,}; {both:,} with training and test rows, {only:,} "
        f"with training rows only, {untrained:,} with test rows only"
    )
    if untrained:
        warned.append("some people have test rows only: no model is trained on them")


def _check_columns(columns: Columns, lines: list[str], warned: list[str]) -> None:
    """Find columns that say the label, the person or the row, are constant or are rounded."""
    found: dict[str, list[str]] = {kind: [] for kind in _WARNINGS | _LINES}
    labels = columns.labels.reshape(len(columns.labels), -1).T
    if all(len(np.unique(numbers)) == 1 for numbers in labels):
        warned.append("all rows have the same label: no accuracy says that anything was learned")
    for name, parts in columns.values.items():
        values = np.concatenate(parts)
        distinct, codes = np.unique(values, return_inverse=True)
        is_whole, names_ids = bool((distinct % 1 == 0).all()), bool(OF_ROWS.search(name))
        # Beyond 2**53 they were rounded to float64 before.
        is_rounded = (distinct.astype(np.float32) != distinct) | (abs(distinct) >= 2**53)
        if is_whole and is_rounded.any():
            found["rounded"].append(name)
        # So many different numbers of this range are not drawn by chance.
        is_dense = bool(len(distinct) * (len(distinct) - 1) > 10 * (np.ptp(distinct) + 1))
        if len(distinct) == 1:
            found["constant"].append(name)
        elif any(_tells(codes, numbers, columns.users) for numbers in labels):
            found["label"].append(name)
        elif is_whole and len(distinct) == len(values) >= _ROWS:
            steps = np.diff(values)
            is_sure = bool(names_ids or is_dense or (steps > 0).all() or (steps < 0).all())
            found["row" if is_sure else "unique"].append(name)
        elif is_whole and columns.users is not None and _is_of_one(codes, columns.users):
            found["person" if names_ids or is_dense else "own"].append(name)
    for kind, names in found.items():
        if names:
            told, text = (lines, _LINES) if kind in _LINES else (warned, _WARNINGS)
            more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
            told.append(text[kind].format(", ".join([*names[:_SHOWN], *more])))


_WARNINGS = {
    "label": "the label follows from {} alone: leave out what is not known before it",
    "person": "each person has a value of {} of its own: leave out ids",
    "row": "every row has another whole number in {}: leave out ids and numbers of rows",
    "rounded": "float32 rounds whole numbers of {}: write ranges, or subtract a constant",
}
_LINES = {
    "constant": "constant: {}",
    "unique": "another whole number in every row: {}",
    "own": "another whole number for every person: {}",
}


def _are_standardised(train: np.ndarray, test: np.ndarray) -> bool:
    """Return whether every feature has mean 0 and deviation 1, up to rounding, over the training
    rows or over all. Then somebody has standardised the rows by their own statistics.

    Args:
        train, test: float32 ``[N, D]``, or ``[N, T, C]``, of which each channel is a feature;
            others are not standardised.
    """
    if train.dtype.kind != "f":
        return False
    count, total, squares, found = 0, np.zeros(train.shape[-1]), np.zeros(train.shape[-1]), False
    for part in (train, test):
        rows = part.reshape(-1, part.shape[-1])
        count += len(rows)
        # In float64 without a copy of the rows, which may have half of the memory's size.
        total += rows.sum(0, dtype=np.float64)
        squares += np.einsum("nd,nd->d", rows, rows, dtype=np.float64)
        mean, variance = total / count, squares / count - (total / count) ** 2
        varying = variance > 1e-9
        # A variance over count - 1 is 1 / count less here.
        near = (abs(mean) < 1e-4).all() and (abs(variance[varying] - 1) < 1e-3 + 2 / count).all()
        found |= bool(varying.any() and near)
    return found


def _tells(values: np.ndarray, labels: np.ndarray, users: np.ndarray | None) -> bool:
    """Return whether the labels follow from a column alone, or it from them.

    The number of rows excludes chance; of labels that no person has two of, that of people.
    """
    labels = np.unique(labels, return_inverse=True)[1]
    if users is not None and len(_pairs(users, labels)) == len(np.unique(users)):
        first = np.unique(users, return_index=True)[1]
        values, labels = values[first], labels[first]
    count = len(labels)
    sizes = [np.unique(numbers, return_counts=True)[1] for numbers in (values, labels)]
    if count < _ROWS or any(count - size.max() < _OTHERS for size in sizes):
        return False
    few = [4 * len(size) <= count for size in sizes]
    # What holds for all rows holds for a part of them, and few columns pass this.
    for step in (max(1, count // 500), 1):
        one, other = values[::step], labels[::step]
        if not (_follows(one, other, *few) or _follows(other, one, *few[::-1])):
            return False
    return True


def _follows(given: np.ndarray, told: np.ndarray, few_given: bool, few_told: bool) -> bool:
    """Return whether each number given tells one number, and not only because no other row has it:
    there are few, or the numbers told ascend or descend, or change as seldom as they can."""
    order = np.lexsort((told, given))
    steps, told_steps = np.diff(given[order]), np.diff(told[order])
    if (told_steps[steps == 0] != 0).any():
        return False
    is_monotone = (told_steps >= 0).all() or (told_steps <= 0).all()
    changes_seldom = np.count_nonzero(told_steps) + 1 == len(np.unique(told))
    return bool(few_given or is_monotone or (few_told and changes_seldom))


def _pairs(users: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the distinct pairs, each as one number."""
    codes = np.unique(users, return_inverse=True)[1]
    return np.unique(codes * (int(numbers.max(initial=0)) + 1) + numbers)


def _is_of_one(values: np.ndarray, users: np.ndarray) -> bool:
    """Return whether a column has one value for each person, and another for each other."""
    pairs, count = len(_pairs(users, values)), len(np.unique(users))
    return pairs == count == len(np.unique(values)) < len(users)


def _check_sides(
    train: Side, test: Side, columns: Columns, lines: list[str], warned: list[str]
) -> None:
    """Find test rows that are training rows of the same person, and people with the same rows."""
    keys = np.concatenate([_keys(*side[:2]) for side in (train, test)])
    users = None if train[2] is None or test[2] is None else np.concatenate([train[2], test[2]])
    people = np.zeros(len(keys), np.int64)
    if users is not None:
        people = np.unique(users, return_inverse=True)[1]
    trained, tested = np.split(keys ^ people, [len(train[1])])
    copies = int(np.isin(tested, trained).sum())
    whose = "" if users is None else " of their person"
    lines.append(f"{copies:,} of {len(tested):,} test rows are copies of training rows{whose}")
    if len(trained) == len(tested) and (np.sort(trained) == np.sort(tested)).all():
        warned.append("the test rows are the training rows: no accuracy is one of new rows")
    elif copies > _COPIES * len(tested) and copies > 5 * _by_chance(train, test, columns):
        warned.append(f"test rows are copies of training rows{whose}: leave out copies")
    elif _are_copies(*np.split(keys, [len(trained)])):
        warned.append("most test rows are copies of training rows of other people")
    if train[1].dtype.kind in "iu" and (only := len(np.setdiff1d(test[1], train[1]))):
        lines.append(f"{only:,} labels have test rows only")
    if users is not None:
        twins = _twins(keys, people)
        first = np.unique(people, return_index=True)[1]
        names = [" and ".join(str(users[first[person]]) for person in group) for group in twins]
        lines += [f"people with the same rows: {', '.join(names[:_SHOWN])}"] * bool(twins)
        warned += ["some people have exactly the rows of another, and may be one"] * bool(twins)


def _are_copies(train: np.ndarray, test: np.ndarray) -> bool:
    """Return whether most test rows are training rows, though hardly any training row is another,
    so that they are none by chance."""
    is_once = len(np.unique(train)) > (1 - _COPIES) * len(train)
    return is_once and 2 * int(np.isin(test, train).sum()) > len(test)


def _twins(keys: np.ndarray, people: np.ndarray) -> list[list[int]]:
    """Return groups of people with the same rows, of which each has some that few people have. All
    who like every joke have the same rows, and are several people."""
    order = np.lexsort((keys, people))
    keys, people = keys[order], people[order]
    is_first = np.r_[True, (np.diff(keys) != 0) | (np.diff(people) != 0)]
    _, of_key, count = np.unique(keys[is_first], return_inverse=True, return_counts=True)
    sizes = np.bincount(people)
    is_rare = count[of_key] <= max(_SHOWN, len(sizes) / 10)
    rare = np.bincount(people[is_first][is_rare], minlength=len(sizes))
    ends = np.cumsum(sizes)
    same: dict[bytes, list[int]] = defaultdict(list)
    for person in np.flatnonzero(rare >= _OTHERS).tolist():
        same[keys[ends[person] - sizes[person] : ends[person]].tobytes()].append(person)
    return [group for group in same.values() if len(group) > 1]


def _keys(examples: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return a number for each row, which only equal rows share."""
    pairs = zip(np.ascontiguousarray(examples), np.ascontiguousarray(labels), strict=True)
    return np.fromiter((hash((x.tobytes(), y.tobytes())) for x, y in pairs), np.int64, len(labels))


def _by_chance(train: Side, test: Side, columns: Columns) -> float:
    """Return how many test rows would be copies if the columns of a person's rows were independent;
    no float is a copy by chance, and texts repeat as people do."""
    count, share = len(columns.labels), len(test[1]) / (len(train[1]) + len(test[1]))
    if not columns.values:
        return math.inf if train[0].ndim == 2 else 0
    numbers = [*map(np.concatenate, columns.values.values())]
    numbers += [*columns.labels.reshape(count, -1).T]
    codes = [np.unique(values, return_inverse=True)[1] for values in numbers]
    people = np.zeros(count) if columns.users is None else columns.users
    order = np.argsort(np.unique(people, return_inverse=True)[1], kind="stable")
    total = 0.0
    for rows in np.split(order, np.cumsum(np.unique(people, return_counts=True)[1])[:-1]):
        sizes = (np.unique(values[rows], return_counts=True)[1] for values in codes)
        alike = math.prod(float(((size / len(rows)) ** 2).sum()) for size in sizes)
        total += len(rows) ** 2 * share * (1 - share) * alike
    return total
