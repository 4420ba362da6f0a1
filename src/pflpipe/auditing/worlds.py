"""What all clients send in two neighbouring worlds, described by a few properties that a search can
vary one at a time."""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pflpipe.auditing.claim import Claim
from pflpipe.errors import counted
from pflpipe.privacy import mechanisms

LENGTHS = (
    *(0.0, 1e-30, 1e-6, 1e-3, 0.1, 0.5, 0.9, 0.999, 1.0, 1.001, 1.5, 2.0, 3.0),
    *(5.0, 10.0, 30.0, 100.0, 1e3, 1e4, 1e6, 1e20, 1e37),
)
"""Of messages, in clip bounds; squares of the last two overflow float32."""
ENTRIES = (0.05, 0.1, 0.3, 0.49, 0.51, 0.99, 1.01, 2.0)
"""Sizes of the single numbers of a message, in clip bounds."""
ODD = ("", "NaN", "infinity", "-infinity", "one NaN", "one infinity", "one -infinity")
SUPPORTS = ("first", "last", "middle", "drawn")
SIGNS = ("positive", "negative", "alternating", "drawn")
OTHERS = ("apart", "zeros", "same", "opposite", "drawn", "mixed", "equal", "one", "odd")
"""What the other clients send: half a clip bound on coordinates that the canary may not use,
zeros, along or against the canary, in drawn directions of one length or of mixed ones, the canary's
very message, all zeros but one, a message that is not finite."""
PLACES = ("last", "first", "middle")
ROWS = ("equal", "most", "another", "none", "mixed")
COHORTS = ("most", "few", "all", "alone")
_WORDS_OF_ROWS = {
    "equal": "all clients have equally many rows",
    "most": "this client has 91 % of the rows",
    "another": "another client has 91 % of the rows",
    "none": "this client has no rows",
    "mixed": "clients have 1 to 1,000 rows",
}
_WORDS_OF_OTHERS = {
    "apart": "half a clip bound",
    "zeros": "zeros",
    "same": "along its message",
    "opposite": "the opposite",
    "drawn": "in drawn directions",
    "mixed": "in drawn directions with lengths from 0.001 C to 1,000 C",
    "equal": "the same message",
    "one": "zeros but one",
    "odd": "zeros but for one message that is not finite",
}


@dataclass(frozen=True)
class Pair:
    """The messages of two neighbouring rounds.

    Attributes:
        messages: of the clients that take part, the canary among them, ``[m, d]`` float32.
        rows: their numbers of rows, ``[m]``.
        place: the canary.
        other: its message in the other world ``[d]``; None if it is left out.
    """

    messages: np.ndarray
    rows: np.ndarray
    place: int
    other: np.ndarray | None

    def world(self, there: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return messages and rows with or without the canary."""
        if there:
            return self.messages, self.rows
        if self.other is None:
            kept = np.arange(len(self.rows)) != self.place
            return self.messages[kept], self.rows[kept]
        messages = self.messages.copy()
        messages[self.place] = self.other
        return messages, self.rows


@dataclass(frozen=True)
class Recipe:
    """A pair of worlds as properties.

    Attributes:
        support, count: which coordinates of its message a canary uses, and how many.
        signs: of its numbers.
        length: of its message, in clip bounds.
        odd: numbers that are not finite: all of them, or one beside the finite ones.
        others, far, share: what the other clients send, of which length in clip bounds, and the
            share of them that sends anything.
        place: where the canary stands among the clients.
        rows: numbers of rows.
        absent: the other world: the canary sends zeros, the opposite, or is left out.
        cohort: under sampling, how many others take part.
        rounds: of a release with a state, in which the canary takes part: all, or the first.
        draw: of what is drawn.
    """

    support: str = "first"
    count: int = 1
    signs: str = "positive"
    length: float = 1.0
    odd: str = ""
    others: str = "apart"
    far: float = 1.0
    share: float = 1.0
    place: str = "last"
    rows: str = "equal"
    absent: str = "zeros"
    cohort: str = "most"
    rounds: str = "all"
    draw: int = 0

    def __str__(self) -> str:
        sent = f"{self.length:.3g} C on {counted(self.count, 'coordinate')}"
        if self.odd:
            sent = f"{sent} with {self.odd}" if self.odd.startswith("one") else self.odd
        others = _WORDS_OF_OTHERS[self.others]
        if self.others in ("same", "opposite", "drawn", "one"):
            others += f", {self.far:.3g} C"
        parts = [
            _WORDS_OF_ROWS[self.rows],
            f"it sends {self.signs} numbers, {sent}, as the {self.place} client",
            f"the others send {others}",
        ]
        if self.absent != "zeros":
            left = "it is left out" if self.absent == "out" else f"it sends the {self.absent}"
            parts.append(f"in the other world {left}")
        return "; ".join(parts)

    def pair(self, claim: Claim) -> Pair:
        """Return the messages of both worlds."""
        rng = np.random.default_rng(self.draw)
        clients, size, bound = claim.clients, claim.dimension, claim.clip_norm
        order = mechanisms.of(claim.mechanism).norm
        line = self._line(size, order, rng)
        canary = line * (self.length * bound)
        messages = self._others(clients, size, bound, order, line, rng)
        if self.others == "equal":
            messages[:] = canary
        messages[rng.random(clients) >= self.share] = 0
        if self.odd.startswith("one"):
            canary[np.flatnonzero(line)[-1]] = float(self.odd.removeprefix("one "))
        elif self.odd:
            canary[:] = float(self.odd)
        place = {"last": clients - 1, "first": 0, "middle": clients // 2}[self.place]
        messages[place] = canary
        rows = self._rows(clients, place, rng)
        chosen = np.ones(clients, dtype=bool)
        if claim.sample_rate < 1:
            mean = claim.sample_rate * clients
            several = {"alone": 1, "few": round(mean), "most": round(2 * mean), "all": clients}
            count = max(1 + (self.cohort != "alone"), several[self.cohort])
            chosen = np.roll(np.arange(clients) < count, place - count + 1)
            chosen[place] = True
        other = None
        if self.absent != "out":
            finite = np.nan_to_num(canary, nan=0, posinf=0, neginf=0)
            other = (-finite if self.absent == "opposite" else 0 * finite).astype(np.float32)
        position = int(chosen[:place].sum())
        return Pair(messages[chosen].astype(np.float32), rows[chosen], position, other)

    def _line(self, size: int, order: int, rng: np.random.Generator) -> np.ndarray:
        count = min(self.count, size)
        if self.support == "drawn":
            places = rng.permutation(size)[:count]
        else:
            start = {"first": 0, "last": size - count, "middle": (size - count) // 2}[self.support]
            places = start + np.arange(count)
        signs = {
            "positive": np.ones(count),
            "negative": -np.ones(count),
            "alternating": 1 - 2.0 * (np.arange(count) % 2),
            "drawn": rng.standard_normal(count),
        }[self.signs]
        line = np.zeros(size)
        line[places] = signs / np.linalg.norm(signs, ord=order)
        return line

    def _others(
        self,
        clients: int,
        size: int,
        bound: float,
        order: int,
        line: np.ndarray,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Return what all would send if nobody were the canary, ``[M, d]``."""
        if self.others == "apart":
            signs = np.where(np.arange(clients) % 2 == 0, 0.5, -0.5) * bound
            messages = np.tile(signs[:, None] / math.sqrt(size), (1, size))
            messages[:, size - math.ceil(size / 4) :] = 0
            return messages
        messages = np.zeros((clients, size))
        far = self.far * bound
        if self.others in ("same", "opposite"):
            messages[:] = line * (far if self.others == "same" else -far)
        elif self.others in ("drawn", "mixed"):
            messages = rng.standard_normal((clients, size))
            messages /= np.linalg.norm(messages, ord=order, axis=1, keepdims=True)
            mixed = 10 ** rng.uniform(-3, 3, clients)
            messages *= far if self.others == "drawn" else (mixed * bound)[:, None]
        elif self.others == "one":
            messages[min(1, clients - 1)] = line * far
        elif self.others == "odd":
            messages[min(1, clients - 1)] = float(rng.choice(["nan", "inf", "-inf"]))
        return messages

    def _rows(self, clients: int, place: int, rng: np.random.Generator) -> np.ndarray:
        rows = np.full(clients, 9.0)
        if self.rows == "most":
            rows[place] = 91.0 * max(clients - 1, 1)
        elif self.rows == "another" and clients > 1:
            rows[place - 1] = 91.0 * (clients - 1)
        elif self.rows == "none" and clients > 1:
            rows[place] = 0
        elif self.rows == "mixed":
            rows = np.round(10 ** rng.uniform(0, 3, clients))
        return rows


def starts(claim: Claim, remembers: bool) -> list[Recipe]:
    """Return the recipes that are always tried, the plainest first: each property alone, for a
    message of length C and for a far one, then directions, signs and lengths with what the others
    do."""
    size = claim.dimension
    base = Recipe(absent=absences(claim)[0])
    found = [base]
    far = dataclasses.replace(base, count=size, signs="drawn", length=1e6)
    for start in (base, far):
        for name, values in properties(claim, remembers).items():
            found += [dataclasses.replace(start, **{name: value}) for value in values]
    for others, of_others in (
        ("apart", 1.0),
        ("zeros", 1.0),
        ("same", 1.0),
        ("same", 1e3),
        ("opposite", 1e3),
        ("drawn", 1e3),
        ("equal", 1.0),
        ("mixed", 1.0),
    ):
        for signs in ("positive", "negative", "drawn"):
            for count in sorted({1, size}):
                for length in (1.0, 0.99 * math.sqrt(count), 1e6):
                    made = dataclasses.replace(
                        base, count=count, signs=signs, length=length, others=others, far=of_others
                    )
                    found.append(made)
    return list(dict.fromkeys(found))


def absences(claim: Claim) -> tuple[str, ...]:
    """Return the other worlds of a claim, first the one that its words name. Under sampling, a
    client that is not drawn is as good as one that sends nothing."""
    drawn = ("out",) if claim.sample_rate < 1 else ()
    if claim.adjacency == "add_remove":
        return ("out",)
    return (*(("opposite", "zeros") if claim.adjacency == "replace_one" else ("zeros",)), *drawn)


def properties(claim: Claim, remembers: bool) -> dict[str, tuple[Any, ...]]:
    """Return the values of each property that are worth trying for a claim."""
    size = claim.dimension
    counts = {1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, size // 4, size // 2, size}
    lonely = claim.clients == 1
    values: dict[str, tuple[Any, ...]] = {
        "support": SUPPORTS,
        "count": tuple(sorted(count for count in counts if 1 <= count <= size)),
        "signs": SIGNS,
        "length": LENGTHS,
        "odd": ODD,
        "others": ("apart",) if lonely else OTHERS,
        "far": (1.0,) if lonely else LENGTHS,
        "share": (1.0,) if lonely else (1.0, 0.5, 0.2),
        "place": PLACES[:1] if lonely else PLACES,
        "rows": ROWS[:1] if lonely else ROWS,
        "absent": absences(claim),
        "cohort": COHORTS if claim.sample_rate < 1 else COHORTS[:1],
        "rounds": ("all", "first") if remembers and claim.rounds > 1 else ("all",),
        "draw": tuple(range(8)),
    }
    return {name: few for name, few in values.items() if len(few) > 1}


def drawn(claim: Claim, remembers: bool, rng: np.random.Generator) -> Recipe:
    """Return a recipe all of whose properties are drawn; half of all canaries are finite."""
    values = properties(claim, remembers)
    made = {name: few[rng.integers(len(few))] for name, few in values.items()}
    if rng.random() < 0.5:
        made["odd"] = ""
    if rng.random() < 0.2:
        count = made.get("count", 1)
        made["length"] = float(rng.choice(ENTRIES)) * math.sqrt(count)
    return dataclasses.replace(Recipe(absent=absences(claim)[0]), **made)


def changed(
    recipe: Recipe, claim: Claim, remembers: bool, rng: np.random.Generator
) -> Iterator[Recipe]:
    """Yield neighbours of a recipe: a property drawn anew, or a length that grows or shrinks."""
    values = properties(claim, remembers)
    while True:
        factor = float(np.exp(rng.normal(0, rng.choice([0.1, 1.0]))))
        name = str(rng.choice(["length", "far", *values]))
        if name in ("length", "far") and rng.random() < 0.7:
            moved = min(getattr(recipe, name) * factor, LENGTHS[-1])
            yield dataclasses.replace(recipe, **{name: moved})
        elif name in values:
            few = values[name]
            yield dataclasses.replace(recipe, **{name: few[rng.integers(len(few))]})
