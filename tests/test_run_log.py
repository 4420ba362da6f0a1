"""The log of a run says how far it is: often enough to be watched, rarely enough to be read."""

from __future__ import annotations

import math
import time
from typing import Any, cast

import pytest

from pflpipe.pipeline import watch
from pflpipe.simulation import runs
from pflpipe.simulation.rounds import CURVES, Progress


class Clock:
    """A clock that is set by hand."""

    now = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made


def after(round: int, **measured: float) -> Progress:
    """A run after a round; only what the log reads."""
    row = dict.fromkeys(CURVES, math.nan) | {"loss": 0.5} | measured
    timing = {"images_per_second": 1234.0}
    values: dict[str, Any] = {"round": round, "rows": [row], "timing": [timing]}
    return cast(Progress, type("", (), values | {"diverged_round": None}))


def said(capsys: pytest.CaptureFixture[str]) -> list[int]:
    return [
        int(line.split("round ")[1].split("/")[0]) for line in capsys.readouterr().err.splitlines()
    ]


def test_a_short_run_says_a_tenth_of_its_rounds(clock, capsys) -> None:
    report = runs.Report("run", 40)
    for round in range(1, 41):
        report.show(after(round))
    assert said(capsys) == [*range(4, 41, 4)]


def test_a_slow_run_is_not_silent_for_long(clock, capsys) -> None:
    report = runs.Report("run", 100)
    for round in range(1, 8):
        clock.now += 20
        report.show(after(round))
    assert said(capsys) == [2, 4, 6]


def test_the_last_accuracy_and_the_time_that_is_left_stand_in_the_line(clock, capsys) -> None:
    report = runs.Report("run", 10, 2)  # resumed after round 2
    clock.now += 10
    report.show(after(3, personal_own=81.25, global_common=70.0))
    clock.now += 10
    report.show(after(4))
    first, second = capsys.readouterr().err.splitlines()
    assert first == "run  round 3/10  loss 0.5000  personal_own 81.2 %  1234 images/s  70 s left"
    assert second == "run  round 4/10  loss 0.5000  personal_own 81.2 %  1234 images/s  60 s left"
    found = watch._ROUND.search(second)
    assert found is not None
    assert found.groupdict() == {
        "round": "4",
        "rounds": "10",
        "metric": "personal_own",
        "accuracy": "81.2",
        "left": "60",
    }
