"""A release from outside the package: a program of arrays, messages in, a result out.

No part of it is known: neither its clip bound nor its divisor nor the size of its noise. NumPy is
all that it needs; torch is seeded and its tensors are read where the program itself imports it.
"""

import copy
import inspect
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pflpipe.auditing.claim import Claim
from pflpipe.auditing.worlds import Pair
from pflpipe.code import guard
from pflpipe.errors import PflpipeError

Step = Callable[[np.ndarray, np.ndarray, np.random.Generator], Any]


class ReleaseError(PflpipeError):
    """A release from outside cannot be audited: it fails, or returns something else."""


@dataclass(frozen=True)
class Program:
    """A user's release: a function of messages, weights and a generator, or a class whose ``step``
    is one and whose ``start`` begins a run.

    Attributes:
        made: the function, the class, or an object of one.
        location: its name in messages.
        file: its file, or empty.
    """

    made: Any
    location: str
    file: str = ""

    @property
    def remembers(self) -> bool:
        """Whether it has a state between rounds."""
        return hasattr(self.made, "step")

    def begin(self, clients: int, dimension: int, seed: int = 0) -> Step:
        """Return the release of a new run."""
        if not self.remembers:
            function: Step = self.made
            self._require_signature(function)
            return function
        seed_globals(seed)
        run = self._called(self.made) if inspect.isclass(self.made) else copy.deepcopy(self.made)
        self._called(run.start, clients, dimension)
        step: Step = run.step
        self._require_signature(step)
        return step

    def _require_signature(self, function: Callable[..., Any]) -> None:
        """Raise ReleaseError unless a function takes what it will be given."""
        try:
            taken = inspect.signature(function)
        except ValueError:  # compiled functions need not say
            return
        try:
            taken.bind(None, None, None)
        except TypeError:
            expected = "(messages [m, d], weights [m], rng), also where it ignores some"
            raise ReleaseError(self.location, got=str(taken), expected=expected) from None

    def result(self, step: Step, messages: np.ndarray, weights: np.ndarray, seed: int) -> Any:
        """Return the result of one call, float64 ``[k]`` or ``[m, k]``.

        The global generators are seeded too, because many programs draw from them.

        Raises:
            ReleaseError: the call fails, or its result is no array of numbers.
        """
        seed_globals(seed)
        rng = np.random.Generator(np.random.Philox(key=seed))
        # A program may write into what it is given.
        value = self._called(step, messages.copy(), weights.copy(), rng)
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
            got = f"{value.dtype} numbers" if hasattr(value, "dtype") else type(value).__name__
            what, expected = f"{self.location}: result", "an array or tensor of real numbers"
            raise ReleaseError(what, got=got, expected=expected)
        fits = value.ndim == 1 or (value.ndim == 2 and len(value) == len(messages))
        what = f"{self.location}: shape of the result"
        expected = f"[d], or [m, d] with a row for each of the {len(messages)} messages"
        ReleaseError.unless(fits, what, value.shape, expected)
        return value.astype(np.float64)

    def _called(self, function: Callable[..., Any], *arguments: Any) -> Any:
        with guard.one_line(self.location, self.file, ReleaseError):
            return function(*arguments)


def seed_globals(seed: int) -> None:
    """Seed the global generators of Python, of NumPy, and of torch where it is imported."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(seed)


@dataclass(frozen=True)
class Lens:
    """What is looked at of a long view ``[k]``. An attacker may look at whatever part of a result
    it likes, so what is found through a lens is true of the whole.

    Attributes:
        chosen: places of single numbers, ``[p]``.
        line: a direction, ``[k]``.
    """

    chosen: np.ndarray
    line: np.ndarray

    def view(self, seen: np.ndarray) -> np.ndarray:
        """Return what is seen of a view, ``[p + 1]``."""
        return np.append(seen[self.chosen], seen @ self.line)


@dataclass(frozen=True)
class Attacked:
    """A program under audit and what an attacker sees of it.

    A view of a result ``[k]`` has k + 2 numbers. The last two are the length of the result and the
    number of its entries that are not finite, which an attacker sees too; such entries count as 0.

    Attributes:
        program: the release.
        claim: what is claimed of it.
        size: k.
        rounds: consecutive rounds of a view.
        empty: whether the release accepts a cohort of no client; otherwise its result counts as 0.
    """

    program: Program
    claim: Claim
    size: int = 0
    rounds: int = 1
    empty: bool = True

    @property
    def length(self) -> int:
        """Numbers of a view of one round."""
        return (self.size + 2) * (2 if self.shows_two else 1)

    @property
    def shows_two(self) -> bool:
        """Whether a view has the result of another client beside that of the canary."""
        return self.claim.trust == "local" and self.claim.clients > 1

    def views(
        self,
        pair: Pair,
        there: bool,
        seeds: np.ndarray,
        rounds: str = "all",
        lens: Lens | None = None,
    ) -> np.ndarray:
        """Return what is seen of runs with these seeds, their rounds one after the other, ``[n,
        rounds length]`` or, through a lens, its numbers.

        Args:
            pair: what is sent in every round.
            there: whether the canary takes part.
            seeds: of the runs, int64 ``[n]``.
            rounds: "all", or "first": the canary takes part in the first round only.
            lens: what is kept of a view.
        """
        worlds = [pair.world(there and (rounds == "all" or not t)) for t in range(self.rounds)]
        views = []
        for seed in seeds.tolist():
            step = self.program.begin(self.claim.clients, self.claim.dimension, seed)
            each = (self.view(step, *world, seed + t, pair.place) for t, world in enumerate(worlds))
            seen = np.concatenate(list(each))
            views.append(seen if lens is None else lens.view(seen))
        return np.stack(views)

    def view(
        self, step: Step, messages: np.ndarray, rows: np.ndarray, seed: int, place: int
    ) -> np.ndarray:
        """Return what is seen of one round, ``[length]``."""
        if len(messages) == 0 and not self.empty:
            return np.zeros(self.length)
        result = self.program.result(step, messages, rows, seed % 2**63)
        if self.claim.trust == "central":
            return self._fitted(result.mean(axis=0) if result.ndim == 2 else result)
        what = f"{self.program.location}: result under local trust"
        expected = "[m, d], the noised message of each client"
        ReleaseError.unless(result.ndim == 2, what, result.shape, expected)
        shown = [result[place]] + [result[place - 1]] * self.shows_two
        return np.concatenate([self._fitted(one) for one in shown])

    def _fitted(self, result: np.ndarray) -> np.ndarray:
        view = np.zeros(self.size + 2)
        part = result[: self.size]
        finite = np.isfinite(part)
        view[: len(part)] = np.where(finite, part, 0)
        view[-2:] = len(result), len(part) - finite.sum()
        return view


def size_of(attacked: Attacked, messages: np.ndarray, rows: np.ndarray) -> int:
    """Return k of a round's result."""
    program, claim = attacked.program, attacked.claim
    step = program.begin(claim.clients, claim.dimension)
    result: np.ndarray = program.result(step, messages, rows, 0)
    return int(result.shape[-1])


def seeds(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return seeds of runs."""
    return rng.integers(2**62, size=count)
