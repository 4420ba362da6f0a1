"""What the pipeline costs around the training: start-up of a job, what a job takes beyond its
rounds, and planning many runs.

    python tools/benchmarks/bench_overhead.py [--repeats 5] [--runs 10000] [--out overhead.json]

Everything is measured from outside, on whole processes, with the operating system's account of
them; a bare ``import torch`` is measured between them. The work is a cell of the quickstart: 100
clients, 2,410 parameters.

start-up: a job that trains one round of one step, less a bare ``import torch``. It contains reading
the data, the first calls
    into torch's libraries, and writing the results.
overhead: the wall-clock time of a whole job of 30 rounds, started by its script, less the seconds
of its rounds that
    ``timing.csv`` counts; with the import of torch and beyond it.
snakemake: the same cell through ``snakemake``. ``pipeline_job`` is the job as Snakemake's
``benchmark`` measures it,
    ``pipeline_overhead`` that less its rounds, ``pipeline_beyond_job`` what the whole call takes
    beyond the job: to start, to plan and to finish. ``plan_quickstart`` is ``snakemake --dry-run``
    of the quickstart.
dry run: CPU seconds of ``snakemake --dry-run`` for the table of a study with so many runs, for a
study whose search tries as
    many, for everything of the first study (figures and MLflow too), and for as many jobs with four
    inputs and an output in a workflow that is nothing else: what Snakemake takes itself.
    ``exponent`` is the growth from a tenth of the runs to all of them, of what comes on top of a
    plan of 20 runs: 1 where it grows in proportion.

Prints medians over the repeats; the dry runs are done once.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pflpipe.cells import Cell, Model, Partition, Privacy, Training
from pflpipe.files import canonical_json
from pflpipe.methods import registry
from pflpipe.pipeline.project import partition_request, plan_request

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "workflow" / "scripts"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}

STUDY = {
    "title": "many",
    "description": "as many runs as asked for",
    "dataset": "digits",
    "partition": {
        "kind": "dirichlet",
        "clients": 100,
        "alpha": 0.3,
        "min_size": 6,
        "test_fraction": 0.2,
    },
    "model": {"name": "mlp", "hidden": [32]},
    "training": {"rounds": 30, "local_epochs": 5, "batch_size": 0, "optimizer": "sgd", "lr": 0.25},
    "privacy": {"delta": 0.001, "epsilon": 2, "clip_norm": 1.0},
}
METHODS, SEEDS = ("dp_fedavg", "fedrep"), list(range(10))
BARE = """
rule all:
    input: [f"runs/{{i}}" for i in range({runs})]
rule run:
    input: "a", "b", "c", "d"
    output: "runs/{{i}}"
    log: "logs/{{i}}"
    shell: "true"
"""


def measure(command: list[str | Path], folder: Path) -> tuple[float, float]:
    """Run a command in a folder to its end and return its wall-clock and its CPU seconds, those of
    its children included."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    message = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{command}: exit {process.returncode}\n{message}")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime


def cell(rounds: int, local_epochs: int) -> Cell:
    """Return a run of the quickstart, or a shorter one."""
    return Cell(
        dataset="digits",
        partition=Partition("dirichlet", 100, alpha=0.3, min_size=6, test_fraction=0.2),
        model=Model("mlp", (32,)),
        training=Training(rounds, local_epochs, 0, "sgd", 0.25),
        privacy=Privacy("gaussian", epsilon=2.0, delta=1e-3, clip_norm=1.0),
        method="dp_fedavg",
    )


class Job:
    """The job that trains a cell, ready to be started again and again; its inputs are made once."""

    def __init__(self, wanted: Cell, folder: Path) -> None:
        self.folder, self.out = folder, folder / registry.run_id(wanted)
        data, partition, plan = (
            folder / "digits.npz",
            folder / f"{wanted.partition_id}.npz",
            folder / f"{wanted.plan_id}.json",
        )
        if not data.exists():
            measure(
                [sys.executable, SCRIPTS / "data.py", "--dataset", "digits", "--target", data],
                folder,
            )
        words = ["--cell", partition_request(wanted), "--data", data, "--target", partition]
        measure([sys.executable, SCRIPTS / "partition.py", *words], folder)
        measure(
            [sys.executable, SCRIPTS / "plan.py", "--cell", plan_request(wanted), "--out", plan],
            folder,
        )
        inputs = ["--cell", canonical_json(wanted.to_dict()), "--inputs", plan, partition, data]
        outputs = ["--out", self.out, "--checkpoints", folder / "checkpoints"]
        self.command = [sys.executable, SCRIPTS / "train.py", *inputs, *outputs, "--device", "cpu"]

    def run(self) -> tuple[float, float, float]:
        """Return the wall-clock and CPU seconds of the job and the wall-clock seconds of its
        rounds."""
        wall, cpu = measure(self.command, self.folder)
        return wall, cpu, seconds_of_rounds(self.out)


def seconds_of_rounds(run: Path) -> float:
    """Return the wall-clock seconds that a run's rounds took together."""
    with (run / "timing.csv").open(encoding="utf-8") as file:
        return sum(float(row["seconds"]) for row in csv.DictReader(file))


def jobs(folder: Path, repeats: int) -> dict[str, float]:
    """Return medians over repeats of a bare import, a job of one step and a whole job, one after
    the other."""
    first, whole = Job(cell(1, 1), folder), Job(cell(30, 5), folder)
    found: dict[str, list[float]] = {}
    for repeat in range(repeats + 1):
        wall_torch, torch = measure([sys.executable, "-c", "import torch"], folder)
        wall_first, cpu_first, _ = first.run()
        wall, cpu, training = whole.run()
        values = {
            "import_torch_cpu": torch,
            "import_torch_wall": wall_torch,
            "startup_cpu": cpu_first - torch,
            "startup_wall": wall_first - wall_torch,
            "job_cpu": cpu,
            "job_wall": wall,
            "training_wall": training,
            "overhead_wall": wall - training,
            "overhead_beyond_torch_wall": wall - training - wall_torch,
        }
        for name, value in values.items():
            if repeat:  # the first warms the file cache up
                found.setdefault(name, []).append(value)
    return {
        f"{name}_seconds": round(statistics.median(values), 2) for name, values in found.items()
    }


def snakemake(folder: Path, snakefile: Path, *words: str | Path) -> tuple[float, float]:
    """Run Snakemake on a folder to its end and return its wall-clock and CPU seconds."""
    program = Path(sys.executable).parent / "snakemake"
    return measure(
        [
            program,
            "--quiet",
            "all",
            "--cores",
            "1",
            "--directory",
            folder,
            "--snakefile",
            snakefile,
            *words,
        ],
        ROOT,
    )


def pipeline(folder: Path, repeats: int) -> dict[str, float]:
    """Return medians over repeats of the whole job through Snakemake, and of planning the
    quickstart."""
    shutil.copytree(ROOT / "studies", folder / "studies")
    one = {**STUDY, "seeds": [0], "methods": [{"name": "dp_fedavg"}]}
    (folder / "studies" / "one.yaml").write_text(json.dumps(one), encoding="utf-8")
    (folder / "config.yaml").write_text(
        "studies: [one]\ncheckpoint_seconds: 60\ndevice: cpu\n", encoding="utf-8"
    )
    run = f"results/runs/{registry.run_id(cell(30, 5))}"
    found: dict[str, list[float]] = {}
    for repeat in range(repeats + 1):
        wall, _ = snakemake(folder, ROOT / "Snakefile", "--force", "--", run)
        with (folder / "results" / "benchmarks" / "train" / f"{Path(run).name}.tsv").open(
            encoding="utf-8"
        ) as file:
            (row,) = csv.DictReader(file, delimiter="\t")
        job, training = float(row["s"]), seconds_of_rounds(folder / run)
        plan = snakemake(
            folder, ROOT / "Snakefile", "--dry-run", "--", "results/tables/quickstart.csv"
        )[0]
        values = {
            "pipeline_job_wall": job,
            "pipeline_overhead_wall": job - training,
            "pipeline_beyond_job_wall": wall - job,
            "plan_quickstart_wall": plan,
        }
        for name, value in values.items():
            if repeat:  # the first makes the data, the partition and the plan as well
                found.setdefault(name, []).append(value)
    return {
        f"{name}_seconds": round(statistics.median(values), 2) for name, values in found.items()
    }


def dry_run(folder: Path, runs: int) -> dict[str, float]:
    """Return the CPU seconds of planning so many runs in several ways."""
    (folder / "studies").mkdir()
    (folder / "config.yaml").write_text("studies: [many]\n", encoding="utf-8")
    for name in "abcd":
        (folder / name).touch()
    found: dict[str, list[float]] = {}
    for number in (20, runs // 10, runs):
        rates = [round(0.001 * step, 3) for step in range(1, number // 20 + 1)]
        many = {
            **STUDY,
            "seeds": SEEDS,
            "axes": {"training.lr": rates},
            "methods": [{"name": name} for name in METHODS],
        }
        searched = [{"name": name, "search": {"training.lr": rates}} for name in METHODS]
        search = {"seeds": [100 + seed for seed in SEEDS], "validation_fraction": 0.2}
        tried = {**STUDY, "seeds": [0], "search": search, "methods": searched}
        for name, study in {"many": many, "tried": tried}.items():
            (folder / "studies" / f"{name}.yaml").write_text(json.dumps(study), encoding="utf-8")
        (folder / "Snakefile").write_text(BARE.format(runs=number), encoding="utf-8")
        for name, (snakefile, *words) in {
            "dry_run": (ROOT / "Snakefile", "--", "results/tables/many.csv"),
            "search": (
                ROOT / "Snakefile",
                "--config",
                "studies=[tried]",
                "--",
                "results/tables/tried.csv",
            ),
            "everything": (ROOT / "Snakefile",),
            "bare_snakemake": (folder / "Snakefile", "--workflow-profile", "none", "--", "all"),
        }.items():
            found.setdefault(name, []).append(snakemake(folder, snakefile, "--dry-run", *words)[1])
    values: dict[str, float] = {"runs": runs}
    for name, (few, tenth, all_of_them) in found.items():
        values[f"{name}_cpu_seconds"] = round(all_of_them, 1)
        values[f"{name}_exponent"] = round(math.log10((all_of_them - few) / (tenth - few)), 2)
    return values


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--runs",
        type=int,
        default=10_000,
        help="of the study that is planned: a multiple of 200, from 2,000",
    )
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.runs < 2_000 or args.runs % 200:
        parser.error("--runs is a multiple of 200, and at least 2,000 for the growth to stand out")
    result: dict[str, float] = {}
    for part, number in ((jobs, args.repeats), (pipeline, args.repeats), (dry_run, args.runs)):
        with tempfile.TemporaryDirectory() as folder:
            result |= part(Path(folder), number)
    text = json.dumps(
        result | {"python": platform.python_version(), "processors": os.cpu_count()}, indent=1
    )
    print(text)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
