"""A project in a folder of its own, whose commands can be killed and whose disk can be full."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import malformed
import test_workflow

SCORES = "results/scores/tiny/feddpa.csv"
STUDY = test_workflow.STUDY | {
    "methods": [{"name": "feddpa"}],
    "training": test_workflow.STUDY["training"] | {"rounds": 8},
}


@dataclass(frozen=True)
class Ready:
    """A project in which all but training and testing is done.

    Attributes:
        folder: the project.
        seconds: that the rest takes.
        bits: what the rest makes, by file.
    """

    folder: Path
    seconds: float
    bits: dict[str, bytes]


def bits(folder: Path) -> dict[str, bytes]:
    """The files whose bytes do not depend on times or names of temporary files. What state.pt
    holds is in the scores: every model is tested."""
    (run,) = (folder / "results/runs").iterdir()
    files = [run / name for name in ("rounds.csv", "states.bin", "run.json")]
    return {file.name: file.read_bytes() for file in (*files, folder / SCORES)}


def forget(folder: Path) -> None:
    """Remove what ``bits`` are of."""
    for name in ("runs", "scores", "checkpoints"):
        shutil.rmtree(folder / "results" / name, ignore_errors=True)


def make(folder: Path) -> Ready:
    """Make such a project: once all of it, and once more what is then forgotten again."""
    folder.mkdir()
    test_workflow.write_project(folder)
    malformed.write(folder / "studies/tiny.yaml", STUDY)
    malformed.put("checkpoint_seconds", 0, "config.yaml")(folder)
    result = test_workflow.snakemake(folder, SCORES)
    assert result.returncode == 0, result.stderr
    found = bits(folder)
    forget(folder)
    began = time.monotonic()
    assert test_workflow.snakemake(folder, SCORES).returncode == 0
    seconds = time.monotonic() - began
    assert bits(folder) == found
    forget(folder)
    return Ready(folder, seconds, found)
