"""The progress of studies while snakemake runs: ``results/status.txt``, and a log line for each
tenth of the runs.

Each training job writes a small file next to its checkpoint, ``<run>.json``, with its round and the
remaining time (``Report`` in simulation/runs.py). A thread of the snakemake process reads these
files, lists the results, and writes a text file. ``pflpipe status`` prints it, in another terminal
or on another machine, without Snakemake's lock and without a server. The thread sleeps 200 times as
long as a look takes, so that it uses at most a two-hundredth of a core.

The text file is also a heartbeat: it is rewritten as long as snakemake runs, so that its time tells
whether snakemake is still there.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pflpipe.errors import DataError
from pflpipe.files import write_text
from pflpipe.methods import registry
from pflpipe.pipeline.status import ENDED, FILE
from pflpipe.study import catalog, runtime_estimate
from pflpipe.study.config import Config
from pflpipe.study.runtime_estimate import duration_text
from pflpipe.study.study_spec import Outline

LOGS = Path("logs/train")
EVERY = 5.0
"""Least number of seconds between two updates of the file."""
SHARE = 200
"""Waiting time before the next look, in multiples of the time of a look."""


@dataclass(frozen=True)
class Run:
    """A training run: its label, and the estimate of its seconds (study/runtime_estimate.py), which
    weights runs."""

    label: str
    seconds: float


Runs = Mapping[str, Mapping[str, Run]]
"""Name of a study -> id of a run -> the run."""


def runs(outlines: Iterable[Outline], asked: Iterable[str], settings: Config) -> Runs:
    """Return the training runs of these studies whose ids are in ``asked``, without the trials of
    private searches, whose number stays unknown."""
    header, everything = catalog.headers(settings), set(asked)
    result: dict[str, dict[str, Run]] = {}
    for outline in outlines:
        name, wanted = outline.name, everything
        if outline.private_search and outline.search:
            name += ", without its private search"
            wanted = everything.difference(row.run for row in outline.search.rows)
        result[name] = {}
        for cell in outline.everything.cells:
            if (run := registry.run_id(cell)) in wanted:
                known = header(cell.dataset)
                seconds = runtime_estimate.seconds(registry.run_cell(cell), known) if known else 1.0
                # Without data set and partition, which most runs of a study share.
                result[name].setdefault(run, Run(" ".join(cell.words[2:]), seconds))
    return result


class Progress:
    """The progress of runs.

    Args:
        runs: returns the runs that are known so far; a search adds some when it has chosen.
        results: folder of results.
        say: prints a line.
    """

    def __init__(
        self, runs: Callable[[], Runs], results: Path, say: Callable[[str], object]
    ) -> None:
        self.runs, self.results, self.say = runs, results, say
        self.file = results / FILE
        self._done: dict[str, int] = {}  # finished run -> its bytes
        self._trained = self._first = 0.0
        self._tenth = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, daemon=True)

    def begin(self) -> None:
        """Write the first version of the file."""
        write_text(self.file, "starting\n")
        # By the clock of the file system, which on a shared disk is not this machine's.
        self._began = self.file.stat().st_mtime

    def start(self) -> None:
        """Write the file until ``stop``, in a thread."""
        self.begin()
        self._thread.start()

    def stop(self, how: str) -> None:
        """Write the file for the last time, with ``how`` snakemake ended in the last line."""
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError, ValueError, DataError):
            write_text(self.file, f"{self.look()[1]}{ENDED} {how}\n")

    def _keep_looking(self) -> None:
        written, wait = 0.0, 0.0
        while not self._ended.wait(wait):
            began = time.thread_time()
            # An error of the disk or the terminal must not stop the study.
            with contextlib.suppress(OSError, ValueError, DataError):
                line, text = self.look()
                if line:
                    self.say(line)
                if time.monotonic() - written > EVERY:
                    write_text(self.file, text)
                    written = time.monotonic()
            wait = max(1.0, SHARE * (time.thread_time() - began))

    def look(self) -> tuple[str, str]:
        """Return a log line, empty unless another tenth of the runs is done, and the text of the
        file."""
        studies = self.runs()
        everything = {run: it for study in studies.values() for run, it in study.items()}
        self._look_for_results(everything)
        missing = everything.keys() - self._done.keys()
        begun = {file.stem for file in (self.results / "checkpoints").glob("*.json")}
        states = {run: state for run in sorted(missing & begun) if (state := self._state(run))}
        running = {run: state for run, state in states.items() if not state.get("failed")}
        failed = states.keys() - running.keys()
        brief, lines = [], []
        for name, study in studies.items():
            done, lost = len(study.keys() - missing), len(study.keys() & failed)
            text = f", {lost} failed" if lost else ""
            brief.append(f"{name} {done}/{len(study)}{text}")
            at_work = len(study.keys() & running.keys())
            lines.append(f"{name}: {done} of {len(study)} runs done, {at_work} running{text}")
        left = self._left(everything, running)
        disk, enough = self._disk(len(missing))
        lines += [f"training: {left}"] if left else []
        lines += [disk] if disk else []
        lines += [f"  {everything[run].label}: {_text(state)}" for run, state in running.items()]
        lines += [
            f"  {everything[run].label}: failed, see {LOGS / run}.log" for run in sorted(failed)
        ]
        tenth = 10 * (len(everything) - len(missing)) // max(1, len(everything))
        line = " | ".join(filter(None, (" ".join(brief), left, "" if enough else disk)))
        is_new, self._tenth = tenth > self._tenth, tenth
        return line if is_new else "", "".join(f"{each}\n" for each in lines)

    def _look_for_results(self, everything: Mapping[str, Run]) -> None:
        """Update the set of finished runs. Snakemake removes a result before it makes it again."""
        folder = self.results / "runs"
        there = {path.name for path in folder.glob("*")} & everything.keys()
        self._done = {run: size for run, size in self._done.items() if run in there}
        for run in there - self._done.keys():
            with contextlib.suppress(OSError):
                (folder / run / "run.json").stat()
                self._done[run] = sum(file.stat().st_size for file in (folder / run).iterdir())

    def _state(self, run: str) -> dict[str, Any]:
        """Return the state that a running run has written; empty if it has not started."""
        file = self.results / "checkpoints" / f"{run}.json"
        with contextlib.suppress(OSError, ValueError):
            if file.stat().st_mtime >= self._began:  # otherwise a killed snakemake left it
                state: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
                return state
        return {}

    def _disk(self, missing: int) -> tuple[str, bool]:
        """Return text on the disk space that the missing runs need, if they are like the finished
        ones, and whether there is enough. The text is empty if no run is finished or missing."""
        if not missing or not self._done:
            return "", True
        more = sum(self._done.values()) / len(self._done) * missing
        free = shutil.disk_usage(self.results).free
        text = f"disk: about {more / 1e9:.1f} GB more to write, {free / 1e9:.1f} GB free"
        return (text, True) if more <= free else (f"{text}: TOO LITTLE", False)

    def _left(self, everything: Mapping[str, Run], running: Mapping[str, Any]) -> str:
        """Return text on the remaining training time at the pace so far; empty if unknown."""
        now = time.monotonic()
        made = sum(everything[run].seconds for run in self._done)
        made += sum(
            everything[run].seconds * state["round"] / state["rounds"]
            for run, state in running.items()
        )
        if not self._first and running:
            self._first, self._trained = now, made
        rest = sum(run.seconds for run in everything.values()) - made
        if not self._first or made <= self._trained or rest <= 1e-9 * made:
            return ""
        return f"about {duration_text(rest * (now - self._first) / (made - self._trained))} left"


def _text(state: Mapping[str, Any]) -> str:
    if not state["round"]:
        return "starting"
    metric = f", {state['measured']}" if state["measured"] else ""
    left = f", {duration_text(state['seconds_left'])} left"
    return f"round {state['round']} of {state['rounds']}{metric}{left}"
