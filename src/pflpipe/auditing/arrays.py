"""A release from outside the package, as a mechanism that both levels of the audit attack.

The release is a program of arrays: messages in, a result out. It runs once for each draw of its
noise, and no part of it is known: neither its clip bound nor its divisor nor the size of its noise.
So a view has no units of a plan. Every coordinate of the result is measured in units of the
farthest that one client moves it. A claim of a noise multiplier z then says that the noise of a
coordinate is at least z, whatever the release does, and the lengths of ``coupled`` need no units.

Results of many coordinates are seen through a lens: some coordinates, those with the least noise
among them, and the directions in which the canaries move the result. An attacker may look at
whatever part of a result it likes, so what is found through a lens is true of the whole.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pflpipe.auditing.claim import WIDEST, Adjacency
from pflpipe.auditing.neighbours import Mechanism
from pflpipe.data import outside
from pflpipe.errors import PflpipeError
from pflpipe.learning.architectures import Shapes
from pflpipe.privacy.correlated import Drawn
from pflpipe.privacy.mechanism import Uploads
from pflpipe.seeds import release_rng
from pflpipe.trees import Tree

Others = Literal["apart", "zeros", "opposite"]
Step = Callable[[np.ndarray, np.ndarray, np.random.Generator], Any]

SPREAD, WEAKEST = 24, 8
"""Of a result that is longer than ``WIDEST``, so many places at equal distances are looked at, and
so many with the least noise."""
PILOT = 64
"""Draws that find the coordinates with the least noise."""
FAR = 1e6
"""Length of the longest canaries, in clip bounds."""


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

    def begin(self, clients: int, dimension: int) -> Step:
        """Return the release of a new run."""
        if not self.remembers:
            function: Step = self.made
            return function
        run = self._called(self.made) if inspect.isclass(self.made) else copy.deepcopy(self.made)
        self._called(run.start, clients, dimension)
        step: Step = run.step
        return step

    def result(self, step: Step, messages: np.ndarray, weights: np.ndarray, seed: int) -> Any:
        """Return the result of one call, float64 ``[k]`` or ``[m, k]``.

        The global generators of Python, NumPy and torch are seeded too, because many programs draw
        from them.

        Raises:
            ReleaseError: the call fails, or its result is no array of numbers.
        """
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch.default_generator.manual_seed(seed)
        rng = np.random.Generator(np.random.Philox(key=seed))
        value = self._called(step, messages, weights, rng)
        if isinstance(value, Tensor):
            value = value.detach().cpu().numpy()
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
            got = f"{value.dtype} numbers" if hasattr(value, "dtype") else type(value).__name__
            raise ReleaseError(
                f"{self.location}: result", got=got, expected="an array or tensor of real numbers"
            )
        if value.ndim != 1 and (value.ndim != 2 or len(value) != len(messages)):
            raise ReleaseError(
                f"{self.location}: shape of the result",
                got=value.shape,
                expected=f"[d], or [m, d] with a row for each of the {len(messages)} messages",
            )
        return value.astype(np.float64)

    def _called(self, function: Callable[..., Any], *arguments: Any) -> Any:
        with outside.one_line(self.location, self.file, ReleaseError):
            return function(*arguments)


@dataclass(frozen=True)
class Situation:
    """What the other clients do while the canary is tested.

    Attributes:
        name: for the reader.
        rows: numbers of rows of the clients, the ``weights [M]`` of a release.
        others: the other clients' messages: harmless ones, zeros, or the opposite of the canary's.
    """

    name: str
    rows: np.ndarray
    others: Others = "apart"


@dataclass(frozen=True)
class Lens:
    """What is looked at of a result ``[k]``.

    Attributes:
        size: k.
        chosen: places of single coordinates, ``[p]``.
        units: largest movement of each by one client, ``[p]``; 1 where no client moves it.
        moved: whether a client moves it, bool ``[p]``.
        lines: further directions, orthonormal, ``[k, q]``.
    """

    size: int
    chosen: np.ndarray
    units: np.ndarray
    moved: np.ndarray
    lines: np.ndarray

    def view(self, result: np.ndarray) -> np.ndarray:
        """Return what is seen of a result, ``[p + q]``."""
        seen: np.ndarray = result[self.chosen] / self.units
        if self.lines.size:
            seen = np.concatenate([seen, result @ self.lines / self.units.mean()])
        return seen


@dataclass(frozen=True, kw_only=True)
class OfArrays(Mechanism):
    """A program under audit in one situation.

    Attributes:
        program: the release.
        dimension: d, numbers of a message.
        adjacency: how an absent canary differs: it sends zeros, is left out, or sends the opposite.
        situation: what the others do.
        lens: what is looked at; None shows results as they are.
        odd: canaries beside those of the package's releases, of ``ODD``.
        empty: whether the release accepts a cohort of no client; otherwise its result counts as 0.
    """

    program: Program
    dimension: int
    adjacency: Adjacency
    situation: Situation
    lens: Lens | None = None
    odd: tuple[str, ...] = ()
    empty: bool = True
    at_once: int = 100

    @cached_property
    def canary(self) -> int:
        """The last client, so that the noise of earlier messages does not move if it is left
        out."""
        return self.executed.clients - 1

    @property
    def leaves(self) -> bool:
        """Whether an absent canary is left out of the cohort."""
        return self.adjacency == "add_remove"

    @property
    def remembers(self) -> bool:
        """Whether the program is a class."""
        return self.program.remembers

    @property
    def clip_norms(self) -> tuple[float, ...]:
        """The length of the canaries; the bound itself is the program's."""
        assert self.executed.clip_norm is not None
        return (self.executed.clip_norm,)

    @property
    def shapes(self) -> Shapes:
        """Three layers, as equal as can be, or as many as there are numbers."""
        parts = np.array_split(np.arange(self.dimension), min(3, self.dimension))
        return {f"{place}.weight": (len(part),) for place, part in enumerate(parts)}

    def start(self, key: str) -> Tree:
        """Return a public vector, along which one canary moves."""
        rng = release_rng(key, "model")
        return {
            name: torch.from_numpy(rng.standard_normal(shape)).float()
            for name, shape in self.shapes.items()
        }

    def canaries(self, params: Tree) -> dict[str, Tree]:
        """Return the canaries of the package's releases, a far one of one coordinate, and the odd
        ones."""
        library = super().canaries(params)
        library["far"] = {name: value * FAR for name, value in library["dirac"].items()}
        for name in self.odd:
            library[name] = {key: torch.full_like(v, ODD[name]) for key, v in params.items()}
        return library

    def sent(
        self, direction: Tree, there: bool, scale: Mapping[str, Tensor], repeats: int
    ) -> Uploads:
        """Return the messages of all clients with or without the canary, ``[R, M, d]``."""
        tree = super().sent(direction, there, scale, 1).update
        rows = torch.cat([value[0].flatten(1) for value in tree.values()], dim=1)
        canary = torch.cat([value.reshape(-1) for value in direction.values()])
        opposite = -canary.nan_to_num(0, 0, 0)
        if self.situation.others != "apart":
            rows[: self.canary] = opposite if self.situation.others == "opposite" else 0
        if not there and self.adjacency == "replace_one":
            rows[self.canary] = opposite
        return Uploads({"message": rows.expand(repeats, *rows.shape)})

    def begin(self, repeats: int) -> Sequence[Step]:
        """Return the release of each of R new runs."""
        clients = self.executed.clients
        return [self.program.begin(clients, self.dimension) for _ in range(repeats)]

    def seen(
        self,
        generator: np.random.Generator | Drawn,
        sent: Uploads,
        present: Tensor,
        scale: Tree,
        others: int = 0,
        bits: np.random.Generator | None = None,
        runs: Any = None,
    ) -> tuple[Tensor, Tree]:
        """Return the attacker's view of one release, ``[R, d]``."""
        assert isinstance(generator, np.random.Generator)
        rows, cohorts = sent.update["message"][0].numpy(), present.numpy()
        seeds = generator.integers(2**63, size=len(cohorts)).tolist()
        views = [
            self._view(step, rows[cohort], self.situation.rows[cohort], seed, others)
            for step, cohort, seed in zip(runs, cohorts, seeds, strict=True)
        ]
        return torch.from_numpy(np.stack(views)), {}

    def _view(
        self, step: Step, messages: np.ndarray, rows: np.ndarray, seed: int, others: int
    ) -> np.ndarray:
        if len(messages) == 0 and not self.empty:
            assert self.lens is not None
            return self.lens.view(np.zeros(self.lens.size))
        result = self.program.result(step, messages, rows, seed)
        if self.trust == "local":
            if result.ndim != 2:
                raise ReleaseError(
                    f"{self.program.location}: result under local trust",
                    got=result.shape,
                    expected="[m, d], the noised message of each client",
                )
            shown = [result[-1], *result[: min(others, len(result) - 1)]]
        else:
            shown = [result.mean(axis=0) if result.ndim == 2 else result]
        if self.lens is None:
            return np.concatenate(shown)
        if shown[0].size != self.lens.size:
            raise ReleaseError(
                f"{self.program.location}: length of the result",
                got=shown[0].size,
                expected=f"{self.lens.size}, as in other cohorts",
            )
        return np.concatenate([self.lens.view(one) for one in shown])

    def places(self, direction: Tree, length: int) -> list[Tensor]:
        """Return one layer: which coordinates of a result belong together is not known."""
        return [torch.ones(length, dtype=torch.bool)]

    def with_known_noise(self, scale: Tree) -> Tensor | None:
        """Return the mask of the single coordinates that a client moves, bool ``[p + q]``."""
        assert self.lens is not None
        return torch.from_numpy(np.append(self.lens.moved, np.zeros(self.lens.lines.shape[1]))) > 0

    def movement(self, direction: Tree) -> Tensor:
        """Return the canary's movement of the attacker's view as it is measured, ``[d]``."""
        moved = self.moved(direction)
        return moved if moved.any() else torch.ones_like(moved)

    def moved(self, direction: Tree) -> Tensor:
        """Return the difference that the canary makes to one view under the same noise, ``[d]``."""
        there, absent = (self.once(direction, here) for here in (True, False))
        return there - absent

    def once(self, direction: Tree, there: bool, seed: int = 0) -> Tensor:
        """Return the view of a first round of all clients, or of the largest cohort of a draw."""
        plan = self.executed
        most = max(2, round(2 * plan.expected_cohort))
        present = torch.arange(plan.clients - 1, -1, -1) < most
        if self.leaves:
            present[self.canary] &= there
        sent, rng = self.sent(direction, there, {}, 1), np.random.default_rng(seed)
        return self.seen(rng, sent, present[None], {}, runs=self.begin(1))[0][0]

    def through_a_lens(self, key: str) -> OfArrays:
        """Return the mechanism with a lens that fits what its canaries do."""
        library = self.canaries(self.start(key))
        bare = dataclasses.replace(self, lens=None)
        moved = np.stack([bare.moved(direction).numpy() for direction in library.values()])
        size, reach = moved.shape[1], np.abs(moved).max(axis=0)
        chosen = np.arange(size)
        if size > WIDEST:
            first = next(iter(library.values()))
            drawn = np.stack([bare.once(first, False, seed).numpy() for seed in range(PILOT)])
            ratio = drawn.std(axis=0) / np.where(reach > 0, reach, np.inf)
            ratio = np.where(reach > 0, ratio, np.inf)
            even = np.linspace(0, size, SPREAD, endpoint=False).astype(int)
            chosen = np.union1d(even, np.argsort(ratio)[:WEAKEST])
        assert self.executed.clip_norm is not None
        for place in chosen[chosen < self.dimension]:
            for length in (1.0, FAR):
                vector = torch.zeros(self.dimension)
                vector[place] = length * self.executed.clip_norm
                reach = np.maximum(reach, np.abs(bare.moved({"message": vector}).numpy()))
        moved[:, chosen] = 0
        lines = np.zeros((size, 0))
        if size > WIDEST:
            basis, sizes, _ = np.linalg.svd(moved.T, full_matrices=False)
            lines = basis[:, sizes > 1e-9 * max(sizes.max(), 1e-300)]
        units = reach[chosen]
        lens = Lens(size, chosen, np.where(units > 0, units, 1.0), units > 0, lines)
        return dataclasses.replace(self, lens=lens)


ODD = {"nan": float("nan"), "infinite": float("inf")}
"""Values of messages that no client should send and some client will."""
