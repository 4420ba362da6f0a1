"""Where something was computed, and by which commit of the code."""

import subprocess

import pytest

from called import works
from pflpipe.simulation import checkout

pytestmark = pytest.mark.skipif(not works("git", "--version"), reason="no git here")


def git(*words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with code and a document, outside of any checkout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "src").mkdir()
    for name in ("src/code.py", "README.md", "config.yaml"):
        (tmp_path / name).write_text("first")
    return tmp_path


def committed(project) -> str:
    git("add", ".")
    git("commit", "-m", "words")
    return checkout.commit(project)


def test_outside_a_checkout_there_is_no_commit(project):
    assert checkout.commit(project) == ""


def test_the_commit_is_that_of_the_code_and_committing_a_document_makes_no_other(project):
    git("init")
    first = committed(project)
    assert len(first) == 7
    assert int(first, 16) >= 0
    (project / "README.md").write_text("second")
    assert checkout.commit(project) == first
    assert committed(project) == first
    (project / "src/code.py").write_text("second")
    assert committed(project) != first


@pytest.mark.parametrize("name", ["config.yaml", "src/new.py"])
def test_uncommitted_changes_of_the_code_are_told(project, name):
    git("init")
    first = committed(project)
    (project / name).write_text("second")
    assert checkout.commit(project) == f"{first}-dirty"
    assert checkout.parted(f"{first}-dirty") == (first, True)
    assert checkout.parted(first) == (first, False)
    assert checkout.parted("") == ("", False)


def test_a_folder_that_another_checkout_ignores_has_no_commit(project):
    git("init")
    (project / ".gitignore").write_text("environment")
    committed(project)
    (project / "environment/src").mkdir(parents=True)
    (project / "environment/src/code.py").write_text("installed")
    assert checkout.commit(project / "environment") == ""
