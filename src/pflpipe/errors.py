"""Errors a user can act on: what is wrong, what was got, what was expected, what to do.

Every message is one line. The command line prints it and exits with code 2; a user never sees a
traceback for a user's mistake. (The style follows Opacus' validators and jax_privacy's keyword
checks, which name the value.) A file is read to its end before it is refused: ``Problems`` gathers
what is wrong with it.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


class PflpipeError(Exception):
    """Base of all errors that are the user's to mend.

    Args:
        what: the thing that is wrong, with its location (``"studies/a.yaml: partition.alpha"``).
        got: the offending value; left out of the message when not given.
        expected: what would have been accepted.
        do: the next step for the user.
    """

    exit_code = 2

    def __init__(self, what: str, *, got: Any = ..., expected: str = "", do: str = "") -> None:
        parts = [what]
        if got is not ...:
            parts.append(f"got {got!r}")
        if expected:
            parts.append(f"expected {expected}")
        if do:
            parts.append(do)
        super().__init__("; ".join(" ".join(part.split()) for part in parts))

    @property
    def all(self) -> tuple[PflpipeError, ...]:
        """The errors in it, each of one line."""
        return (self,)

    def at(self, location: str) -> PflpipeError:
        """Return the same error with a location before it, unless it begins with that already."""
        text = str(self)
        return self if text.startswith(location) else type(self)(f"{location}: {text}")


class ConfigError(PflpipeError):
    """A study, config.yaml or a hyper-parameter does not say something that can be run."""


class DataError(PflpipeError):
    """A data set is missing, damaged or of the wrong shape."""


class PrivacyError(PflpipeError):
    """A privacy plan cannot be made or cannot be executed as asked."""


class Errors(ConfigError):
    """Several errors that were found together. As text they are lines of which all but the first
    begin with ``error:``, so that whoever prints ``error: {error}`` prints one such line for
    each."""

    def __init__(self, errors: Iterable[PflpipeError]) -> None:
        self._all = tuple(errors)
        Exception.__init__(self, "\nerror: ".join(map(str, self._all)))

    @property
    def all(self) -> tuple[PflpipeError, ...]:
        """The errors in it, each of one line."""
        return self._all

    def at(self, location: str) -> PflpipeError:
        """Return the same errors, each with a location before it."""
        return Errors(error.at(location) for error in self._all)


@dataclass
class _Problem:
    error: PflpipeError
    location: str
    repeats: int = 0


class Problems:
    """What is wrong with a file, gathered while it is read, so that all of it is reported at once.

    The same mistake seen from several locations (the runs of a study that share a block) is one
    problem.
    """

    def __init__(self) -> None:
        self._found: dict[str, _Problem] = {}
        self._ignored: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, error: PflpipeError, location: str = "") -> None:
        """Note an error that does not name its location, and the location where it was seen."""
        for one in error.all:
            if str(one) not in self._ignored:
                known = self._found.setdefault(str(one), _Problem(one, location))
                known.repeats += known.error is not one

    @contextlib.contextmanager
    def at(self, location: str = "") -> Iterator[None]:
        """Note an error of the block instead of letting it pass."""
        try:
            yield
        except PflpipeError as error:
            self.add(error, location)

    def take(self, other: Problems, location: str) -> None:
        """Note what was gathered elsewhere without locations, as seen from this one."""
        for problem in other._found.values():
            self.add(problem.error, location)

    def ignore(self, text: str) -> None:
        """Let later errors of this text be, which follow from one that was noted."""
        self._ignored.add(text)

    def stop(self) -> None:
        """Raise what was noted, if anything: a single error as it was."""
        errors = []
        for problem in self._found.values():
            error = problem.error.at(problem.location) if problem.location else problem.error
            if problem.repeats:
                error = type(error)(f"{error} (and {problem.repeats} more like it)")
            errors.append(error)
        if errors:
            raise errors[0] if len(errors) == 1 else Errors(errors)


def nearest(key: str, known: Iterable[str]) -> str:
    """Return ``"did you mean 'x'?"`` for the nearest known names, or a list of all.

    Letters are compared without case, ``_`` is like ``-`` and a space, and ``lr`` is near
    ``training.lr``. Two names that are equally near are both given.
    """
    names = sorted(known)
    # A wrong guess is worse than none: three letters of five that happen to be in order are not
    # near (0.6 is difflib's own limit). The last word of a name is less than the name.
    scores = {
        name: max(_likeness(key, name), 0.9 * _likeness(key, re.split("[._]", name)[-1]))
        for name in names
    }
    best = max(scores.values(), default=0.0)
    found = [repr(name) for name in names if scores[name] == best]
    if best < 0.6 or len(found) > 2:
        return f"known: {', '.join(names)}"
    return f"did you mean {' or '.join(found)}?"


def _likeness(one: str, other: str) -> float:
    first, second = (text.casefold().replace("-", "_").replace(" ", "_") for text in (one, other))
    return difflib.SequenceMatcher(None, first, second).ratio()


@contextlib.contextmanager
def located(location: str) -> Iterator[None]:
    """Put a location before the message of an error that does not know it."""
    try:
        yield
    except PflpipeError as error:
        raise error.at(location) from None
