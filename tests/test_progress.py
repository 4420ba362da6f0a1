"""How far a study is: what is on disk decides, whoever reads it needs no lock, and nothing that
goes wrong with the telling disturbs the study."""

from __future__ import annotations

import collections
import json
import os
import shutil
import time
from pathlib import Path

import pytest

import malformed
from pflpipe.errors import DataError
from pflpipe.files import write_json, write_text
from pflpipe.methods import registry
from pflpipe.pipeline import progress, status
from pflpipe.pipeline.progress import Progress, Run
from pflpipe.study import config
from pflpipe.study.load import load_outline

RUNS = {"s": {run: Run(f"run {run}", 10.0) for run in "abcdef"}}
RESULTS = Path("results")
ROUND = {"round": 12, "rounds": 30, "measured": "personal_own 83.2 %", "seconds_left": 40.0}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def finished(run: str, size: int = 0) -> None:
    file = RESULTS / "runs" / run / "run.json"
    write_json(file, {})
    with file.with_name("states.bin").open("wb") as states:
        states.truncate(size)  # a hole, which takes no room here


def at_work(run: str, **state: object) -> Path:
    file = RESULTS / "checkpoints" / f"{run}.json"
    write_text(file, json.dumps(ROUND | state))
    return file


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How many bytes are free: one number, which a test may change."""
    free = [45e9]
    usage = collections.namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(free[0]))
    return free


@pytest.fixture
def lines() -> list[str]:
    """What is printed."""
    return []


@pytest.fixture
def seen(lines: list[str]) -> Progress:
    """The progress of six runs that nobody looks at but a test."""
    made = Progress(lambda: RUNS, RESULTS, lines.append)
    made.begin()
    return made


def test_runs_are_done_running_failed_or_not_begun(seen) -> None:
    finished("a")
    at_work("b")
    at_work("c", round=0)
    at_work("d", failed=True)
    os.utime(at_work("e"), (1, 1))  # of a snakemake that was killed
    line, text = seen.look()
    assert text.splitlines() == [
        "s: 1 of 6 runs done, 2 running, 1 failed",
        "disk: about 0.0 GB more to write, 45.0 GB free",
        "  run b: round 12 of 30, personal_own 83.2 %, 40 s left",
        "  run c: starting",
        f"  run d: failed, see {progress.LOGS / 'd'}.log",
    ]
    assert line == "s 1/6, 1 failed"


def test_a_line_is_printed_for_every_tenth_of_the_runs(seen) -> None:
    printed = [seen.look()[0]]
    for run in "abcdef":
        finished(run)
        printed += [seen.look()[0], seen.look()[0]]
    assert printed[0] == "", "nothing is done"
    assert printed[1::2] == [f"s {done}/6" for done in range(1, 7)]
    assert not any(printed[2::2]), "nothing new"


def test_a_disk_that_is_too_small_for_what_is_to_come_is_named_while_there_is_room(
    seen, disk
) -> None:
    assert "disk" not in seen.look()[1], "nothing is known yet"
    for run in "ab":
        finished(run, size=3_000_000_000)
    line, text = seen.look()
    assert "disk: about 12.0 GB more to write, 45.0 GB free\n" in text
    assert "disk" not in line
    disk[0] = 8.9e9
    finished("c", size=3_000_000_000)
    line, text = seen.look()
    assert "disk: about 9.0 GB more to write, 8.9 GB free: TOO LITTLE\n" in text
    assert line == "s 3/6 | disk: about 9.0 GB more to write, 8.9 GB free: TOO LITTLE"
    for run in "def":
        finished(run)
    assert "disk" not in seen.look()[1], "nothing is to come"


def test_a_result_that_is_made_again_is_not_done_meanwhile(seen) -> None:
    finished("a")
    assert "1 of 6 runs done" in seen.look()[1]
    shutil.rmtree(RESULTS / "runs/a")  # as Snakemake does
    at_work("a")
    assert "0 of 6 runs done, 1 running" in seen.look()[1]
    finished("a")
    assert "1 of 6 runs done" in seen.look()[1]


def test_what_is_left_follows_from_the_pace_of_the_work_until_now(seen, monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    finished("a")
    at_work("b", round=0)
    assert "left" not in seen.look()[1].splitlines()[1], "nothing is known yet"
    now[0] += 20
    finished("b")
    at_work("c", round=10, rounds=20)
    # 1.5 of 5 runs in 20 s since the first began, so 3.5 take 46.7 s
    line, text = seen.look()
    assert "training: about 47 s left" in text
    assert line == "s 2/6 | about 47 s left"


def test_runs_that_were_asked_for_count_whatever_else_their_study_has(folder) -> None:
    malformed.write_good(folder)
    malformed.put("search", {"seeds": [7], "validation_fraction": 0.2})(folder)
    malformed.put("methods.1.search", {"training.lr": [0.1, 0.3]})(folder)
    outline = load_outline("good")
    assert outline.search is not None
    trials = {registry.run_id(cell) for cell in outline.search.cells}
    known = progress.runs([outline], [*trials, "other"], config.load())["good"]
    assert known.keys() == trials
    assert {run.label for run in known.values()} == {"dp_fedavg eps8 seed7"}
    assert all(run.seconds > 0 for run in known.values())


def printed_by_status() -> list[str]:
    return list(status.report(RESULTS))


def test_status_prints_what_was_written_and_how_it_ended(seen) -> None:
    finished("a")
    seen.start()
    seen.stop("well")
    assert printed_by_status()[:3:2] == ["s: 1 of 6 runs done, 0 running", "snakemake ended well"]


def test_status_says_when_snakemake_was_killed(seen) -> None:
    assert printed_by_status()[-1] == "(0 s ago)"
    long_ago = time.time() - 3 * 3600
    os.utime(RESULTS / status.FILE, (long_ago, long_ago))
    assert "last update was 3.0 h ago" in printed_by_status()[-1]


def test_status_without_a_snakemake_says_how_to_start_one() -> None:
    with pytest.raises(DataError, match="start one"):
        printed_by_status()


def test_a_disk_or_a_terminal_that_fails_does_not_stop_the_watch(lines) -> None:
    looks: list[int] = []

    def runs() -> progress.Runs:
        looks.append(1)
        if len(looks) == 1:
            raise OSError("stale file handle")
        return RUNS

    seen = Progress(runs, RESULTS, lines.append)
    seen.start()
    seen.stop("well")
    assert "snakemake ended well" in printed_by_status()
