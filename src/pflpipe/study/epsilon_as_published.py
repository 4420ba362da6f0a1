"""What a method as published is worth at a cell's own budget, whether or not the cell runs it so.

Published means the mechanism of the paper, and with it everything that the official code does where
the registry knows that it departs. That mechanism is calibrated as its authors do, to the cell's
epsilon, delta, q, T and clients, and then counted as the ledger counts every other: its plan is a
plan like any other, made by the rule ``plan``, and the answer, the epsilon behind the printed one,
is the ``epsilon_central`` of its ledger.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from pflpipe.cells import Cell, Privacy
from pflpipe.methods import registry
from pflpipe.named import OF_CALIBRATION, OF_MESSAGES, WITHOUT_BOUND

if TYPE_CHECKING:  # a study is read without torch
    from pflpipe.privacy.ledger import Planned


def departures(cell: Cell, *, official_code: bool = True) -> frozenset[str]:
    """Return what the cell's method departs in as published, by default with its official code if
    that departs further; departures of calibration only where there is an epsilon to reach."""
    official = official_code and bool(registry.of(cell).about.official_departures)
    names = registry.departures(cell.method, "paper", official, cell.source, cell.hyperparameters)
    return frozenset(names) - (OF_CALIBRATION if cell.privacy.epsilon is None else frozenset())


def as_published(cell: Cell) -> Cell | None:
    """Return a cell whose plan is that of the cell's method as published.

    None where ``epsilon`` needs no plan. A cell that departs in the same is its own answer.
    """
    names = departures(cell)
    if cell.privacy.mechanism == "none":
        return None
    if set(names) == set(cell.departures):
        return cell
    if not _is_countable(cell, names) or names & WITHOUT_BOUND.keys():
        return None
    # No published method here adapts its bound, which no multiplier of a plan follows anyway.
    privacy = dataclasses.replace(
        cell.privacy, clip_quantile=None, clip_lr=Privacy.clip_lr, clip_bit_noise=None
    )
    return dataclasses.replace(cell, departures=tuple(sorted(names)), privacy=privacy)


def epsilon(cell: Cell, plans: Callable[[str], Planned]) -> float | None:
    """Return the central epsilon, at the cell's delta, of its method as published; infinite when
    nothing holds.

    None without privacy, and where there is no published mechanism to count.

    Args:
        cell: any profile.
        plans: what a plan's file holds by its id; asked for the one of ``as_published``.
    """
    counted = as_published(cell)
    if counted is not None:
        return plans(counted.plan_id).ledger.epsilon_central
    is_private = cell.privacy.mechanism != "none"
    return math.inf if is_private and _is_countable(cell, departures(cell)) else None


def _is_countable(cell: Cell, names: frozenset[str]) -> bool:
    """Whether a mechanism with these departures exists: noise for single messages has no Laplace
    form, and a calibration to batches of examples has no meaning for a batch of all local data."""
    per_sample = "sample_level_calibration" in names
    if cell.privacy.mechanism == "laplace":
        return not per_sample and names.isdisjoint(OF_MESSAGES)
    return bool(cell.training.batch_size) or not per_sample
