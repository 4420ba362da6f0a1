"""From a table of people, or a study, to a verdict (``pflpipe run``).

Snakemake trains, with the jobs and files that it has by itself. Where a study has ``looks``, seeds
are added at them until every verdict is there or the minutes are used; report/verdicts.py says why
the words stay as sure as they are.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import webbrowser
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pflpipe.data import datasets, sources, tables, understood
from pflpipe.data.blocks import TABLES
from pflpipe.data.datasets import Header
from pflpipe.errors import ConfigError, DataError, PflpipeError, counted, nearest
from pflpipe.files import write_text
from pflpipe.pipeline import mlflow_export, project, run_summary, status
from pflpipe.report import answer, verdict_page
from pflpipe.report.tidy import stored
from pflpipe.report.verdicts import UNDECIDED
from pflpipe.study import config, contents, forecast, init, runtime_estimate
from pflpipe.study.load import finish, load_outline, study_names
from pflpipe.study.runtime_estimate import duration_text
from pflpipe.study.study_spec import Outline

OVERHEAD = 2.0
"""CPU seconds of a run besides its training, with its audits and its part of the table."""
PAGES = "verdicts"
"""Folder of the pages in that of the results."""
TEMPLATE = project.SNAKEFILE.parent / "workflow" / "report" / "verdict.html"
_EVERY = 1.0
_SEEDS = re.compile(r"^seeds: .*$", re.M)


@dataclass(frozen=True)
class Wish:
    """What the command line asks for.

    Attributes:
        what: a table, or the name of a study.
        user, label: columns of the table; empty if not given.
        epsilons, minutes: as text.
        name: of the study of a table; empty for that of the file.
        profile: of Snakemake; empty for all cores of this machine.
        ask: returns the answer to a question; None where nobody is there to answer.
        verbose: whether Snakemake's lines are shown.
    """

    what: str
    user: str = ""
    label: str = ""
    epsilons: str = "2,8"
    minutes: float = 3.0
    name: str = ""
    profile: str = ""
    ask: Callable[[str], str] | None = None
    verbose: bool = False


def lines(wish: Wish) -> Iterator[str]:
    """Train what is asked for, and yield what is said of it.

    Raises:
        PflpipeError: a mistake of the user, or a job failed.
    """
    minutes = wish.minutes
    ConfigError.unless(0 < minutes < math.inf, "--minutes", minutes, "a number above 0")
    name = wish.what
    if name not in study_names():
        path = Path(wish.what)
        if path.suffix.lower() not in TABLES:
            expected = f"a study, or a file that ends in {', '.join(TABLES)}"
            do = nearest(name, study_names()) if study_names() else ""
            raise ConfigError("run", got=wish.what, expected=expected, do=do)
        name = yield from _begin(wish, path)
    settings = config.load()
    outline = load_outline(name)
    yield _expected(outline, settings, minutes)
    if wish.ask and wish.ask("train? [Y/n] ").strip().lower() not in ("", "y", "yes"):
        yield "stopped before training; the same command goes on"
        return
    yield from _until_decided(wish, outline, settings)


def typed(question: str) -> str:
    """Return what is typed as an answer; raise ConfigError where nobody types any more."""
    try:
        return input(question)
    except EOFError:
        print()  # the cursor stands behind the question
        raise ConfigError("the question has no answer", do="--yes asks nothing") from None


# ---------------------------------------------------------------- a table


def _begin(wish: Wish, path: Path) -> Generator[str, None, str]:
    """Yield the contract of a table's rows, write its study, and return its name."""
    DataError.unless(path.is_file(), f"{path} does not exist", expected="a file")
    epsilons = _epsilons(wish.epsilons)
    name = wish.name or re.sub(r"\W+", "_", path.stem.lower(), flags=re.ASCII).strip("_")
    table, _ = tables.texts_of(path)
    table = table.set_axis(table.columns.map(str), axis=1)
    listed = [*table.columns]
    user = wish.user or _column(wish, "--user", "whose row it is", listed)
    label = wish.label or _column(wish, "--label", "what is predicted", listed)
    block = understood.block(table, path, user, label)
    arrays, note = contents.read(name, block, config.Config.data_dir / "downloads")
    yield note
    yield from arrays.contract.lines
    yield from (f"warning: {warning}" for warning in arrays.contract.warnings)
    yield understood.ORIGIN
    users = 0 if arrays.users is None else len(np.unique(arrays.users))
    what, expected = f"{path}: column {user}", "two users or more"
    DataError.unless(users >= 2, what, counted(users, "user"), expected)
    try:
        written = init.write_natural(name, block, understood.ORIGIN, epsilons, users)
    except OSError as error:
        what, expected = str(error.filename or path), "a folder that can be written"
        raise DataError(what, got=error.strerror, expected=expected) from None
    yield from (f"{file}: written" for file in written)
    return name


def _epsilons(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    fits = found and all(0 < one < math.inf for one in found) and len(set(found)) == len(found)
    ConfigError.unless(bool(fits), "--epsilon", text, "distinct numbers above 0, such as 2,8")
    return found


def _column(wish: Wish, option: str, what: str, listed: Sequence[str]) -> str:
    names = ", ".join(listed)
    if wish.ask is None:
        raise ConfigError(f"{option} is missing", expected=f"a column: {names}")
    question = f"Which column says {what}? ({names}) "
    while (answer := wish.ask(question).strip()) not in listed:
        question = f"no column is {answer!r}; {nearest(answer, listed)} "
    return answer


# ---------------------------------------------------------------- what to expect


def _expected(outline: Outline, settings: config.Config, minutes: float) -> str:
    """Return what the study costs in time, and how long the noise is beside what people say."""
    headers = {dataset: _header(dataset, settings) for dataset in outline.everything.datasets}
    cells = [row.cell for row in outline.everything.rows]
    training = runtime_estimate.total(cells, headers.get)
    cores = os.cpu_count() or 1
    seconds = ((training or 0.0) + OVERHEAD * len(cells)) / cores
    looks = outline.document.get("looks", [])
    runs, where = counted(len(cells), "run"), counted(cores, "core")
    text = f"{runs}, about {duration_text(seconds)} on {where}"
    if looks and len(outline.document["seeds"]) < looks[-1]:
        text += f", and at most {looks[-1]} seeds in {duration_text(60 * minutes)}"
    shares = {
        cell.privacy.epsilon: length / math.sqrt(cell.training.rounds)
        for cell, length in forecast.lengths(outline, headers.get)
        if cell.privacy.epsilon
    }
    if shares:
        noise = ", ".join(f"{share:.2g} at ε = {epsilon:g}" for epsilon, share in shares.items())
        text += f"; the noise of one private model is {noise} times as long as what all clients say"
    return text


def _header(dataset: str, settings: config.Config) -> Header | None:
    source, made = settings.datasets.get(dataset), settings.data_dir / f"{dataset}.npz"
    known = sources.describe(dataset, source, made)
    if known is None and isinstance(source, dict):
        with tempfile.TemporaryDirectory() as folder:
            read = Path(folder) / made.name
            sources.prepare(dataset, source, settings.data_dir / "downloads", read)
            return datasets.read_header(read, dataset)
    return known


# ---------------------------------------------------------------- training


def _until_decided(wish: Wish, outline: Outline, settings: config.Config) -> Iterator[str]:
    """Train at one look after the other, and yield the last lines."""
    name, results = outline.name, settings.results_dir
    began, last = time.time(), ""
    table = f"{results}/tables/{name}.csv"
    # With the table: a Snakemake of their own would import everything again.
    drawn = [f"{results}/figures/{name}/{one.name}.png" for one in outline.figures]
    yield f"Snakemake's lines: {_log(name)}; pflpipe ui {name} shows how far it is"
    while True:
        since, before = time.time(), last
        _snakemake(wish, outline, settings, [table, *drawn])
        study = finish(outline, results)
        answers = answer.of_study(study, stored(study, results), results)
        last = "; ".join(f"{one.budget}: {one.verdict.word}" for one in answers) or "no verdict"
        seeds, looks = outline.document["seeds"], outline.document.get("looks", [])
        yield f"{counted(len(seeds), 'seed')}: {last if last != before else 'the same'}"
        later = [number for number in looks if number > len(seeds)]
        if not later or all(one.verdict.word != UNDECIDED for one in answers):
            break
        now = time.time()
        pace = (now - since) / len(seeds)
        if now - began + pace * (later[0] - len(seeds)) > 60 * wish.minutes:
            spent = duration_text(60 * wish.minutes)
            yield f"the time of {spent} is over: --minutes {2 * wish.minutes:g} goes on"
            break
        _add_seeds(name, later[0])
        outline = load_outline(name)
    page = write_page(outline, results)
    yield from run_summary.of_study(outline, results)
    yield f"for the paper: {table.removesuffix('csv')}tex, {results}/figures/{name}/"
    yield f"the verdict page: {page}"
    if has_browser():
        webbrowser.open(page.resolve().as_uri())
    yield from _tracked(outline, settings)


def _tracked(outline: Outline, settings: config.Config) -> Iterator[str]:
    """Copy the runs to MLflow, when the verdict is shown, and yield where they are. Here and not by
    Snakemake, which would export every method by itself, at three times the time."""
    name, results = outline.name, settings.results_dir
    if settings.store:
        yield f"MLflow: snakemake --cores 1 {results}/tracking/{name}.done"
        return
    _progress("copying the runs to MLflow")
    study, marker = finish(outline, results), run_summary.marker(name, results)
    mlflow_export.export_or_warn(study, results, marker, settings.tracking_uri)
    _progress("")
    address = mlflow_export.address_of(results, settings.tracking_uri)
    yield run_summary.tracking(name, results, address)


def has_browser() -> bool:
    """Return whether somebody sits at this terminal who can be shown a page."""
    variables = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.stdout.isatty() and (sys.platform == "darwin" or any(map(os.environ.get, variables)))


def write_page(outline: Outline, results: Path) -> Path:
    """Write the verdict page of a study whose table is there, and return it."""
    page = results / PAGES / f"{outline.name}.html"
    verdict_page.write(finish(outline, results), results, TEMPLATE, page, again(outline.name))
    return page


def again(name: str) -> str:
    """Return the command that makes the verdict page of a study."""
    return f"pflpipe run {name}"


def _add_seeds(name: str, number: int) -> None:
    file = config.study_file(name)
    line = f"seeds: [{', '.join(map(str, range(number)))}]"
    text, found = _SEEDS.subn(line, file.read_text(encoding="utf-8"))
    what, expected = f"{file}: seeds", "one line, seeds: [0, 1, 2]"
    ConfigError.unless(found == 1, what, f"{found} lines", expected)
    write_text(file, text)


def _log(name: str) -> Path:
    return run_summary.LOGS / f"run_{name}.log"


def _snakemake(
    wish: Wish, outline: Outline, settings: config.Config, targets: Sequence[str]
) -> None:
    """Make files by Snakemake, with a line of progress.

    Raises:
        PflpipeError: a job failed, or the study is refused.
    """
    ours = project.SNAKEFILE.parent / wish.profile  # also where no clone is
    profile = str(ours) if not Path(wish.profile).exists() and ours.exists() else wish.profile
    where = ["--profile", profile] if profile else ["--cores", "all"]
    words = [sys.executable, "-m", "snakemake", "--snakefile", str(project.SNAKEFILE), *where]
    log = _log(outline.name)
    log.parent.mkdir(parents=True, exist_ok=True)
    since, environment = time.time(), {**os.environ, "OMP_NUM_THREADS": "1"}
    stopped: list[int] = []
    # Snakemake gets the Ctrl-C of a terminal too. An exception could be lost while files are read.
    before = signal.signal(signal.SIGINT, lambda number, _: stopped.append(number))
    try:
        with log.open("a", encoding="utf-8") as file:
            start = file.tell()
            out = None if wish.verbose else file
            process = subprocess.Popen(
                [*words, *targets], stdout=out, stderr=out and subprocess.STDOUT, env=environment
            )
            while process.poll() is None:
                _progress("" if wish.verbose else _state(outline, settings, since))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_EVERY)
    finally:
        signal.signal(signal.SIGINT, before)
        _progress("")
    if stopped:
        print("stopped: the same command goes on", file=sys.stderr)
        raise KeyboardInterrupt
    if process.returncode:
        with log.open(encoding="utf-8", errors="replace") as file:
            file.seek(start)
            said = [line for line in file if line.startswith(("error: ", "Error"))]
        why = said[0].strip() if said else "a job failed"
        why = why.removeprefix("error: ").removeprefix("Error: ")
        raise PflpipeError(why, do=f"all lines: {log}; then the same command goes on")


def _state(outline: Outline, settings: config.Config, since: float) -> str:
    runs = status.read(outline, settings, since)
    last = "; tests, audits and the table" * all(run.ended > 0 for run in runs)
    return status.told(runs, since, time.time()) + last


def _progress(text: str) -> None:
    """Show a line in place of the last one, on a terminal alone."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
