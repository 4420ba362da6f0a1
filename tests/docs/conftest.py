"""A small copy of the project, in which a small quickstart is done: made once for all processes."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest
import small_copy

import fake_audits


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copy; nobody changes it. The audits in it are made up: all of them take six minutes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "small"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            building = folder.with_name("small-building")
            small_copy.write(building)
            fake_audits.write(building / "results/audits")
            small_copy.install(building)
            tables = "results/tables/all.csv results/tables/quickstart_published.csv"
            made = small_copy.bash(building, f".venv/bin/snakemake --cores 2 {tables}")
            assert made.returncode == 0, made.stdout
            building.rename(folder)
    return folder


@pytest.fixture
def copy(small: Path, tmp_path: Path) -> Path:
    """The small project, to be worked in."""
    folder = Path(shutil.copytree(small, tmp_path / "pflpipe"))
    small_copy.install(folder)
    return folder
