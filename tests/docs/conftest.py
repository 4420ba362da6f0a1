"""A small copy of the project, in which a small quickstart is done: made once for all processes."""

import shutil
from pathlib import Path

import pytest
import small_copy

import fake_audits
import once


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copy; nobody changes it. The audits in it are made up: all of them take six minutes."""

    def make(folder: Path) -> None:
        small_copy.write(folder)
        fake_audits.write(folder / "results/audits")
        fake_audits.claim_truly(folder / "results/audits")
        small_copy.install(folder, folder / "src")
        tables = "results/tables/quickstart_published.csv results/tables/all.csv"
        made = small_copy.bash(folder, f".venv/bin/snakemake --cores 2 {tables}")
        assert made.returncode == 0, made.stdout

    return once.folder(tmp_path_factory, "small", make)


@pytest.fixture
def copy(small: Path, tmp_path: Path) -> Path:
    """The small project, to be worked in."""
    folder = Path(shutil.copytree(small, tmp_path / "pflpipe"))
    small_copy.install(folder, small / "src")
    return folder
