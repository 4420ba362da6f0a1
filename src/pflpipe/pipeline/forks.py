"""Scripts in forks of a process that has imported what they import.

An interpreter that starts imports torch for two or three seconds, which is most of a job on small
data. So one process imports it once, while Snakemake goes to work, and forks for every script. What
Snakemake starts instead of Python is a small program (``forked.py``) that hands its words, folder,
environment and output to that process, waits, and ends as the script ended: to Snakemake, to a log
and to a signal it is the script. What is imported stays as it was when Snakemake started, whatever
is edited while it works.

Where nothing forks (jobs on a cluster, jobs of several processes, systems without ``pidfd_open``,
after the process has ended) scripts are run by Python itself.

This file is run as a program and imports nothing but the standard library. The idea is that of the
fork server of ``multiprocessing`` and of Android's zygote.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import runpy
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PRELOADED = (
    "pflpipe.simulation.scores",
    "pflpipe.study.plans",
    "dp_accounting.pld.privacy_loss_distribution",
    "pflpipe.audit.cases",
    "scipy.stats",
    "pflpipe.report.tables",
    "pflpipe.report.figures.registry",
    "matplotlib.figure",
)
"""What most scripts import, what is needed first in front. MLflow, which takes seconds, is imported
by the one job of a study that needs it."""

CLIENT = Path(__file__).with_name("forked.py")
REQUEST_BYTES = 2**20


def start(path: str, modules: Sequence[str] = PRELOADED) -> str:
    """Start the process, without waiting for it, and return the program to call instead of Python.

    The process ends with its parent, or when the scripts that are at work then have ended. Where it
    cannot be started, the program is Python.

    Args:
        path: the process's ``PYTHONPATH``.
        modules: what it imports, the first before it forks at all.
    """
    if not hasattr(os, "pidfd_open"):
        return sys.executable
    folder = Path(tempfile.mkdtemp(prefix="pflpipe-"))
    address, program = folder / "socket", folder / "python"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(str(address))
    except OSError:  # such as a temporary folder whose name is too long for an address
        shutil.rmtree(folder)
        return sys.executable
    listener.listen(1024)
    words = [sys.executable, "-IS", str(CLIENT), sys.executable, str(address)]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    program.chmod(0o700)
    reading, _ = os.pipe()  # the other end stays open as long as this process lives
    with listener:
        subprocess.Popen(
            [sys.executable, "-P", __file__, str(folder), str(listener.fileno()), *modules],
            stdin=reading,
            pass_fds=[listener.fileno()],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        )
    os.close(reading)
    return str(program)


def serve(folder: Path, listener: socket.socket, modules: list[str]) -> None:
    """Fork for every request, and import more while there is none, until standard input ends and
    the last script has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the scripts
    try:
        importlib.import_module(modules.pop(0))
        with selectors.PollSelector() as events:
            _Scripts(events, folder, listener, modules).serve()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Scripts:
    """The scripts at work, and who asks for more: what each source of ``events`` has for data is
    called when it can be read."""

    def __init__(
        self,
        events: selectors.BaseSelector,
        folder: Path,
        listener: socket.socket,
        modules: list[str],
    ) -> None:
        self.events, self.folder, self.listener = events, folder, listener
        self.modules = modules

    def serve(self) -> None:
        self._await(sys.stdin, self.close)
        self._await(self.listener, self.accept)
        while self.events.get_map():
            ready = self.events.select(0 if self.modules else None)
            if ready:  # one at a time: what it does may end what else was ready
                ready[0][0].data()
            else:
                importlib.import_module(self.modules.pop(0))

    def _await(self, source: Any, action: Callable[[], None]) -> None:
        self.events.register(source, selectors.EVENT_READ, action)

    def close(self) -> None:
        """Take no more requests, and import nothing more for them."""
        self.modules.clear()
        for source in (sys.stdin, self.listener):
            self.events.unregister(source)
        self.listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def accept(self) -> None:
        """Hear what a caller asks for."""
        caller, _ = self.listener.accept()
        self._await(caller, lambda: self.run(caller))

    def run(self, caller: socket.socket) -> None:
        """Run a script in a fork, and give the caller a hold on it, to end it should this process
        be killed."""
        self.events.unregister(caller)
        request, files, _, _ = socket.recv_fds(caller, REQUEST_BYTES, 2)
        if not request:  # gone without a word
            caller.close()
            return
        if not (script := os.fork()):
            caller.close()
            for key in self.events.get_map().values():
                os.close(key.fd)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number, file in enumerate(files, start=1):
                os.dup2(file, number)
                os.close(file)
            os._exit(_run(*json.loads(request)))
        for file in files:
            os.close(file)
        ended = os.pidfd_open(script)
        self._await(ended, lambda: self.tell(script, ended, caller))
        self._await(caller, lambda: self.stop(script, caller))
        with contextlib.suppress(OSError):  # nobody there any more
            socket.send_fds(caller, [b"begun"], [ended])

    def stop(self, script: int, caller: socket.socket) -> None:
        """End a script whose caller has ended."""
        self.events.unregister(caller)
        os.kill(script, signal.SIGTERM)  # it is there, if only for its exit code

    def tell(self, script: int, ended: int, caller: socket.socket) -> None:
        """Tell a caller how its script ended."""
        self.events.unregister(ended)
        if caller in self.events.get_map():
            self.events.unregister(caller)
        code = os.waitstatus_to_exitcode(os.waitpid(script, 0)[1])
        with contextlib.suppress(OSError):  # nobody there any more
            caller.sendall(json.dumps(code).encode())
        caller.close()
        os.close(ended)


def _run(words: list[str], folder: str, environment: dict[str, str]) -> int:
    """Be the script, and return its exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [str(Path(words[0]).parent), *filter(None, paths)]
    code: object = 0
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    # Modules that were imported are not taken down one by one, which takes as long as a small job.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])), sys.argv[3:])
