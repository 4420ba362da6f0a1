"""Kill -9 at random moments: the same command afterwards ends with the same bits."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

import test_workflow
import warm
from faulty import SCORES, bits, forget
from reliability import record

pytestmark = [pytest.mark.faults, pytest.mark.pipeline]

# Snakemake in a group of processes of its own, killed after so many seconds. A script's process
# notes who it is; where none is at work the next one is killed. The pid of one that is gone is not
# somebody else's yet.
KILLED = """
import os, select, signal, stat, sys
whom, seconds, *words = sys.argv[1:]
interpreter = os.path.abspath("noting")
with open(interpreter, "w") as file:
    file.write('#!/bin/sh\\ntouch "workers/$$"\\nexec "%s" "$@"\\n' % sys.executable)
os.chmod(interpreter, stat.S_IRWXU)
os.makedirs("workers", exist_ok=True)
if not (child := os.fork()):
    os.setpgid(0, 0)
    from snakemake.cli import main
    sys.executable, sys.argv = interpreter, ["snakemake", *words]
    try:
        main()
    except SystemExit as end:
        os._exit(end.code or 0)
    os._exit(0)
ended = os.pidfd_open(child)
over = select.select([ended], [], [], float(seconds))[0]
while whom == "worker" and not over:
    for pid in os.listdir("workers"):
        os.unlink(f"workers/{pid}")
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue
        whom = "killed"
    over = select.select([ended], [], [], 0.01)[0]
if not over:
    {"snakemake": os.kill, "group": os.killpg}.get(whom, lambda *_: 0)(child, signal.SIGKILL)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255)
"""
WHOM = ("snakemake", "worker", "group")


def killed(folder: Path, whom: str, seconds: float) -> int:
    """Run the command, kill one of its processes after so many seconds; return its exit code."""
    shutil.rmtree(folder / "workers", ignore_errors=True)
    words = (whom, str(seconds), "--no-hooks", "--cores", "2", SCORES)
    return warm.python(KILLED, ("-c", *words), folder, test_workflow.environment()).returncode


@pytest.mark.parametrize("part", range(4))
def test_twenty_kills_at_random_moments_end_with_the_same_bits(part, ready, tmp_path, long):
    folder = tmp_path / "project"
    shutil.copytree(ready.folder, folder)
    draw = random.Random(part)
    hit = 0
    for number in range(50 if long else 5):
        whom = WHOM[(part + number) % len(WHOM)]
        code = killed(folder, whom, draw.uniform(0, 0.9 * ready.seconds))
        hit += code != 0
        if any((folder / ".snakemake/locks").glob("*")):
            if number < len(WHOM):
                again = test_workflow.snakemake(folder, SCORES, code=1)
                assert "--unlock" in again.stderr
            shutil.rmtree(folder / ".snakemake/locks")  # as --unlock does
        test_workflow.snakemake(folder, SCORES)
        assert bits(folder) == ready.bits
        assert not list((folder / "results/checkpoints").iterdir())
        forget(folder)
    assert hit > 1
    record(
        "kill -9 of snakemake, of a worker or of the group of processes, 5 random moments",
        "the same command ends with the same bits (after `--unlock`, which snakemake asks for, "
        "where it was killed itself)",
    )
