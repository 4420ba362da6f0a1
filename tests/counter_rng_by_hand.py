"""Keyed random numbers with Python's unbounded integers, for golden tests: the slow twin of
``pflpipe.learning.counter_rng``."""

import numpy as np


def uniform(key: int, place: int, position: int) -> float:
    """One number of a key and a place."""

    def triple32(x: int) -> int:
        x ^= x >> 17
        x = x * 0xED5AD4BB % 2**32
        x ^= x >> 11
        x = x * 0xAC4C1B51 % 2**32
        x ^= x >> 15
        x = x * 0x31848BAB % 2**32
        return x ^ x >> 14

    word = triple32((key + 0x9E3779B9) % 2**32)
    word = triple32(word ^ (key >> 32))
    word = triple32((word + place) % 2**32)
    return (triple32(word ^ position) >> 8) / 2**24


def normal(key: int, place: int, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal numbers by the method of Box and Muller: all radii, then all angles."""
    count = int(np.prod(shape))
    draws = np.array([uniform(key, place, position) for position in range(2 * count)])
    radius, angle = np.sqrt(-2 * np.log1p(-draws[:count])), 2 * np.pi * draws[count:]
    return (radius * np.cos(angle)).reshape(shape)
