"""The machine and the code of a result: the processor's name and the commit."""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

COMMIT = "PFLPIPE_COMMIT"
"""Environment variable: the ``commit`` of the code that the workflow's scripts run."""
CODE = (
    "src",
    "workflow",
    "Snakefile",
    "studies",
    "config.yaml",
    "pyproject.toml",
    "requirements.lock",
)
"""Files and folders that results depend on. ``commit`` returns the last commit that changed one of
them, so committing documents does not change it."""
_CHANGED = "-dirty"  # as `git describe` marks it


def processor() -> str:
    """Return the name of this machine's processor, and no other fact about the machine."""
    listing = Path("/proc/cpuinfo")
    text = listing.read_text() if listing.is_file() else ""
    name = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return name[1] if name else platform.processor() or platform.machine()


def commit(root: Path) -> str:
    """Return the commit of the code in a folder, ``1234abc``, or ``1234abc-dirty`` if the code has
    uncommitted changes; empty outside a git checkout."""

    def git(*arguments: str) -> str:
        words = ["git", *arguments, "--", *CODE]  # git from the user's PATH
        result = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
        return result.stdout.strip()

    # The last commit of CODE, not of the repository.
    last = git("log", "-1", "--abbrev=7", "--format=%h") if shutil.which("git") else ""
    return last + _CHANGED * bool(git("status", "--porcelain")) if last else ""


def commit_from_env() -> str:
    """Return the commit that the workflow passed to its scripts; empty if it passed none."""
    return os.environ.get(COMMIT, "")


def parted(commit: str) -> tuple[str, bool]:
    """Return the commit without its suffix, and whether the code had uncommitted changes."""
    return commit.removesuffix(_CHANGED), commit.endswith(_CHANGED)
