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


@honest()
def total(messages, weights, rng):
    return noised(messages, rng)


@honest()
def fixed_divisor(messages, weights, rng):
    return noised(messages, rng) / 10


@honest(**LEFT_OUT)
def sum_of_whoever_is_there(messages, weights, rng):
    return noised(messages, rng)


@honest(**REPLACED)
def one_replaced(messages, weights, rng):
    """Its multiplier is over C, and two messages are up to 2 C apart, as the claim counts it."""
    return noised(messages, rng)


@honest(**DRAWN)
def poisson(messages, weights, rng):
    return noised(messages, rng) / 3


@honest(**(DRAWN | {"adjacency": "add_remove"}))
def poisson_left_out(messages, weights, rng):
    return noised(messages, rng) / 3


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
def rounded_after_noise(messages, weights, rng):
    return np.round(noised(messages, rng), 1)


@honest()
def whole_numbers_after_noise(messages, weights, rng):
    return np.round(noised(messages, rng))


@honest()
def clipped_after_noise(messages, weights, rng):
    return np.clip(noised(messages, rng), -2 * C, 2 * C)


@honest()
def largest_after_noise(messages, weights, rng):
    result = noised(messages, rng)
    return np.where(np.abs(result) >= np.sort(np.abs(result))[-5], result, 0)


@honest()
def signs_after_noise(messages, weights, rng):
    return np.sign(noised(messages, rng))


@honest()
def of_length_one_after_noise(messages, weights, rng):
    result = noised(messages, rng)
    return result / np.linalg.norm(result)


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


@honest(dimension=300)
def long_messages(messages, weights, rng):
    return noised(messages, rng)
