"""What a method passes around has types of its own: two of them swapped do not type-check."""

from pathlib import Path

import pytest
from mypy import api

import tabled

TABLES = tabled.table("test_types")

ROOT = Path(__file__).resolve().parent.parent
RIGHT = TABLES["RIGHT"]
SWAPS = TABLES["SWAPS"]


CONFIG = TABLES["CONFIG"]
"""A tensor is anything here: which tree goes where is asked, and reading torch takes a minute."""


def errors(programs: dict[str, str], folder: Path) -> dict[str, list[str]]:
    """Return mypy's errors on each of the programs."""
    (folder / "mypy.ini").write_text(CONFIG)
    for name, program in programs.items():
        (folder / f"{name}.py").write_text(program)
    options = ["--config-file", str(folder / "mypy.ini"), "--cache-dir", str(folder / "cache")]
    found, words, _ = api.run([*options, *(str(folder / f"{name}.py") for name in programs)])
    assert not words
    lines = [line for line in found.splitlines() if ": error: " in line]
    return {name: [line for line in lines if f"{name}.py:" in line] for name in programs}


@pytest.mark.pipeline
def test_trees_in_their_own_places_type_check_and_swapped_ones_do_not(tmp_path, monkeypatch):
    monkeypatch.setenv("MYPYPATH", str(ROOT / "src"))
    swapped = {}
    for name, (right, wrong) in SWAPS.items():
        assert RIGHT.count(right) == 1, name
        swapped[name.replace(" ", "_").replace("'", "")] = RIGHT.replace(right, wrong)
    example = (ROOT / "docs/examples/easgd.py").read_text()
    found = errors({"right": RIGHT, "example": example} | swapped, tmp_path)
    assert found.pop("right") == []
    assert found.pop("example") == []
    assert [name for name, lines in found.items() if not lines] == []
