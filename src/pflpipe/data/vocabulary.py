"""Numbers of words by a declared list: labels by ``classes``, categories by ``vocabularies``.

A list that was made of the rows would depend on every person in them, and so would the shape of the
released model. It is therefore declared, and an error shows what to write.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pflpipe.errors import DataError, counted

_TRUTH = {"no": "false", "off": "false", "yes": "true", "on": "true"}
MOST_LISTED = 30
_LONGEST = 40
_WHOLE = re.compile(r"(-?\d+)\.0+")


def number(words: np.ndarray, declared: int | Sequence[Any] | None, key: str) -> np.ndarray:
    """Return the place of each word in the declared list, int64 ``[n]``.

    In YAML a bare ``no`` or ``yes`` is a truth value. A list with truth values therefore stands for
    no, off, false and yes, on, true in small or capital letters.

    Args:
        words: text ``[n]``.
        declared: all words, or how many there are, 0, 1, ...; None raises the error that shows what
            to write.
        key: where the list is declared, for messages.

    Raises:
        DataError: nothing is declared, a word twice, or a row has another word.
    """
    if declared is None:
        do = f"write {key}: {listed(map(_whole, words))}"
        raise DataError(f"{key} is missing", expected="all labels that there may be", do=do)
    entries = list(range(declared)) if isinstance(declared, int) else declared
    truth = any(isinstance(entry, bool) for entry in entries)
    places = {_spelled(str(entry), truth): place for place, entry in enumerate(entries)}
    DataError.unless(len(places) == len(entries), key, list(entries), "no word twice")
    distinct, inverse = np.unique(words, return_inverse=True)
    found = np.array([_place(str(word), places, truth) for word in distinct], np.int64)
    numbers: np.ndarray = found[inverse]
    if (numbers < 0).any():
        row, others = int(np.argmax(numbers < 0)), distinct[found < 0]
        shown = short(words[row]) if len(others) == 1 else listed(others)
        got = f"{shown} in {counted((numbers < 0).sum(), 'row')}, the first {row}"
        expected = f"one of {listed(map(str, entries))}"
        raise DataError(key, got=got, expected=expected, do="mend these rows, or declare the word")
    return numbers


def _place(word: str, places: Mapping[str, int], truth: bool) -> int:
    spelled = _spelled(word, truth)
    return places.get(spelled, places.get(_whole(spelled), -1))


def listed(words: Iterable[Any]) -> str:
    """Return distinct words as a list of YAML: numbers in their order, then text."""
    distinct = {short(str(word)) for word in words}
    numbers = sorted(filter(_is_number, distinct), key=int)
    text = sorted(distinct.difference(numbers))
    shown = numbers + [json.dumps(word, ensure_ascii=False) for word in text]
    rest = [f"... ({len(shown)} values)"] if len(shown) > MOST_LISTED else []
    return f"[{', '.join(shown[:MOST_LISTED] + rest)}]"


def _is_number(word: str) -> bool:
    """Whether YAML reads a word as the whole number that is written so."""
    return word.isascii() and word.isdigit() and str(int(word)) == word


def short(word: str) -> str:
    """Return the beginning of a long word, for messages."""
    return word if len(word) <= _LONGEST else f"{word[:_LONGEST]}..."


def _whole(word: str) -> str:
    """Return a whole number without the point that a missing value among others gives it."""
    found = _WHOLE.fullmatch(str(word))
    return found[1] if found else word


def _spelled(word: str, truth: bool) -> str:
    """Return a word in the form in which words are compared."""
    word = unicodedata.normalize("NFC", word.strip())
    return _TRUTH.get(word.casefold(), word.casefold()) if truth else word
