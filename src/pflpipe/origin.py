"""Where something was computed and by which code: the processor's name and the commit."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

COMMIT = "PFLPIPE_COMMIT"
"""Environment variable: ``commit`` of the code that a workflow's scripts run."""
CODE = (
    "src",
    "workflow",
    "Snakefile",
    "studies",
    "config.yaml",
    "pyproject.toml",
    "requirements.lock",
)
"""What results depend on. The commit that is named is the last one that changed any of it, so that
committing documents makes no other commit of it."""
_CHANGED = "-dirty"  # as `git describe` marks it


def processor() -> str:
    """Return the name of this machine's processor, and nothing else of the machine."""
    listing = Path("/proc/cpuinfo")
    names = (
        re.findall(r"^model name\s*: (.+)$", listing.read_text(), re.MULTILINE)
        if listing.is_file()
        else []
    )
    return names[0] if names else platform.processor() or platform.machine()


def commit(root: Path) -> str:
    """Return the commit of the code in a folder, ``1234abc``, or ``1234abc-dirty`` where the code
    has uncommitted changes; empty outside a git checkout."""

    def git(*words: str) -> str:
        # The user's own git, wherever it is.
        found = subprocess.run(  # nosec B607
            ["git", *words, "--", *CODE], cwd=root, capture_output=True, text=True, check=False
        )
        return found.stdout.strip()

    last = git("log", "-1", "--abbrev=7", "--format=%h") if shutil.which("git") else ""
    return last + _CHANGED * bool(git("status", "--porcelain")) if last else ""


def told() -> str:
    """Return the commit that the workflow says its scripts are of; empty where none says it."""
    return os.environ.get(COMMIT, "")


def parted(commit: str) -> tuple[str, bool]:
    """Return the commit that git knows, and whether the code had uncommitted changes."""
    return commit.removesuffix(_CHANGED), commit.endswith(_CHANGED)
