"""A program in a process of its own."""

import os
import subprocess
from pathlib import Path


def called(
    *words: str | Path, folder: Path | None = None, code: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program, which ends with this code, and return what it printed; ``variables`` are added
    to the environment."""
    environment = os.environ | variables
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def works(*words: str | Path) -> bool:
    """Return whether a program is here and ends with 0: what a test needs of one that is optional
    is tried, because its name alone says little."""
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
