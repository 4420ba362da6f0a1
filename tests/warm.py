"""Programs in a fork of a process that has imported what is dear, as often as a test asks.

A new interpreter spends most of a dry run, and of a job on tiny inputs, importing torch, pandas and
Snakemake. One process for each test process imports them once and forks for every program; the
scripts that such a program starts with its ``sys.executable`` are forks of another one, which is
the pipeline's own (pipeline/forks.py).
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pflpipe.pipeline import forks

# What scripts import. Not the package itself, so that a project under test runs its own copy.
_OF_SCRIPTS = (
    "torch",
    "jsonschema",
    "pandas",
    "scipy.stats",
    "dp_accounting.pld.privacy_loss_distribution",
    "matplotlib.figure",
    "mlflow",
)

_SERVER = """
import json, logging, os, sys, traceback
import jsonschema, snakemake.cli, torch

interpreter = sys.argv[1]


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


print("ready", flush=True)
for line in sys.stdin:
    program, words, folder, environment, files = json.loads(line)
    if not (child := os.fork()):
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, file in enumerate(files, start=1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv, sys.executable = words, interpreter
        finish(lambda: exec(program, {"__name__": "__main__"}))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@functools.cache
def interpreter() -> str:
    """Return a program that runs a script as ``sys.executable`` would."""
    return forks.start("", _OF_SCRIPTS)


@functools.cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, interpreter()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=os.sep,
    )
    assert server.stdout
    assert server.stdout.readline() == "ready\n"
    return server


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
    server = _server()
    assert server.stdin
    assert server.stdout
    with tempfile.TemporaryDirectory() as scratch:
        files = [Path(scratch) / name for name in ("stdout", "stderr")]
        request = [program, list(words), str(folder), dict(environment), list(map(str, files))]
        print(json.dumps(request), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        printed = [file.read_text(encoding="utf-8") for file in files]
    return subprocess.CompletedProcess(words, code, *printed)
