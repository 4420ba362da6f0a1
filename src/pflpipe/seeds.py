"""Named streams of random numbers.

There are two kinds of streams, which must not be confused:

- ``seed_for``, ``numpy_rng``: named by the cell's seed. They give the partition, the initial
  parameters and the order of batches, so that all runs of a seed are compared on equal terms.
- ``release_rng``: named by the key of a training run, 256 bits that represent everything training
  reads from the study (``registry.key``). They give privacy noise and cohorts, new ones for every
  run. Two runs with the same noise publish the difference of their clients' sums without noise. The
  key holds names and settings, never values of the data.

Streams with different names are independent. Adding a stream never changes another one. A resumed
run needs no generator state, because it derives the stream of its round again.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from pflpipe.files import canonical_json

STREAMS = 3
"""Version of all random numbers of this file and its users. It is part of every run's key and id.
It increases if the same name gives other numbers, or the same settings other messages of a client:
two releases with equal noise and different messages publish their difference. 1: streams named by
the seed alone. 2: messages whose rounding depended on other clients."""


def seed_for(seed: int, *name: str | int) -> int:
    """Return a 63-bit seed for the named stream (SHA-256 of the seed and the name)."""
    return int.from_bytes(_digest(seed, *name)[:8], "big") >> 1


def numpy_rng(seed: int, *name: str | int) -> np.random.Generator:
    """Return a NumPy generator for the named stream of a seed."""
    return np.random.default_rng(seed_for(seed, *name))


def release_rng(key: str, *name: str | int) -> np.random.Generator:
    """Return the generator of a named part of one run's releases: NumPy's Philox with a key of 128
    bits.

    A million runs of a thousand rounds have a collision with a probability below 1e-20 (with 32
    bits: certainly).

    Args:
        key: key of the run, from ``registry.key``; an attack or audit derives another one with
            ``derived_key``.
        name: such as ``"noise", round``.
    """
    number = int.from_bytes(_digest(key, *name)[:16], "big")
    return np.random.Generator(np.random.Philox(key=number))


def run_key(settings: Mapping[str, Any], secret: str = "") -> str:
    """Return the key of a run, 64 hexadecimal digits: runs with equal keys are one run and one
    release.

    Args:
        settings: all that a message depends on, but no value of the data: the noise would then
            depend on the data that it hides.
        secret: of a call from Python, whose settings are objects of any type.
    """
    if secret:
        # Two spellings of one number only give different noise.
        return derived_key(repr([secret, STREAMS, settings]))
    return derived_key(canonical_json({"streams": STREAMS, **settings}))


def derived_key(key: str, *name: str | int) -> str:
    """Return a separate key for a computation next to a run, such as an attack, whose results may
    be published next to those of the run."""
    return _digest(key, *name).hex()


def public_name(key: str) -> str:
    """Return a name of a run that may be sent: nobody can compute the key from it."""
    return derived_key(key, "devices")[:16]


def _digest(*name: str | int) -> bytes:
    return hashlib.sha256("/".join(map(str, name)).encode()).digest()
