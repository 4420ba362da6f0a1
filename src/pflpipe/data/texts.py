"""Texts as rows of T tokens, numbered by a declared vocabulary.

Token 0 fills the row in front of a short text, token 1 is any that the vocabulary lacks, and the
vocabulary's are 2, 3, ... in its order, as in TensorFlow Federated's baselines.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pflpipe.code import guard
from pflpipe.data import limits
from pflpipe.errors import DataError, located

OTHER, FIRST = 1, 2
WORDS, CHARACTERS = "words", "characters"
_WORD = re.compile(r"\w+|[^\w\s]")


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

    def __post_init__(self) -> None:
        fits = self.length >= 1 and self.tokens in (WORDS, CHARACTERS)
        got = f"length {self.length}, tokens {self.tokens}"
        expected = f"length of at least 1, and {WORDS} or {CHARACTERS}"
        DataError.unless(fits, "tokens of a text", got, expected)

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
        expected = "text with a token in each line"
        with guard.foreign(f"vocabulary {self.vocabulary}", expected=expected):
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
