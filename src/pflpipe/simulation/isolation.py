"""The proof of a run that its clients were kept apart: some of them compute their messages again,
each by itself.

A clip bounds what one client changes in the sum only if its data change nothing in the messages of
others. So every private run draws some clients of its last cohort by the run's key, gives each of
them what is its own (its rows, its state, and what was released before the round), and compares all
bits of what it computes alone with what it computed among the others. A bit that differs followed
from something else, such as another client's number of rows.

In a correct program no bit differs, whatever the data. The decision then tells nothing about
anybody and costs no delta.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import torch

from pflpipe import trees
from pflpipe.errors import PrivacyError
from pflpipe.seeds import release_rng
from pflpipe.simulation.clients import PLACES
from pflpipe.simulation.states import States
from pflpipe.trees import Tree

if TYPE_CHECKING:
    from pflpipe.simulation.rounds import Progress

CLIENTS = 3
"""So many clients of a run compute again, or as many as there are."""

Compute = Callable[["Progress", Sequence[int]], Tree]
"""``(progress, clients) -> everything that they compute in its next round, [K, ...]``."""


class Proof:
    """What some clients of the latest cohort started from and computed.

    Args:
        key: of the run, which draws them.
        compute: what a round computes with.
    """

    def __init__(self, key: str, compute: Compute) -> None:
        self._key, self._compute = key, compute
        self._start: Progress | None = None
        self._clients: list[int] = []
        self._found: Tree = {}

    def begin(self, progress: Progress, drawn: Sequence[int]) -> None:
        """Keep what some of the drawn clients start a round from; nothing if nobody is drawn."""
        if not drawn:
            return
        stream = release_rng(self._key, "isolation", progress.round)
        chosen = stream.choice(len(drawn), min(CLIENTS, len(drawn)), replace=False)
        self._clients = [drawn[place] for place in sorted(chosen.tolist())]
        states = _Few(self._clients, progress.states.of(self._clients))
        # The diagnostics of earlier rounds are left out: they are private, and no message may
        # follow from them.
        public = progress.round, progress.params, progress.server
        self._start = type(progress)(*public, cast(States, states), bound=progress.bound)

    def note(self, drawn: Sequence[int], found: Tree) -> None:
        """Keep what they computed among all that were drawn, ``[K, ...]``."""
        if drawn:
            places = [drawn.index(client) for client in self._clients]
            self._found = {name: value[places] for name, value in found.items()}

    def check(self, progress: Progress) -> None:
        """Compare it with what each of them computes alone.

        Where nobody was drawn since the run was resumed, one more round is computed for the proof,
        of which nothing is released.

        Raises:
            PrivacyError: a bit differs.
        """
        if self._start is None:
            everybody = range(progress.states.clients)[:PLACES]
            self.begin(progress, everybody)
            self.note(everybody, self._compute(progress, everybody))
        assert self._start is not None
        for place, client in enumerate(self._clients):
            alone = self._compute(self._start, [client])
            differing = [
                name
                for name, value in self._found.items()
                if not trees.same_bits(alone[name][0], value[place])
            ]
            if differing:
                raise PrivacyError(
                    f"round {self._start.round + 1}: a client's {differing[0]}",
                    got="other bits than the same client computes by itself",
                    expected="the same bits: the message followed from other clients",
                    do="do not publish this run; use backend: loop, or mend the method",
                )


class _Few:
    """The states of a few clients, as ``States.of`` gives them."""

    def __init__(self, clients: Sequence[int], states: Tree) -> None:
        self._places, self._states = {client: i for i, client in enumerate(clients)}, states

    def of(self, clients: Sequence[int]) -> Tree:
        """Return the states of these clients, ``[K, ...]``."""
        places = torch.tensor([self._places[client] for client in clients])
        return {name: value[places.to(value.device)] for name, value in self._states.items()}
