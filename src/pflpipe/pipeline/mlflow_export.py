"""Copies the results of a study to MLflow: the runs of a method as soon as it is tested, the run
of the study at the end.

Training never imports MLflow. The unit is a group: the run of a setting with those of its seeds.
Each is written once, in bulk. Its digest and its end are written last, so that a group that an
interrupted export left is known: the next export deletes and writes it again, as it does with a
group whose content has changed. A lock admits one process of a folder at a time. Machines that
share a server share no lock; of groups that both have written, the next export keeps one.

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
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pflpipe.errors import ConfigError, PflpipeError, counted
from pflpipe.files import atomic, canonical_json, write_text

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from pflpipe.pipeline.mlflow_runs import Tracked
    from pflpipe.study.config import Config
    from pflpipe.study.study_spec import Study

PATIENCE = 600.0
"""Seconds to wait for the lock of the folder."""
CONNECT_SECONDS = 5
PAGE = 50
"""Runs that are read in one call. A busy server needs five seconds for 200."""
ARTIFACTS = "mlartifacts"
"""The folder for the files of runs, next to the database or in the results; see docs/mlflow.md."""
METRICS_PER_CALL, PARAMS_PER_CALL = 800, 100
"""MLflow's REST API accepts 1000 metrics, params and tags per call."""
PARENT = "mlflow.parentRunId"
VIEW = "pflpipe"
"""The key of the view that the printed address opens; MLflow keeps a shared view as a tag."""
LISTED = "tags.level != 'run'"
PAGE_OPTIONS = f"viewStateShareKey={VIEW}&workflowType=machine_learning"
"""The best run first, and not in the mode for language models, which is MLflow's default."""
LOCAL_SERVER = "http://127.0.0.1:5000"
"""Where ``mlflow ui`` answers by default."""
UI = "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow ui --workers 1"
"""The command for a person's own server: two processes that are there in a third of the time, in
place of ten. Jobs are what MLflow has for language models."""
KEY, DIGEST = "pflpipe.key", "pflpipe.digest"
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(CONNECT_SECONDS),
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""MLflow's own defaults wait four minutes for a dead server, print two lines for every run, and
report usage to its makers."""
MODULES = ("mlflow", "mlflow.store.tracking.sqlalchemy_store")
"""What an export imports, which takes two seconds (pipeline/forks.py)."""
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


class Outage(PflpipeError):
    """MLflow did not accept a study."""


def track(name: str, settings: Config) -> str:
    """Export the study of this name, or its methods that are tested if it has no table yet; returns
    and raises as ``export``, and ConfigError if its runs are in an object store."""
    from pflpipe.report import tidy
    from pflpipe.study import load

    results = settings.results_dir
    if settings.store:
        do = f"snakemake --cores 1 --force {results}/tracking/{name}.done"
        what = f"{settings.source}: store"
        raise ConfigError(what, got=settings.store, expected="runs on this disk", do=do)
    study = load.load_study(name, results=results)
    is_done = (results / "tables" / f"{name}.csv").exists()
    methods = None if is_done else tidy.tested(study, results).methods
    return export(study, results, settings.tracking_uri, methods)


def export(
    study: Study, results: Path, uri: str | None = None, methods: Collection[str] | None = None
) -> str:
    """Write the runs of a study that its MLflow experiment does not have.

    Args:
        results: folder with scores, runs, plans, figures and tables.
        uri: the address, as in ``address_of``.
        methods: only their runs; None: those of all methods, and the run of the study. Then what is
            no longer in the study is deleted.

    Returns:
        ``done: ...``, with the address of the runs at its end.

    Raises:
        ConfigError: MLflow cannot use the address. DataError: a result is missing.
        Outage: MLflow did not accept it.
    """
    from filelock import FileLock
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    from pflpipe.pipeline import mlflow_runs

    address = address_of(results, uri)
    tracked = mlflow_runs.of_study(study, results, methods)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    where, file = without_credentials(address), database_file(address)
    folder = file.parent if file else results
    try:
        if silence := _silence(address):
            raise silence
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".mlflow.lock", timeout=PATIENCE):
            experiment = _Experiment(address, folder, study)
            counts = experiment.write(tracked, is_complete=methods is None)
    except (OSError, MlflowException, SQLAlchemyError) as error:
        # A server that ends breaks connections off; whether it has ended, only a new one shows.
        cause = (_silence(address) if re.search(_BROKEN_OFF, str(error)) else None) or error
        what = f"{where} did not take study {study.name} ({_reason(cause)})"
        raise Outage(what, do=_advice(cause, file)) from error
    there, rows = counts.total(), len(study.rows)
    runs = f"{there} of {rows} runs" if there < rows else counted(rows, "run")
    text = ", ".join(f"{count} {what}" for what, count in counts.items())
    server = where.rstrip("/") if address.startswith("http") else LOCAL_SERVER
    page = f"{server}/#/experiments/{experiment.id}/runs?{PAGE_OPTIONS}"
    return f"done: {runs} ({text}) in experiment {study.name} at {where}, page {page}"


def export_or_warn(
    study: Study,
    results: Path,
    marker: Path,
    uri: str | None = None,
    methods: Collection[str] | None = None,
    failures: int = 0,
) -> str:
    """Export as ``export`` does, and write a marker file. An outage is a warning and no error.

    Args:
        marker: gets ``done: ...``, or ``pending: ...`` after an outage.
        failures: number of outages before this attempt, kept in the marker.

    Returns:
        The first line of the marker.

    Raises:
        As ``export``, except Outage.
    """
    try:
        text = export(study, results, uri, methods)
    except Outage as error:
        text = f"pending: {error}"
        if methods is None:  # else the export of the whole study tries again, and warns
            print(f"warning: {error}; nothing is lost, the next run tries again", file=sys.stderr)
    write_text(marker, f"{text}\n" + f"failed before: {failures}\n" * (failures > 0))
    return text


class _Experiment:
    """The experiment of a study.

    Args:
        address: of MLflow.
        folder: for the files of runs, unless a server stores them.
    """

    def __init__(self, address: str, folder: Path, study: Study) -> None:
        from pflpipe.pipeline.mlflow_runs import NOTE, experiment_note

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
        first = f"metrics.`{next(iter(study.columns))}`"
        view: dict[str, Any] = {"selectedColumns": [first, "tags.`claim`", "tags.`epsilon`"]}
        # MLflow does not show what is sorted as a tree, so the runs of seeds are left out.
        view |= {"orderByKey": first, "orderByAsc": study.metric.sign < 0, "searchFilter": LISTED}
        tags = {f"mlflow.sharedViewState.{VIEW}": canonical_json(view)}
        # A user's note stays.
        if experiment.tags.get(NOTE, "") == experiment.tags.get("pflpipe.note", ""):
            tags |= {NOTE: note, "pflpipe.note": note, "kind": "diagnostics"}
        for key, value in tags.items():
            if experiment.tags.get(key) != value:
                self.client.set_experiment_tag(self.id, key, value)

    def write(self, tracked: Sequence[Tracked], *, is_complete: bool) -> Counter[str]:
        """Write the groups that are new or changed; return how many runs of seeds are new, kept and
        replaced.

        Args:
            is_complete: whether these are all runs of the study, so that others are deleted.
        """
        written: dict[str, list[Run]] = {}
        for run in self._search(LISTED):
            written.setdefault(run.data.tags.get(KEY, ""), []).append(run)
        written.pop("", None)  # a user's own
        counts = Counter(new=0, kept=0, replaced=0)
        for group in tracked:
            digest = group.digest
            # All exports keep the same one of several.
            old = sorted(written.pop(group.key, []), key=lambda run: run.info.run_id)
            kept = [run for run in old if _is_complete(run, digest)][:1]
            for run in old:
                if run not in kept:
                    self._delete(run)
            if not kept:
                self._create(group, digest)
            counts["kept" if kept else "replaced" if old else "new"] += len(group.seeds)
        for runs in written.values() if is_complete else ():
            for run in runs:
                self._delete(run)
        return counts

    def _search(self, condition: str) -> list[Run]:
        found: list[Run] = []
        token: str | None = ""
        while token is not None:
            page = self.client.search_runs([self.id], condition, 1, PAGE, page_token=token or None)
            found += page
            token = page.token or None
        return found

    def _create(self, run: Tracked, digest: str = "", parent: str = "") -> None:
        from mlflow.entities import Metric, Param, RunTag

        tags = {**run.tags, KEY: run.key} | ({PARENT: parent} if parent else {})
        created = self.client.create_run(self.id, run.start or None, tags, run.name)
        id = str(created.info.run_id)
        for seed in run.seeds:
            self._create(seed, parent=id)
        local = self._local_files(created)
        for name, file in run.files.items():
            if local is None:
                self.client.log_artifact(id, str(file), os.path.dirname(name))
            else:
                (local / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, local / name)
        metrics = [Metric(*point) for point in run.points]
        params = [Param(*item) for item in run.params.items()]
        # Few calls, because each costs several transactions.
        calls = math.ceil(max(len(metrics) / METRICS_PER_CALL, len(params) / PARAMS_PER_CALL, 1))
        for call in range(calls):
            some = metrics[call * METRICS_PER_CALL : (call + 1) * METRICS_PER_CALL]
            given = params[call * PARAMS_PER_CALL : (call + 1) * PARAMS_PER_CALL]
            last = [RunTag(DIGEST, digest)] if digest and call == calls - 1 else ()
            self.client.log_batch(id, some, given, last)
        self.client.set_terminated(id, "FINISHED", run.end or None)

    def _delete(self, group: Run) -> None:
        id = group.info.run_id
        self.client.set_tag(id, DIGEST, "")  # first, so that it is not kept without its seeds
        for run in [*self._search(f"tags.`{PARENT}` = '{id}'"), group]:
            self.client.delete_run(run.info.run_id)
            if target := self._local_files(run):
                shutil.rmtree(target, ignore_errors=True)

    def _local_files(self, run: Run) -> Path | None:
        # The place where a server that is started on this database finds a run's files.
        prefix, _, path = run.info.artifact_uri.partition("mlflow-artifacts:/")
        return None if prefix or self.has_server else self.folder / ARTIFACTS / path.lstrip("/")


def _is_complete(group: Run, digest: str) -> bool:
    return (group.data.tags.get(DIGEST), group.info.status) == (digest, "FINISHED")


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
        what, got = "the MLflow tracking address", without_credentials(address)
        expected = "http(s)://host[:port], sqlite:///file.db without '?', or another database"
        do = "set MLFLOW_TRACKING_URI or tracking_uri in config.yaml"
        raise ConfigError(what, got=got, expected=expected, do=do)
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
