"""What surrounds the tests: none depends on what a user has made in the folder of the project, or
has set."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MADE = ("results", "data", "logs", ".snakemake", ".slurm", "mlflow.db", "mlruns")
"""What a user makes in the folder of the project (.gitignore)."""
_FAMILIES = ("AWS_", "MLFLOW_", "PFLPIPE_", "SBATCH_", "SLURM_", "SNAKEMAKE_", "TORCHELASTIC_")
_SINGLE = ("COLUMNS", "LOCAL_RANK", "MAKEFLAGS", "MATPLOTLIBRC", "RANK", "WORLD_SIZE")
_HARMLESS = ("git", "make")
_guarded: set[str] = set()


def is_setting(name: str) -> bool:
    """Return whether a variable of the user's changes what programs do."""
    return name.startswith(_FAMILIES) or name in _SINGLE


def forget() -> None:
    """Remove what the user has set, before torch is imported, which reads the number of threads
    once. Test processes share the cores."""
    if "PYTEST_XDIST_WORKER" not in os.environ:  # a worker inherits what its parent has set
        for name in filter(is_setting, list(os.environ)):
            del os.environ[name]
    os.environ["OMP_NUM_THREADS"] = "1"


@contextlib.contextmanager
def checkout(folder: Path) -> Iterator[Path]:
    """Put the files of the project in a folder, and nothing that was made in it, and go there; then
    the folder of the project may not be entered, nor may be opened what was made in it."""
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name not in MADE:
            (folder / path.name).symlink_to(path)
    os.chdir(folder)
    _guarded.update(MADE)
    sys.addaudithook(_guard)  # which cannot be removed
    yield folder
    _guarded.clear()


def _guard(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise AssertionError where a test enters the folder of the project or opens what a user has
    made there."""
    if not _guarded:
        return
    if event in ("open", "os.listdir", "os.scandir", "os.chdir", "sqlite3.connect"):
        given = arguments[0]
    elif event == "subprocess.Popen" and Path(os.fsdecode(arguments[0])).name not in _HARMLESS:
        given = arguments[2]
    else:
        return
    if not isinstance(given, (str, bytes, os.PathLike)):
        return
    path = Path(os.path.abspath(os.fsdecode(given)))
    if not path.is_relative_to(ROOT):
        return
    first = path.relative_to(ROOT).parts[:1]  # none of the folder itself
    if _guarded.intersection(first) or (not first and event in ("os.chdir", "subprocess.Popen")):
        do = "tests read nothing that a user has made; they begin in a checkout without it"
        raise AssertionError(f"{event} {path}: {do}")
