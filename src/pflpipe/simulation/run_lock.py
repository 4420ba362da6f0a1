"""A lock per run: only one process, or group of processes, trains a run at a time.

After kill -9 of snakemake its jobs continue, and the same command starts them again; two pipelines
in one folder do the same. Both processes would write the same checkpoint and the same rows of the
clients' states. The lock is the kernel's (flock), which ends with the process that holds it. The
file is removed under the lock, so a process that waited checks whether its file still has its name
(as pidfile libraries do).
"""

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
    """Hold the lock of a run. Yield True if the process that held it before has finished the work.

    On a file system without locks this does not wait.

    Args:
        path: path of the lock.
        fingerprint: digest of everything that the run depends on. Another process has finished
            this run only if its fingerprint is equal.
        processes: the processes that train the run together; the first one waits for all.

    Raises:
        DataError: the lock cannot be written.
    """
    lock = None
    if processes.is_first:
        with writing(path):
            lock = _Lock(path, fingerprint)
    done = processes.from_first(torch.tensor([int(lock is not None and lock.done)])).item()
    try:
        yield bool(done)
        if lock is not None:
            # On a full disk the fingerprint is lost, and a waiting process trains the run again.
            with contextlib.suppress(OSError):
                lock.write(fingerprint)
    finally:
        if lock is not None:
            lock.release()


class _Lock:
    """A held lock. ``done``: this process waited for another one, which finished the run of this
    fingerprint."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self.done = path, False
        while True:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = self._read() or "another process"
                text = f"waiting: this run is trained by {holder} already"
                print(text, file=sys.stderr, flush=True)
                fcntl.flock(self._file, fcntl.LOCK_EX)
                self.done = self._read() == fingerprint
            except OSError:  # no locks here
                return
            if self.done or self._is_there():
                break
            os.close(self._file)
        if not self.done:
            self.write(f"process {os.getpid()} of {socket.gethostname()}")

    def write(self, text: str) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, text.encode(), 0)

    def release(self) -> None:
        if self._is_there():
            self._path.unlink()
        os.close(self._file)

    def _read(self) -> str:
        return os.pread(self._file, 200, 0).decode(errors="replace")

    def _is_there(self) -> bool:
        """Return whether the file of the lock still has its name."""
        return self._path.exists() and os.path.samestat(os.fstat(self._file), self._path.stat())
