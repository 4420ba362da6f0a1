"""Copies the results of a study to MLflow: once at the end, or repeatedly while the study runs.

Training never imports MLflow. A run whose content is unchanged stays. Any other run is written
anew, and its predecessor is deleted at the end: the next export repairs one that was interrupted.

A lock admits one process at a time. Machines that share a server share no lock; each new run
therefore has a higher generation than all runs before it, and of two runs with one key every
process deletes the lower. A process that finds its unfinished run deleted starts again.

The Snakefile imports this module to check an address, so pandas and MLflow are imported where they
are used.
"""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO
from urllib.parse import unquote, urlsplit

from pflpipe.errors import ConfigError, DataError, PflpipeError
from pflpipe.files import atomic, canonical_json, write_text

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from pflpipe.report.mlflow_runs import Tracked
    from pflpipe.study.study_spec import Study

EVERY = 10.0
"""Minimum number of seconds between two checks of a watch."""
SHARE = 10
"""A watch waits at least this many times the duration of its last check."""
PATIENCE = 600.0
"""Seconds to wait for the lock of the folder."""
ATTEMPTS = 5
"""How often an export is tried if another machine writes the same study."""
CONNECT_SECONDS = 5
PAGE = 50
"""Runs that are read in one call. A busy server needs five seconds for 200."""
AT_ONCE = 4
"""Number of runs that are written to a server at the same time."""
ARTIFACTS = "mlartifacts"
"""The folder for the files of runs, next to the database or in the results; see docs/mlflow.md."""
METRICS_PER_CALL, PARAMS_PER_CALL = 800, 100
"""MLflow's REST API accepts 1000 metrics, params and tags per call."""
PARENT = "mlflow.parentRunId"
VIEW = "pflpipe"
"""The key of the view that the printed address opens; MLflow keeps a shared view as a tag."""
LOCAL_SERVER = "http://127.0.0.1:5000"
"""Where ``mlflow ui`` answers by default."""
KEY, DIGEST, GENERATION = "pflpipe.key", "pflpipe.digest", "pflpipe.generation"
# MLflow's own defaults wait four minutes for a dead server, print two lines for every run, and
# report usage to its makers.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(CONNECT_SECONDS),
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
_MOVE_AWAY = "move that file away; the next run writes everything again"
# Pattern in a library's error -> what to do; the first that matches.
_ADVICE = {
    r"\b401\b|UNAUTHENTICATED": "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
    r"\b403\b|PERMISSION_DENIED": "ask its administrator for the right to write there",
    r"(?i)read-?only|permission denied": "its administrator has to make its database writable",
    r"(?i)is locked|could not be acquired": "wait until nobody else writes to it",
    r"(?i)disk is full|no space left": "make room on its disk",
    r"(?i)refused|not known|resolution|unreachable": "start it, or correct its address",
    r"too many 5\d\d error|\b50[0-4]\b": "it answers with errors: its log says why, such as a "
    "database that is read-only or full",
    r"(?i)timed out|timeout": "it accepts connections and does not answer: look at its log",
}
_BROKEN_OFF = r"(?i)connection (aborted|broken|reset)"
_COLLISION = r"(?i)unique constraint|already exists|current state is deleted"
"""MLflow's errors if another machine was faster."""


class Outage(PflpipeError):
    """MLflow did not accept a study."""


# ---------------------------------------------------------------- when to export


def export(study: Study, results: Path, uri: str | None = None, *, partial: bool = False) -> str:
    """Make the MLflow experiment of a study show its results.

    Args:
        results: folder with scores, runs, plans, figures and tables.
        uri: the address, as in ``address_of``.
        partial: export what is finished; otherwise the study's table must exist.

    Returns:
        ``done: ...``, with the address of the runs at its end.

    Raises:
        ConfigError: MLflow cannot use the address. DataError: a result is missing.
        Outage: MLflow did not accept it.
    """
    from pflpipe.report import mlflow_runs

    return _send(study, mlflow_runs.of_study(study, results, partial=partial), results, uri)


def at_the_end(
    study: Study, results: Path, marker: Path, uri: str | None = None, failures: int = 0
) -> str:
    """Export a finished study and write a marker file. An outage is a warning and no error.

    Args:
        marker: gets ``done: ...``, or ``pending: ...`` after an outage.
        uri: the address, as in ``address_of``.
        failures: number of outages before this attempt, kept in the marker.

    Returns:
        The first line of the marker.

    Raises:
        As ``export``, except Outage.
    """
    try:
        text = export(study, results, uri)
    except Outage as error:
        text = f"pending: {error}"
        print(f"warning: {error}; nothing is lost, the next run tries again", file=sys.stderr)
    write_text(marker, f"{text}\n" + f"failed before: {failures}\n" * (failures > 0))
    return text


def watch(
    load: Callable[[], Study], results: Path, uri: str | None = None, out: TextIO = sys.stdout
) -> None:
    """Export a study's runs as they finish, until all are finished and its table exists.

    Args:
        load: returns the study; a DataError means that its search has not chosen yet.
        uri: the address, as in ``address_of``.
        out: gets a line whenever something is new.

    Raises:
        As ``export``, except Outage.
    """
    from pflpipe.report import mlflow_runs

    address_of(results, uri)  # an unusable address ends the watch before it waits
    last, exported, is_done = "", [""], False
    while not is_done:
        began, text = time.monotonic(), last
        try:
            study = load()
            tracked = mlflow_runs.of_study(study, results, partial=True)
            # Unchanged results cost no connection.
            digests = [run.digest for run in tracked]
            if digests != exported:
                text = _send(study, tracked, results, uri)
            exported, is_done = digests, tracked[0].complete
        except Outage as error:
            text = f"warning: {error}; nothing is lost, trying again"
        except DataError as error:
            text = f"waiting: {error}"
        if text != last:
            print(text, file=out, flush=True)
            last = text
        if not is_done:
            time.sleep(max(EVERY, SHARE * (time.monotonic() - began)))


def _send(study: Study, tracked: Sequence[Tracked], results: Path, uri: str | None) -> str:
    from filelock import FileLock
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    address = address_of(results, uri)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    where, file = without_credentials(address), database_file(address)
    folder = file.parent if file else results
    try:
        if silence := _silence(address):
            raise silence
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".mlflow.lock", timeout=PATIENCE):
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    experiment = _Experiment(address, folder, study)
                    counts = experiment.update(tracked)
                    break
                except MlflowException as error:
                    if attempt == ATTEMPTS or not re.search(_COLLISION, str(error)):
                        raise
    except (OSError, MlflowException, SQLAlchemyError) as error:
        # A server that ends breaks connections off; whether it has ended, only a new one shows.
        cause = (_silence(address) if re.search(_BROKEN_OFF, str(error)) else None) or error
        what = f"{where} did not take study {study.name} ({_reason(cause)})"
        raise Outage(what, do=_advice(cause, file)) from error
    there, rows = counts.total(), len(study.rows)
    runs = f"{there} of {rows} runs" if there < rows else f"{rows} runs"
    text = ", ".join(f"{count} {what}" for what, count in counts.items())
    server = where.rstrip("/") if address.startswith("http") else LOCAL_SERVER
    page = f"{server}/#/experiments/{experiment.id}/runs?viewStateShareKey={VIEW}"
    return f"done: {runs} ({text}) in experiment {study.name} at {where}, page {page}"


# ---------------------------------------------------------------- the experiment


class _Experiment:
    """The experiment of a study.

    Args:
        address: of MLflow.
        folder: for the files of runs, unless a server stores them.
    """

    def __init__(self, address: str, folder: Path, study: Study) -> None:
        from pflpipe.report.mlflow_runs import NOTE, experiment_note

        self.client, self.folder = _client(address), folder
        self.has_server = address.startswith(("http", "databricks"))
        note, name = experiment_note(study), study.name
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            # A server chooses where to store files. With a database alone, this relative location
            # lets a server that is started next to it find them, even after the folder was moved.
            location = None if self.has_server else f"mlflow-artifacts:/{name}"
            self.client.create_experiment(name, artifact_location=location)
            experiment = self.client.get_experiment_by_name(name)
        self.id = experiment.experiment_id
        if experiment.lifecycle_stage == "deleted":
            self.client.restore_experiment(self.id)
        # A user's note stays.
        if experiment.tags.get(NOTE, "") == experiment.tags.get("pflpipe.note", "") != note:
            for key, value in {NOTE: note, "pflpipe.note": note, "kind": "diagnostics"}.items():
                self.client.set_experiment_tag(self.id, key, value)
        names = [f"metrics.`{next(iter(study.columns))}`", "tags.`claim`", "tags.`epsilon`"]
        view, shared = canonical_json({"selectedColumns": names}), f"mlflow.sharedViewState.{VIEW}"
        if experiment.tags.get(shared) != view:
            self.client.set_experiment_tag(self.id, shared, view)

    def update(self, tracked: Sequence[Tracked]) -> Counter[str]:
        """Write the runs that are new or changed. Runs that left the study stay and get a tag.

        Returns how many runs of seeds are new, kept and replaced.
        """
        # Of two runs with one key, all processes keep the one of the higher generation.
        before = self._runs()
        generation = 1 + max((_generation(runs[0]) for runs in before.values()), default=0)
        ids = dict[str, str]()

        def write(run: Tracked) -> str:
            old = before.get(run.key, [])
            if old and _is_current(old[0], run):
                ids[run.key] = old[0].info.run_id
                return "kept"
            ids[run.key] = self._create(run, ids.get(run.parent), generation)
            return "replaced" if old else "new"

        # Parents first: a child names its parent.
        names = {run.parent for run in tracked}
        parents = [run for run in tracked if run.key in names]
        others = [run for run in tracked if run.key not in names]
        actions = [write(run) for run in parents]
        # A server answers several calls at once; a file has one writer.
        with ThreadPoolExecutor(AT_ONCE if self.has_server else 1) as pool:
            actions += pool.map(write, others)
        counts = Counter(new=0, kept=0, replaced=0)
        for run, action in zip([*parents, *others], actions, strict=True):
            counts[action] += "seed" in run.tags
        # Another machine may have written in the meantime.
        self._clean(before if {*actions} == {"kept"} else self._runs(), tracked)
        return counts

    def _create(self, run: Tracked, parent: str | None, generation: int) -> str:
        from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag

        tags = {**run.tags, KEY: run.key, GENERATION: str(generation), "in_study": "true"}
        tags |= {PARENT: parent} if parent else {}
        created = self.client.create_run(self.id, run.start or None, tags, run.name)
        id = str(created.info.run_id)
        if run.dataset:
            name, digest, profile = run.dataset
            data = Dataset(name, digest, "local", canonical_json({"uri": name}), profile=profile)
            inputs = [DatasetInput(data, [InputTag("mlflow.data.context", "training")])]
            self.client.log_inputs(id, inputs)
        local = self._local_files(created)
        for name, file in run.files.items():
            if local is None:
                self.client.log_artifact(id, str(file), os.path.dirname(name))
            else:
                (local / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, local / name)
        metrics = [Metric(*point) for point in run.points]
        params = [Param(*item) for item in run.params.items()]
        # Few calls, because each costs several transactions. The digest comes last: an interrupted
        # run has none, so the next export replaces it.
        calls = math.ceil(max(len(metrics) / METRICS_PER_CALL, len(params) / PARAMS_PER_CALL, 1))
        for call in range(calls):
            self.client.log_batch(
                id,
                metrics[call * METRICS_PER_CALL : (call + 1) * METRICS_PER_CALL],
                params[call * PARAMS_PER_CALL : (call + 1) * PARAMS_PER_CALL],
                [RunTag(DIGEST, run.digest)] if call == calls - 1 else (),
            )
        if run.complete:
            self.client.set_terminated(id, "FINISHED", run.end or None)
        return id

    def _local_files(self, run: Run) -> Path | None:
        # The place where a server that is started on this database finds a run's files.
        prefix, _, path = run.info.artifact_uri.partition("mlflow-artifacts:/")
        return None if prefix or self.has_server else self.folder / ARTIFACTS / path.lstrip("/")

    def _runs(self) -> dict[str, list[Run]]:
        # Key -> its runs, the newest first. All processes see the same order, because generations
        # and ids never change.
        by_key: dict[str, list[Run]] = {}
        token: str | None = ""
        while token is not None:
            page = self.client.search_runs([self.id], max_results=PAGE, page_token=token or None)
            for run in page:
                if key := run.data.tags.get(KEY):
                    by_key.setdefault(key, []).append(run)
            token = page.token or None
        for runs in by_key.values():
            runs.sort(key=lambda run: (_generation(run), run.info.run_id), reverse=True)
        return by_key

    def _clean(self, runs: Mapping[str, list[Run]], tracked: Sequence[Tracked]) -> None:
        # Delete replaced runs and correct the tags of the others.
        parents = {run.key: run.parent for run in tracked}
        for key, (current, *older) in runs.items():
            for run in older:
                self.client.delete_run(run.info.run_id)
                if target := self._local_files(run):
                    shutil.rmtree(target, ignore_errors=True)
            tags = {"in_study": "true" if key in parents else "false"}
            if parent := runs.get(parents.get(key, "")):
                tags[PARENT] = parent[0].info.run_id
            for name, value in tags.items():
                if current.data.tags.get(name) != value:
                    self.client.set_tag(current.info.run_id, name, value)


def _generation(run: Run) -> int:
    # A user can edit or delete a tag: a run without a number is the oldest.
    text = run.data.tags.get(GENERATION, "")
    return int(text) if text.isdecimal() else 0


def _is_current(old: Run, run: Tracked) -> bool:
    status = "FINISHED" if run.complete else "RUNNING"
    return (old.data.tags.get(DIGEST), old.info.status) == (run.digest, status)


def _client(address: str) -> MlflowClient:
    # MLflow logs its migrations, and a traceback in addition to what it raises.
    logging.getLogger("mlflow.store").setLevel(logging.CRITICAL)
    from mlflow import MlflowClient

    file = database_file(address)
    if file is not None and not file.exists():
        # Built elsewhere and renamed: no process sees, or migrates, an incomplete database.
        with tempfile.TemporaryDirectory() as folder, atomic(file) as path:
            new = Path(folder, "mlflow.db")
            MlflowClient(f"sqlite:///{new}").search_experiments(max_results=1)
            shutil.copyfile(new, path)
    return MlflowClient(address)


# ---------------------------------------------------------------- addresses and errors


def address_of(results: Path, uri: str | None) -> str:
    """Return the address of MLflow: MLFLOW_TRACKING_URI, else ``uri``, else ``mlflow.db`` in the
    results folder, relative to the working directory like that folder.

    Raises:
        ConfigError: MLflow cannot use the address.
    """
    address = os.environ.get("MLFLOW_TRACKING_URI") or uri or f"sqlite:///{results / 'mlflow.db'}"
    kind = address.partition(":")[0].partition("+")[0]
    usable = kind == "databricks"
    if kind == "sqlite":
        # SQLAlchemy reads the part after a question mark as options, which only file: has.
        usable = "?" not in address or ":///file:" in address
    else:
        with suppress(ValueError):  # the port is no number
            usable = usable or _host(address) is not None
    if not usable:
        raise ConfigError(
            "the MLflow tracking address",
            got=without_credentials(address),
            expected="http(s)://host[:port], sqlite:///file.db without '?', or another database",
            do="set MLFLOW_TRACKING_URI or tracking_uri in config.yaml",
        )
    return address


def database_file(address: str) -> Path | None:
    """Return the file of a SQLite address, relative or absolute as it is there; None for any other
    address."""
    prefix, _, path = address.partition(":///")
    if prefix.partition("+")[0] != "sqlite" or not path:
        return None
    return Path(unquote(path[5:].partition("?")[0]) if path.startswith("file:") else path)


def without_credentials(text: str) -> str:
    """Return a text whose addresses, ``scheme://user:password@host/path?token=...``, are cut to
    ``scheme://host/path``. The path of a SQLite database stays as it is."""
    return re.sub(
        r"\b(?!sqlite)([a-z][a-z0-9+.-]*://)(?:[^/\s'\"]*@)?([^\s'\"?#<>]*)(?:[?#][^\s'\"<>]*)?",
        r"\1\2",
        text,
    )


def _silence(address: str) -> OSError | None:
    """Return why no server accepts connections at an address, if it names a server and none does. A
    dead one costs CONNECT_SECONDS and not minutes."""
    if host := _host(address):
        try:
            socket.create_connection(host, CONNECT_SECONDS).close()
        except OSError as error:
            return error
    return None


def _host(address: str) -> tuple[str, int] | None:
    parts = urlsplit(address)
    port = _PORTS.get(parts.scheme.partition("+")[0])
    return (parts.hostname, parts.port or port) if parts.hostname and port else None


def _advice(error: Exception, file: Path | None) -> str:
    text = f"{type(error).__name__} {error}"
    advice = next((do for pattern, do in _ADVICE.items() if re.search(pattern, text)), "")
    if file is not None:
        return "make that file writable" if "writable" in advice else advice or _MOVE_AWAY
    return advice or "look at its log"


def _reason(error: Exception) -> str:
    # The first line of an error, or the cause that it names.
    line = (str(error).splitlines() or [type(error).__name__])[0]
    cause = re.search(r"\(Caused by (.*)\)$", line)
    return without_credentials((cause[1] if cause else line)[:200])
