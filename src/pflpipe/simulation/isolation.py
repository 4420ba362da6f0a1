"""A check that a run kept its clients apart: some clients compute their messages again, alone.

A clip bounds the change of the sum by one client only if this client's data do not change the
messages of others. So every private run draws some clients of its last cohort by the run's key.
Each receives only its own inputs (its rows, its state, and the releases before the round). All bits
that it computes alone are compared with those that it computed among the others. If a bit differs,
it depended on something else, such as another client's number of rows.

In a correct program no bit differs, for any data. The decision then reveals nothing about a client
and costs no delta.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
"""Number of clients of a run that compute again, if there are as many."""


@dataclass(frozen=True)
class Sample:
    """Some clients of a round: their inputs, and their outputs among the others.

    Attributes:
        start: the progress before the round, with the states of these clients only.
        clients: their indices.
        results: everything that they computed, ``[K, ...]``.
    """

    start: Progress
    clients: list[int]
    results: Tree = field(default_factory=dict)

    @classmethod
    def begin(cls, key: str, progress: Progress, drawn: Sequence[int]) -> Sample:
        """Return a sample of a cohort, drawn by the run's key, with its inputs of the next
        round."""
        # A stream of its own: the draws of cohorts and noise are the same as without the check.
        stream = release_rng(key, "isolation", progress.round)
        chosen = stream.choice(len(drawn), min(CLIENTS, len(drawn)), replace=False)
        clients = [drawn[place] for place in sorted(chosen.tolist())]
        # Without the diagnostics of earlier rounds: they are private, and no message may depend on
        # them.
        states = cast(States, Few(clients, progress.states.of(clients)))
        public = progress.round, progress.params, progress.server
        return cls(Progress(*public, states, bound=progress.bound), clients)

    def among(self, drawn: Sequence[int], results: Tree) -> Sample:
        """Return the sample with its clients' rows of the results ``[K, ...]`` of the cohort."""
        places = [drawn.index(client) for client in self.clients]
        return replace(self, results={name: value[places] for name, value in results.items()})

    def check(self, compute: Callable[[Progress, Sequence[int]], Tree]) -> None:
        """Compare the sample with the results of each client alone, in this process.

        Args:
            compute: ``(progress, clients) -> everything that they compute in the next round``.

        Raises:
            PrivacyError: a bit differs.
        """
        for place, client in enumerate(self.clients):
            # A cohort of one: the hook sees no other client.
            self.compare(place, trees.fingerprints(compute(self.start, [client])))

    def compare(self, place: int, alone: Mapping[str, str], where: str = "by itself") -> None:
        """Compare one client's results with those of a cohort of this client alone.

        Args:
            place: of the client in ``clients``.
            alone: ``trees.fingerprints`` of everything that it computes, ``[1, ...]``.
            where: it computes alone, for the message.

        Raises:
            PrivacyError: a bit differs.
        """
        among = {name: value[place : place + 1] for name, value in self.results.items()}
        differing = trees.differing(trees.fingerprints(among), alone)
        if differing:
            raise PrivacyError(
                f"round {self.start.round + 1}: a client's {differing[0]}",
                got=f"other bits than the same client computes {where}",
                expected="the same bits: the message depends on other clients",
                do="do not publish this run; use backend: loop, or correct the code: a function of "
                "its arguments that keeps nothing between calls",
            )


class Few:
    """The states of a few clients, with the method ``of`` of ``States``."""

    def __init__(self, clients: Sequence[int], states: Tree) -> None:
        self._places, self._states = {client: i for i, client in enumerate(clients)}, states

    def of(self, clients: Sequence[int]) -> Tree:
        """Return the states of these clients, ``[K, ...]``."""
        places = torch.tensor([self._places[client] for client in clients])
        return {name: value[places.to(value.device)] for name, value in self._states.items()}
