"""How far a study is while it runs: a line on the terminal, and ``results/status.txt`` for
everybody else.

A thread of snakemake's own process looks at what the runs of the studies leave on disk, their logs
and their results, and says how far they are: on its terminal in one line, and in a small text file,
which ``pflpipe status`` prints from another terminal or another machine. So nobody needs
Snakemake's lock, a server, or a second look at ten thousand runs. How often it looks follows from
what looking costs, at most a two-hundredth of a core.

Whoever reads the file sees by its time whether snakemake is still there: it is written again and
again as long as it is. (A heartbeat, as schedulers of clusters have it.)
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from pflpipe.errors import DataError
from pflpipe.files import write_text
from pflpipe.pipeline.standing import ENDED, FILE
from pflpipe.study import catalog, load, runtime_estimate
from pflpipe.study.catalog import headers
from pflpipe.study.config import Config
from pflpipe.study.runtime_estimate import words
from pflpipe.study.study_spec import Chosen, Outline

LOGS = Path("logs/train")
EVERY = 5.0
"""Seconds between two writings of the file, at least."""
SHARE = 200
"""How many times as long as a look takes is waited before the next."""
TAIL = 400
"""Bytes at the end of a log that hold its last line."""
_ROUND = re.compile(
    r"round (?P<round>\d+)/(?P<rounds>\d+)(?:.*?  (?P<metric>\w+) (?P<accuracy>[\d.]+) %)?"
    r"(?:.*  (?P<left>\d+) s left)?"
)
_CHATTER = {"job_info", "job_started", "job_finished", "group_info", "progress"}
_SELECT = "Select jobs to execute..."


@dataclass(frozen=True)
class Runs:
    """The training runs of a study.

    Attributes:
        study: its name.
        seconds: id of a run -> the estimate of what it takes, to weigh runs with.
        labels: id of a run -> how people call it.
        growing: whether more of them will be asked for than were at first, because a search had
            chosen nothing then.
    """

    study: str
    seconds: Mapping[str, float]
    labels: Mapping[str, str]
    growing: bool


@dataclass(frozen=True)
class State:
    """A run at work, from the last line of its log: nothing but its start is known at first."""

    round: int = 0
    rounds: int = 0
    accuracy: str = ""
    left: float | None = None
    failed: bool = False

    @property
    def fraction(self) -> float:
        """How much of it is done."""
        return self.round / self.rounds if self.rounds else 0.0

    def __str__(self) -> str:
        if not self.rounds:
            return "starting"
        left = "" if self.left is None else f", {words(self.left)} left"
        return f"round {self.round} of {self.rounds}{self.accuracy}{left}"


class Studies:
    """The runs of some studies, called again and again: those of a search's choice once it is made.

    Args:
        outlines: the studies.
        settings: config.yaml.
    """

    def __init__(self, outlines: Iterable[Outline], settings: Config) -> None:
        self.outlines, self.settings = list(outlines), settings
        self._header = headers(settings)
        self._known: dict[tuple[str, float], Runs] = {}
        self._growing = {one.name for one in self.outlines if one.search and not self._chosen(one)}

    def __call__(self) -> Iterator[Runs]:
        """Yield the runs of each study."""
        for outline in self.outlines:
            made = self._chosen(outline) if outline.search else 0.0
            if (outline.name, made) not in self._known:
                self._known[outline.name, made] = self._runs(outline)
            yield self._known[outline.name, made]

    def _chosen(self, outline: Outline) -> float:
        """Return when a search's choice was written; 0 where there is none yet."""
        with contextlib.suppress(OSError):
            return outline.choices(self.settings.results_dir).stat().st_mtime
        return 0.0

    def _runs(self, outline: Outline) -> Runs:
        choices: list[Chosen] = []
        with contextlib.suppress(DataError):
            choices = load.chosen(outline, self.settings.results_dir)
        seconds, labels = {}, {}
        for run, cell in catalog.runs(outline, choices).items():
            header = self._header(cell.dataset)
            seconds[run] = runtime_estimate.seconds(cell, header) if header else 1.0
            labels[run] = " ".join(cell.words[2:])  # data and partition are those of the study
        return Runs(outline.name, seconds, labels, outline.name in self._growing)


class Watch:
    """How far the runs of some studies are.

    Args:
        studies: returns their runs, as far as they are known: a search chooses some while it runs.
        todo: runs that are to be made, also where results of another version lie there.
        results: folder of results.
    """

    def __init__(
        self, studies: Callable[[], Iterable[Runs]], todo: Collection[str], results: Path
    ) -> None:
        self.studies, self.todo, self.results = studies, todo, results
        self.file = results / FILE
        write_text(self.file, "starting\n")
        # Of the file system's clock, which on a shared disk is not this machine's.
        self.began = self.file.stat().st_mtime
        self.jobs = (0, 0)
        self._done: set[str] = set()
        self._written = 0
        self._trained = self._first = 0.0

    def look(self) -> tuple[str, str]:
        """Return how far everything is, as one line and as the text of the file."""
        brief, lines = [], []
        states: dict[str, State] = {}
        weights: dict[str, float] = {}
        labels: dict[str, str] = {}
        # Two lists of names, so that nobody asks the disk for what is not there.
        results, logs = _names(self.results / "runs"), _names(LOGS)
        for study in self.studies():
            labels |= study.labels
            here = [run for run in study.seconds if run not in self._done and run in results]
            new = list(filter(self._is_done, here))
            self._done.update(new)
            self._written += sum(map(self._size, new))
            missing = [run for run in study.seconds if run not in self._done]
            weights |= {
                run: seconds
                for run, seconds in study.seconds.items()
                if run in self._done or run in self.todo or study.growing
            }
            begun = (run for run in missing if f"{run}.log" in logs)
            found = {run: state for run in begun if (state := self._state(run)) is not None}
            states |= found
            total, failed = len(study.seconds), sum(state.failed for state in found.values())
            lost = f", {failed} failed" if failed else ""
            brief.append(f"{study.study} {total - len(missing)}/{total}{lost}")
            lines.append(
                f"{study.study}: {total - len(missing)} of {total} runs done, "
                f"{len(found) - failed} running{lost}"
            )
        running = {run: state for run, state in sorted(states.items()) if not state.failed}
        left = self._left(weights, running)
        about = "" if left is None else f"about {words(left)} left"
        done, jobs = self.jobs
        disk, enough = self._disk(len(weights.keys() - self._done))
        lines += [f"training: {about}"] if about else []
        lines += [disk] if disk else []
        lines += [f"jobs of all kinds: {done} of {jobs} done"] if jobs else []
        lines += [f"  {labels[run]}: {state}" for run, state in running.items()]
        lines += [
            f"  {labels[run]}: failed, see {LOGS / run}.log"
            for run, state in sorted(states.items())
            if state.failed
        ]
        parts = [" ".join(brief), "" if enough else disk, about]
        parts += [f"jobs {done}/{jobs}"] if jobs else []
        parts += [f"{labels[run]} {state}" for run, state in running.items()]
        return " | ".join(filter(None, parts)), "".join(f"{line}\n" for line in lines)

    def _is_done(self, run: str) -> bool:
        try:
            written = os.stat(self.results / "runs" / run / "run.json").st_mtime
        except OSError:
            return False
        return run not in self.todo or written >= self.began

    def _size(self, run: str) -> int:
        """Return the bytes of a run that is done: nearly all of them are its clients' states."""
        with contextlib.suppress(OSError), os.scandir(self.results / "runs" / run) as files:
            return sum(file.stat().st_size for file in files)
        return 0

    def _disk(self, missing: int) -> tuple[str, bool]:
        """Return what the missing runs will write if they are like those that are done, beside what
        is free, and whether that is enough; no text while nothing is known or nothing missing."""
        if not missing or not self._done:
            return "", True
        more = self._written / len(self._done) * missing
        free = shutil.disk_usage(self.results).free
        text = f"disk: about {_gigabytes(more)} more to write, {_gigabytes(free)} free"
        return (text, True) if more <= free else (f"{text}: TOO LITTLE", False)

    def _state(self, run: str) -> State | None:
        """Return how far a run is that is not done; None if it has not begun."""
        log = LOGS / f"{run}.log"
        try:
            if log.stat().st_mtime < self.began:
                return None
            with log.open("rb") as file:
                file.seek(max(0, log.stat().st_size - TAIL))
                last = file.read().decode(errors="replace").rstrip().rpartition("\n")[2]
        except OSError:
            return None
        if found := _ROUND.search(last):
            accuracy = f", {found['metric']} {found['accuracy']} %" if found["metric"] else ""
            left = float(found["left"]) if found["left"] else None
            return State(int(found["round"]), int(found["rounds"]), accuracy, left)
        is_error = re.match(r"(error:|[\w.]*(Error|Exception|Interrupt)\b)", last)
        return State(failed=bool(is_error))

    def _left(self, weights: Mapping[str, float], running: Mapping[str, State]) -> float | None:
        """Return the seconds that the training has left: what is to do, at the pace until now."""
        now = time.monotonic()
        made = sum(weights[run] for run in self._done & weights.keys())
        made += sum(weights[run] * state.fraction for run, state in running.items())
        if not self._first and running:
            self._first, self._trained = now, made
        rest = sum(weights.values()) - made
        if not self._first or made <= self._trained or rest <= 1e-9 * made:
            return None
        return rest * (now - self._first) / (made - self._trained)


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


class Line(logging.Filter):
    """Snakemake's terminal while a watch is on: one line instead of six for every job, and errors.

    It filters what Snakemake prints about single jobs, and removes its own line before anything
    else is printed. Without a terminal it prints a line at every tenth of the runs.
    """

    def __init__(self, watch: Watch, stream: TextIO | None) -> None:
        super().__init__()
        self.watch, self.stream = watch, stream
        self.live = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._ended = threading.Event()
        self._until = 0.0
        self._tenth = 0
        self._thread = threading.Thread(target=self._keep_looking, daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self, how: str) -> None:
        """Look for the last time; ``how`` it ended is the last line of the file."""
        self._ended.set()
        self._thread.join()
        self._clear()
        with contextlib.suppress(OSError, ValueError):
            write_text(self.watch.file, f"{self.watch.look()[1]}{ENDED} {how}\n")

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a message is shown; see the class."""
        event: Any = getattr(record, "event", None)
        if event == "progress":
            self.watch.jobs = (vars(record)["done"], vars(record)["total"])
        if event in _CHATTER or record.msg == _SELECT:
            return False
        self._until = time.monotonic() + 0.5  # the message follows: nothing is drawn before it
        self._clear()
        return True

    def _clear(self) -> None:
        if self.live:
            print("\r\x1b[K", end="", file=self.stream, flush=True)

    def _keep_looking(self) -> None:
        written, wait = 0.0, 0.0
        while not self._ended.wait(wait):
            began = time.thread_time()
            # Whatever happens to a disk or a terminal, the study goes on.
            with contextlib.suppress(OSError, ValueError):
                line, text = self.watch.look()
                self._show(line)
                if time.monotonic() - written > EVERY:
                    write_text(self.watch.file, text)
                    written = time.monotonic()
            wait = max(1.0, SHARE * (time.thread_time() - began))

    def _show(self, line: str) -> None:
        done, total = self.watch.jobs
        if self.live and time.monotonic() > self._until:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{line[:width]}\x1b[K", end="", file=self.stream, flush=True)
        elif self.stream and not self.live and total and 10 * done // total > self._tenth:
            self._tenth = 10 * done // total
            print(line, file=self.stream, flush=True)


def attach(watch: Watch, logger: logging.Logger, terse: bool) -> Line:
    """Begin to watch, and if ``terse`` put the line where a logger of Snakemake's prints."""
    # Not its file in .snakemake/log, nor the queue of a plugin, which has ideas of its own.
    handlers = [
        handler
        for handler in logger.handlers
        if terse
        and isinstance(handler, logging.StreamHandler)
        and not isinstance(handler, logging.FileHandler)
    ]
    line = Line(watch, handlers[0].stream if handlers else None)
    for handler in handlers:
        handler.addFilter(line)
    line.start()
    return line
