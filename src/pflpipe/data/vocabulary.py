"""Numbers of words by a declared list: labels by ``classes``, categories by ``vocabularies``.

A list that was made of the rows would depend on every person in them, and so would the shape of the
released model. It is therefore declared, and an error shows what to write.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pflpipe.errors import DataError

_TRUTH = {"no": "false", "off": "false", "yes": "true", "on": "true"}
_LISTED = 30


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
        do = f"write {key}: {listed(words)}"
        raise DataError(f"{key} is missing", expected="all labels that there may be", do=do)
    entries = list(range(declared)) if isinstance(declared, int) else declared
    truth = any(isinstance(entry, bool) for entry in entries)
    places = {_spelled(str(entry), truth): place for place, entry in enumerate(entries)}
    DataError.unless(len(places) == len(entries), key, list(entries), "no word twice")
    distinct, inverse = np.unique(words, return_inverse=True)
    found = np.array([places.get(_spelled(str(word), truth), -1) for word in distinct], np.int64)
    numbers: np.ndarray = found[inverse]
    if (numbers < 0).any():
        row = int(np.argmax(numbers < 0))
        got = f"{words[row]} in {(numbers < 0).sum()} rows, the first {row}"
        expected = f"one of {listed(map(str, entries))}"
        raise DataError(key, got=got, expected=expected, do="mend these rows, or declare the word")
    return numbers


def listed(words: Iterable[Any]) -> str:
    """Return distinct words as a list of YAML: numbers in their order, then text."""
    distinct = {str(word) for word in words}
    numbers = sorted(filter(_is_number, distinct), key=int)
    text = sorted(distinct.difference(numbers))
    shown = numbers + [json.dumps(word, ensure_ascii=False) for word in text]
    rest = [f"... ({len(shown)} values)"] if len(shown) > _LISTED else []
    return f"[{', '.join(shown[:_LISTED] + rest)}]"


def _is_number(word: str) -> bool:
    """Whether YAML reads a word as the whole number that is written so."""
    return word.isascii() and word.isdigit() and str(int(word)) == word


def _spelled(word: str, truth: bool) -> str:
    return _TRUTH.get(word.casefold(), word.casefold()) if truth else word
