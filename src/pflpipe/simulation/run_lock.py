"""One process, or group of processes, trains a run at a time, whoever started them.

Kill -9 of snakemake leaves its jobs at work, and the same command starts them again; the same
happens to two pipelines in one folder. Both would write the same checkpoint and the same rows of
the clients' states. The lock is the kernel's (flock), which ends with the process that has it; the
file is removed under the lock, so whoever waited looks whether the file is still the one that it
locked (as pidfile libraries do).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from pflpipe.files import writing
from pflpipe.simulation.processes import Processes


@contextlib.contextmanager
def exclusive(path: Path, fingerprint: str, processes: Processes) -> Iterator[bool]:
    """Wait until nobody else trains this run; yield whether the one who did has finished it.

    On a file system without locks nobody is waited for.

    Raises:
        DataError: the lock cannot be written.

    Args:
        path: of the lock.
        fingerprint: of everything that the run depends on. What another process finished is this
            run only if its fingerprint is the same.
        processes: that train it together; the first one waits for all.
    """
    lock = None
    if processes.is_first:
        with writing(path):
            lock = _Lock(path, fingerprint)
    done = processes.from_first(torch.tensor([int(lock is not None and lock.done)])).item()
    try:
        yield bool(done)
        if lock is not None:
            with contextlib.suppress(OSError):  # of a disk that is full by now: nobody takes over
                lock.say(fingerprint)
    finally:
        if lock is not None:
            lock.release()


class _Lock:
    """``done``: the process that had the lock before this one, and for which it waited, finished
    the run of this fingerprint."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self.done = path, False
        while True:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(
                    f"waiting: this run is trained by {self._said() or 'another process'} already",
                    file=sys.stderr,
                    flush=True,
                )
                fcntl.flock(self._file, fcntl.LOCK_EX)
                self.done = self._said() == fingerprint
            except OSError:  # no locks here
                return
            if self.done or self._is_there():
                break
            os.close(self._file)
        if not self.done:
            self.say(f"process {os.getpid()} of {socket.gethostname()}")

    def say(self, words: str) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, words.encode(), 0)

    def release(self) -> None:
        if self._is_there():
            self._path.unlink()
        os.close(self._file)

    def _said(self) -> str:
        return os.pread(self._file, 200, 0).decode(errors="replace")

    def _is_there(self) -> bool:
        """Whether the file of the lock still has its name."""
        return self._path.exists() and os.path.samestat(os.fstat(self._file), self._path.stat())
