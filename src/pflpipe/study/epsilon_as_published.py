"""The epsilon of a method as published, at the budget of a cell, whichever version the cell runs.

As published means: with the departures of the paper, and with those of the official code if the
registry knows any. This mechanism is calibrated as its authors do, to the cell's epsilon, delta, q,
T and clients. The rule ``plan`` makes its privacy plan like any other, and ``epsilon_central`` of
the ledger is the epsilon that holds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from pflpipe.cells import Cell, Privacy
from pflpipe.facts.departures import OF_CALIBRATION, OF_MESSAGES, WITHOUT_BOUND
from pflpipe.methods import registry
from pflpipe.privacy import mechanisms

if TYPE_CHECKING:  # a study is read without torch
    from pflpipe.privacy.ledger import Planned


def departures(cell: Cell, *, official_code: bool = True) -> frozenset[str]:
    """Return the departures of the cell's method as published, by default with those of its
    official code, and of those that the study declares for it. Departures of calibration count only
    if an epsilon is requested."""
    official = official_code and bool(registry.of(cell).about.official_departures)
    names = registry.departures(cell.method, "paper", official, cell.source, cell.hyperparameters)
    names += cell.privacy.departures
    return frozenset(names) - (OF_CALIBRATION if cell.privacy.epsilon is None else frozenset())


def as_published(cell: Cell) -> Cell | None:
    """Return a cell with the plan of the cell's method as published: the cell itself if it has the
    same departures, None if ``epsilon`` needs no plan."""
    names = departures(cell)
    if cell.privacy.mechanism == "none":
        return None
    if set(names) == set(cell.departures):
        return cell
    if not _is_countable(cell, names) or names & WITHOUT_BOUND.keys():
        return None
    # No published method adapts its clip bound.
    privacy = dataclasses.replace(
        cell.privacy, clip_quantile=None, clip_lr=Privacy.clip_lr, clip_bit_noise=None
    )
    return dataclasses.replace(cell, departures=tuple(sorted(names)), privacy=privacy)


def epsilon(cell: Cell, plans: Callable[[str], Planned]) -> float | None:
    """Return the central epsilon, at the cell's delta, of its method as published; infinity if no
    finite epsilon holds; None without privacy, or if no published mechanism can be accounted.

    Args:
        cell: a cell of any profile.
        plans: returns the plan with an id; called for the plan of ``as_published``.
    """
    counted = as_published(cell)
    if counted is not None:
        return plans(counted.plan_id).ledger.epsilon_central
    is_private = cell.privacy.mechanism != "none"
    return math.inf if is_private and _is_countable(cell, departures(cell)) else None


def _is_countable(cell: Cell, names: frozenset[str]) -> bool:
    """Whether a mechanism with these departures exists. Only Gaussian noise can be shared by
    messages, calibration to batches of examples has no meaning without batches, and no departure is
    accounted with groups or a band."""
    if cell.fixed:
        return not names.isdisjoint(WITHOUT_BOUND)
    per_sample = "sample_level_calibration" in names
    if not mechanisms.of(cell.privacy.mechanism).stable:
        return not per_sample and names.isdisjoint(OF_MESSAGES)
    return bool(cell.training.batch_size) or not per_sample
