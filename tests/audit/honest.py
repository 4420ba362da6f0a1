"""Releases that keep their claim: what is done to a result after its noise takes nothing away."""

from typing import Any

import numpy as np
from cheats import CLAIM, DRAWN, LEFT_OUT, RUNS, C, clipped, finite, noise, scaled

REPLACED: dict[str, Any] = CLAIM | {"adjacency": "replace_one"}
HONEST: dict[str, tuple[Any, dict[str, Any]]] = {}


def honest(**claim: Any) -> Any:
    """Enter a release, with fields of its claim that differ."""

    def enter(release: Any) -> Any:
        HONEST[release.__name__] = (release, CLAIM | claim)
        return release

    return enter


def noised(messages, rng):
    total = clipped(messages).sum(axis=0)
    return total + noise(rng, len(total))


def afterwards(change: Any) -> Any:
    """Return the release of a noised sum, of which something is made."""
    return lambda messages, weights, rng: change(noised(messages, rng))


AFTERWARDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "total": (lambda result: result, CLAIM),
    "fixed_divisor": (lambda result: result / 10, CLAIM),
    "sum_of_whoever_is_there": (lambda result: result, LEFT_OUT),
    # Its multiplier is over C, and two messages are up to 2 C apart, as the claim counts it.
    "one_replaced": (lambda result: result, REPLACED),
    "poisson": (lambda result: result / 3, DRAWN),
    "poisson_left_out": (lambda result: result / 3, DRAWN | {"adjacency": "add_remove"}),
    "rounded_after_noise": (lambda result: np.round(result, 1), CLAIM),
    "whole_numbers_after_noise": (np.round, CLAIM),
    "clipped_after_noise": (lambda result: np.clip(result, -2 * C, 2 * C), CLAIM),
    "largest_after_noise": (lambda x: np.where(np.abs(x) >= np.sort(np.abs(x))[-5], x, 0), CLAIM),
    "signs_after_noise": (np.sign, CLAIM),
    "of_length_one_after_noise": (lambda result: result / np.linalg.norm(result), CLAIM),
    "long_messages": (lambda result: result, CLAIM | {"dimension": 300}),
}
HONEST |= {name: (afterwards(change), claim) for name, (change, claim) in AFTERWARDS.items()}


@honest()
def weights_with_their_noise(messages, weights, rng):
    shares = weights / weights.sum()
    return shares @ clipped(messages) + noise(rng, messages.shape[1], shares.max())


@honest()
def layers_of_a_third(messages, weights, rng):
    parts = np.array_split(messages, 3, axis=1)
    rows = np.concatenate([clipped(part, C / np.sqrt(3)).sum(axis=0) for part in parts])
    return rows + noise(rng, len(rows))


@honest()
def single_precision(messages, weights, rng):
    rows = finite(messages).astype(np.float32)
    norms = np.linalg.norm(rows.astype(np.float64), axis=1).astype(np.float32)
    total = (rows * np.minimum(1, C / np.maximum(norms, 1e-12))[:, None]).sum(axis=0)
    return (total + noise(rng, len(total)).astype(np.float32)).astype(np.float32)


@honest()
def more_noise_of_another_shape(messages, weights, rng):
    result = noised(messages, rng)
    return result + rng.laplace(0, C, 1) + rng.uniform(-C, C, len(result))


@honest(mechanism="laplace", delta=0.0, dimension=20)
def laplace(messages, weights, rng):
    rows = finite(messages)
    sums = scaled(rows, np.abs(rows).sum(axis=1)).sum(axis=0)
    return sums + rng.laplace(0, C, len(sums))


@honest(trust="local")
def single_messages(messages, weights, rng):
    rows = clipped(messages)
    return rows + noise(rng, rows.shape)


@honest(**RUNS)
class AdaptiveBound:
    """The bound follows what was released; the noise follows the bound."""

    def start(self, clients, dimension):
        self.bound = C

    def step(self, messages, weights, rng):
        rows = clipped(messages, self.bound).sum(axis=0)
        result = rows + noise(rng, len(rows), self.bound)
        self.bound *= np.exp(0.1 * np.tanh(np.linalg.norm(result) / 10 - 1))
        return result


@honest(**RUNS)
class ServerMomentum:
    """The momentum is that of noised sums."""

    def start(self, clients, dimension):
        self.velocity = np.zeros(dimension)

    def step(self, messages, weights, rng):
        self.velocity = 0.9 * self.velocity + noised(messages, rng)
        return self.velocity


@honest()
def shares_of_noise(messages, weights, rng):
    rows = clipped(messages)
    return rows + noise(rng, rows.shape, np.sqrt(len(rows)))
