"""Bring MLflow up to date with results on disk: once at the end, or again and again meanwhile.

Training never imports MLflow. Whoever writes holds a lock in the results folder, which ends with
its process, so there is one writer at a time. A server that does not answer costs seconds, stops
nothing and loses nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pflpipe.errors import DataError, PflpipeError
from pflpipe.files import write_text
from pflpipe.methods import registry
from pflpipe.report.tracking import address as addresses
from pflpipe.report.tracking.entries import Entry, experiment_note, of_study
from pflpipe.report.tracking.writer import Writer
from pflpipe.study.study_spec import Study

EVERY = 10.0
"""Seconds between two looks of a watch, at least."""
SHARE = 10
"""How many times as long as a look takes is waited before the next."""
LOOKS = 5
"""How often a writer begins because of another folder's, which writes the same at the same time."""
PATIENCE = 600.0
"""Seconds to wait for another writer of the same folder."""
# MLflow's own defaults wait four minutes for a dead server, print two lines for every run, and
# report usage to its makers.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(addresses.CONNECT_SECONDS),
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


class Outage(PflpipeError):
    """MLflow did not take a study."""


def address_of(results: Path, uri: str | None) -> str:
    """Return where MLflow is: MLFLOW_TRACKING_URI, else ``uri``, else ``mlflow.db`` in the results.

    Raises:
        ConfigError: it cannot be used.
    """
    own = f"sqlite:///{(results / 'mlflow.db').resolve()}"
    address = os.environ.get("MLFLOW_TRACKING_URI") or uri or own
    addresses.check(address)
    return address


def once(study: Study, results: Path, uri: str | None = None, *, partial: bool = False) -> str:
    """Bring the MLflow experiment of a study up to date.

    Args:
        results: folder with scores, runs, plans, figures and tables.
        uri: where to, as ``address_of`` has it.
        partial: show what there is of a study that may not be done; else its table must be there.

    Returns:
        ``done: ...``.

    Raises:
        ConfigError: an address that cannot be used. DataError: a result is missing.
        Outage: MLflow did not take it.
    """
    return _send(study, list(of_study(study, results, partial=partial)), results, uri)


def _send(study: Study, entries: Sequence[Entry], results: Path, uri: str | None) -> str:
    address = address_of(results, uri)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    where = addresses.without_credentials(address)
    try:
        with _alone(results / ".mlflow.lock") as me:
            addresses.probe(address)
            for look in range(LOOKS):
                try:
                    note = experiment_note(study)
                    counts = Writer(address, results, study.name, note, me).run(entries)
                    break
                except Exception as error:
                    if look == LOOKS - 1 or not addresses.is_collision(error):
                        raise
    except Exception as error:
        if not addresses.is_outage(error):
            raise
        raise Outage(
            f"{where} did not take study {study.name} ({addresses.reason(error)})",
            do=addresses.advice(error, address),
        ) from error
    words = ", ".join(f"{count} {what}" for what, count in counts.items())
    there, rows = sum(counts.values()), len(study.rows)
    runs = f"{there} of {rows} runs" if there < rows else f"{rows} runs"
    return f"done: {runs} ({words}) in experiment {study.name} at {where}"


def sync(
    study: Study, results: Path, marker: Path, uri: str | None = None, failures: int = 0
) -> str:
    """Do as ``once`` for a study that is done, and write the marker file that says how it went.

    Args:
        marker: written last: ``done: ...``, or ``pending: ...`` after an outage, which is a warning
            and no error.
        failures: attempts before this one that MLflow did not take, kept in the marker.

    Returns:
        The first line of the marker.

    Raises:
        As ``once``, without Outage.
    """
    try:
        text = once(study, results, uri)
    except Outage as error:
        text = f"pending: {error}"
        print(f"warning: {error}; nothing is lost, the next run tries again", file=sys.stderr)
    write_text(marker, f"{text}\n" + f"failed before: {failures}\n" * (failures > 0))
    return text


def watch(
    load: Callable[[], Study], results: Path, uri: str | None = None, out: TextIO = sys.stdout
) -> None:
    """Show a study's runs as they are done, until all are and the study's table is there.

    Args:
        load: returns the study; a DataError means that its search has not chosen yet.
        uri: where to, as ``address_of`` has it.
        out: gets a line whenever something is new.

    Raises:
        As ``once``, without Outage.
    """
    address_of(results, uri)
    said, seen, is_done = "", None, False
    while not is_done:
        began = time.monotonic()
        text = said
        try:
            study = load()
            state = _state(study, results)
            if state != seen:
                entries = list(of_study(study, results, partial=True))
                text = _send(study, entries, results, uri)
                seen, is_done = state, entries[0].complete
        except Outage as error:
            text = f"warning: {error}; nothing is lost, trying again"
        except DataError as error:
            text = f"waiting: {error}"
        if text != said:
            print(text, file=out, flush=True)
            said = text
        if not is_done:
            time.sleep(max(EVERY, SHARE * (time.monotonic() - began)))


def _state(study: Study, results: Path) -> list[tuple[str, int]]:
    # Of all that the entries are made of, by names and times, for which nothing is opened.
    files = [results / "runs" / registry.run_id(cell) / "run.json" for cell in study.cells]
    files += sorted((results / "scores" / study.name).glob("*.csv"))
    files += sorted((results / "figures" / study.name).glob("*"))
    files += [results / "tables" / f"{study.name}.csv"]
    found = []
    for file in files:
        with contextlib.suppress(OSError):
            found.append((str(file), file.stat().st_mtime_ns))
    return found


@contextmanager
def _alone(lock: Path) -> Iterator[str]:
    # Yields a word for this results folder, which its lock file keeps.
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "a+", encoding="utf-8") as file:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(f"another process has held {lock} too long") from None
                time.sleep(0.1)
        file.seek(0)
        me = file.read().strip()
        if not me:
            me = uuid.uuid4().hex[:12]
            file.write(me)
            file.flush()
        yield me
