"""Errors that a user can act on: what is wrong, what was got, what was expected, what to do.

Every message is one line. The command line prints it and exits with code 2; a mistake of the user
never shows a traceback. (The style follows Opacus' validators and jax_privacy's keyword checks,
which name the value.) A file is read to its end before it is refused: ``Problems`` collects all of
its errors.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

_LONGEST = 400
"""Characters that are shown of a value."""


class PflpipeError(Exception):
    """Base of all errors that the user can correct.

    Args:
        what: the thing that is wrong, with its location (``"studies/a.yaml: partition.alpha"``).
        got: the offending value; by default the message has none.
        expected: what would have been accepted.
        do: the next step for the user.
    """

    exit_code = 2

    def __init__(self, what: str, *, got: Any = ..., expected: str = "", do: str = "") -> None:
        given = "" if got is ... else f"got {got!r}"
        given = given if len(given) <= _LONGEST else f"{given[:_LONGEST]} ..."
        wanted = f"expected {expected}" if expected else ""
        parts = [what, *filter(None, (given, wanted, do))]
        # Line breaks of a value or a hint become spaces: the message is one line.
        super().__init__("; ".join(" ".join(part.split()) for part in parts))

    @classmethod
    def unless(cls, met: bool, what: str, got: Any = ..., expected: str = "", do: str = "") -> None:
        """Raise the error unless a condition is met."""
        if not met:
            raise cls(what, got=got, expected=expected, do=do)

    @property
    def all(self) -> tuple[PflpipeError, ...]:
        """All single errors, each of one line."""
        return (self,)

    def at(self, location: str) -> PflpipeError:
        """Return the error with a location in front, unless its message starts with it."""
        text = str(self)
        return self if text.startswith(location) else type(self)(f"{location}: {text}")


class ConfigError(PflpipeError):
    """A study, config.yaml or a hyper-parameter has a value that cannot be run."""


class DataError(PflpipeError):
    """A data set is missing, damaged or of the wrong shape."""


class PrivacyError(PflpipeError):
    """A privacy plan cannot be made or cannot be executed as requested."""


class Errors(ConfigError):
    """Several errors of one file. The text has one line per error, and all lines but the first
    start with ``error:``, so that printing ``error: {error}`` gives one such line for each."""

    def __init__(self, errors: Iterable[PflpipeError]) -> None:
        self._all = tuple(errors)
        Exception.__init__(self, "\nerror: ".join(map(str, self._all)))

    @property
    def all(self) -> tuple[PflpipeError, ...]:
        """All single errors, each of one line."""
        return self._all

    def at(self, location: str) -> PflpipeError:
        """Return the same errors, each with a location in front."""
        return Errors(error.at(location) for error in self._all)


class Problems:
    """A collector of the errors of a file, which reports all of them at once.

    The same error at several locations (the runs of a study that share a block) counts as one.
    """

    def __init__(self) -> None:
        self._problems: dict[str, list[tuple[PflpipeError, str]]] = {}
        self._ignored: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._problems)

    def add(self, error: PflpipeError, location: str = "") -> None:
        """Add an error that does not name its location, and the location where it occurred."""
        for one in error.all:
            if str(one) not in self._ignored:
                self._problems.setdefault(str(one), []).append((one, location))

    def refuse(self, what: str, location: str = "", **parts: Any) -> None:
        """Add a ConfigError of these ``parts`` (``got``, ``expected``, ``do``)."""
        self.add(ConfigError(what, **parts), location)

    @contextlib.contextmanager
    def at(self, location: str = "") -> Iterator[None]:
        """Add an error of the block instead of raising it."""
        try:
            yield
        except PflpipeError as error:
            self.add(error, location)

    def ignore(self, text: str) -> None:
        """Ignore later errors with this text, which are consequences of an earlier one."""
        self._ignored.add(text)

    def stop(self, most: int | None = None) -> None:
        """Raise the collected errors, if there are any; a single error keeps its type.

        Args:
            most: number of errors that are shown, so that a wide table does not fill the screen.
        """
        errors = []
        for (error, location), *repeats in self._problems.values():
            error = error.at(location) if location else error
            more = f" (and {len(repeats)} more like it)" * bool(repeats)
            errors.append(type(error)(f"{error}{more}"))
        if most and len(errors) > most:
            errors[most:] = [DataError(f"{len(errors) - most} more problems like these")]
        if errors:
            raise errors[0] if len(errors) == 1 else Errors(errors)


def counted(number: int, noun: str) -> str:
    """Return ``1 row`` or ``3 rows``, ``1 study`` or ``3 studies``."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def nearest(key: str, known: Iterable[str]) -> str:
    """Return ``"did you mean 'x'?"`` for the nearest known name, or a list of all known names.

    Case is ignored, ``_``, ``-`` and a space are equal, and ``lr`` is near ``training.lr``. If two
    names are equally near, both are listed.
    """
    names = sorted(known)
    # A wrong guess is worse than none, hence the limit of 0.6, difflib's default. A match with the
    # last component of a name counts less than one with the whole name.
    scores = {
        name: max(_likeness(key, name), 0.9 * _likeness(key, re.split("[._]", name)[-1]))
        for name in names
    }
    best = max(scores.values(), default=0.0)
    candidates = [repr(name) for name in names if scores[name] == best]
    if best < 0.6 or len(candidates) > 2:
        return f"known: {', '.join(names)}"
    return f"did you mean {' or '.join(candidates)}?"


def check_known(name: str, known: Collection[str], what: str) -> None:
    """Raise ConfigError unless a name is known. The message is ``what``, the name, and the nearest
    known one."""
    if name not in known:
        raise ConfigError(f"{what} {name!r}", do=nearest(name, known))


def _likeness(one: str, other: str) -> float:
    first, second = (text.casefold().replace("-", "_").replace(" ", "_") for text in (one, other))
    return difflib.SequenceMatcher(None, first, second).ratio()


@contextlib.contextmanager
def located(location: str) -> Iterator[None]:
    """Add a location in front of the message of an error that does not name it."""
    try:
        yield
    except PflpipeError as error:
        raise error.at(location) from None
