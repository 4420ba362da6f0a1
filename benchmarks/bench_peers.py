"""pflpipe beside other frameworks that simulate federated learning, on the same work: rounds of
DP-FedAvg.

    make bench-peers
    python benchmarks/bench_peers.py --peers-python PYTHON [--repeats 3] [--rounds 5] [--peers pfl
    flwr] [--processes 1]
                                     [--evaluations central each] [--data cifar10.npz] [--out
                                     peers.json]

The work (peers/work.py): CIFAR-10 CNN with 343,946 parameters, 10 clients with equal shares of
2,000 images, one local epoch of Adam (learning rate 1e-3) in batches of 16, updates clipped to 1,
Gaussian noise on their sum, mean; 400 images to test on, 256 at once. Evaluations, the same for
all: ``none``; ``central``: the new global model, once a round; ``each``: every client tests the
model that it trained on all 400. Without ``--data`` (an .npz as pflpipe's data step makes it) the
images are coarse patterns in noise, which cost the same and can be learned: the accuracy in the
table shows that everybody did the work.

Every system is a process of its own, with the Python of its own environment and one thread, or
``--processes`` of them (Ray actors in Flower). All are started and then take turns, one round each,
so that a slow moment of the machine meets all of them: a ratio is the median, least and most of
pairs of neighbouring rounds, everything else a median over rounds. Each system starts anew in every
repeat and warms up for two rounds, which are not counted. Start-up is the time from the start of
the process to the end of its first round, less the time of a later round (in pfl's it also
evaluates the training data, about a second).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from peers import work

from pflpipe.data import datasets

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = {"pflpipe": "ours.py", "pfl": "peer_pfl.py", "flwr": "peer_flwr.py"}
WARM_UP = 2
SCALE = datasets.DATASETS["cifar10"].mean, datasets.DATASETS["cifar10"].std
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def write_pictures(target: Path, source: str | None, train: int, test: int) -> None:
    """Write the images of both parts, normalised [N, 32, 32, 3], and their labels for all systems
    to read."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    patterns = rng.integers(0, 256, (10, 4, 4, 3)).repeat(8, axis=1).repeat(8, axis=2)
    for part, count in (("train", train), ("test", test)):
        if source is None:
            labels = rng.integers(0, 10, count)
            images = (
                (7 * rng.integers(0, 256, (count, 32, 32, 3)) + patterns[labels]) // 8
            ).astype(np.uint8)
        else:
            with np.load(source, allow_pickle=False) as file:
                rows = rng.permutation(len(file[f"{part}_labels"]))[:count]
                images, labels = (
                    file[f"{part}_images"][rows],
                    file[f"{part}_labels"][rows].astype(np.int64),
                )
        arrays |= {f"{part}_x": datasets.normalise(images, *SCALE), f"{part}_y": labels}
    np.savez(target, **arrays)


class System:
    """A running system: started by the constructor, which returns after the rounds that warm it
    up."""

    def __init__(
        self, name: str, python: str, asked: argparse.Namespace, images: Path, evaluation: str
    ) -> None:
        program = [str(ROOT / "benchmarks" / "peers" / PROGRAMS[name])]
        self.name, self.tellers = name, 1
        if asked.processes > 1 and name != "flwr":  # Ray starts its own
            program = [
                "-m",
                "torch.distributed.run",
                "--standalone",
                f"--nproc-per-node={asked.processes}",
                *program,
            ]
            self.tellers = asked.processes
        words = [
            "--images",
            images,
            "--evaluation",
            evaluation,
            "--rounds",
            WARM_UP + asked.rounds,
        ]
        environment = (
            os.environ
            | ENVIRONMENT
            | ({"PYTHONPATH": str(ROOT / "src")} if name == "pflpipe" else {})
        )
        command = [python, *program, *map(str, words), "--processes", str(asked.processes)]
        self.log = images.parent / f"{name}.log"
        began = time.perf_counter()
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.round()
        self.first_round_done = time.perf_counter() - began
        for _ in range(WARM_UP - 1):
            self.round()

    def round(self) -> dict[str, Any]:
        """Ask for a round and return what the system tells of it; CPU seconds are those of all its
        processes."""
        assert self.process.stdin
        assert self.process.stdout
        with contextlib.suppress(
            BrokenPipeError
        ):  # of a process that is gone; what it left to say comes below
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        told: list[dict[str, Any]] = []
        while len(told) < self.tellers:
            line = self.process.stdout.readline()
            if not line:
                sys.exit(f"{self.name}: exit {self.process.wait()}\n{self.log.read_text()[-4000:]}")
            if line.startswith('{"seconds"'):
                told.append(json.loads(line))
        return told[0] | {"cpu_seconds": sum(one["cpu_seconds"] for one in told)}

    def close(self) -> None:
        """Wait for the end of the process, which has no round left."""
        self.process.communicate()


def compare(
    asked: argparse.Namespace, images: Path, evaluation: str
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return a row for each system of one evaluation, what pflpipe is faster by in the others'
    rows, and all versions."""
    pythons = {"pflpipe": sys.executable} | dict.fromkeys(asked.peers, asked.peers_python)
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in pythons}
    startups: dict[str, list[float]] = {name: [] for name in pythons}
    for _ in range(asked.repeats):
        systems = [
            System(name, python, asked, images, evaluation) for name, python in pythons.items()
        ]
        for _ in range(asked.rounds):
            for system in systems:
                rounds[system.name].append(system.round())
        for system in systems:
            system.close()
            later = statistics.median(
                one["seconds"] for one in rounds[system.name][-asked.rounds :]
            )
            startups[system.name].append(system.first_round_done - later)
    rows = []
    for name, told in rounds.items():
        middle = {
            kind: statistics.median(one[kind] for one in told)
            for kind in ("seconds", "cpu_seconds")
        }
        row: dict[str, Any] = {
            "evaluation": evaluation,
            "system": name,
            "seconds_per_round": middle["seconds"],
            "cpu_seconds_per_round": middle["cpu_seconds"],
            "images_per_second": asked.train / middle["seconds"],
            "images_per_cpu_second": asked.train / middle["cpu_seconds"],
            "startup_seconds": statistics.median(startups[name]),
            "accuracy": told[-1]["accuracy"],
        }
        for kind in () if name == "pflpipe" else middle:
            ratios = [
                theirs[kind] / ours[kind]
                for theirs, ours in zip(told, rounds["pflpipe"], strict=True)
            ]
            row[f"pflpipe_faster_{kind}"] = {
                "median": statistics.median(ratios),
                "least": min(ratios),
                "most": max(ratios),
            }
        rows.append(row)
    return rows, {
        name: version for told in rounds.values() for name, version in told[0]["versions"].items()
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as text."""
    head = (
        "evaluation",
        "system",
        "images/CPU-s",
        "images/s",
        "s/round",
        "start-up s",
        "accuracy %",
        "x CPU",
        "x wall",
    )
    lines = [head]
    for row in rows:
        faster = [row.get(f"pflpipe_faster_{kind}", {}) for kind in ("cpu_seconds", "seconds")]
        lines.append(
            (
                row["evaluation"],
                row["system"],
                f"{row['images_per_cpu_second']:.0f}",
                f"{row['images_per_second']:.0f}",
                f"{row['seconds_per_round']:.2f}",
                f"{row['startup_seconds']:.1f}",
                "-" if row["accuracy"] is None else f"{row['accuracy']:.1f}",
                *(
                    "{median:.2f} ({least:.2f}-{most:.2f})".format(**found) if found else ""
                    for found in faster
                ),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def main() -> None:
    """Run the systems in turn, print the table, and write everything as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peers-python",
        required=True,
        help="Python of the peers' environment, which make bench-peers makes",
    )
    parser.add_argument(
        "--peers",
        nargs="+",
        choices=[name for name in PROGRAMS if name != "pflpipe"],
        default=["pfl", "flwr"],
    )
    parser.add_argument(
        "--evaluations", nargs="+", choices=work.EVALUATIONS, default=["central", "each"]
    )
    parser.add_argument("--repeats", type=int, default=3, help="each with new processes")
    parser.add_argument("--rounds", type=int, default=5, help="counted in each repeat")
    parser.add_argument("--processes", type=int, default=1, help="of one thread, for every system")
    parser.add_argument(
        "--data",
        help="CIFAR-10 as an .npz with train_images, train_labels, test_images and test_labels",
    )
    parser.add_argument(
        "--train", type=int, default=2000, help="training images of all clients together"
    )
    parser.add_argument("--test", type=int, default=400, help="images of the common test set")
    parser.add_argument("--out", type=Path, help="write everything as JSON")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images.npz"
        write_pictures(images, asked.data, asked.train, asked.test)
        for evaluation in asked.evaluations:
            found, used = compare(asked, images, evaluation)
            rows += found
            versions |= used
            print(f"evaluation {evaluation}: {work.EVALUATIONS[evaluation]}", flush=True)
    print(
        f"\n{table(rows)}\n\n"
        "x: how many times faster pflpipe's rounds are, in CPU seconds and in seconds"
    )
    report = {
        "work": (
            f"CIFAR-10 CNN, DP-FedAvg, {work.CLIENTS} clients, {asked.train} training and "
            f"{asked.test} test images, batch {work.BATCH_SIZE}, Adam, one local epoch, one "
            "thread in each process"
        ),
        "processes": asked.processes,
        "images": "CIFAR-10" if asked.data else "synthetic",
        "date": datetime.date.today().isoformat(),
        "machine": (
            f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python "
            f"{platform.python_version()}"
        ),
        "versions": versions,
        "repeats": asked.repeats,
        "rounds_in_each": asked.rounds,
        "rows": rows,
    }
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
