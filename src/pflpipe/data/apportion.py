"""Whole numbers in given proportions, to divide examples over clients and classes, and which
examples are held out.

Proportions are divided by Hamilton's method of largest remainders in exact integer arithmetic, with
upper limits. The caller's generator breaks ties of remainders, so that no class or client is
favoured by its index.
"""

from collections.abc import Sequence

import numpy as np

from pflpipe.seeds import numpy_rng


def apportion(
    weights: np.ndarray, total: int, rng: np.random.Generator, room: np.ndarray | None = None
) -> np.ndarray:
    """Divide ``total`` in the proportions of ``weights``.

    Args:
        weights: non-negative integers [n]; an entry of zero receives nothing.
        total: how many to give away.
        rng: breaks ties of remainders.
        room: upper limit of each entry [n]; the rest of a full entry goes to the others in their
            proportions.

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
    """Return how many of ``size`` examples are held out: the rounded share, at least one of three
    or more, never all of them."""
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
        bool [n], True where held out. One example of each class is not held out, as long as the
            share can be filled without it.
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
    """Choose a share of one person's examples at random, whatever their class.

    Stratified test rows would have the class proportions of the training rows, while a person's
    next example may be of a class that was hardly seen. For MNIST's writers with some 80 examples
    each, a local model scores 10 points higher on stratified test rows.

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


def set_aside(
    shares: Sequence[np.ndarray], fraction: float, seed: int, *stream: str
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Take a uniformly random part of each client's rows, as ``draw_out`` does; return the parts
    and the rests, ascending.

    Every client has a stream of its own, so that the data of one client do not decide which rows
    another one trains on.

    Args:
        shares: the rows of each client.
        fraction: share held out, see ``held_out_size``.
        seed, stream: seed and name of the streams.
    """
    parts, rests = [], []
    for client, rows in enumerate(shares):
        chosen = draw_out(len(rows), fraction, numpy_rng(seed, *stream, client))
        parts.append(np.sort(rows[chosen]))
        rests.append(np.sort(rows[~chosen]))
    return parts, rests
