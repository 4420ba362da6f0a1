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
from dataclasses import dataclass, field, replace
from typing import cast

import torch

from pflpipe import trees
from pflpipe.errors import PrivacyError
from pflpipe.seeds import release_rng
from pflpipe.simulation.progress import Progress
from pflpipe.simulation.states import States
from pflpipe.trees import Tree

CLIENTS = 2
"""So many clients of a run compute again, or as many as there are."""


@dataclass(frozen=True)
class Sample:
    """Some clients of a round: what they start from, and what they computed among the others.

    Attributes:
        start: the state before the round, with the states of these clients only.
        clients: their numbers.
        found: everything that they computed, ``[K, ...]``.
    """

    start: Progress
    clients: list[int]
    found: Tree = field(default_factory=dict)

    @classmethod
    def begin(cls, key: str, progress: Progress, drawn: Sequence[int]) -> Sample:
        """Draw clients of a cohort by the run's key, and keep what they start the next round
        from."""
        stream = release_rng(key, "isolation", progress.round)
        chosen = stream.choice(len(drawn), min(CLIENTS, len(drawn)), replace=False)
        clients = [drawn[place] for place in sorted(chosen.tolist())]
        # The diagnostics of earlier rounds are left out: they are private, and no message may
        # follow from them.
        states = cast(States, _Few(clients, progress.states.of(clients)))
        public = progress.round, progress.params, progress.server
        return cls(Progress(*public, states, bound=progress.bound), clients)

    def among(self, drawn: Sequence[int], found: Tree) -> Sample:
        """Return it with its clients' part of what all that were drawn computed, ``[K, ...]``."""
        places = [drawn.index(client) for client in self.clients]
        return replace(self, found={name: value[places] for name, value in found.items()})

    def check(self, compute: Callable[[Progress, Sequence[int]], Tree]) -> None:
        """Compare it with what each of the clients computes alone.

        Args:
            compute: ``(progress, clients) -> everything that they compute in the next round``.

        Raises:
            PrivacyError: a bit differs.
        """
        for place, client in enumerate(self.clients):
            alone = compute(self.start, [client])
            differing = [
                name
                for name, value in self.found.items()
                if not trees.same_bits(alone[name][0], value[place])
            ]
            if differing:
                raise PrivacyError(
                    f"round {self.start.round + 1}: a client's {differing[0]}",
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
