"""A run says how far it is: in its log rarely enough to be read, in its file for others."""

import json
import math
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from pflpipe.learning.metrics import ACCURACY, BUILT_IN, CURVES
from pflpipe.simulation import runs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that is set by hand."""
    made = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made


def after(round: int, **measured: float) -> SimpleNamespace:
    """A run after a round; only what the log reads."""
    row = dict.fromkeys(CURVES, math.nan) | {"loss": 0.5} | measured
    timing = [{"images_per_second": 1234.0}]
    return SimpleNamespace(round=round, rows=[row], timing=timing, diverged_round=None)


def said(capsys: pytest.CaptureFixture[str]) -> list[int]:
    return [int(number) for number in re.findall(r"round (\d+)/", capsys.readouterr().err)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


def begun(file: Path, rounds: int, round: int = 0) -> runs.Report:
    report = runs.Report("run", rounds, file, BUILT_IN[ACCURACY])
    report.begin(round)
    return report


def test_a_short_run_says_a_tenth_of_its_rounds(clock, capsys, file) -> None:
    report = begun(file, 40)
    for round in range(1, 41):
        report.show(after(round))
    assert said(capsys) == [*range(4, 41, 4)]


def test_a_slow_run_is_not_silent_for_long(clock, capsys, file) -> None:
    report = begun(file, 100)
    for round in range(1, 8):
        clock.now += 20
        report.show(after(round))
    assert said(capsys) == [2, 4, 6]


def test_the_last_accuracy_and_the_time_that_is_left_stand_in_the_line_and_in_the_file(
    clock, capsys, file
) -> None:
    report = begun(file, 10, 2)  # resumed after round 2
    assert json.loads(file.read_text())["round"] == 0
    clock.now += 10
    report.show(after(3, personal_own=81.25, global_common=70.0))
    clock.now += 10
    report.show(after(4))
    first, second = capsys.readouterr().err.splitlines()
    assert first == "run  round 3/10  loss 0.5000  personal_own 81.2 %  1234 images/s  70 s left"
    assert second == "run  round 4/10  loss 0.5000  personal_own 81.2 %  1234 images/s  60 s left"
    told = {"round": 4, "rounds": 10, "measured": "personal_own 81.2 %", "seconds_left": 60.0}
    assert json.loads(file.read_text()) == told


def test_a_file_is_written_every_few_seconds_and_a_disk_that_refuses_it_stops_nothing(
    clock, tmp_path
) -> None:
    (tmp_path / "occupied").write_text("")
    refused = begun(tmp_path / "occupied" / "run.json", 100)
    report = begun(tmp_path / "run.json", 100)
    for round in range(1, 8):
        clock.now += 1
        report.show(after(round))
        refused.show(after(round))
    assert json.loads(report.file.read_text())["round"] == 6
