"""No test depends on what a user has made in the folder of the project, or has set."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tabled
from called import called
from surroundings import MADE, ROOT


def test_a_test_begins_in_a_checkout_without_results(checkout: Path) -> None:
    assert Path.cwd() == checkout != ROOT
    assert Path("studies/quickstart.yaml").is_file()
    assert not any(Path(name).exists() for name in MADE)


def test_what_is_made_is_what_git_ignores_apart_from_environments_and_caches() -> None:
    assert set(MADE) < {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}


@pytest.mark.parametrize("name", MADE)
def test_to_open_what_a_user_has_made_ends_a_test(name: str) -> None:
    with pytest.raises(AssertionError, match=f"{name}.*nothing that a user has made"):
        (ROOT / name / "a file").open()
    with pytest.raises(AssertionError, match=name):
        os.listdir(ROOT / name)


def test_to_enter_the_folder_of_the_project_ends_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match=r"os.chdir .*: tests read nothing"):
        monkeypatch.chdir(ROOT)
    with pytest.raises(AssertionError, match=r"subprocess\.Popen"):
        subprocess.run([sys.executable, "-c", ""], cwd=ROOT)
    (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_no_variable_of_the_users_reaches_a_test(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    telling, told = tabled.table("test_surroundings")["TELLING"], tmp_path / "told"
    (tmp_path / "test_it.py").write_text(telling.format(told=str(told)))
    words = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path))
    path = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    variables = {"MLFLOW_TRACKING_URI": "x", "SNAKEMAKE_PROFILE": "y", "OMP_NUM_THREADS": "7"}
    called(*words, folder=tmp_path, PYTHONPATH=path, RANK="3", **variables)
    assert told.read_text() == repr(([None] * 3, "1"))


def test_no_profile_of_the_users_is_where_snakemake_looks() -> None:
    assert not (Path(os.environ["XDG_CONFIG_HOME"]) / "snakemake").exists()
