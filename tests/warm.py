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
from typing import IO, NamedTuple

from pflpipe.pipeline import forks

FOLDER = "PFLPIPE_TESTS_WARM"
"""The variable that tells the test processes where they find the server (conftest.py)."""
CLIENT = Path(forks.__file__).with_name("forked.py")

# What scripts import. Not the package itself.
_OF_SCRIPTS = (
    "torch",
    "jsonschema",
    "pandas",
    "scipy.stats",
    "dp_accounting.pld.privacy_loss_distribution",
    "matplotlib.figure",
    "mlflow.store.tracking.sqlalchemy_store",
)

# It ends some seconds after the last test process has.
_SERVER = """
import json, logging, os, pathlib, runpy, select, socket, sys, traceback
import jsonschema, snakemake.cli, snakemake.report, snakemake.workflow, torch

snakemake.cli.get_argument_parser()  # imports the plugins
# The file and not the module: a project under test runs its own copy of the package.
start = runpy.run_path(sys.argv[2])["start"]
interpreters = list(json.loads(sys.argv[3]))
for address, modules in json.loads(sys.argv[3]).values():
    start(pathlib.Path(address), "", modules)


def finish(run):
    # Without taking the imported modules down, which takes seconds.
    code = 1
    try:
        run()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def serve(connection):
    stream = connection.makefile("rw")
    print(json.dumps(interpreters), file=stream, flush=True)
    for line in stream:
        program, words, folder, environment, files = json.loads(line)
        if not (child := os.fork()):
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number, file in enumerate(files, start=1):
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv, sys.executable = words, interpreters[0]
            finish(lambda: exec(program, {"__name__": "__main__"}))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=stream, flush=True)


listener, alive = socket.socket(fileno=int(sys.argv[1])), []
while ready := select.select([listener, *alive], [], [], None if alive else 10)[0]:
    alive = [end for end in alive if end not in ready]
    if listener in ready:
        connection, _ = listener.accept()
        here, there = socket.socketpair()
        if not os.fork():
            listener.close()
            serve(connection)
            os._exit(0)
        connection.close()
        there.close()
        alive.append(here)
"""


def shim(file: Path, address: Path) -> str:
    """Write a program that runs a script as Python does, in a fork of the process at an address."""
    words = shlex.join([sys.executable, "-IS", str(CLIENT)])
    file.write_text(f'#!/bin/sh\nPFLPIPE_FORKS={shlex.quote(str(address))} exec {words} "$@"\n')
    file.chmod(0o700)
    return str(file)


class _Server(NamedTuple):
    stream: IO[str]
    interpreters: list[str]


@functools.cache
def _server() -> _Server:
    """Return the connection of this test process; the first of them starts the server."""
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
                forking = {}
                for name, modules in (("python", _OF_SCRIPTS), ("with_torch", ["torch"])):
                    address = forks.new_address()
                    forking[shim(folder / name, address)] = str(address), modules
                words = [str(number), forks.__file__, json.dumps(forking)]
                subprocess.Popen(
                    [sys.executable, "-c", _SERVER, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[number],
                    cwd=os.sep,
                )
            connection.connect(str(folder / "socket"))
    stream = connection.makefile("rw")
    answer = stream.readline()
    assert answer, (folder / "log").read_text()
    return _Server(stream, json.loads(answer))


def interpreter() -> str:
    """Return a program that runs a script as ``sys.executable`` would."""
    return _server().interpreters[0]


def with_torch() -> str:
    """Return the same for a script that is to be asked what it imports beyond torch."""
    return _server().interpreters[1]


def modules_of(program: str, *words: str) -> set[str]:
    """Return what a program that imports torch has imported when it ends."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(f"import sys\ntry:\n    {program}\nfinally:\n    print(*sys.modules)\n")
        file.flush()
        command = [with_torch(), file.name, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


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
