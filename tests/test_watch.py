"""How far a study is: what is on disk decides, whoever reads it needs no lock, and nothing that
goes wrong with the telling disturbs the study."""

from __future__ import annotations

import collections
import dataclasses
import io
import logging
import os
import shutil
import time
from pathlib import Path

import pytest

import malformed
import warm
from pflpipe.errors import DataError
from pflpipe.files import write_json
from pflpipe.pipeline import standing, watch
from pflpipe.pipeline.watch import Line, Runs, Studies, Watch
from pflpipe.study import config
from pflpipe.study.load import load_outline

STUDY = Runs("s", dict.fromkeys("abcdef", 10.0), {run: f"run {run}" for run in "abcdef"}, True)
RESULTS = Path("results")
ROUND = "a  round 12/30  loss 0.4  personal_own 83.2 %  900 images/s  40 s left"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def finished(run: str, before: bool = False, size: int = 0) -> None:
    file = RESULTS / "runs" / run / "run.json"
    write_json(file, {})
    with file.with_name("states.bin").open("wb") as states:
        states.truncate(size)  # a hole, which takes no room here
    if before:
        os.utime(file, (1, 1))


def log(run: str, text: str, before: bool = False) -> None:
    file = watch.LOGS / f"{run}.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    if before:
        os.utime(file, (1, 1))


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How many bytes are free: one number, which a test may change."""
    free = [45e9]
    usage = collections.namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(free[0]))
    return free


def watching(todo: str = "") -> Watch:
    return Watch(lambda: [STUDY], set(todo), RESULTS)


def test_runs_are_done_running_failed_or_not_begun() -> None:
    seen = watching()
    finished("a")
    log("b", f"{ROUND.replace('12', '11')}\n{ROUND}\n")
    log("c", "")
    log("d", "Traceback (most recent call last):\n  File ...\ntorch.OutOfMemoryError: no memory\n")
    log("e", ROUND, before=True)  # of a snakemake that was killed
    line, text = seen.look()
    assert text.splitlines() == [
        "s: 1 of 6 runs done, 2 running, 1 failed",
        "disk: about 0.0 GB more to write, 45.0 GB free",
        "  run b: round 12 of 30, personal_own 83.2 %, 40 s left",
        "  run c: starting",
        f"  run d: failed, see {watch.LOGS / 'd'}.log",
    ]
    assert line == (
        "s 1/6, 1 failed | run b round 12 of 30, personal_own 83.2 %, 40 s left | run c starting"
    )


def test_a_disk_that_is_too_small_for_what_is_to_come_is_named_while_there_is_room(disk) -> None:
    seen = watching()
    assert "disk" not in seen.look()[1], "nothing is known yet"
    for run in "ab":
        finished(run, size=3_000_000_000)
    line, text = seen.look()
    assert "disk: about 12.0 GB more to write, 45.0 GB free\n" in text
    assert "disk" not in line, "the terminal's one line is short"
    disk[0] = 11.9e9
    line, text = seen.look()
    assert "disk: about 12.0 GB more to write, 11.9 GB free: TOO LITTLE\n" in text
    assert " | disk: about 12.0 GB more to write, 11.9 GB free: TOO LITTLE" in line
    for run in "cdef":
        finished(run)
    assert "disk" not in seen.look()[1], "nothing is to come"


def test_a_result_of_another_version_is_not_done_until_it_is_made_again() -> None:
    finished("a", before=True)
    finished("b", before=True)
    seen = watching(todo="b")
    assert "1 of 6 runs done" in seen.look()[1]
    finished("b")
    assert "2 of 6 runs done" in seen.look()[1]


def test_what_is_left_follows_from_the_pace_of_the_work_until_now(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    finished("a")
    seen = watching()
    log("b", "")
    assert "left" not in seen.look()[1], "nothing is known yet"
    now[0] += 20
    finished("b")
    log("c", "c  round 10/20  loss 1.0  5 images/s  7 s left\n")
    # 1.5 of 5 runs in 20 s since the first began, so 3.5 take 46.7 s
    assert "training: about 47 s left" in seen.look()[1]


def test_what_is_left_is_what_was_asked_for(monkeypatch) -> None:
    """Of six runs c and d are asked for, or all, if the choice of a search is still to come."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for growing, left, more in ((False, 20, 0.2), (True, 80, 0.8)):
        study = dataclasses.replace(STUDY, growing=growing)
        for run in "abc":
            shutil.rmtree(RESULTS / "runs" / run, ignore_errors=True)
        finished("a", size=200_000_000)
        seen = Watch(lambda study=study: [study], {"c", "d"}, RESULTS)
        log("c", "")
        seen.look()
        now[0] += 20
        finished("c", size=200_000_000)
        _, text = seen.look()
        assert f"training: about {left} s left" in text
        assert f"disk: about {more} GB more to write" in text


def test_runs_of_a_search_s_choice_are_known_once_it_is_made(folder) -> None:
    malformed.write_good(folder)
    malformed.put("search", {"seeds": [7], "validation_fraction": 0.2})(folder)
    malformed.put("methods.1.search", {"training.lr": [0.1, 0.3]})(folder)
    outline = load_outline("good")
    studies = Studies([outline], config.load())
    (before,) = studies()
    assert before.growing
    assert len(before.seconds) == 6 + 2
    (line,) = outline.searched
    chosen = {"index": 1, "values": line.candidates[1].values, "sets": 2, "runs": 2}
    write_json(outline.choices(RESULTS), {"grid": outline.grid, "lines": [{"chosen": chosen}]})
    (after,) = studies()
    assert after.growing, "its runs were not asked for at first"
    assert not next(Studies([outline], config.load())()).growing
    assert len(after.seconds) == 6 + 2
    assert len(after.seconds.keys() - before.seconds.keys()) == 2, "those of the second candidate"
    assert set(after.labels.values()) >= {"dp_fedavg eps8 seed0", "dp_fedavg eps8 seed7"}


def test_only_runs_that_are_there_and_not_known_to_be_done_are_looked_at(monkeypatch) -> None:
    finished("a")
    finished("b", before=True)
    seen = watching(todo="b")
    seen.look()
    looked: list[str] = []
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda path: looked.append(str(path)) or stat(path))
    seen.look()
    assert looked == [str(RESULTS / "runs/b/run.json")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(text: str, event: str | None = None, **more: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"msg": text, "levelno": logging.INFO, **more})
    made.event = event
    return made


def test_messages_about_single_jobs_are_hidden_and_errors_are_not() -> None:
    terminal = Terminal()
    line = Line(watching(), terminal)
    for event in ("job_info", "job_started", "job_finished", "group_info"):
        assert not line.filter(record("Job 3", event))
    assert not line.filter(record("Select jobs to execute..."))
    assert not line.filter(record("", "progress", done=3, total=25))
    assert "jobs of all kinds: 3 of 25 done" in line.watch.look()[1]
    assert terminal.getvalue() == ""
    for event in ("job_error", "group_error", "error", None):
        assert line.filter(record("Error in rule train", event))
    assert terminal.getvalue() == "\r\x1b[K" * 4, "the line is removed before a message"


def test_a_terminal_has_one_line_of_its_width_without_colours(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    terminal = Terminal()
    line = Line(watching(), terminal)
    line._show("x" * 50)
    assert terminal.getvalue() == "\r" + "x" * 19 + "\x1b[K"


def test_a_log_has_a_line_for_every_tenth(monkeypatch) -> None:
    stream = io.StringIO()
    line = Line(watching(), stream)
    for done in range(101):
        line.watch.jobs = (done, 100)
        line._show(f"jobs {done}")
    assert stream.getvalue().split("\n") == [*(f"jobs {n}" for n in range(10, 101, 10)), ""]


def test_a_dumb_terminal_is_a_log(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert not Line(watching(), Terminal()).live


def test_only_what_people_see_is_made_brief(folder) -> None:
    logger, terminal = logging.getLogger("of this test"), Terminal()
    shown, file = logging.StreamHandler(terminal), logging.FileHandler("snakemake.log")
    logger.handlers = [file, shown]
    brief = watch.attach(watching(), logger, terse=True)
    logger.error("Finished job", extra={"event": "job_finished"})
    brief.stop("well")
    assert "Finished" not in terminal.getvalue()
    assert "Finished" in Path("snakemake.log").read_text()
    logger.handlers = [asked := logging.StreamHandler(terminal)]
    watch.attach(watching(), logger, terse=False).stop("well")
    assert not asked.filters
    file.close()


def test_a_disk_that_fails_does_not_stop_the_watch(monkeypatch) -> None:
    looks: list[int] = []
    line = Line(watching(), None)

    def look() -> tuple[str, str]:
        looks.append(1)
        if len(looks) < 3:
            raise OSError("stale file handle")
        line._ended.set()
        return "", ""

    monkeypatch.setattr(line.watch, "look", look)
    monkeypatch.setattr(line._ended, "wait", lambda seconds: line._ended.is_set())
    line._keep_looking()
    assert len(looks) == 3


def told() -> list[str]:
    return list(standing.report(RESULTS))


def test_status_prints_what_the_watch_says_and_how_it_ended() -> None:
    line = Line(watching(), None)
    finished("a")
    line.start()
    line.stop("well")
    assert told()[:3:2] == ["s: 1 of 6 runs done, 0 running", "snakemake ended well"]


def test_status_says_when_snakemake_was_killed() -> None:
    watching()
    assert told()[-1] == "(0 s ago)"
    long_ago = time.time() - 3 * 3600
    os.utime(RESULTS / standing.FILE, (long_ago, long_ago))
    assert "last heard of 3.0 h ago" in told()[-1]


def test_status_without_a_snakemake_says_how_to_start_one() -> None:
    with pytest.raises(DataError, match="start one"):
        told()


SNAKEFILE = """
from pathlib import Path
from snakemake.logging import logger
from pflpipe.pipeline.watch import Runs, Watch, attach

runs = Runs("s", {"a": 1.0, "b": 1.0}, {"a": "run a", "b": "run b"}, False)
lines = []


onstart:
    lines.append(attach(Watch(lambda: [runs], set(), Path("results")), logger, terse=True))
onerror:
    lines[0].stop("badly")


rule all:
    input: expand("results/runs/{run}/run.json", run=["a", "b"])
rule train:
    output: "results/runs/{run}/run.json"
    shell: "test {wildcards.run} = a && touch {output}"
"""


@pytest.mark.pipeline
def test_snakemake_says_the_plan_and_errors_and_nothing_else_about_jobs() -> None:
    Path("Snakefile").write_text(SNAKEFILE)
    program = "from snakemake.cli import main; main()"
    words = ("snakemake", "--cores", "1", "--keep-going")
    found = warm.python(program, words, Path.cwd(), os.environ).stderr
    assert "total" in found, "the plan"
    assert "Error in rule train" in found
    assert not any(word in found for word in ("Finished job", "Select jobs", "Execute 1 job"))
    assert "s: 1 of 2 runs done, 0 running" in told()
    assert "snakemake ended badly" in told()
