"""What the pipeline costs around the training: start-up of a job, what a job takes beyond its rounds, and planning many runs.

    python benchmarks/bench_overhead.py [--repeats 5] [--runs 10000] [--out overhead.json]

Everything is measured from outside, on whole processes, with the operating system's account of them; a bare ``import torch`` is
measured between them. The work is a cell of the quickstart: 100 clients, 2,410 parameters.

start-up: a job that trains one round of one step, less a bare ``import torch``. It contains reading the data, the first calls
    into torch's libraries, and writing the results.
overhead: the wall-clock time of a whole job of 30 rounds, as Snakemake starts it, less the seconds of its rounds that
    ``timing.csv`` counts.
dry run: CPU seconds of ``snakemake --dry-run`` for a study with so many runs, and for as many jobs with four inputs and four
    outputs in a workflow that is nothing else: what Snakemake takes itself.

Prints medians over the repeats; the dry runs are done once.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pflpipe.cells import Cell, Model, Partition, Privacy, Training
from pflpipe.files import canonical_json
from pflpipe.workflow import partition_request, plan_request

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "workflow" / "scripts"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}

BARE = """
rule all:
    input: [f"runs/{{i}}/f0" for i in range({runs})]
rule run:
    input: "a", "b", "c", "d"
    output: ["runs/{{i}}/" + f"f{{n}}" for n in range(4)]
    log: "logs/{{i}}"
    shell: "true"
"""


def measure(command: list[str | Path], folder: Path) -> tuple[float, float]:
    """Run a command in a folder to its end and return its wall-clock and its CPU seconds, those of its children included."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
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
        self.folder, self.out = folder, folder / wanted.id
        data, partition, plan = folder / "digits.npz", folder / f"{wanted.partition_id}.npz", folder / f"{wanted.plan_id}.json"
        if not data.exists():
            measure([sys.executable, SCRIPTS / "data.py", "--dataset", "digits", "--target", data], folder)
        words = ["--cell", partition_request(wanted), "--data", data, "--target", partition]
        measure([sys.executable, SCRIPTS / "partition.py", *words], folder)
        measure([sys.executable, SCRIPTS / "plan.py", "--cell", plan_request(wanted), "--out", plan], folder)
        inputs = ["--cell", canonical_json(wanted.to_dict()), "--plan", plan, "--partition", partition, "--data", data]
        outputs = ["--out", self.out, "--checkpoints", folder / "checkpoints"]
        self.command = [sys.executable, SCRIPTS / "train.py", *inputs, *outputs, "--device", "cpu"]

    def run(self) -> tuple[float, float, float]:
        """Return the wall-clock and CPU seconds of the job and the wall-clock seconds of its rounds."""
        wall, cpu = measure(self.command, self.folder)
        with (self.out / "timing.csv").open(encoding="utf-8") as file:
            return wall, cpu, sum(float(row["seconds"]) for row in csv.DictReader(file))


def jobs(folder: Path, repeats: int) -> dict[str, float]:
    """Return medians over repeats of a bare import, a job of one step and a whole job, one after the other."""
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
    return {f"{name}_seconds": round(statistics.median(values), 2) for name, values in found.items()}


def dry_run(folder: Path, runs: int) -> dict[str, float]:
    """Return the CPU seconds of planning a study of so many runs, and of planning as many jobs in a bare workflow."""
    (folder / "studies").mkdir()
    seeds, rates = range(10), [round(0.001 * step, 3) for step in range(1, runs // 20 + 1)]
    study = {
        "title": "many",
        "description": "as many runs as asked for",
        "dataset": "digits",
        "partition": {"kind": "dirichlet", "clients": 100, "alpha": 0.3, "min_size": 6, "test_fraction": 0.2},
        "model": {"name": "mlp", "hidden": [32]},
        "training": {"rounds": 30, "local_epochs": 5, "batch_size": 0, "optimizer": "sgd", "lr": 0.25},
        "privacy": {"delta": 0.001, "epsilon": 2, "clip_norm": 1.0},
        "seeds": list(seeds),
        "axes": {"training.lr": rates},
        "methods": [{"name": "dp_fedavg"}, {"name": "fedrep"}],
    }
    (folder / "studies" / "many.yaml").write_text(json.dumps(study), encoding="utf-8")
    (folder / "config.yaml").write_text("studies: [many]\n", encoding="utf-8")
    snakemake = [
        Path(sys.executable).parent / "snakemake",
        "--dry-run",
        "--quiet",
        "all",
        "--cores",
        "1",
        "--directory",
        folder,
    ]
    ours = measure([*snakemake, "--snakefile", ROOT / "Snakefile", "--", "results/tables/many.csv"], ROOT)[1]
    for name in "abcd":
        (folder / name).touch()
    (folder / "Snakefile").write_text(BARE.format(runs=runs), encoding="utf-8")
    bare = measure([*snakemake, "--snakefile", folder / "Snakefile", "--workflow-profile", "none", "--", "all"], folder)[1]
    cells = 2 * len(seeds) * len(rates)
    return {"runs": cells, "dry_run_cpu_seconds": round(ours, 1), "bare_snakemake_cpu_seconds": round(bare, 1)}


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--runs", type=int, default=10_000, help="of the study that is planned, a multiple of 20")
    parser.add_argument("--out")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = jobs(Path(folder), args.repeats) | dry_run(Path(folder), args.runs)
    text = json.dumps(result | {"python": platform.python_version(), "processors": os.cpu_count()}, indent=1)
    print(text)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
