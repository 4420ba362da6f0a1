"""Two worlds that differ in one client's data, in which the world hears the same releases.

What a client sends may follow from its own data, its own state and what was released. So the
releases of one world are replayed in the other, and everything but the one client's own part must
then be the same, to the last bit, in every round.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pflpipe import trees
from pflpipe.privacy.clipping import clip
from pflpipe.privacy.mechanism import Released, Uploads
from pflpipe.privacy.plan import Plan
from pflpipe.simulation import evaluation, rounds
from pflpipe.simulation.clients import Examples
from pflpipe.simulation.simulation import Simulation

ROUNDS = 4
"""What follows from a loss that rose needs three rounds, and one more to be heard."""
POOL = 1000
"""Rows that any client may be given (``with_pool``), followed by as many that are NaN."""


@dataclass(frozen=True)
class Heard:
    """One call of the release: everything that is public about it, whose uploads they are, and
    these."""

    clients: list[int]
    uploads: Uploads
    plan: Plan
    scale: trees.Tree
    noise: str
    released: Released


@dataclass(frozen=True)
class World:
    """What happened in one world."""

    simulation: Simulation
    heard: list[Heard]
    tasks: list[Any]
    progress: rounds.Progress

    @functools.cached_property
    def scores(self) -> list[dict[str, Any]]:
        """The accuracies of all clients in the end."""
        return evaluation.accuracies(self.simulation, self.progress)


def with_pool(world: Simulation) -> Simulation:
    """Return the simulation with rows that belong to nobody yet."""
    draw = np.random.default_rng(5)
    x, y = world.train.x, world.train.y
    some = torch.from_numpy(draw.integers(0, len(x), POOL))
    more = x[some] + torch.from_numpy(draw.normal(size=(POOL, *x.shape[1:]))).to(x)
    labels = torch.from_numpy(draw.integers(0, int(y.max()) + 1, POOL))
    whole = torch.cat([x, more, torch.full_like(more, math.nan)])
    return dataclasses.replace(world, train=Examples(whole, torch.cat([y, labels, labels])))


def given(world: Simulation, client: int, rows: int, *, nan: bool = False) -> Simulation:
    """Return the world of ``with_pool`` in which a client has so many other rows; none is a client
    that is removed."""
    first = len(world.train.y) - POOL * (1 if nan else 2)
    train = list(world.split.train)
    train[client] = np.arange(first, first + rows)
    return dataclasses.replace(world, split=dataclasses.replace(world.split, train=train))


def play(world: Simulation, heard: Sequence[Heard] = ()) -> World:
    """Run all rounds; where another world's releases are given, they are what this one hears."""
    found: list[Heard] = []
    tasks = []

    def release(generator: Any, uploads: Uploads, *rest: Any) -> Released:
        _, plan, scale, _ = rest
        noise = str(generator.bit_generator.state)
        released = world.release(generator, uploads, *rest)
        drawn = rounds.cohort(world, begun.round).nonzero()[0].tolist() or [0]
        found.append(Heard(drawn, uploads, plan, scale, noise, released))
        if heard:
            return dataclasses.replace(released, sum=heard[len(found) - 1].released.sum)
        return released

    def local_update(params: Any, server: Any, state: Any, batches: Any, task: Any) -> Any:
        seen = task.plan, task.solver, task.local_epochs, task.departures
        if not tasks or tasks[-1] != seen:
            tasks.append(seen)
        return world.method.local_update(params, server, state, batches, task)

    method = dataclasses.replace(world.method, local_update=local_update)
    listening = dataclasses.replace(world, release=release, method=method)
    begun = rounds.start(listening)
    return World(world, found, tasks, rounds.run(listening, begun))


def differences(one: World, other: World, client: int) -> list[str]:
    """Return what differs besides the client's own part, by name and round."""
    found = [] if one.tasks == other.tasks else ["plan, learning rate or bound"]
    others = [place for place in range(one.simulation.plan.clients) if place != client]

    def compare(name: str, a: trees.Tree, b: trees.Tree, rows: Any = ...) -> None:
        if a.keys() != b.keys() or not all(trees.same_bits(a[k][rows], b[k][rows]) for k in a):
            found.append(name)

    for number, (a, b) in enumerate(zip(one.heard, other.heard, strict=True)):
        if (a.clients, a.plan, a.noise) != (b.clients, b.plan, b.noise):
            found.append(f"{number}: cohort, plan or noise")
        there = [place for place, drawn in enumerate(a.clients) if drawn != client]
        compare(f"{number}: scale", dict(a.scale), dict(b.scale))
        compare(f"{number}: update", dict(a.uploads.update), dict(b.uploads.update), there)
        compare(f"{number}: extras", dict(a.uploads.extras), dict(b.uploads.extras), there)
    left, right = one.progress, other.progress
    compare("model", left.params, right.params)
    compare("server", left.server, right.server)
    if left.bound != right.bound:
        found.append("bound")
    compare("states", dict(left.states), dict(right.states), others)
    for a, b in zip(one.scores, other.scores, strict=True):
        if a["client"] != client and str(a) != str(b):
            found.append(f"accuracies of client {a['client']}")
    return found


def movement(one: World, other: World, client: int) -> tuple[float, float]:
    """Return how far the clipped sum of the others moves, and that of all, at most over the rounds
    and in units of the clip bound."""
    worst = [0.0, 0.0]
    for a, b in zip(one.heard, other.heard, strict=True):
        rule = a.plan
        clipped = [clip(at.uploads.update, rule.clip_norm, at.scale, rule.norm)[0] for at in (a, b)]
        gaps = {}
        for name, value in clipped[0].items():
            unit = a.scale[name].double() if name in a.scale else 1.0
            gaps[name] = (value.double() - clipped[1][name].double()) / unit
        others = torch.tensor([drawn != client for drawn in a.clients])
        for place, rows in enumerate((others, ...)):
            moved = {name: gap[rows].sum(0) for name, gap in gaps.items()}
            worst[place] = max(worst[place], trees.norm(moved).item() / a.plan.clip_norm)
    return worst[0], worst[1]
