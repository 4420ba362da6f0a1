"""What a short run costs on a SLURM of three nodes, by the way in which its job is submitted
(docs/scale.md, docs/slurm.md).

    python tools/benchmarks/bench_slurm.py [--runs 50] [--ways job array group node methods gloo]
    [--group 20] [--long 0] [--nodes 3] [--cpus 2] [--out slurm.json]

The work: the quickstart's data and network with one round, trained and tested, each way in a folder
of its own, with ``profiles/slurm``. job: one job for each run. array: ``--slurm-array-jobs train``.
group: so many runs share a job, one after the other. node: all of the study in one job
(``profiles/slurm/one_job.sh``). methods: one such job for each of five methods. --long adds a
second study at the same time, whose few runs have 2,000 rounds and a job each. The nodes are
daemons of this machine (tests/slurm.py), so seconds of CPU count, not wall time: those on the
nodes, with the scripts, Snakemake and SLURM's own processes of a job; and those of the Snakemake
that submits. The script is what the program of a run measures itself, with its imports; in a node's
one job it is a fork, without them.

gloo: wall-clock seconds in which a process on each of two nodes gathers the results of 10 and of
100 clients with the CNN for CIFAR-10, as two processes of a run do in each round. The nodes share
this machine, so this is what no network is faster than.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from bench_overhead import ENVIRONMENT, ROOT, SEEDS, STUDY

from pflpipe.simulation.processes import Processes

sys.path.insert(0, str(ROOT / "tests"))
from slurm import Slurm, missing

WAYS = ("job", "array", "group", "node", "methods")
METHODS = ("dp_fedavg", "fedrep", "fedper", "fedavg", "local_only")
SNAKEMAKE, PROFILE = ".venv/bin/snakemake", ("--profile", "profiles/slurm")


def commands(way: str, cpus: int, group: int, targets: list[str]) -> list[list[str]]:
    """Return the commands of docs/slurm.md that submit in a way, to be given at the same time."""
    if way in ("node", "methods"):
        words = ["sbatch", "--wait", f"--cpus-per-task={cpus}", "profiles/slurm/one_job.sh"]
        return [[*words, *targets]] if way == "node" else [[*words, target] for target in targets]
    words = [SNAKEMAKE, *PROFILE]
    if way == "array":
        words += ["--slurm-array-jobs", "train"]
    if way == "group":
        words += ["--groups", "train=runs", "--group-components", f"runs={group}", "--cores", "1"]
        words += ["--set-resources", "train:runtime=5"]
    return [[*words, "--", *targets]]


def write_studies(folder: Path, runs: int, long: int) -> list[str]:
    """Write a project with a study of so many runs, and one of so many long runs, and return what
    to ask Snakemake for in the first."""
    (folder / "studies").mkdir(parents=True)
    for name in ("Snakefile", "workflow", "profiles"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "config.yaml").write_text("studies: [many]\n", encoding="utf-8")
    rates = [round(0.001 * step, 3) for step in range(1, runs // (len(SEEDS) * len(METHODS)) + 1)]
    many = {"seeds": SEEDS, "axes": {"training.lr": rates}}
    many |= {"methods": [{"name": name} for name in METHODS]}
    few = {"seeds": list(range(long)), "methods": [{"name": "dp_fedavg"}]}
    few["partition"] = STUDY["partition"] | {"clients": 90}  # which tells their runs apart
    for name, rounds, study in (("many", 1, many), ("few", 2000, few)):
        study = STUDY | study | {"training": STUDY["training"] | {"rounds": rounds}}
        (folder / "studies" / f"{name}.yaml").write_text(json.dumps(study), encoding="utf-8")
    return [f"results/scores/many/{name}.csv" for name in METHODS]


def script_seconds(files: Iterable[Path]) -> list[float]:
    """Return the CPU seconds that programs measured of themselves."""
    rows = [next(csv.DictReader(file.open(encoding="utf-8"), delimiter="\t")) for file in files]
    return [float(row["cpu_time"]) for row in rows]


def run_at_once(cluster: Slurm, folder: Path, commands: list[list[str]]) -> float:
    """Give commands in a project at the same time, and return their CPU seconds."""
    processes = []
    for number, words in enumerate(commands):
        inside = cluster.inside("env", f"--chdir={folder}", *words)
        with (folder / f"log{number}").open("w", encoding="utf-8") as log:
            processes += [subprocess.Popen(inside, env=ENVIRONMENT, stdout=log, stderr=log)]
    seconds = 0.0
    for number, process in enumerate(processes):
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit((folder / f"log{number}").read_text(encoding="utf-8")[-5000:])
        seconds += used.ru_utime + used.ru_stime
    return seconds


def measure(way: str, args: argparse.Namespace) -> dict[str, float]:
    """Run a study in a way on a SLURM of its own, and return what it took."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)  # munged wants its socket where everybody may look
        folder, cluster = place / "project", Slurm(place / "slurm", args.nodes, args.cpus)
        targets = write_studies(folder, args.runs, args.long)
        first, together = [], commands(way, args.cpus, args.group, targets)
        if way == "methods":  # what the jobs share
            first = [[SNAKEMAKE, "--cores", "2", "--until", "plan", "partition", "--", *targets]]
        if args.long:
            together += [[SNAKEMAKE, *PROFILE, "--", "results/scores/few/dp_fedavg.csv"]]
        cluster.start()
        try:
            began = time.perf_counter()
            submission = sum(run_at_once(cluster, folder, step) for step in (first, together))
            wall, on_nodes = time.perf_counter() - began, cluster.cpu_seconds()
            files = set(folder.glob("results/benchmarks/*/**/*.tsv"))
            long = set(folder.glob("results/benchmarks/train/*x90-*.tsv"))
            if way in ("node", "methods"):  # nobody has the time of a fork (pipeline/forks.py)
                own_job = long | set(folder.glob("results/benchmarks/evaluate/few/*.tsv"))
                on_nodes += sum(script_seconds(files - own_job))
            submitted = cluster.answer("squeue", "--states=all", "--noheader", "--format=%F")
            short = script_seconds(set(folder.glob("results/benchmarks/train/*.tsv")) - long)
            for_long = sum(script_seconds(long))
            return {
                "runs": len(short),
                "long_runs": len(long),
                "jobs": len(cluster.history("")),
                "submissions": len(set(submitted.split())),
                "wall_seconds": wall,
                "cpu_seconds_on_nodes": on_nodes,
                "cpu_seconds_of_submission": submission,
                "cpu_seconds_of_long_scripts": for_long,
                "cpu_seconds_per_run": (on_nodes + submission - for_long) / len(short),
                "of_these_the_script": statistics.fmean(short),
            }
        finally:
            cluster.stop()


def gather(clients: int, repeats: int = 5) -> None:
    """Print the wall-clock seconds in which two processes gather a round's results of so many
    clients with the CNN for CIFAR-10 (343,946 parameters)."""
    torch.set_num_threads(1)
    rank = int(os.environ["SLURM_PROCID"])
    dist.init_process_group("gloo", rank=rank, world_size=2)
    both = Processes(rank, 2)
    own = torch.ones(clients // 2, 343_946)
    shares = [list(range(clients // 2)), list(range(clients // 2, clients))]
    taken = []
    for _ in range(repeats):
        dist.barrier()
        began = time.perf_counter()
        both.gather(own, shares)
        taken.append(time.perf_counter() - began)
    if both.is_first:
        print(min(taken))
    dist.destroy_process_group()


def two_nodes(clients: int) -> float:
    """Return what ``gather`` prints for a process on each of two nodes."""
    with tempfile.TemporaryDirectory() as name, socket.socket() as free:
        Path(name).chmod(0o755)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        cluster = Slurm(Path(name) / "slurm", 2)
        cluster.start()
        try:
            path = f"PYTHONPATH={ROOT / 'src'}"
            words = ["env", path, "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={port}", "srun", "-N2"]
            words += ["-n2", sys.executable, __file__, "--gather", str(clients)]
            return float(cluster.answer(*words))
        finally:
            cluster.stop()


def main() -> None:
    """Measure each way in turn and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=50, help="n x 50")
    parser.add_argument("--long", type=int, default=0, help="runs with 2,000 rounds besides")
    parser.add_argument("--ways", nargs="+", choices=[*WAYS, "gloo"], default=[*WAYS, "gloo"])
    parser.add_argument("--group", type=int, default=20, help="runs that share a job")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--cpus", type=int, default=2, help="of each node")
    parser.add_argument("--gather", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.gather:
        gather(args.gather)
        return
    if why := missing():
        print(why)
        return
    result: dict[str, Any] = {}
    if "gloo" in args.ways:
        args.ways.remove("gloo")
        result["gloo"] = {str(clients): two_nodes(clients) for clients in (10, 100)}
        print("gloo", json.dumps(result["gloo"]), flush=True)
    for way in args.ways:
        result[way] = {key: round(value, 2) for key, value in measure(way, args).items()}
        print(way, json.dumps(result[way]), flush=True)
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
