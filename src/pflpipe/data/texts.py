"""Numbers of words by a declared list: labels by ``classes``, categories by ``vocabularies``, and
texts as rows of T tokens.

A list that was made of the rows would depend on every person in them, and so would the shape of the
released model. It is therefore declared, and an error shows what to write.

Of texts, token 0 fills the row in front of a short one, token 1 is any that the vocabulary lacks,
and the vocabulary's are 2, 3, ... in its order, as in TensorFlow Federated's baselines.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pflpipe.code import guard
from pflpipe.data import limits
from pflpipe.errors import DataError, counted, located

OTHER, FIRST = 1, 2
WORDS, CHARACTERS = "words", "characters"
_WORD = re.compile(r"\w+|[^\w\s]")
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


@dataclass(frozen=True)
class Tokens:
    """How a text becomes numbers.

    Attributes:
        vocabulary: the tokens, or a file with one in each line.
        length: T, the number of tokens in a row.
        tokens: ``words``, in small letters, with signs as words of their own; or ``characters``.
    """

    vocabulary: str | Sequence[str]
    length: int
    tokens: str = WORDS

    def __str__(self) -> str:
        return f"{self.length} {self.tokens} of {self.size}"

    @property
    def size(self) -> int:
        """Number of different tokens, with 0 and 1."""
        return FIRST + len(self.declared())

    @property
    def names(self) -> list[str]:
        """The tokens in the order of their numbers, those of the vocabulary in quotes."""
        return ["none", "other", *map(repr, self.declared())]

    def examples(
        self, texts: Sequence[str], labels: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return ``rows`` with their labels and the index of each, or without labels
        ``following``."""
        if labels is None:
            return self.following(texts)
        return self.rows(texts), labels, np.arange(len(labels))

    def rows(self, texts: Iterable[str]) -> np.ndarray:
        """Return the first T tokens of each text, int32 ``[N, T]``; the last column has the last.

        Raises:
            DataError: the vocabulary has an entry twice, or one that is no token; or the rows do
                not fit in the memory.
        """
        numbers = [found[: self.length] for found in self._numbers(texts)]
        limits.check(4 * self.length * len(numbers), f"rows of {self.length} tokens")
        rows = np.zeros((len(numbers), self.length), np.int32)
        for row, found in zip(rows, numbers, strict=True):
            row[self.length - len(found) :] = found
        return rows

    def present(self, texts: Iterable[str]) -> np.ndarray:
        """Return whether each text has each token of the vocabulary, float32 ``[N, V]``."""
        rows = [np.bincount(found, minlength=self.size) for found in self._numbers(texts)]
        return (np.stack(rows)[:, FIRST:] > 0).astype(np.float32)

    def following(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return an example for every token of the vocabulary that follows another in its text: the
        T tokens before it, int32 ``[N, T]``, the token as label, int64 ``[N]``, and the index of
        its text ``[N]``.

        Raises:
            DataError: as ``rows``; or no token follows another.
        """
        every = self._numbers(texts)
        limits.check(4 * self.length * sum(map(len, every)), f"rows of {self.length} tokens")
        rows, labels, places = [], [], []
        for place, found in enumerate(every):
            before = np.concatenate([np.zeros(self.length, np.int32), found])
            windows = np.lib.stride_tricks.sliding_window_view(before, self.length)
            targets = np.flatnonzero(found[1:] >= FIRST) + 1
            rows.append(windows[targets])
            labels.append(found[targets].astype(np.int64))
            places.append(np.full(len(targets), place))
        got = "no token of the vocabulary after another one"
        DataError.unless(any(map(len, labels)), "texts", got)
        return np.concatenate(rows), np.concatenate(labels), np.concatenate(places)

    def declared(self) -> list[str]:
        """Return the tokens of the vocabulary, also of a file.

        Raises:
            DataError: the file cannot be read.
        """
        if not isinstance(self.vocabulary, str):
            return [str(word) for word in self.vocabulary]
        with guard.foreign(f"vocabulary {self.vocabulary}", "text with a token in each line"):
            text = Path(self.vocabulary).read_text(encoding="utf-8")
        # Not splitlines: a character of a vocabulary may be another separator of lines.
        return text.removesuffix("\n").split("\n")

    def _numbers(self, texts: Iterable[str]) -> list[np.ndarray]:
        """Return the numbers of all tokens of each text, int32."""
        declared = self.declared()
        number = {word: place for place, word in enumerate(declared, start=FIRST)}
        with located("vocabulary"):
            if wrong := [word for word in declared if self._split(word) != [word]]:
                what = "a word in small letters" if self.tokens == WORDS else "one character"
                raise DataError(f"entry {wrong[0]!r}", expected=what)
            twice = len(declared) - len(number)
            DataError.unless(not twice, "entries", f"{twice} twice")
        return [
            np.array([number.get(word, OTHER) for word in self._split(text)], np.int32)
            for text in texts
        ]

    def _split(self, text: str) -> list[str]:
        return list(text) if self.tokens == CHARACTERS else _WORD.findall(text.lower())
