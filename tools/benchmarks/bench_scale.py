"""How a run grows with the population and the cohort, what memory it takes, what a second process
gains; and how a study grows with its runs and its clients (docs/scale.md).

    python tools/benchmarks/bench_scale.py [--images 50000] [--rounds 50] [--repeats 5]
    [--runs 10000] [--clients 100000] [--stored 100] [--out scale.json] [--only NAME ...]

The work: CIFAR-10 CNN (343,946 parameters), every client has 5 random images, batch 5, one local
epoch of Adam per round; random images cost what real ones do. Each case is a process of its own
with one thread, measured from inside by its rounds after the first and from outside by the largest
memory that it had resident.

thousand: 1,000 clients, a cohort of 100 (q = 0.1), T = 50: DP-FedAvg, and FedDPA whose clients keep
a model each. population: FedDPA with a cohort of 100 of 1,000, 3,000 and 10,000 clients: seconds a
round should not grow. cohort: FedDPA with cohorts of 50, 100 and 200 of 10,000 clients: seconds a
round should grow in proportion. processes: DP-FedAvg with 10 clients of 200 images, batch 16, by
one process and by two, in turn; and evaluation of all.

planning: CPU seconds and largest memory of ``snakemake --dry-run`` for the table of a study with
so many runs, and with a tenth of them in a batch. files: a study of fedavg with 4 and then with 12
seeds is run up to its MLflow runs: files, bytes, bytes of the database and of Snakemake's own
records for each further run. store: the same for studies whose runs, plans and partitions are in an
object store, with its requests and objects, next to the same studies on the disk. clients: people
with 4 training answers to 135 questions each, the network ``embedding`` with a private head, 100 of
whom take part: CPU seconds and bytes of the partition, CPU seconds of a round, of the evaluation of
all and of the scores file, its bytes, those of the states file and of what a checkpoint notes of
it, largest memory until the partition is read, and until the end. partitions: CPU seconds, largest
memory and bytes of the pipeline's step that divides a data set of 5 rows for each client, for each
kind. states: all clients are drawn once, 1,000 in a round, with a state of 72 bytes each: CPU
seconds of reading and writing the states of the first and of the last rounds, of a checkpoint's
notes, of saving, of loading with all checksums, and of reading all in the evaluation's blocks.
``exponents`` are the slopes of log cost over log size.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from bench_overhead import ENVIRONMENT, METHODS, SEEDS, STUDY

from pflpipe import cells
from pflpipe.data import partition
from pflpipe.data.datasets import Arrays, prepare
from pflpipe.data.split import Split
from pflpipe.files import with_digest, write_text
from pflpipe.learning import networks
from pflpipe.methods import registry
from pflpipe.pipeline.project import partition_request
from pflpipe.privacy.plan import Plan
from pflpipe.simulation import rounds, runs, scores
from pflpipe.simulation.clients import Examples
from pflpipe.simulation.evaluation import BLOCK, accuracies
from pflpipe.simulation.processes import joined
from pflpipe.simulation.simulation import Simulation
from pflpipe.simulation.states import States

ROOT = Path(__file__).resolve().parents[2]


def simulation(
    method: str, clients: int, cohort: int, size: int, batch_size: int, rounds: int
) -> Simulation:
    """Return a run on random images, ``size`` for each client; the common test set has 200."""
    generator = torch.Generator().manual_seed(0)
    train, test = (
        Examples(
            torch.randn(n, 32, 32, 3, generator=generator),
            torch.randint(0, 10, (n,), generator=generator),
        )
        for n in (clients * size, 200)
    )
    nothing = [np.arange(0)] * clients
    entry = registry.info(method)
    return Simulation(
        method=entry.factory(),
        network=networks.build(cells.Model("cnn_cifar"), (32, 32, 3), 10),
        plan=Plan("gaussian", 2, 1.0, 1.0, cohort / clients, rounds, 1e-5, clients),
        training=cells.Training(rounds, 1, batch_size, "adam", 1e-3, sample_rate=cohort / clients),
        departures=frozenset(entry.about.departures),
        split=Split(
            list(np.arange(clients * size).reshape(clients, size)), nothing, nothing, np.arange(200)
        ),
        train=train,
        test=test,
        seed=0,
        key="benchmark",
        backend="loop",
    )


def measure(words: dict[str, Any]) -> None:
    """Run one case in this process and print what it took as JSON."""
    torch.set_num_threads(1)
    evaluates = words.pop("evaluate", False)
    with joined("cpu") as (processes, _), tempfile.TemporaryDirectory() as folder:
        # The processes of a run see one file of states; without a method that keeps any there is
        # none.
        run = dataclasses.replace(simulation(**words), processes=processes)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        progress = rounds.run(
            run, rounds.start(run, Path(folder) / "states" if processes.size == 1 else None)
        )
        began = time.perf_counter()
        if evaluates:
            accuracies(run, progress)
        result = {
            "seconds_per_round": statistics.fmean(row["seconds"] for row in progress.timing[1:]),
            "participants_per_round": statistics.fmean(
                row["participants"] for row in progress.rows[1:]
            ),
            "evaluation_seconds": time.perf_counter() - began if evaluates else None,
            "megabytes_before_training": before / 1024,
            "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "megabytes_of_states": sum(file.stat().st_size for file in Path(folder).iterdir())
            / 2**20,
        }
        if processes.is_first:
            print(json.dumps(result))


def child(processes: int = 1, **words: Any) -> dict[str, float]:
    """Run one case in processes of its own."""
    torchrun = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        if processes > 1
        else []
    )
    command = [sys.executable, *torchrun, __file__, "--case", json.dumps(words)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{words}: exit {done.returncode}\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure_clients(clients: int) -> None:
    """Run one round of a federation of so many clients and print what everything took as JSON."""
    torch.set_num_threads(1)
    draw = np.random.default_rng(0)
    count, items = 5 * clients, 135
    x = draw.integers(0, items, (count, 1)).astype(np.float32)
    y = np.arange(count) % 2
    arrays = Arrays(x, y, x[:200], y[:200], 2)
    asked = cells.Partition("iid", clients, test_fraction=0.2)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        began = time.process_time()
        split = partition.make(arrays, asked, 0)
        split.save(place / "partition.npz")
        split = Split.load(place / "partition.npz")
        found["partition_seconds"] = time.process_time() - began
        found["partition_megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rate = min(1.0, 100 / clients)
        run = Simulation(
            method=registry.info("fedper").factory(),
            network=networks.build(cells.Model("embedding", (8,), items=items), (1,), 2),
            plan=Plan("gaussian", 2, 1.0, 1.0, rate, 2, 1e-9, clients),
            training=cells.Training(2, 1, 5, "sgd", 0.1, sample_rate=rate),
            departures=frozenset(),
            split=split,
            train=Examples(torch.from_numpy(x), torch.from_numpy(y)),
            test=Examples(torch.from_numpy(x[:200]), torch.from_numpy(y[:200])),
            seed=0,
            key="benchmark",
            backend="vmap",
        )
        progress = rounds.start(run, place / "states")
        rounds.one_round(run, progress)
        began = time.process_time()
        rounds.one_round(run, progress)
        found["round_seconds"] = time.process_time() - began
        began = time.process_time()
        rows = accuracies(run, progress)
        found["evaluation_seconds"] = time.process_time() - began
        began = time.process_time()
        blank = dict.fromkeys(scores.COLUMNS, math.nan) | {"cell": "0" * 40}
        text = runs.text_of(scores.COLUMNS, (blank | row for row in rows))
        write_text(place / "scores.csv", with_digest(text))
        found["scores_seconds"] = time.process_time() - began
        drawn = len(progress.states.save(place / "saved")["trained"])
        torch.save(progress.states.notes(), place / "notes.pt")
        for name in ("partition.npz", "notes.pt", "scores.csv"):
            found[f"{Path(name).stem}_bytes"] = (place / name).stat().st_size
        found["state_bytes_per_client_drawn"] = (place / "saved").stat().st_size / max(drawn, 1)
    found["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(found))


def measure_states(clients: int, cohort: int = 1000) -> None:
    """Draw each of so many clients once and print what its state took as JSON."""
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    order = np.random.default_rng(0).permutation(clients)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        states = States({"head": torch.zeros(2, 9)}, clients, place / "states")

        def measured(name: str, work: Callable[[], Any]) -> Any:
            began = time.process_time()
            result = work()
            found[f"{name}_seconds"] = time.process_time() - began
            return result

        def some_rounds(states: States, firsts: range) -> States:
            for first in firsts:
                drawn = sorted(order[first : first + cohort].tolist())
                head = states.of(drawn)["head"]
                states = states.replaced(drawn, {"head": head + 1})
            return states

        firsts = range(0, clients, cohort)
        tenth = max(len(firsts) // 10, 1)
        states = measured("first_rounds", lambda: some_rounds(states, firsts[:tenth]))
        states = some_rounds(states, firsts[tenth:-tenth])
        states = measured("last_rounds", lambda: some_rounds(states, firsts[-tenth:]))
        for name in ("first", "last"):
            found[f"{name}_round_seconds"] = found.pop(f"{name}_rounds_seconds") / tenth
        measured("notes", states.notes)
        notes = measured("save", lambda: states.save(place / "saved"))
        loaded = measured("load", lambda: States.load(notes, place / "saved"))
        blocks = (range(clients)[first : first + BLOCK] for first in range(0, clients, BLOCK))
        total = measured("read", lambda: sum(int(loaded.of(b)["head"].sum()) for b in blocks))
        found["clients_drawn"] = total / 18
        found["bytes"] = (place / "saved").stat().st_size
    found["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(found))


def exponent(x: list[float], y: list[float]) -> float:
    """Return the slope of log y over log x, by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def thousand(args: argparse.Namespace) -> dict[str, Any]:
    """Return what 1,000 clients take."""
    words = {"clients": 1000, "cohort": 100, "size": 5, "batch_size": 5, "rounds": args.rounds}
    return {method: child(method=method, **words) for method in ("dp_fedavg", "feddpa")}


def population(args: argparse.Namespace) -> dict[str, Any]:
    """Return what the same cohort takes of a larger and larger population."""
    largest = args.images // 5
    sizes = [largest // 10, 3 * largest // 10, largest]
    words = {
        "method": "feddpa",
        "cohort": min(100, sizes[0]),
        "size": 5,
        "batch_size": 5,
        "rounds": max(args.rounds // 5, 2),
    }
    found = {str(clients): child(clients=clients, **words) for clients in sizes}
    return found | {
        "exponent": exponent(sizes, [case["seconds_per_round"] for case in found.values()])
    }


def cohort(args: argparse.Namespace) -> dict[str, Any]:
    """Return what a larger and larger cohort takes of the same population."""
    words = {
        "method": "feddpa",
        "clients": args.images // 5,
        "size": 5,
        "batch_size": 5,
        "rounds": max(args.rounds // 5, 2),
    }
    found = {str(size): child(cohort=size, **words) for size in (50, 100, 200)}
    drawn, seconds = (
        [case[name] for case in found.values()]
        for name in ("participants_per_round", "seconds_per_round")
    )
    return found | {"exponent": exponent(drawn, seconds)}


def processes(args: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of one process and of two, measured in turn."""
    words = {
        "method": "dp_fedavg",
        "clients": 10,
        "cohort": 10,
        "size": min(200, args.images // 10),
        "batch_size": 16,
    }
    words |= {"rounds": max(args.rounds // 8, 2), "evaluate": True}
    found = [[child(count, **words) for count in (1, 2)] for _ in range(args.repeats)]
    ratios: dict[str, Any] = {}
    for name in ("seconds_per_round", "evaluation_seconds"):
        one, two = zip(*[[case[name] for case in pair] for pair in found], strict=True)
        ratios[name] = {"one": statistics.median(one), "two": statistics.median(two)}
        ratios[name]["speedup"] = statistics.median(map(lambda a, b: a / b, one, two))
    return ratios


def snakemake(folder: Path, *words: str, **environment: str) -> dict[str, float]:
    """Run Snakemake on a folder; return what it took."""
    program = Path(sys.executable).parent / "snakemake"
    options = ["--quiet", "all", "--cores", "1", "--directory", folder]
    command = [program, *options, "--snakefile", ROOT / "Snakefile", *words]
    return measured_from_outside(command, **environment)


def measured_from_outside(command: Sequence[Any], **environment: str) -> dict[str, float]:
    """Run a command; return its CPU seconds, children included, and its memory."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT | environment, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{command}: exit {process.returncode}")
    return {"cpu_seconds": used.ru_utime + used.ru_stime, "megabytes": used.ru_maxrss / 1024}


def planning(args: argparse.Namespace) -> dict[str, Any]:
    """Return what planning a study of more and more runs takes."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "studies").mkdir()
        (folder / "config.yaml").write_text("studies: [many]\n", encoding="utf-8")
        sizes = [args.runs // 10, 3 * args.runs // 10, args.runs]
        words = ("--dry-run", "--", "results/tables/many.csv")
        for number in sizes:
            rates = [round(0.001 * step, 3) for step in range(1, number // 20 + 1)]
            methods = [{"name": name} for name in METHODS]
            study = {**STUDY, "seeds": SEEDS, "axes": {"training.lr": rates}, "methods": methods}
            (folder / "studies" / "many.yaml").write_text(json.dumps(study), encoding="utf-8")
            found[str(number)] = snakemake(folder, *words)
        batch = snakemake(folder, "--batch", "table=1/10", *words)
    return {**found, "exponents": exponents(sizes, found), "batch of a tenth": batch}


def left_by(seeds: int, store: str, environment: dict[str, str]) -> dict[str, float]:
    """Return what a study of fedavg with so many seeds leaves on the disk, and its seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "studies").mkdir()
        settings = {"studies": ["few"]} | ({"store": store} if store else {})
        (folder / "config.yaml").write_text(json.dumps(settings), encoding="utf-8")
        training = STUDY["training"] | {"rounds": 1}
        study = {key: value for key, value in STUDY.items() if key != "privacy"}
        study |= {"seeds": list(range(seeds)), "methods": [{"name": "fedavg"}]}
        study |= {"training": training}
        (folder / "studies" / "few.yaml").write_text(json.dumps(study), encoding="utf-8")
        began = time.monotonic()
        used = snakemake(folder, "--", "results/tracking/few.done", **environment)
        paths = [path for path in folder.rglob("*") if path.is_file()]
        records = [path for path in paths if ".snakemake" in path.parts]
        database = folder / "results" / "mlflow.db"
        return used | {
            "seconds": time.monotonic() - began,
            "files": len(paths),
            "files of snakemake": len(records),
            "folders": sum(path.is_dir() for path in folder.rglob("*")),
            "bytes": sum(path.stat().st_size for path in paths),
            "bytes of mlflow.db": database.stat().st_size,
        }


def each_further(few: dict[str, float], more: dict[str, float], runs: int) -> dict[str, float]:
    """Return the difference of two studies for each run that the second has more."""
    return {name: (more[name] - few[name]) / runs for name in few}


def files(args: argparse.Namespace) -> dict[str, Any]:
    """Return what each further run leaves on the disk, and its share of the CPU time."""
    return each_further(left_by(4, "", {}), left_by(12, "", {}), 8)


def store(args: argparse.Namespace) -> dict[str, Any]:
    """Return the same for studies in an object store (moto, on this machine) and on the disk."""
    sys.path.insert(0, str(ROOT / "tests"))
    from lab import ObjectStore

    sizes = args.stored // 10, args.stored
    stored, on_disk = [], [left_by(size, "", {}) for size in sizes]
    for size in sizes:
        place = ObjectStore("results")
        used = left_by(size, "s3://results/lab", place.environment)
        used |= {f"requests {method}": count for method, count in place.requests.items()}
        stored.append(used | {"objects": len(place.keys("results"))})
        place.stop()
    further = sizes[1] - sizes[0]
    return {
        "stored": stored[1],
        "each further run": each_further(*stored, further),
        "each further run on the disk": each_further(*on_disk, further),
        "exponents": exponents([0, *sizes], dict(zip(map(str, sizes), stored, strict=True))),
    }


def clients(args: argparse.Namespace) -> dict[str, Any]:
    """Return what more and more clients take."""
    sizes = [args.clients // 100, args.clients // 10, args.clients]
    found = {str(number): child(case="clients", clients=number) for number in sizes}
    return {**found, "exponents": exponents(sizes, found)}


def divided(clients: int, kind: dict[str, Any]) -> dict[str, float]:
    """Return what the pipeline's step takes that divides 5 rows for each client."""
    rows = 5 * clients
    raw = {"train_images": np.zeros((rows, 1), np.float32), "train_labels": np.arange(rows) % 10}
    raw |= {"test_images": raw["train_images"][:200], "test_labels": raw["train_labels"][:200]}
    if kind["kind"] == "natural":
        raw |= {
            "train_users": np.arange(rows) % clients,
            "test_users": np.arange(len(raw["test_labels"])),
        }
    nothing = cells.Model(""), cells.Training(0, 0, 0, "", 0.0), cells.Privacy()
    asked = cells.Partition(clients=clients, test_fraction=0.2, **kind)
    cell = cells.Cell("rows", asked, *nothing, method="", seed=0)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        np.savez(place / "raw.npz", **raw)
        prepare("rows", place / "raw.npz", place, place / "rows.npz")
        words = ["--cell", partition_request(cell), "--data", place / "rows.npz"]
        script, target = ROOT / "workflow" / "scripts" / "partition.py", place / "made.npz"
        used = measured_from_outside([sys.executable, script, *words, "--target", target])
        return used | {"bytes": target.stat().st_size}


def partitions(args: argparse.Namespace) -> dict[str, Any]:
    """Return what dividing a data set over more and more clients takes, by kind."""
    kinds: list[dict[str, Any]] = [
        {"kind": "iid"},
        {"kind": "natural"},
        {"kind": "dirichlet", "alpha": 0.5},
        {"kind": "pathological", "classes_per_client": 2},
    ]
    sizes = [args.clients // 100, args.clients // 10, args.clients]
    result = {}
    for kind in kinds:
        found = {str(number): divided(number, kind) for number in sizes}
        result[kind["kind"]] = {**found, "exponents": exponents(sizes, found)}
    return result


def states(args: argparse.Namespace) -> dict[str, Any]:
    """Return what the states of more and more clients take."""
    sizes = [args.clients // 100, args.clients // 10, args.clients]
    found = {str(number): child(case="states", clients=number) for number in sizes}
    return {**found, "exponents": exponents(sizes, found)}


def exponents(sizes: list[int], found: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the growth of every quantity from the second size to the last."""
    last = [found[str(number)] for number in sizes[1:]]
    return {name: exponent(sizes[1:], [case[name] for case in last]) for name in last[0]}


PARTS = {
    part.__name__: part
    for part in (
        *(thousand, population, cohort, processes, planning, files, store, clients),
        *(partitions, states),
    )
}


def rounded(value: Any) -> Any:
    """Return the same with numbers of four digits, for people."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) and math.isfinite(value) else value


def main() -> None:
    """Run the cases and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--images", type=int, default=50_000, help="of the largest population, 5 for each client"
    )
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument(
        "--repeats", type=int, default=5, help="of the comparison of one process with two"
    )
    parser.add_argument(
        "--runs", type=int, default=10_000, help="of the largest study that is planned: n x 200"
    )
    parser.add_argument("--clients", type=int, default=100_000, help="of the largest federation")
    parser.add_argument(
        "--stored", type=int, default=100, help="runs of the larger study in an object store"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.case:
        of = {"clients": measure_clients, "states": measure_states}
        case = of.get(args.case.pop("case", ""))
        return case(**args.case) if case else measure(args.case)
    result = {name: PARTS[name](args) for name in args.only}
    result |= {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processors": os.cpu_count(),
    }
    text = json.dumps(rounded(result), indent=1)
    print(text)
    if args.out:
        Path(args.out).write_text(text + "\n", encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
