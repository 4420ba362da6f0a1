"""What README.md and docs/ say to type works, page by page, in a small copy of the project."""

from pathlib import Path

import pytest
import yaml
from blocks import PAGES, ROOT, RUN, SHELL, Block, of_page
from small_copy import bash

from pflpipe.study import config
from pflpipe.study.load import load_outline

pytestmark = pytest.mark.docs
BLOCKS = {page: of_page(page) for page in PAGES}


def test_every_fence_says_its_language_and_every_block_that_nothing_runs_a_reason():
    found = [block for blocks in BLOCKS.values() for block in blocks]
    assert [str(block) for block in found if not block.language] == [], "plain words are ```text"
    marks = ("dry-run", "run by ", "not run: ")
    unknown = [str(block) for block in found if block.mark and not block.mark.startswith(marks)]
    assert unknown == []
    tests = {block.elsewhere for block in found if block.elsewhere is not None}
    assert [test for test in tests if not (ROOT / test).is_file()] == []
    idle = [block for block in found if block.reason is not None]
    assert [str(block) for block in idle if not block.reason] == []
    run = [block for block in found if block.language in RUN]
    assert len(idle) < len(run) / 10, [f"{block}: {block.reason}" for block in idle]


def _merge(file: Path, words: dict) -> None:
    """Replace keys of a YAML file, as a reader would; its comments are lost."""
    text = file.read_text() if file.exists() else "{}"
    file.write_text(yaml.safe_dump({**yaml.safe_load(text), **words}, sort_keys=False))


def _yaml(block: Block, folder: Path) -> None:
    """Put a block where it says, or make a study of it, and read what it became part of."""
    words = yaml.safe_load(block.text)
    file = block.file or f"studies/of_line_{block.line}.yaml"
    if block.file is None and not {"dataset", "methods"} <= words.keys():
        words = {**yaml.safe_load((folder / "studies/quickstart.yaml").read_text()), **words}
    _merge(folder / file, words)
    if file == "config.yaml":
        config.load(folder / file)
    else:
        load_outline(Path(file).stem, folder / "studies")


def _python(block: Block, folder: Path) -> None:
    file = block.file or f"of_line_{block.line}.py"
    (folder / file).write_text(block.text)
    if block.file is None:
        _shell(f".venv/bin/python {file}", folder)


def _shell(text: str, folder: Path) -> None:
    done = bash(folder, text)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode} of\n{text}\n{done.stdout}")


def _run(block: Block, folder: Path) -> str:
    """Do what a block says; return what went wrong, nothing if it runs as it stands."""
    try:
        if block.language in SHELL:
            _shell(block.script, folder)
        elif block.language == "python":
            _python(block, folder)
        else:
            _yaml(block, folder)
    except Exception as error:
        return f"{block}; how to mark it: tests/docs/blocks.py\n{error}"
    return ""


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCKS[page]])
def test_the_blocks_of_a_page_run_one_after_the_other(page, copy, monkeypatch):
    monkeypatch.chdir(copy)
    spoken = "".join(block.script for block in BLOCKS[page] if block.language in SHELL)
    if "my_study" in spoken and "init my_study" not in spoken:
        _shell(".venv/bin/pflpipe init my_study", copy)  # whoever reads that page has one
    for block in BLOCKS[page]:
        if block.language in RUN and block.reason is None and block.elsewhere is None:
            assert _run(block, copy) == ""
