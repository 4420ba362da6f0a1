"""What copying a study of many runs to MLflow takes: to a SQLite file, and to a server on
PostgreSQL with its files in an object store (docs/scale.md).

    python tools/benchmarks/bench_mlflow.py [--runs 2000] [--rounds 20] [--only NAME ...]
    [--out FILE]

The results are made up, ten seeds for each setting, in the files that the rules write. ``mlflow
server`` is started as docs/mlflow.md says; PostgreSQL and the object store (moto) are those of the
tests, on this machine. file, postgresql: one job copies a tenth of the runs, then another
study of all of them: seconds, CPU seconds and largest memory of the job, seconds of a second job
that finds everything there, and CPU seconds and largest memory of the server, its database
included. ``exponents`` are the slopes of log cost over log runs. together: two jobs copy the same
study from two folders of results to PostgreSQL at once; one is killed when half of the runs are
there, and started again. It fails unless every run, and each of its files, is there exactly once. A
job that MLflow refused is started again, which is counted (``attempts``).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import fake_results
import lab
from mlflow_server import free_port
from pflpipe.pipeline import mlflow_export
from pflpipe.study.study_spec import Study

SEEDS = range(10)
BUCKET = "mlflow"
TRIES = 10


class Place(NamedTuple):
    """Where runs are copied to: the address, the first processes there, and the store of files."""

    address: str
    processes: list[psutil.Process]
    store: lab.ObjectStore | None


def study(runs: int, rounds: int) -> Study:
    """Return a study of so many runs, ten seeds for each epsilon."""
    base = fake_results.BASE
    base = dataclasses.replace(base, training=dataclasses.replace(base.training, rounds=rounds))
    epsilons = [1 + 0.01 * number for number in range(runs // len(SEEDS))]
    return fake_results.study(f"runs_{runs}", SEEDS, epsilons, ["dp_fedavg"], base)


def copy(folder: str, runs: int, rounds: int, address: str) -> None:
    """Copy the results of a study to MLflow in this process, as the rule ``track`` does."""
    results = Path(folder) / "results"
    print(mlflow_export.at_the_end(study(runs, rounds), results, results / "done", address))


def job(folder: Path, runs: int, rounds: int, address: str) -> subprocess.Popen[str]:
    """Start a process that copies."""
    case = json.dumps([str(folder), runs, rounds, address])
    return subprocess.Popen(
        [sys.executable, __file__, "--case", case], stdout=subprocess.PIPE, text=True
    )


def finished(folder: Path, runs: int, rounds: int, address: str) -> dict[str, float]:
    """Copy until MLflow took everything; return seconds, CPU seconds, memory and attempts."""
    found = {"seconds": 0.0, "cpu_seconds": 0.0, "megabytes": 0.0}
    for attempt in range(1, TRIES + 1):
        began, process = time.monotonic(), job(folder, runs, rounds, address)
        assert process.stdout
        text = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        found["seconds"] += time.monotonic() - began
        found["cpu_seconds"] += used.ru_utime + used.ru_stime
        found["megabytes"] = max(found["megabytes"], used.ru_maxrss / 1024)
        if text.startswith("done"):
            return found | {"attempts": attempt}
    sys.exit(f"{text}\ngiven up after {TRIES} attempts")


@contextlib.contextmanager
def file(folder: Path) -> Iterator[Place]:
    """A SQLite file, without a server."""
    yield Place(f"sqlite:///{folder / 'mlflow.db'}", [], None)


@contextlib.contextmanager
def postgresql(folder: Path) -> Iterator[Place]:
    """A server on PostgreSQL with its files in an object store."""
    store, database = lab.ObjectStore(BUCKET), lab.PostgreSQL().start()
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    words = ["--backend-store-uri", database.uri, "--artifacts-destination", f"s3://{BUCKET}"]
    words += ["--workers", "2", "--port", str(port)]
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *words],
            cwd=folder,
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", **store.environment},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        while not answers(address):
            if process.poll() is not None:
                sys.exit((folder / "server.log").read_text())
            time.sleep(0.5)
        yield Place(
            address, [psutil.Process(each.pid) for each in (process, database.process)], store
        )
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        database.remove()
        store.stop()


def answers(address: str) -> bool:
    """Return whether a server answers."""
    try:
        return bool(urllib.request.urlopen(f"{address}/health", timeout=5).status == 200)
    except (urllib.error.URLError, OSError):
        return False


def used(place: Place) -> dict[str, float]:
    """Return CPU seconds and resident memory, without shared pages, of the processes of a place."""
    every = [each for first in place.processes for each in (first, *first.children(recursive=True))]
    times = [process.cpu_times() for process in every]
    return {
        "server_cpu_seconds": sum(
            time.user + time.system + time.children_user + time.children_system for time in times
        ),
        "server_megabytes": sum(process.memory_full_info().pss for process in every) / 2**20,
    }


def alone(place: Place, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return what a tenth of the runs takes, and all of them."""
    found = {}
    sizes = [args.runs // 10, args.runs]
    for runs in sizes:
        results = folder / str(runs)
        fake_results.write(study(runs, args.rounds), results)
        before = used(place)
        words = results, runs, args.rounds, place.address
        case = finished(*words)
        after = used(place)
        case["again_seconds"] = finished(*words)["seconds"]
        case["server_cpu_seconds"] = after["server_cpu_seconds"] - before["server_cpu_seconds"]
        case["server_megabytes"] = after["server_megabytes"]
        if place.store:
            case["requests"] = place.store.requests.total()
            place.store.requests.clear()
        check(place, runs)
        found[str(runs)] = case
    names = "seconds", "cpu_seconds", "megabytes", "again_seconds"
    costs = {name: [case[name] for case in found.values()] for name in names}
    found["exponents"] = {
        name: float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
        for name, values in costs.items()
    }
    return found


def together(place: Place, folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of two jobs at once, one of which is killed and started again."""
    what = args.runs, args.rounds, place.address
    folders = [folder / name for name in ("one", "other")]
    for each in folders:
        fake_results.write(study(args.runs, args.rounds), each)
    began = time.monotonic()
    jobs = [job(each, *what) for each in folders]
    client = mlflow_export._client(place.address)
    # Both write: half of the runs are there when the entries are as many as the runs.
    while jobs[1].poll() is None and sum(1 for _ in listed(client, args.runs)) < args.runs:
        time.sleep(5)
    jobs[1].kill()
    jobs[1].wait()
    killed = time.monotonic() - began
    again = finished(folders[1], *what)
    assert jobs[0].stdout
    attempts = again["attempts"] + 1
    if not jobs[0].stdout.read().startswith("done"):
        attempts += finished(folders[0], *what)["attempts"]
    seconds = time.monotonic() - began
    check(place, args.runs)
    return {"killed_after_seconds": killed, "seconds": seconds, "attempts": attempts} | used(place)


def listed(client: Any, runs: int) -> Iterator[Any]:
    """Yield the active entries of the study in MLflow: runs, groups and the study's own."""
    experiment, token = client.get_experiment_by_name(f"runs_{runs}"), ""
    while experiment is not None and token is not None:
        page = client.search_runs(
            [experiment.experiment_id], max_results=1000, page_token=token or None
        )
        yield from page
        token = page.token or None


def check(place: Place, runs: int) -> None:
    """End the program unless each run is there once, with its two files in the store."""
    entries = list(listed(mlflow_export._client(place.address), runs))
    keys = [entry.data.tags["pflpipe.key"] for entry in entries]
    seeds = [entry for entry in entries if "seed" in entry.data.tags]
    wanted = 1 + runs // len(SEEDS) + runs
    if not len(keys) == len(set(keys)) == wanted or len(seeds) != runs:
        sys.exit(f"{len(keys)} entries, {len(set(keys))} keys, {len(seeds)} runs of {wanted}")
    if {entry.info.status for entry in entries} != {"FINISHED"}:
        sys.exit("a run is not finished")
    if place.store:
        there = place.store.keys(BUCKET)
        for entry in seeds:
            path = entry.info.artifact_uri.partition(":/")[2].lstrip("/")
            if not {f"{path}/run.json", f"{path}/rounds.csv"} <= there:
                sys.exit(f"the files of {entry.info.run_name} are not in the store")


def main() -> None:
    """Run the cases and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000, help="of the larger study: n x 100")
    parser.add_argument("--rounds", type=int, default=20, help="of each run")
    parts = {"file": file, "postgresql": postgresql, "together": postgresql}
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.case:
        return copy(*args.case)
    if why := lab.missing(database=True):
        return print(why)
    result: dict[str, Any] = {}
    for name in args.only:
        with tempfile.TemporaryDirectory() as folder, parts[name](Path(folder)) as place:
            measure = together if name == "together" else alone
            result[name] = measure(place, Path(folder), args)
        print(json.dumps({name: result[name]}, indent=1), flush=True)
    result |= {"python": platform.python_version(), "processors": os.cpu_count()}
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
