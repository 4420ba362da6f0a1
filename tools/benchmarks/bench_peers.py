"""pflpipe beside other frameworks that simulate federated learning, on the same work: rounds of
DP-FedAvg.

    make bench-peers
    python tools/benchmarks/bench_peers.py --peers-python PYTHON [--work cifar10] [--repeats 3]
                                     [--rounds 5] [--peers pfl flwr] [--processes 1]
                                     [--evaluations central each] [--data cifar10.npz]
                                     [--out peers.json]

The work (peers/work.py), updates clipped to 1, Gaussian noise on their sum, mean:
``cifar10``: CNN with 343,946 parameters, 10 clients with equal shares of 2,000 images, one local
epoch of Adam (learning rate 1e-3) in batches of 16; 400 images to test on, 256 at once.
``spi``: the network of the study people_spi (1,098 parameters), 3,200 people with 108 answers each,
320 of whom take five full-batch steps of SGD in a round; 2,700 answers to test on.

Evaluations, the same for all: ``none``; ``central``: the new global model, once a round; ``each``:
every client tests the model that it trained on all of the common test set. Without ``--data`` (an
.npz as pflpipe's data step makes it) the images are coarse patterns in noise, and a person's
answers follow a few hidden traits; they cost the same and can be learned: the accuracy in the table
shows that everybody did the work.

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

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {"pflpipe": "ours.py", "pfl": "peer_pfl.py", "flwr": "peer_flwr.py"}
WARM_UP = 2
SCALE = datasets.DATASETS["cifar10"].mean, datasets.DATASETS["cifar10"].std
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def pictures(source: Path | None) -> dict[str, np.ndarray]:
    """Return images of both parts, normalised [N, 32, 32, 3], and their labels."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    patterns = rng.integers(0, 256, (10, 4, 4, 3)).repeat(8, axis=1).repeat(8, axis=2)
    for part, count in (("train", 2000), ("test", 400)):
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
    return arrays


def answers(source: Path | None) -> dict[str, np.ndarray]:
    """Return 108 answers of each of 3,200 people, one after the other: indices of statements
    [N, 1], and whether the person agrees; and 27 answers of each of 100 other people."""
    if source is not None:
        data = datasets.load_arrays(source)
        assert data.train_users is not None
        assert data.test_users is not None
        order = np.argsort(data.train_users, kind="stable")[: 3200 * 108]
        others = np.argsort(data.test_users, kind="stable")[-100 * 27 :]
        return {
            "train_x": data.train_images[order],
            "train_y": data.train_labels[order],
            "test_x": data.test_images[others],
            "test_y": data.test_labels[others],
        }
    rng = np.random.default_rng(0)
    # Traits and a mean of each statement, as the answers of real people have them.
    traits = rng.normal(size=(3300, 5)) @ rng.normal(size=(5, 135)) + 2 * rng.normal(size=135)
    agrees = (traits + rng.normal(size=traits.shape) > 0).astype(np.int64)
    shown = rng.permuted(np.tile(np.arange(135), (3300, 1)), axis=1)[:, :108]
    labels = np.take_along_axis(agrees, shown, axis=1)
    x = shown.astype(np.float32)
    parts = {"train": (x[:3200], labels[:3200]), "test": (x[3200:, :27], labels[3200:, :27])}
    return {
        f"{part}_{name}": values.reshape(-1, 1) if name == "x" else values.reshape(-1)
        for part, pair in parts.items()
        for name, values in zip("xy", pair, strict=True)
    }


EXAMPLES = {"cifar10": pictures, "spi": answers}


class System:
    """A running system: started by the constructor, which returns after the rounds that warm it
    up."""

    def __init__(
        self, name: str, python: str, asked: argparse.Namespace, examples: Path, evaluation: str
    ) -> None:
        program = [str(ROOT / "tools" / "benchmarks" / "peers" / PROGRAMS[name])]
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
            "--work",
            asked.work,
            "--examples",
            examples,
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
        self.log = examples.parent / f"{name}.log"
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
    asked: argparse.Namespace, examples: Path, evaluation: str
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return a row for each system of one evaluation, what pflpipe is faster by in the others'
    rows, and all versions."""
    pythons = {"pflpipe": sys.executable} | dict.fromkeys(asked.peers, asked.peers_python)
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in pythons}
    startups: dict[str, list[float]] = {name: [] for name in pythons}
    for _ in range(asked.repeats):
        systems = [
            System(name, python, asked, examples, evaluation) for name, python in pythons.items()
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
            "rounds_per_second": 1 / middle["seconds"],
            "rounds_per_cpu_second": 1 / middle["cpu_seconds"],
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
        "CPU-s/round",
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
                f"{row['cpu_seconds_per_round']:.3f}",
                f"{row['seconds_per_round']:.3f}",
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
    parser.add_argument("--work", choices=EXAMPLES, default="cifar10")
    parser.add_argument("--repeats", type=int, default=3, help="each with new processes")
    parser.add_argument("--rounds", type=int, default=5, help="counted in each repeat")
    parser.add_argument("--processes", type=int, default=1, help="of one thread, for every system")
    parser.add_argument(
        "--data", type=Path, help="the real examples, data/cifar10.npz or data/spi.npz"
    )
    parser.add_argument("--out", type=Path, help="write everything as JSON")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        examples = Path(folder) / "examples.npz"
        np.savez(examples, **EXAMPLES[asked.work](asked.data))
        for evaluation in asked.evaluations:
            found, used = compare(asked, examples, evaluation)
            rows += found
            versions |= used
            print(f"evaluation {evaluation}: {work.EVALUATIONS[evaluation]}", flush=True)
    print(
        f"\n{table(rows)}\n\n"
        "x: how many times faster pflpipe's rounds are, in CPU seconds and in seconds"
    )
    report = {
        "work": f"DP-FedAvg, {work.WORKS[asked.work].title}, one thread in each process",
        "processes": asked.processes,
        "examples": "real" if asked.data else "made up",
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
