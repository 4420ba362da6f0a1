"""A real MLflow server over HTTP, in a fork of a process that has imported MLflow already.

``mlflow server`` takes 30 CPU seconds to begin, nearly all of it imports in five interpreters. This
serves the same application with the same web server on the same settings, without the processes for
jobs that trackers do not use.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import warm
from tabled import table

STARTS_WITHIN = 240.0
"""Seconds, on a machine that has much else to do."""


def free_port() -> int:
    """Return a port at which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def answers(address: str) -> bool:
    """Return whether a server answers that all is well."""
    try:
        return bool(urllib.request.urlopen(address, timeout=5).status == 200)
    except OSError:
        return False


def wait(is_there: Callable[[], bool], process: subprocess.Popen[Any], log: Path) -> None:
    """Wait until a server that was started is there; if it ends, fail with its log."""
    until = time.monotonic() + STARTS_WITHIN
    while not is_there():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)  # polling a process that starts, not waiting for luck


class Server:
    """A server with a database and a folder of artifacts, to start, kill and start again.

    Args:
        folder: gets mlflow.db, mlartifacts and the server's log.
        database: its address; default: mlflow.db.
        artifacts: where the files of runs are.
        copy: a database to begin with, because making one takes long.
    """

    def __init__(
        self,
        folder: Path,
        database: str = "sqlite:///mlflow.db",
        copy: Path | None = None,
        artifacts: str = "mlartifacts",
    ) -> None:
        self.folder, port = folder, str(free_port())
        self.uri = f"http://127.0.0.1:{port}"
        self._words = (warm.interpreter(), folder / "serve.py", database, artifacts, port)
        if copy is not None:
            shutil.copy(copy, folder / "mlflow.db")
        (folder / "serve.py").write_text(table("mlflow_server")["SERVE"])

    def start(self) -> Server:
        """Start, and wait until it answers."""
        (self.folder / "pid").unlink(missing_ok=True)
        variables = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
        log = self.folder / "log"
        with log.open("ab") as file:
            how = {"cwd": self.folder, "env": variables, "stdout": file, "stderr": file}
            self.process = subprocess.Popen(self._words, **how)
        wait(lambda: answers(f"{self.uri}/health"), self.process, log)
        return self

    def kill(self, how: int = signal.SIGKILL) -> None:
        """End it at once."""
        if self.process.poll() is None:
            os.kill(int((self.folder / "pid").read_text()), how)
            self.process.wait(timeout=60)
