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
import urllib.error
import urllib.request
from pathlib import Path

import warm

_PROGRAM = """
import os, sys
from mlflow.server import constants

database, folder, port = sys.argv[1:]
os.environ.update({
    constants.BACKEND_STORE_URI_ENV_VAR: database,
    constants.REGISTRY_STORE_URI_ENV_VAR: database,
    constants.ARTIFACT_ROOT_ENV_VAR: "mlflow-artifacts:/",
    constants.ARTIFACTS_DESTINATION_ENV_VAR: folder,
    constants.SERVE_ARTIFACTS_ENV_VAR: "true",
})
import uvicorn
from mlflow.server.fastapi_app import app

with open("pid", "w") as file:
    file.write(str(os.getpid()))
uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
"""
STARTS_WITHIN = 240.0
"""Seconds, on a machine that has much else to do."""


def free_port() -> int:
    """Return a port at which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


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
        database: str = "",
        copy: Path | None = None,
        artifacts: str = "mlartifacts",
    ) -> None:
        self.folder, self.port = folder, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.database = database or "sqlite:///mlflow.db"
        self.artifacts = artifacts
        if copy is not None:
            shutil.copy(copy, folder / "mlflow.db")
        (folder / "serve.py").write_text(_PROGRAM)

    def start(self) -> Server:
        """Start, and wait until it answers."""
        (self.folder / "pid").unlink(missing_ok=True)
        words = [self.database, self.artifacts, str(self.port)]
        with open(self.folder / "log", "ab") as log:
            process = subprocess.Popen(
                [warm.interpreter(), self.folder / "serve.py", *words],
                cwd=self.folder,
                env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + STARTS_WITHIN
        while not self._answers():
            assert process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < until, (self.folder / "log").read_text()
            time.sleep(0.1)  # polling a process that starts, not waiting for luck
        self.process = process
        return self

    def kill(self, how: int = signal.SIGKILL) -> None:
        """End it at once."""
        if self.process.poll() is None:
            os.kill(int((self.folder / "pid").read_text()), how)
            self.process.wait(timeout=60)

    def _answers(self) -> bool:
        try:
            return urllib.request.urlopen(f"{self.uri}/health", timeout=5).status == 200
        except (urllib.error.URLError, OSError):
            return False
