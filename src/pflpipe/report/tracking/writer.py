"""The writer: makes an experiment what the entries say, whatever an earlier one left there.

Runs of entries are told by a tag with their key. Every other tag of ours that begins with
``pflpipe.`` is this writer's: fingerprints of what it has written, last of all, so that what was
interrupted has none and is written again.

MLflow has no locks, so two writers of one results folder take turns (sync.py), and those of two
folders that share a server may meet. Each leaves alone what the other has just begun, and looks
again when it is done: of what both wrote, both keep what was begun last. Whoever looks last sees
everything. Where MLflow fails because the other was faster, one begins again.
"""

from __future__ import annotations

import hashlib
import logging
import math
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pflpipe.files import atomic, canonical_json
from pflpipe.report.tracking import address as addresses
from pflpipe.report.tracking.entries import NOTE, Entry, Point
from pflpipe.study.settings import MEASURED

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Run
    from mlflow.tracking import MlflowClient

# MLflow's REST API accepts 1000 metrics, params and tags together.
METRICS_PER_CALL, PARAMS_PER_CALL = 800, 100
ABANDONED = 600.0
"""Seconds after which a run that another folder's writer has begun is not at work any more."""
PARENT = "mlflow.parentRunId"


class Writer:
    """The one writer of an experiment.

    Args:
        address: of MLflow, which answers.
        results: folder that has the files of runs if no server keeps them.
        name, note: of the experiment.
        me: whose writing this is, the same for every writer of one results folder.
    """

    def __init__(self, address: str, results: Path, name: str, note: str, me: str) -> None:
        self.me = me
        file = addresses.database_file(address)
        self.files = file.parent if file else results
        self.has_server = addresses.keeps_files(address)
        self.client = _connect(address)
        self.experiment = self._experiment(name, note)

    def run(self, entries: Sequence[Entry]) -> dict[str, int]:
        """Make the run of every entry new, kept or replaced; runs of cells that left the study
        stay, marked as such. Returns how many of the cells' runs were."""
        counts = {"new": 0, "kept": 0, "replaced": 0}
        before = self._runs()
        ids: dict[str, str] = {}
        replaced: list[Run] = []
        written = False
        for entry in entries:
            old = before.pop(entry.key, [])
            parent = ids.get(entry.parent, "")
            kept, how = self._write(entry, old, parent)
            ids[entry.key] = kept
            replaced += (run for run in old if run.info.run_id != kept)
            written |= how != "kept"
            counts[how] += "pflpipe.cell" in entry.tags
        for run in replaced:
            if not self._is_fresh_of_another(run):
                self.client.delete_run(run.info.run_id)
        for run in (run for runs in before.values() for run in runs):
            self._tag(run, "in_study", "false")
        if written:
            self._settle(entries)
        return counts

    def _write(self, entry: Entry, old: Sequence[Run], parent: str) -> tuple[str, str]:
        status = "FINISHED" if entry.complete else "RUNNING"
        for run in old:
            if run.data.tags.get("pflpipe.digest") == entry.digest and run.info.status == status:
                self._tag(run, "in_study", "true")
                if parent:
                    self._tag(run, PARENT, parent)
                return run.info.run_id, "kept"
        names = {name for name, *_ in entry.points}
        for run in old:
            # Numbers cannot be taken back: only one that has none of the second stage goes on.
            is_begun = run.data.tags.get("pflpipe.begun") == entry.begun
            if is_begun and run.data.metrics.keys() <= names:
                if parent:
                    self._tag(run, PARENT, parent)
                self._finish(run, entry)
                return run.info.run_id, "replaced" if run.info.status == "FINISHED" else "new"
        run = self._begin(entry, parent)
        self._finish(run, entry, entry.points, entry.params)
        return run.info.run_id, "replaced" if old else "new"

    def _begin(self, entry: Entry, parent: str) -> Run:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        tags = {**entry.tags, "in_study": "true", "pflpipe.key": entry.key}
        tags |= {"pflpipe.writer": f"{self.me} {time.time():.3f}"}
        tags |= {PARENT: parent} if parent else {}
        run = self.client.create_run(
            self.experiment.experiment_id,
            start_time=entry.start or None,
            run_name=entry.name,
            tags=tags,
        )
        if entry.dataset:
            name, profile = entry.dataset
            text = canonical_json(profile)
            digest = _digest(f"{name} {text}")[:8]
            data = Dataset(name, digest, "local", canonical_json({"uri": name}), profile=text)
            inputs = [DatasetInput(data, [InputTag("mlflow.data.context", "training")])]
            self.client.log_inputs(run.info.run_id, inputs)
        return run

    def _finish(
        self,
        run: Run,
        entry: Entry,
        points: Sequence[Point] = (),
        words: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Attach files, log what is still missing, and end a run that is complete.

        Args:
            points, words: numbers and parameters of the first stage, unless the run has them.
        """
        from mlflow.entities import Metric, Param, RunTag

        self._attach(run, entry)
        marks = {"pflpipe.begun": entry.begun, "pflpipe.digest": entry.digest}
        if entry.complete:
            points, marks = [*points, *entry.finals], {**marks, **entry.final_tags}
        # Few calls, because each is some transactions; the tags in the last.
        metrics = [Metric(name, value, stamp, step) for name, value, stamp, step in points]
        params = [Param(name, value) for name, value in words.items()]
        tags = [RunTag(name, value) for name, value in marks.items()]
        calls = max(
            math.ceil(len(metrics) / METRICS_PER_CALL), math.ceil(len(params) / PARAMS_PER_CALL), 1
        )
        for call in range(calls):
            self.client.log_batch(
                run.info.run_id,
                metrics=metrics[call * METRICS_PER_CALL : (call + 1) * METRICS_PER_CALL],
                params=params[call * PARAMS_PER_CALL : (call + 1) * PARAMS_PER_CALL],
                tags=tags if call == calls - 1 else (),
            )
        if entry.complete:
            self.client.set_terminated(run.info.run_id, "FINISHED", end_time=entry.end)

    def _attach(self, run: Run, entry: Entry) -> None:
        if not entry.files:
            return
        location = urlsplit(run.info.artifact_uri)
        if not self.has_server and location.scheme == "mlflow-artifacts":
            # Where a server finds them that is started on this database.
            for name, path in entry.files.items():
                target = self.files / addresses.ARTIFACTS / location.path.lstrip("/") / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            return
        with tempfile.TemporaryDirectory() as folder:
            for name, path in entry.files.items():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / name).symlink_to(path.resolve())
            self.client.log_artifacts(run.info.run_id, folder)

    # ------------------------------------------------------------ what is there

    def _runs(self) -> dict[str, list[Run]]:
        found: dict[str, list[Run]] = {}
        for run in self._search():
            # Earlier versions had no other runs than those of cells.
            key = run.data.tags.get("pflpipe.key") or run.data.tags.get("pflpipe.cell")
            is_at_work = self._is_fresh_of_another(run) and run.info.status == "RUNNING"
            if key and not is_at_work:
                found.setdefault(key, []).append(run)
        return found

    def _is_fresh_of_another(self, run: Run) -> bool:
        # Whether another folder's writer began it, which may be at work now.
        writer, began = _begun(run)
        return writer not in ("", self.me) and time.time() - began < ABANDONED

    def _search(self) -> Iterator[Run]:
        token: str | None = None
        while True:
            page = self.client.search_runs(
                [self.experiment.experiment_id], max_results=1000, page_token=token
            )
            yield from page
            token = page.token
            if not token:
                return

    def _settle(self, entries: Sequence[Entry]) -> None:
        ids: dict[str, str] = {}
        found = self._runs()
        for key, runs in found.items():
            # Both writers see the same times, so they agree, whatever their clocks say.
            last, *others = sorted(
                runs, key=lambda run: (_begun(run)[1], run.info.run_id), reverse=True
            )
            for run in others:
                self.client.delete_run(run.info.run_id)
            ids[key], found[key] = last.info.run_id, [last]
        for entry in entries:
            if entry.parent in ids and entry.key in found:
                self._tag(found[entry.key][0], PARENT, ids[entry.parent])

    def _tag(self, run: Run, name: str, value: str) -> None:
        if run.data.tags.get(name) != value:
            self.client.set_tag(run.info.run_id, name, value)

    def _experiment(self, name: str, note: str) -> Experiment:
        found = self.client.get_experiment_by_name(name)
        if found is None:
            # A server says itself where files go. With a database alone they go where a server
            # looks that is started beside it, wherever that folder is moved to.
            location = None if self.has_server else f"mlflow-artifacts:/{name}"
            self.client.create_experiment(name, artifact_location=location)
            found = self.client.get_experiment_by_name(name)
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        old = found.tags.get(NOTE, "")
        is_ours = old in ("", MEASURED) or found.tags.get("pflpipe.note") == _digest(old)
        if old != note and is_ours:  # whatever somebody else wrote there stays
            tags = {NOTE: note, "pflpipe.note": _digest(note), "kind": "diagnostics"}
            for key, value in tags.items():
                self.client.set_experiment_tag(found.experiment_id, key, value)
        return found


def _begun(run: Run) -> tuple[str, float]:
    # Whose writing a run is, and since when; of earlier versions nobody's.
    writer, _, began = run.data.tags.get("pflpipe.writer", "").partition(" ")
    return writer, float(began or 0)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _connect(address: str) -> MlflowClient:
    # MLflow logs its migrations, and a traceback besides what it raises.
    logging.getLogger("mlflow.store").setLevel(logging.CRITICAL)
    from mlflow.tracking import MlflowClient

    file = addresses.database_file(address)
    if file is not None and not file.exists():
        # Built beside its target and renamed: nobody ever sees, or migrates, half a database.
        with atomic(file) as path:
            path.unlink()
            MlflowClient(f"sqlite:///{path.resolve()}").search_experiments(max_results=1)
    return MlflowClient(address)
