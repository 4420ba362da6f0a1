"""Programs in a fork of a process that has imported what is dear, as often as a test asks.

A new interpreter spends most of a dry run, and of a job on tiny inputs, importing torch, pandas and
Snakemake. One process for all test processes imports them once and forks for every program; the
scripts that such a program starts with its ``sys.executable`` are forks of another one, which is
the pipeline's own (pipeline/forks.py).
"""

import fcntl
import functools
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from called import called
from pflpipe.pipeline import forks
from tabled import table

FOLDER = "PFLPIPE_TESTS_WARM"
"""The variable that tells the test processes where they find the server (conftest.py)."""
CLIENT = Path(forks.__file__).with_name("forked.py")

# What scripts import. Not the package itself.
_OF_SCRIPTS = (
    *("torch", "jsonschema", "pandas", "scipy.stats", "matplotlib.figure"),
    *("dp_accounting.pld.privacy_loss_distribution", "mlflow.store.tracking.sqlalchemy_store"),
)


def shim(file: Path, address: Path) -> str:
    """Write a program that runs a script as Python does, in a fork of the process at an address."""
    words = shlex.join([sys.executable, "-IS", str(CLIENT)])
    file.write_text(f'#!/bin/sh\nPFLPIPE_FORKS={shlex.quote(str(address))} exec {words} "$@"\n')
    file.chmod(0o700)
    return str(file)


@functools.cache
def _server() -> tuple[IO[str], list[str]]:
    """Return the connection of this test process, and the server's interpreters; the first process
    starts the server."""
    folder = Path(os.environ[FOLDER])
    connection = socket.socket(socket.AF_UNIX)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection.connect(str(folder / "socket"))
        except OSError:
            (folder / "socket").unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX) as listener, open(folder / "log", "w") as log:
                listener.bind(str(folder / "socket"))
                listener.listen()
                number = listener.fileno()
                how = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "cwd": os.sep}
                forking = {}
                for name, modules in (("python", _OF_SCRIPTS), ("with_torch", ["torch"])):
                    address = forks.new_address()
                    forking[shim(folder / name, address)] = str(address), modules
                words = [str(number), forks.__file__, json.dumps(forking)]
                command = [sys.executable, "-c", table("warm")["SERVER"], *words]
                subprocess.Popen(command, pass_fds=[number], **how)
            connection.connect(str(folder / "socket"))
    stream = connection.makefile("rw")
    answer = stream.readline()
    assert answer, (folder / "log").read_text()
    return stream, json.loads(answer)


def interpreter() -> str:
    """Return a program that runs a script as ``sys.executable`` would."""
    return _server()[1][0]


def with_torch() -> str:
    """Return the same for a script that is to be asked what it imports beyond torch."""
    return _server()[1][1]


def modules_of(program: str, *words: str) -> set[str]:
    """Return what a program that imports torch has imported when it ends."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(f"import sys\ntry:\n    {program}\nfinally:\n    print(*sys.modules)\n")
        file.flush()
        printed = called(with_torch(), file.name, *words).stdout
    return set(printed.splitlines()[-1].split())


def snakemake(
    folder: Path, words: tuple[str, ...], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run ``snakemake <words>`` in a folder and return its exit code and what it printed.

    Without hooks, so that it starts no process of its own for its scripts.
    """
    program = "from snakemake.cli import main; main()"
    return python(program, ("snakemake", "--no-hooks", *words), folder, environment)


def python(
    program: str, words: tuple[str, ...], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, with ``words`` as ``sys.argv``."""
    stream, _ = _server()
    with tempfile.TemporaryDirectory() as scratch:
        files = [Path(scratch) / name for name in ("stdout", "stderr")]
        request = [program, list(words), str(folder), dict(environment), list(map(str, files))]
        print(json.dumps(request), file=stream, flush=True)
        code = int(stream.readline())
        printed = [file.read_text(encoding="utf-8") for file in files]
    return subprocess.CompletedProcess(words, code, *printed)
