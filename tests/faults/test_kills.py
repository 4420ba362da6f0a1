"""Kill -9 at random moments: the same command afterwards ends with the same bits."""

import random
import shutil
from pathlib import Path

import pytest

import tabled
import test_workflow
import warm
from faulty import SCORES, bits, forget
from reliability import record

pytestmark = [pytest.mark.faults, pytest.mark.pipeline]

# Snakemake in a group of processes of its own, killed after so many seconds. A script's process
# notes who it is; where none is at work the next one is killed. The pid of one that is gone is not
# somebody else's yet.
KILLED = tabled.table("test_kills")["KILLED"]
WHOM = ("snakemake", "worker", "group")


def killed(folder: Path, whom: str, seconds: float) -> int:
    """Run the command, kill one of its processes after so many seconds; return its exit code."""
    shutil.rmtree(folder / "workers", ignore_errors=True)
    words = (whom, str(seconds), "--no-hooks", "--cores", "2", SCORES)
    return warm.python(KILLED, ("-c", *words), folder, test_workflow.environment()).returncode


@pytest.mark.parametrize("part", range(4))
def test_twenty_kills_at_random_moments_end_with_the_same_bits(part, ready, tmp_path, long):
    folder = Path(shutil.copytree(ready.folder, tmp_path / "project"))
    draw, hit = random.Random(part), 0
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
