"""Random numbers by name: what belongs to a seed, and what belongs to one release alone.

Two kinds of streams, which must not be confused:

- ``seed_for``, ``numpy_rng``: named by the cell's seed. The partition, the initial parameters and
  the order of batches follow from it, so that all runs of a seed are compared on equal terms.
- ``release_rng``: named by the key of a training run, 256 bits that stand for everything training
  reads from the study (``registry.key``). Privacy noise and cohorts come from it, fresh for every
  run: two runs that share a draw publish the difference of their clients' sums without any noise.
  The key holds names and settings, never values of the data.

Streams with different names are independent, adding a stream never shifts another, and a resumed
run needs no generator state: it derives the stream of its round again.
"""

from __future__ import annotations

import hashlib

import numpy as np

STREAMS = 3
"""Version of everything that this file and its users draw. It is part of every run's key and id,
and goes up whenever the same name would give other numbers, or the same settings other
messages of a client: two releases with one noise and other messages publish their difference. 1:
streams named by the seed alone. 2: messages whose rounding followed from other clients."""


def seed_for(seed: int, *name: str | int) -> int:
    """Return a 63-bit seed for the named stream (SHA-256 of the seed and the name)."""
    return int.from_bytes(_digest(seed, *name)[:8], "big") >> 1


def numpy_rng(seed: int, *name: str | int) -> np.random.Generator:
    """Return a NumPy generator for the named stream of a seed."""
    return np.random.default_rng(seed_for(seed, *name))


def release_rng(key: str, *name: str | int) -> np.random.Generator:
    """Return the generator of a named part of one run's releases: NumPy's Philox under a key of 128
    bits.

    Two of a million runs of a thousand rounds meet with a probability below 1e-20 (32 bits:
    certainly).

    Args:
        key: of the run, from ``registry.key``; an attack or audit derives one of its own with
            ``derived_key``.
        name: such as ``"noise", round``.
    """
    return np.random.Generator(
        np.random.Philox(key=int.from_bytes(_digest(key, *name)[:16], "big"))
    )


def derived_key(key: str, *name: str | int) -> str:
    """Return a key of its own for something that is computed beside a run and may be published
    beside it, as an attack is."""
    return _digest(key, *name).hex()


def _digest(*name: str | int) -> bytes:
    return hashlib.sha256("/".join(map(str, name)).encode()).digest()
