"""How far the training runs of studies are, and when they will end (``pflpipe status``).

Everything is read from files: finished runs, and the state that each training job writes next to
its checkpoint (``Report`` in simulation/runs.py). So this works in another terminal, or on another
machine that sees the folder, without a lock and without a server.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pflpipe.errors import DataError
from pflpipe.study import catalog, config, load, runtime_estimate
from pflpipe.study.runtime_estimate import duration_text
from pflpipe.study.study_spec import Outline

PLANNED = Path("logs/planned.json")
"""Written by snakemake when it starts and removed when it ends; it names the requested studies."""
SILENT = 120.0
"""Seconds without a sign of life after which snakemake may be dead: shared disks may show a file a
minute late."""


@dataclass
class Run:
    """A training run.

    Attributes:
        seconds: the estimate of its training time (study/runtime_estimate.py), which weights runs.
        ended: when it was finished, in seconds since the epoch; 0 before.
        state: what its job has written since snakemake started; empty if there is no job.
    """

    name: str
    seconds: float
    ended: float
    state: dict[str, Any]

    @property
    def done(self) -> float:
        """The share of its work that is done."""
        return 1.0 if self.ended else self.state.get("round", 0) / self.state.get("rounds", 1)

    def __str__(self) -> str:
        state = self.state
        if "failed" in state:
            return f"  {self.name}: failed, see logs/train/{self.name}.log"
        if not state["round"]:
            return f"  {self.name}: starting"
        left = f"{duration_text(state['seconds_left'])} left"
        parts = f"round {state['round']} of {state['rounds']}", state["measured"], left
        return f"  {self.name}: {', '.join(filter(None, parts))}"


def lines(settings: config.Config) -> Iterator[str]:
    """Yield the state of the studies that snakemake works on or, if none works, of those in
    config.yaml."""
    since, now = began(), time.time()
    noted = json.loads(PLANNED.read_text(encoding="utf-8")) if since else {}
    asked = [Path(file).stem for file in noted if Path(file).match(f"{config.STUDIES}/*.yaml")]
    runs = []
    for name in asked or settings.studies:
        outline = load.load_outline(name)
        found = read(outline, settings, since or now)
        runs += found
        failed = sum("failed" in run.state for run in found)
        done, begun = sum(run.ended > 0 for run in found), sum(bool(run.state) for run in found)
        name += ", without its private search" * bool(outline.private_search)
        lost = f", {failed} failed" * bool(failed)
        yield f"{name}: {done} of {len(found)} runs done, {begun - failed} running{lost}"
    if not since:
        yield "no snakemake works here; to start one: snakemake --cores all results/tables/all.csv"
        return
    if left := time_left(runs, since, now):
        yield f"training: about {duration_text(left)} left"
    yield from (str(run) for run in runs if run.state)
    files = settings.results_dir.glob("checkpoints/*.json")
    signs = [*(run.ended for run in runs), *(file.stat().st_mtime for file in files)]
    quiet = now - max(since, *signs)
    if quiet > SILENT:
        yield f"no run went on for {duration_text(quiet)}; was it killed? docs/reliability.md"


def began() -> float:
    """Return when the snakemake that works here started, in seconds since the epoch; 0 if none
    does."""
    try:
        return PLANNED.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def read(outline: Outline, settings: config.Config, since: float) -> list[Run]:
    """Return the runs of a study, without the trials of a private search, whose number stays
    unknown.

    Args:
        since: when snakemake started; what jobs wrote before does not count.
    """
    header, results, choices = catalog.headers(settings), settings.results_dir, []
    with contextlib.suppress(DataError):  # its search has not chosen yet
        choices = load.chosen(outline, results)
    rows = outline.search.rows if outline.private_search and outline.search else ()
    trials, runs = {row.run for row in rows}, []
    for name, cell in catalog.runs(outline, choices).items():
        if name in trials:
            continue
        ended, state = 0.0, dict[str, Any]()
        with contextlib.suppress(OSError):  # Snakemake removes a result before it makes it again
            ended = (results / "runs" / name / "run.json").stat().st_mtime
        with contextlib.suppress(OSError, ValueError):
            file = results / "checkpoints" / f"{name}.json"
            if not ended and file.stat().st_mtime >= since:  # a killed snakemake leaves its files
                state = json.loads(file.read_text(encoding="utf-8"))
        seconds = runtime_estimate.total([cell], header) or 1.0
        runs.append(Run(name, seconds, ended, state))
    return runs


def told(runs: Sequence[Run], since: float, now: float) -> str:
    """Return how many runs are done and, where it is known, the time that is left."""
    left = time_left(runs, since, now)
    known = f", training about {duration_text(left)} left" if left else ""
    return f"{sum(run.ended > 0 for run in runs)} of {len(runs)} runs done{known}"


def time_left(runs: Sequence[Run], since: float, now: float) -> float:
    """Return the seconds of training that are left if it goes on as since a time; 0 if unknown."""
    left = sum(run.seconds * (1 - run.done) for run in runs)
    made = sum(run.seconds * run.done for run in runs if run.state or run.ended >= since)
    return left * (now - since) / made if made else 0.0
