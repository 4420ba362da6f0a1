"""tools/compare_with_authors.py: what it says of a folder laid out like the authors' code.

The stand-in has SAM and the smoothing in our own words; the methods' golden tests hold the rest.
"""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import tabled

ROOT = Path(__file__).resolve().parent.parent
SAM = tabled.table("test_originals")["SAM"]


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    yield importlib.import_module("compare_with_authors")
    del sys.modules["compare_with_authors"]


@pytest.fixture
def authors(tmp_path):
    """A function that makes a clone of somebody's code and returns its folder and commit."""

    def made(text):
        file = tmp_path / "fedml_api/dpfedsam/sam.py"
        file.parent.mkdir(parents=True)
        file.write_text(text)
        git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b.c"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "theirs"]):
            subprocess.run([*git, *words], check=True)
        found = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True)
        return tmp_path, found.stdout.decode()[:7]

    return made


def called(tool, monkeypatch, folder):
    monkeypatch.setattr(sys, "argv", ["compare", str(folder), "dp_fedsam"])
    before = tool.torch.get_default_dtype()
    try:
        return tool.main()
    finally:
        tool.torch.set_default_dtype(before)


@pytest.mark.parametrize(("text", "code"), [(SAM, 0), (SAM.replace("p**2", "p.abs()"), 1)])
def test_code_that_takes_our_steps_is_told_from_code_that_takes_others(
    tool, authors, monkeypatch, capsys, text, code
):
    folder, commit = authors(text)
    monkeypatch.setattr(tool, "commit_of", lambda method: commit)
    (folder / "fedml_api/dpfedsam/sam.py").write_text("what is not committed is not read")
    assert called(tool, monkeypatch, folder) == code
    assert f"dp_fedsam {commit}: update: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words"),
    [(SAM, "got '{commit}'; expected 016bd7f"), ("class Other: ...", r"no such definition.*SAM")],
    ids=["another commit than that of the card", "a definition that is not there"],
)
def test_what_cannot_be_compared_is_named(tool, authors, monkeypatch, text, words):
    folder, commit = authors(text)
    if text != SAM:
        monkeypatch.setattr(tool, "commit_of", lambda method: commit)
    with pytest.raises(tool.ConfigError, match=words.format(commit=commit)):
        called(tool, monkeypatch, folder)


def test_every_original_is_at_a_file_that_the_methods_card_names(tool):
    for method, original in tool.ORIGINALS.items():
        code = tool.cards.header(method).formulas["code"]
        assert len(tool.commit_of(method)) == 7
        assert all(file in code for file in original.definitions)
