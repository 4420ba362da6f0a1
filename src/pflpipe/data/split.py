"""The rows of each client: a split of a data set, its file, and the check of its new clients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pflpipe import cells
from pflpipe.code import guard
from pflpipe.data.datasets import Arrays
from pflpipe.errors import DataError
from pflpipe.files import AGAIN, atomic

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """Index lists per client; ``train`` and ``validation`` index the training arrays, ``common``
    the test arrays.

    Attributes:
        train, validation, test: M arrays int64 [n_i], ascending; validation and test may be empty,
            and for a natural user all three.
        common: int64, ascending; the common test set.
        own_from_train: whether ``test`` indexes the training arrays (a part of the clients' own
            examples) or the test arrays.
        new: the same for N clients that take no part in training, if there are any.
    """

    train: list[np.ndarray]
    validation: list[np.ndarray]
    test: list[np.ndarray]
    common: np.ndarray
    own_from_train: bool = False
    new: Split | None = None

    @property
    def everything(self) -> tuple[np.ndarray, np.ndarray]:
        """All rows of these clients in the training arrays, and in the test arrays, without those
        of new clients."""
        tests = np.concatenate(self.test)
        held = np.concatenate([*self.train, *self.validation])
        return (np.append(held, tests), tests[:0]) if self.own_from_train else (held, tests)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``<part>_index`` int64 [total], ``<part>_offsets`` int64 [M + 1], ``common_index``
        and ``own_from_train``, and ``new_<part>_index``, ``new_<part>_offsets`` of new clients, if
        there are any."""
        arrays: dict[str, Any] = {"common_index": self.common}
        arrays |= {"own_from_train": np.array(self.own_from_train)} | _packed(self)
        if self.new is not None:
            arrays |= {f"new_{name}": values for name, values in _packed(self.new).items()}
        with atomic(path) as temporary:
            np.savez(temporary, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Split:
        """Read what ``save`` wrote; DataError when the file is missing or damaged."""
        with (
            guard.foreign(f"{path} cannot be read", do=AGAIN, told=str),
            np.load(path, allow_pickle=False) as bundle,
        ):
            split = _unpacked(bundle, "")
            if "new_train_index" not in bundle:
                return split
            return replace(split, new=_unpacked(bundle, "new_"))


def _packed(split: Split) -> dict[str, np.ndarray]:
    arrays = {}
    for part in PARTS:
        rows: list[np.ndarray] = getattr(split, part)
        arrays[f"{part}_index"] = np.concatenate(rows)
        arrays[f"{part}_offsets"] = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return arrays


def _unpacked(bundle: Mapping[str, np.ndarray], prefix: str) -> Split:
    train, validation, test = (
        np.split(bundle[f"{prefix}{part}_index"], bundle[f"{prefix}{part}_offsets"][1:-1])
        for part in PARTS
    )
    common, own_from_train = bundle["common_index"], bool(bundle["own_from_train"])
    return Split(train, validation, test, common, own_from_train)


def check_new(
    split: Split, partition: cells.Partition, arrays: Arrays, location: str = "partition"
) -> None:
    """Refuse a split with another number of new clients than requested, or with a new client that
    shares a row of the training arrays, or for ``natural`` a user, with a client in training.

    Clients may share a test row of the data set if there are fewer rows than clients (``make``).

    Args:
        split: the rows of each client.
        partition: the request.
        arrays: the data set.
        location: names the split in messages.

    Raises:
        DataError: naming the first such row or user.
    """
    count = 0 if split.new is None else len(split.new.train)
    fits, expected = count == partition.new_clients, str(partition.new_clients)
    DataError.unless(fits, f"{location}: new clients", count, expected)
    if split.new is None:
        return
    old, new = split.everything, split.new.everything
    what, shared = "training examples", np.intersect1d(old[0], new[0])
    if partition.kind == "natural" and not len(shared):
        assert arrays.train_users is not None  # for mypy: only such data have natural clients
        assert arrays.test_users is not None
        trained, held_out = (
            np.append(arrays.train_users[rows], arrays.test_users[tests])
            for rows, tests in (old, new)
        )
        what, shared = "users", np.intersect1d(trained, held_out)
    if len(shared):
        got = f"{len(shared)} of clients in training, the first {shared[0]}"
        do = "make the partition again with workflow/scripts/partition.py"
        raise DataError(f"{location}: {what} of new clients", got=got, expected="none", do=do)
