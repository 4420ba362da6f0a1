"""Whole numbers in given proportions: who gets how many, when images cannot be cut.

Hamilton's method of largest remainders in exact integer arithmetic, with room limits; equal
remainders are settled by the caller's generator, so that no class or client is favoured for its
number.
"""

from __future__ import annotations

import numpy as np


def apportion(
    weights: np.ndarray, total: int, rng: np.random.Generator, room: np.ndarray | None = None
) -> np.ndarray:
    """Divide ``total`` in the proportions of ``weights``.

    Args:
        weights: non-negative integers [n]; an entry of zero receives nothing.
        total: how many to give away.
        rng: settles equal remainders.
        room: the most each entry can take [n]; what a full entry cannot take goes to the others in
            their proportions.

    Returns:
        int64 [n]; sums to ``total``, or to less when all entries of positive weight are full.
    """
    weights = weights.astype(np.int64)
    free = np.full(weights.shape, total, dtype=np.int64) if room is None else room.astype(np.int64)
    given = np.zeros_like(weights)
    while total > 0 and (free[weights > 0] > 0).any():
        active = np.where(free > 0, weights, 0)
        whole, remainder = np.divmod(total * active, active.sum())
        if (whole <= free).all():
            order = np.lexsort((rng.random(len(weights)), -remainder))
            whole[order[: total - int(whole.sum())]] += 1
        share = np.minimum(whole, free)
        given += share
        free = free - share
        total -= int(share.sum())
    return given


def held_out_size(size: int, fraction: float) -> int:
    """How many of ``size`` examples are held out: the rounded share, one at least from three on,
    never all of them."""
    if fraction <= 0:
        return 0
    return min(max(int(fraction * size + 0.5), int(size >= 3)), max(size - 1, 0))


def hold_out(labels: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Choose a class-stratified share of examples.

    Args:
        labels: int64 [n].
        fraction: share held out, see ``held_out_size``.
        rng: draws the examples within each class.

    Returns:
        bool [n], True where held out. A class keeps one example outside as long as the share can be
            filled without it.
    """
    classes, code, counts = np.unique(labels, return_inverse=True, return_counts=True)
    size = held_out_size(len(labels), fraction)
    spare = counts - 1 if (counts - 1).sum() >= size else counts
    take = apportion(counts, size, rng, room=spare)
    chosen = np.zeros(len(labels), dtype=bool)
    for index in range(len(classes)):
        rows = np.flatnonzero(code == index)
        chosen[rng.permutation(rows)[: take[index]]] = True
    return chosen


def draw_out(size: int, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Choose a share of one person's examples, all of them alike.

    Not by class: a class would then keep its share of what is left, while a person's next example
    is as often of a class that was hardly seen. Of MNIST's writers, whose examples are some 80, a
    model of their own scores 10 points higher on rows that were held out class by class.

    Args:
        size: number of examples.
        fraction: share held out, see ``held_out_size``.
        rng: draws them.

    Returns:
        bool [size], True where held out.
    """
    chosen = np.zeros(size, dtype=bool)
    chosen[rng.permutation(size)[: held_out_size(size, fraction)]] = True
    return chosen
