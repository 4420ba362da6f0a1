"""``pflpipe status``: the files on disk decide how far a study is, and who asks needs no lock."""

import os
import shutil
import time
from pathlib import Path

import pytest

import malformed
from pflpipe.files import write_json
from pflpipe.pipeline import status
from pflpipe.study import config
from pflpipe.study.load import load_outline

RESULTS = Path("results")
ROUND = {"round": 12, "rounds": 30, "measured": "personal_own 83.2 %", "seconds_left": 40.0}


@pytest.fixture
def runs(good: Path) -> list[str]:
    """The six runs of a study, of which none has begun; snakemake began to work a minute ago."""
    malformed.put("axes", {"privacy.epsilon": [2, 4, 8]})(good)
    write(status.PLANNED, {"workflow/scripts/train.py": "", "studies/good.yaml": ""}, ago=60)
    return [row.run for row in load_outline("good").study().rows if row.cell.method == "dp_fedavg"]


def write(file: Path, content: dict[str, object], ago: float = 0.0) -> None:
    write_json(file, content)
    os.utime(file, (time.time() - ago, time.time() - ago))


def finish(run: str, ago: float = 0.0) -> None:
    write(RESULTS / "runs" / run / "run.json", {}, ago)


def work(run: str, ago: float = 0.0, **state: object) -> None:
    write(RESULTS / "checkpoints" / f"{run}.json", ROUND | state, ago)


def printed() -> list[str]:
    return list(status.lines(config.load()))


def test_runs_are_done_running_failed_or_not_begun(runs):
    done, running, starting, failed, killed, *_ = runs
    finish(done)
    work(running)
    work(starting, round=0)
    write_json(RESULTS / f"checkpoints/{failed}.json", {"rounds": 30, "failed": True})
    work(killed, ago=3600)  # of a snakemake that was killed
    work(done, round=2)  # what its job wrote last
    first, _, *states = printed()
    assert first.startswith("good: 1 of ")
    assert first.endswith(" runs done, 2 running, 1 failed")
    assert set(states) == {
        f"  {running}: round 12 of 30, personal_own 83.2 %, 40 s left",
        f"  {starting}: starting",
        f"  {failed}: failed, see logs/train/{failed}.log",
    }
    shutil.rmtree(RESULTS / "runs" / done)  # Snakemake makes it again
    assert printed()[0].startswith("good: 0 of ")


def test_the_time_left_follows_from_the_pace_since_snakemake_began():
    def run(ended: float = 0.0, **state: object) -> status.Run:
        return status.Run("a", 10.0, ended, state)

    old, half = run(ended=50.0), run(round=15, rounds=30)
    assert status.time_left([old, run()], 100.0, 160.0) == 0, "nothing is known yet"
    # 1.5 of 4 runs in 60 s, so 2.5 take 100 s; what is older says nothing about the pace.
    assert status.time_left([old, run(ended=120.0), half, run(), run()], 100.0, 160.0) == 100


def test_a_snakemake_that_was_killed_or_that_does_not_work_is_noticed(runs):
    finish(runs[0])
    assert not any("killed" in line for line in printed())
    os.utime(status.PLANNED, (1, 1))
    finish(runs[0], ago=3 * 3600)
    assert "no run went on for 3.0 h" in printed()[-1]
    status.PLANNED.unlink()
    assert printed()[0].startswith("good: 1 of ")
    assert "no snakemake works here" in printed()[-1]


def test_a_study_that_snakemake_was_asked_for_is_shown_though_config_yaml_has_another(runs):
    Path("studies/good.yaml").rename("studies/other.yaml")
    write_json(status.PLANNED, {"studies/other.yaml": ""})
    assert printed()[0].startswith("other: 0 of ")
