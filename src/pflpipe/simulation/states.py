"""The clients' states between rounds, stored in a file. Only those of the cohort are in memory.

The models of ten thousand clients are tens of gigabytes. All clients start with one state, which is
stored once. A client gets a row in the file in the first round in which it is drawn.

A ``States`` object is immutable; a new one shares the rows of unchanged clients with the old one. A
checkpoint therefore stores only the row number of each client. It must keep the object alive,
because rows without a living object are overwritten.
"""

from __future__ import annotations

import math
import os
import tempfile
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pflpipe.errors import DataError, located
from pflpipe.files import atomic
from pflpipe.simulation.processes import ALONE, Processes
from pflpipe.trees import Tree


class States(Mapping[str, Tensor]):
    """The state of every client: name -> ``[M, ...]``, read from the file on access."""

    def __init__(
        self, initial: Tree, clients: int, path: Path | None = None, processes: Processes = ALONE
    ) -> None:
        """Create states in which every client has the same state.

        Args:
            initial: this state.
            clients: M.
            path: the file of the rows, visible to all processes; ``None`` is a temporary file, for
                a single process.
            processes: the processes that share these clients.
        """
        if initial and path is None and processes.size > 1:
            raise ValueError("Expected a path, since several processes share the states; got none.")
        self._initial, self._slots = initial, np.full(clients, -1, np.int64)
        row_bytes = sum(value.nbytes for value in initial.values())
        self._file = _File(row_bytes, path, "w+b" if processes.is_first else "rb", processes)

    @classmethod
    def restored(cls, notes: Mapping[str, Any], path: Path, processes: Processes = ALONE) -> States:
        """Return the states described by ``notes``, to continue in the same file.

        Raises:
            DataError: the file does not have all rows with their checksums.
        """
        states = cls(notes["initial"], len(notes["slots"]), path, processes)
        states._slots = notes["slots"].cpu().numpy()
        states._file.mode = "r+b" if processes.is_first else "rb"
        states._file.hold(states)
        what = f"{path}: states of the clients"
        needed = (states._slots.max() + 1) * states._file.row_bytes
        size = path.stat().st_size if path.exists() else 0
        if size < needed:
            raise DataError(what, got=f"{size} bytes", expected=f"at least {needed}")
        checks = states._file.checks(states._held)
        if not np.array_equal(checks, notes["checks"].cpu().numpy()):
            raise DataError(what, got="other rows than were written")
        return states

    @classmethod
    def load(cls, notes: Mapping[str, Any], path: Path) -> States:
        """Return the states that ``save`` wrote, read-only; ``notes`` are those that it returned.

        Raises:
            DataError: the file does not have all rows with their checksums.
        """
        slots = torch.full((notes["clients"],), -1)
        slots[notes["trained"].cpu()] = torch.arange(len(notes["trained"]))
        with located(f"{path.parent} is damaged"):
            states = cls.restored({**notes, "slots": slots}, path)
        states._file.mode = "rb"
        return states

    def notes(self) -> dict[str, Any]:
        """Return the common initial state, the row of each client, and the checksums of the rows.
        The rows are on the disk when this returns."""
        self._file.flush()
        return {
            "initial": self._initial,
            "slots": torch.from_numpy(self._slots),
            "checks": torch.from_numpy(self._file.checks(self._held)),
        }

    def save(self, path: Path) -> dict[str, Any]:
        """Write the rows of the clients that have trained into a file, and return its notes for
        ``load``."""
        trained = np.flatnonzero(self._slots >= 0)
        with atomic(path) as place, open(place, "wb") as file:
            for client in trained:
                file.write(self._file.read(self._slots[client]))
        return {
            "initial": self._initial,
            "clients": len(self._slots),
            "trained": torch.from_numpy(trained),
            "checks": torch.from_numpy(self._file.checks(self._held)),
        }

    @property
    def clients(self) -> int:
        """M, the number of clients."""
        return len(self._slots)

    @property
    def _held(self) -> np.ndarray:
        """The row numbers of the clients that have trained, in the order of the clients."""
        held: np.ndarray = self._slots[self._slots >= 0]
        return held

    def of(self, clients: Sequence[int]) -> Tree:
        """Return the states of these clients, ``[K, ...]`` each, on the device of the initial
        state."""
        if not self._initial:
            return {}
        device = next(iter(self._initial.values())).device
        # One buffer for all states, pinned, so that one asynchronous copy brings them to the GPU.
        rows = torch.empty(
            len(clients), self._file.row_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda"
        )
        slots = self._slots[list(clients)]
        if (slots < 0).any():
            rows[:] = _packed(
                {name: value.cpu().unsqueeze(0) for name, value in self._initial.items()}
            )
        for place in np.flatnonzero(slots >= 0):
            rows[place] = torch.frombuffer(self._file.read(slots[place]), dtype=torch.uint8)
        return _unpacked(rows.to(device, non_blocking=True), self._initial)

    def replaced(self, clients: Sequence[int], states: Tree) -> States:
        """Return new states in which these clients have the states ``[K, ...]`` and all others
        keep theirs."""
        # Without the constructor: the new object shares the file with this one.
        new = object.__new__(States)
        new._initial, new._file, new._slots = self._initial, self._file, self._slots.copy()
        if states:
            new._slots[list(clients)] = self._file.write(
                _packed({name: states[name].cpu() for name in self._initial})
            )
            new._file.hold(new)
        return new

    def __getitem__(self, name: str) -> Tensor:
        return self.of(range(len(self._slots)))[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._initial)

    def __len__(self) -> int:
        return len(self._initial)


class _File:
    """Rows of one length in a file. A row that no living ``States`` refers to is free.

    Only the first process writes; it sends the row numbers to the others, which read them.
    """

    def __init__(self, row_bytes: int, path: Path | None, mode: str, processes: Processes) -> None:
        self.row_bytes, self.mode, self._path, self._processes = row_bytes, mode, path, processes
        self._holders = np.zeros(0, np.int64)
        self._checks: dict[int, int] = {}
        self._file: Any = None

    def hold(self, states: States) -> None:
        """Reserve the rows of these states for as long as the object lives."""
        slots = states._held
        missing = slots.max(initial=-1) + 1 - len(self._holders)
        self._holders = np.concatenate([self._holders, np.zeros(max(missing, 0), np.int64)])
        self._holders[slots] += 1
        weakref.finalize(states, self._release, slots)

    def _release(self, slots: np.ndarray) -> None:
        self._holders[slots] -= 1

    def write(self, rows: Tensor) -> np.ndarray:
        """Write rows ``[K, row_bytes]`` to free slots and return the slots."""
        # Free slots first, then new ones at the end. A slot that is still held is never changed.
        free = np.flatnonzero(self._holders == 0)[: len(rows)]
        slots = np.concatenate([free, len(self._holders) + np.arange(len(rows) - len(free))])
        for slot in slots.tolist():
            self._checks.pop(slot, None)
        if self._processes.is_first:
            for slot, row in zip(slots.tolist(), rows.numpy(), strict=True):
                self._write(slot, memoryview(row))
        return self._processes.from_first(torch.from_numpy(slots)).numpy()

    def _write(self, slot: int, row: memoryview) -> None:
        place = slot * self.row_bytes
        try:
            while row:  # a full disk writes a part, and only then raises an error
                written = os.pwrite(self._opened().fileno(), row, place)
                row, place = row[written:], place + written
        except OSError as error:
            what = (
                f"{self._path or tempfile.gettempdir()}: states of the clients, "
                f"{math.ceil(self.row_bytes / 1000)} kB each"
            )
            raise DataError(what, got=str(error)) from error

    def read(self, slot: int) -> bytearray:
        """Return a row."""
        row = bytearray(self.row_bytes)
        os.preadv(self._opened().fileno(), [row], int(slot) * self.row_bytes)
        return row

    def checks(self, slots: np.ndarray) -> np.ndarray:
        """Return the CRC-32 of these rows, int64 ``[rows]``. It is cached until the row is written
        again."""
        for slot in slots.tolist():
            if slot not in self._checks:
                self._checks[slot] = zlib.crc32(self.read(slot))
        return np.array([self._checks[slot] for slot in slots.tolist()], np.int64)

    def flush(self) -> None:
        """Force all writes to the disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def _opened(self) -> Any:
        if self._file is None and self._path is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - open as long as somebody has states
        elif self._file is None and self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, self.mode, buffering=0)  # noqa: SIM115
        return self._file


def _packed(tree: Tree) -> Tensor:
    """Return the tensors ``[K, ...]`` as one tensor of bytes ``[K, B]``."""
    return torch.cat(
        [value.reshape(len(value), -1).contiguous().view(torch.uint8) for value in tree.values()],
        dim=1,
    )


def _unpacked(rows: Tensor, like: Tree) -> Tree:
    """Return the tensors ``[K, ...]`` from bytes ``[K, B]``; ``like`` has the shapes of one
    client."""
    parts = torch.split(rows, [value.nbytes for value in like.values()], dim=1)
    return {
        name: part.clone(memory_format=torch.contiguous_format)
        .view(value.dtype)
        .view(len(rows), *value.shape)
        for part, (name, value) in zip(parts, like.items(), strict=True)
    }
