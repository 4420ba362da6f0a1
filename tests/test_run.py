"""From a table of people to a verdict: what is asked, written, added and refused."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml

from called import called
from pflpipe.data import columns, understood
from pflpipe.errors import DataError, PflpipeError
from pflpipe.pipeline import project, run
from pflpipe.study import config, init
from pflpipe.study.load import load_outline
from tabled import table

TABLES = table("test_run")
CASES = TABLES["what cannot be run is one line"]
TYPED = TABLES["what is not said is asked"]
WORDS = ("run", "rows.csv", "--user", "person", "--label", "y", "--yes")


@pytest.fixture
def folder(here: Path) -> Path:
    """A folder with the rows of twelve people."""
    rows = [f"p{row % 12},{(7 * row) % 10},{int(row % 5 > 1)}" for row in range(240)]
    (here / "rows.csv").write_text("\n".join(["person,x,y", *rows, ""]))
    (here / "notes.csv").write_text("person;x;y\n1;2;3\n")
    return here


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_run_is_one_line_with_exit_code_2(name, folder, monkeypatch, ran):
    case = CASES[name]
    for file, text in case.get("files", {}).items():
        Path(file).write_text(text)
    monkeypatch.setattr(run, "_snakemake", lambda *_: pytest.fail("something was trained"))
    error = ran("run", *case["words"], code=2).err
    assert error.count("\n") == 1
    assert all(word in error for word in case["said"]), error


def block_of(frame: pd.DataFrame, label: str, user: str = "who") -> dict[str, Any]:
    """What a table is taken for."""
    return understood.block(frame, Path("rows.csv"), user, label)


def test_columns_are_taken_for_what_they_look_like():
    rows = range(60)
    given = {
        "who": [f"p{row % 6}" for row in rows],
        "row_id": rows,
        "age": ["", *range(20, 79)],
        "city": ["Oslo", "Rome"] * 30,
        "seen": ["2020-01-31"] * 60,
        "note": [f"word{row} and more" for row in rows],
        "y": ["no", "yes"] * 30,
        "dose": [f"{row / 7:.2f}" for row in rows],
    }
    frame = pd.DataFrame(given).astype(str)
    found = block_of(frame, "y")
    assert (found["unit"], found["classes"], found["exclude"]) == ("who", ["no", "yes"], ["row_id"])
    assert found["vocabularies"] == {"city": ["Oslo", "Rome"]}
    assert found["missing"] == {"age": "median"}
    assert (list(found["dates"]), list(found["texts"])) == (["seen"], ["note"])
    low, high = found["ranges"]["age"]
    assert low <= 20 < 78 < high
    numbers = block_of(frame.drop(columns="y"), "dose")
    assert numbers["target"] == "dose"
    assert "dose" in numbers["ranges"]
    few, more = (frame.assign(y=[str(row % values) for row in rows]) for values in (20, 21))
    assert len(block_of(few, "y")["classes"]) == 20
    assert block_of(more, "y")["target"] == "y"


SPELLINGS = {"1e3": True, "+5": True, ".5": True, "007": True}
SPELLINGS |= dict.fromkeys(("1_000", "1 000", "1,5", "0x10", "\u0661\u0662", "inf"), False)
"""A word -> whether it is a number; the fifth of the others is 12 in Arabic digits."""


@pytest.mark.parametrize("word", SPELLINGS)
def test_a_number_is_what_the_reader_of_tables_takes_for_one(word):
    given = {"who": ["p0", "p1"] * 30, "x": [word] * 60, "y": ["no", "yes"] * 30}
    frame = pd.DataFrame(given)
    is_number = SPELLINGS[word]
    assert ("x" in block_of(frame, "y").get("ranges", {})) == is_number
    if is_number:
        columns.numbers(frame["x"])
    else:
        with pytest.raises(DataError, match="column 'x'"):
            columns.numbers(frame["x"])


@pytest.fixture
def block(folder: Path) -> dict[str, Any]:
    """What rows.csv is taken for."""
    return block_of(pd.read_csv("rows.csv", dtype=str), "y", "person")


def write(name: str, block: dict[str, Any], *budgets: float) -> list[str]:
    """Write a study of such rows, and return the files that are new."""
    return list(map(str, init.write_natural(name, block, understood.ORIGIN, list(budgets), 12)))


def test_what_is_written_is_accepted_and_kept(block):
    assert write("rows", block, 2.0, 8.0) == ["studies/rows.yaml", "config.yaml"]
    outline = load_outline("rows")
    assert {cell.partition.kind for cell in outline.everything.cells} == {"natural"}
    assert {cell.privacy.epsilon for cell in outline.everything.cells} == {None, 2, 8}
    assert outline.document["looks"][0] == len(outline.document["seeds"])
    assert config.load().datasets["rows"] == block
    file = Path("studies/rows.yaml")
    file.write_text(edited := file.read_text() + "# mine\n")
    assert write("rows", block, 2.0, 8.0) == []
    with pytest.raises(PflpipeError, match=r"privacy\.epsilon"):
        write("rows", block, 4.0)
    with pytest.raises(PflpipeError, match="for other rows"):
        write("rows", block | {"label": "x"}, 2.0, 8.0)
    assert file.read_text() == edited


CONFIGS = {
    "that of a clone": (Path(__file__).resolve().parents[1] / "config.yaml").read_text(),
    "without data sets": "studies: [a] # mine\n",
    "with another": "studies: [a]\ndatasets:\n  old: old.npz\nresults_dir: out\n",
}


@pytest.mark.parametrize("before", CONFIGS.values(), ids=CONFIGS)
def test_a_config_that_is_there_gets_the_rows_and_keeps_all_else(before, block):
    Path("config.yaml").write_text(before)
    write("rows", block, 2.0, 8.0)
    text, old = Path("config.yaml").read_text(), yaml.safe_load(before)
    assert yaml.safe_load(text) == old | {"datasets": {**old.get("datasets", {}), "rows": block}}
    comments = [line for line in before.splitlines() if "#" in line]
    assert [line for line in comments if line not in text] == []
    write("again", block, 2.0)
    assert {*config.load().datasets} == {*old.get("datasets", {}), "rows", "again"}


def test_a_config_that_no_line_can_be_added_to_is_left_alone(block):
    Path("config.yaml").write_text(before := "studies: [a]\ndatasets: {old: old.npz}\n")
    with pytest.raises(PflpipeError, match="each on a line"):
        write("rows", block, 2.0, 8.0)
    assert Path("config.yaml").read_text() == before
    assert not Path("studies/rows.yaml").exists()


def without_training(monkeypatch: pytest.MonkeyPatch, decided: int) -> list[int]:
    """Train nothing, and have the verdict at a number of seeds; return the numbers of seeds of
    every call of Snakemake."""
    trained: list[int] = []

    def make(wish, outline, settings, targets):
        trained.append(len(outline.document["seeds"]))

    def answers(study, frame, results):
        word = "pays" if len({cell.seed for cell in study.cells}) >= decided else "undecided"
        return [SimpleNamespace(budget="ε = 2", verdict=SimpleNamespace(word=word))]

    monkeypatch.setattr(run, "_snakemake", make)
    monkeypatch.setattr(run, "stored", lambda study, results: None)
    monkeypatch.setattr(run.answer, "of_study", answers)
    monkeypatch.setattr(run.run_summary, "of_study", lambda outline, results: ["the five lines"])
    monkeypatch.setattr(run, "write_page", lambda outline, results: Path("page.html"))
    monkeypatch.setattr(run, "_tracked", lambda outline, settings: [])
    return trained


@pytest.mark.parametrize(
    ("decided", "minutes", "seeds"),
    [(3, 9.0, 3), (6, 9.0, 6), (99, 9.0, 12), (99, 1e-9, 3)],
    ids=["at once", "at the second look", "at the last look", "no time is left"],
)
def test_seeds_are_added_until_it_is_decided_or_the_minutes_are_used(
    decided, minutes, seeds, folder, monkeypatch
):
    trained = without_training(monkeypatch, decided)
    wish = run.Wish("rows.csv", user="person", label="y", minutes=minutes)
    said = list(run.lines(wish))
    assert "the five lines" in said
    assert trained[-1] == len(load_outline("rows").document["seeds"]) == seeds
    assert trained == sorted(trained)
    assert load_outline("rows").study().looks == (3, 6, 12)


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ("", ["--cores", "all"]),
        ("profiles/slurm", ["--profile", str(project.SNAKEFILE.parent / "profiles/slurm")]),
        ("mine", ["--profile", "mine"]),
    ],
    ids=["this machine", "a profile of pflpipe", "the user's own"],
)
def test_snakemake_is_given_the_profile_wherever_it_is(profile, words, folder, monkeypatch):
    asked: list[str] = []

    def refuse(command, stdout, stderr, env):
        asked.extend(command)
        stdout.write("Error: not today\n")
        stdout.flush()
        return SimpleNamespace(poll=lambda: 1, returncode=1)

    monkeypatch.setattr(run.subprocess, "Popen", refuse)
    wish = run.Wish("rows.csv", user="person", label="y", profile=profile)
    with pytest.raises(PflpipeError, match=r"^not today; all lines: logs/run_rows\.log"):
        list(run.lines(wish))
    assert asked[asked.index(words[0]) :][: len(words)] == words


@pytest.mark.slow
@pytest.mark.pipeline
def test_a_table_becomes_a_verdict_also_after_ctrl_c(folder):
    command = (sys.executable, "-m", "pflpipe", *WORDS, "--epsilon", "8", "--minutes", "0.01")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    first = subprocess.Popen(command, start_new_session=True, **pipes)
    while not (folder / "results/plans").exists():
        assert first.poll() is None, first.communicate()[1]
    os.killpg(first.pid, signal.SIGINT)
    _, error = first.communicate()
    assert first.returncode == 130
    assert error.splitlines()[-1] == "stopped: the same command goes on"
    said = called(*command).stdout
    five = said.splitlines()[-8:-3]
    assert five[0].startswith("ε = 8: ")
    parts = ("personalization", "beside learning alone", "gain", "one person with all of its rows")
    assert all(part in line for part, line in zip(parts, five, strict=False)), five
    assert "private runs together" in five[3]
    page = (folder / "results/verdicts/rows.html").read_text()
    assert "http" not in page.replace("https://pflpipe", ""), "the page needs no other file"
    assert five[4].removeprefix("ε = 8: ") in page
    assert list((folder / "results/figures/rows").glob("*.pdf"))
    assert said.splitlines()[-1].startswith("MLflow: ")


# ---------------------------------------------------------------- on a terminal


PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import pytest, test_run
from pflpipe.pipeline import cli
test_run.without_training(pytest.MonkeyPatch(), decided=3)
cli.main()
"""


def on_a_terminal(*words: str, answers: str = "") -> tuple[int, str]:
    """Give ``pflpipe`` words and, on a terminal of its own, answers, which are typed ahead; return
    its exit code and what the terminal shows. It trains nothing."""
    ours, its = pty.openpty()
    command = [sys.executable, "-c", PROGRAM, *words]
    child = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, start_new_session=True)
    os.close(its)
    os.write(ours, answers.encode())
    shown = b""
    with contextlib.suppress(OSError):  # so ends a terminal that nobody has open any more
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    return child.wait(), shown.decode()


@pytest.mark.pipeline
@pytest.mark.parametrize(("answers", "code", "said"), TYPED.values(), ids=TYPED)
def test_what_is_not_said_is_asked_on_a_terminal(answers, code, said, folder):
    ended, shown = on_a_terminal("run", "rows.csv", answers=answers)
    assert ended == code, shown
    assert said in shown
    assert ("the verdict page" in shown) == answers.endswith(("y\n\n", "yes\n"))
    assert "Traceback" not in shown


@pytest.mark.pipeline
def test_a_terminal_with_a_browser_is_shown_the_page(folder, monkeypatch):
    program = folder / "browser"
    program.write_text(f'#!/bin/sh\necho "$@" > {folder}/opened\n')
    program.chmod(0o700)
    monkeypatch.setenv("BROWSER", str(program))
    ended, shown = on_a_terminal(*WORDS)
    assert ended == 0, shown
    assert (folder / "opened").read_text() == f"{(folder / 'page.html').as_uri()}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert not run.has_browser(), "a page opens for who sits there"
