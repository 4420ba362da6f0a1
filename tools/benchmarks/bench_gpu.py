"""Two ways to run a round's clients on a GPU: one after the other (loop) and all at once (vmap).

    python tools/benchmarks/bench_gpu.py [--device cuda] [--out gpu.json]   # a GPU, under 9 minutes
    python tools/benchmarks/bench_gpu.py --device cpu --small   # tiny sizes, without a GPU

The work: the local training of one round of DP-FedAvg (Adam, ``STEPS`` steps for every client) on
random 32x32 images that lie on the device, from drawing the batches to the stacked updates. Needs
torch, numpy and ``src`` on the path, nothing else.

speed: images/s of each way, medians of three rounds, and the ratio to the loop. A time limit per
case takes
    clients out of the loops' rounds, whose speed does not depend on how many follow each other, and
    steps out of vmap's; the last column says how many were left. Memory is the largest that torch
    held at once, beyond what it held before.
agreement: how far the parameters after one round under vmap without noise lie from those of the
loop, over how far the round moved them (largest coordinates).
A1: rounds of the size of FedDPA's Table 1 (50 writers, CNN for FEMNIST, three epochs of batches of
16, FedDPA with rotations),
    seconds per round, those of all 30, and those of testing the 50 personal models.

A case for which no time is left, or no memory, says so.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from pflpipe import cells
from pflpipe.data.split import Split
from pflpipe.learning import augment, networks
from pflpipe.learning.task import Batches
from pflpipe.methods import registry
from pflpipe.privacy.plan import Plan
from pflpipe.simulation import clients, evaluation, rounds
from pflpipe.simulation.clients import Examples
from pflpipe.simulation.simulation import Simulation
from pflpipe.trees import Tree

POOL = 4096  # distinct images; each client has its own choice of them
REPEATS = 3
STEPS = 32
WAYS = ("loop", "vmap")


class Stopwatch:
    """The device's clock and what is left of the program's time."""

    def __init__(self, device: torch.device, budget: float) -> None:
        self.device, self.end = device, time.perf_counter() + budget

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - time.perf_counter()

    def seconds(self, function: Callable[[], Any]) -> float:
        """How long a function takes until the device is done."""
        self.wait()
        began = time.perf_counter()
        function()
        self.wait()
        return time.perf_counter() - began

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@contextmanager
def asked(precision: str) -> Iterator[None]:
    """TF32 as this precision asks for it."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


@functools.cache
def images(device: torch.device, dtype: torch.dtype) -> Examples:
    """Random images, the same for every way."""
    x = torch.randn(POOL, 32, 32, 3, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return Examples(
        x.to(device), torch.from_numpy(np.random.default_rng(0).integers(0, 10, POOL)).to(device)
    )


def simulation(
    device: torch.device,
    way: str,
    model: str,
    sizes: Sequence[int],
    batch: int,
    *,
    precision: str = "float32",
    noise: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> Simulation:
    """Return DP-FedAvg for clients of these sizes."""
    rng, examples = np.random.default_rng(1), images(device, dtype)
    nothing = [np.arange(0)] * len(sizes)
    return Simulation(
        method=registry.info("dp_fedavg").factory(),
        network=networks.build(cells.Model(model), (32, 32, 3), 10),
        plan=Plan("gaussian", 2, 0.5, noise, 1.0, 10**6, 1e-3, len(sizes)),
        training=cells.Training(10**6, 1, batch, "adam", 1e-3, precision=precision),
        departures=frozenset(),
        split=Split(
            [rng.integers(0, POOL, size) for size in sizes], nothing, nothing, np.arange(0)
        ),
        train=examples,
        test=examples,
        seed=0,
        key="benchmark",
        backend=way,
        dtype=dtype,
    )


def reset_peak(device: torch.device) -> int:
    """Begin to watch the memory that torch holds on a GPU; return the bytes it holds now."""
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def speed(
    watch: Stopwatch,
    cap: float,
    steps: int,
    way: str,
    model: str,
    count: int,
    batch: int,
    precision: str,
) -> dict[str, Any]:
    """Measure one way of running a round of ``count`` clients in about ``cap`` seconds."""

    def training(number: int, length: int) -> Callable[[], None]:
        world = simulation(
            watch.device, way, model, [length * batch] * number, batch, precision=precision
        )
        begun, everyone = rounds.start(world), range(number)

        def hook(state: Tree, batches: Batches, others: Any) -> tuple[Tree, torch.Tensor]:
            upload, _ = world.method.local_update(
                begun.params, begun.server, state, batches, world.task
            )
            return upload.update, upload.loss

        return lambda: world.run_clients(
            hook, begun.states, everyone, [world.work(client, 0) for client in everyone]
        )

    # A trial: all clients for a few steps under vmap, one client in a loop.
    number, length = (count, 2) if way == "vmap" else (1, steps)
    with asked(precision):
        train, held = training(number, length), reset_peak(watch.device)
        train()
        times = [watch.seconds(train)]
        more = int(cap / (REPEATS + 1) / max(times[0], 1e-9))  # times the work of the trial
        if more:
            number, length = (
                (count, min(steps, length * more)) if way == "vmap" else (min(count, more), steps)
            )
            train, held = training(number, length), reset_peak(watch.device)
            train()
            times = [watch.seconds(train) for _ in range(REPEATS)]
    found: dict[str, Any] = {
        "images_per_second": number * length * batch / statistics.median(times),
        "seconds": times,
    }
    found |= {"clients_run": number, "steps_run": length}
    if watch.device.type == "cuda":
        found["peak_mib"] = (torch.cuda.max_memory_allocated(watch.device) - held) / 2**20
    return found


def measured(
    watch: Stopwatch, function: Callable[..., dict[str, Any]], *words: Any
) -> dict[str, Any]:
    """Call a measurement, unless time is up; name what goes wrong instead of ending the program."""
    if watch.left <= 0:
        return {"failed": "no time left"}
    try:
        return function(watch, *words)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"}
    finally:
        if watch.device.type == "cuda":
            torch.cuda.empty_cache()


def speeds(
    watch: Stopwatch, cap: float, steps: int, cases: Sequence[tuple[str, int, int, str]]
) -> list[dict[str, Any]]:
    """Measure every way in every case (model, clients, batch size, precision) and print the
    rows."""
    print(
        f"{'network':10} {'clients':>7} {'batch':>5} {'precision':9} {'way':7} {'images/s':>10} "
        f"{'ratio':>6} {'MiB':>7}  run"
    )
    rows = []
    for case in dict.fromkeys(cases):
        base = None
        for way in WAYS:
            found = measured(watch, speed, cap, steps, way, *case)
            row = (
                dict(zip(("model", "clients", "batch", "precision"), case, strict=True))
                | {"way": way}
                | found
            )
            rate = row.get("images_per_second")
            base = rate if way == "loop" else base
            row["ratio"] = rate / base if rate and base else None
            rows.append(row)
            words = f"{case[0]:10} {case[1]:7} {case[2]:5} {case[3]:9} {way:7}"
            if rate is None:
                print(f"{words} {row['failed']}", flush=True)
                continue
            ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
            run = f"{row['clients_run']} clients, {row['steps_run']} steps"
            print(
                f"{words} {rate:10.0f} {ratio:>6} {row.get('peak_mib', 0):7.0f}  {run}", flush=True
            )
    return rows


def agreement(
    watch: Stopwatch, model: str, dtype: torch.dtype, precision: str, sizes: Sequence[int]
) -> dict[str, Any]:
    """Compare the two ways after one round of ragged clients without noise."""
    ends, moved = {}, 0.0
    for way in WAYS:
        with asked(precision):
            world = simulation(
                watch.device, way, model, sizes, 16, precision=precision, noise=0.0, dtype=dtype
            )
            progress = rounds.start(world)
            before = progress.params
            rounds.one_round(world, progress)
        ends[way] = progress.params
        if way == "loop":
            moved = max(float((ends[way][name] - before[name]).abs().max()) for name in before)
    apart = {
        way: max(float((ends[way][name] - ends["loop"][name]).abs().max()) for name in ends[way])
        / moved
        for way in WAYS[1:]
    }
    return {
        "model": model,
        "dtype": str(dtype).removeprefix("torch."),
        "precision": precision,
        "moved": moved,
        "apart": apart,
    }


def a1(
    watch: Stopwatch, cap: float, writers: int, examples: tuple[int, int], epochs: int
) -> dict[str, Any]:
    """Run as many rounds of a run of A1's size as the time allows, after one to warm up."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(*examples, writers)
    ends = np.cumsum(sizes)
    rows = [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    x = torch.randn(int(ends[-1]), 28, 28, 1, generator=torch.Generator().manual_seed(0)).to(
        watch.device
    )
    data = Examples(x, torch.from_numpy(rng.integers(0, 62, len(x))).to(watch.device))
    network = networks.build(cells.Model("cnn_femnist"), (28, 28, 1), 62)
    backend = clients.choose_backend("auto", watch.device.type, network.parameters)
    tests = [part[: len(part) // 5] for part in rows]
    world = Simulation(
        method=registry.info("feddpa").factory(**registry.check_hyperparameters("feddpa", {})),
        network=network,
        plan=Plan("gaussian", 2, 0.5, 1.0, 1.0, 30, 0.02, writers),
        training=cells.Training(30, epochs, 16, "adam", 1e-3, augment=("rotate",)),
        departures=frozenset(),
        split=Split(rows, [np.arange(0)] * writers, tests, np.arange(0)),
        train=data,
        test=data,
        seed=0,
        key="benchmark",
        backend=backend,
        augment=augment.Augment(("rotate",), torch.zeros(1, device=watch.device)),
    )
    progress = rounds.start(world)
    with asked("float32"):
        times = [watch.seconds(lambda: rounds.one_round(world, progress))]
        while len(times) < 2 or (sum(times) < cap and len(times) < 10):
            times.append(watch.seconds(lambda: rounds.one_round(world, progress)))
        testing = watch.seconds(lambda: evaluation.accuracies(world, progress))
    each = statistics.median(times[1:])
    return {
        "backend": backend,
        "first_round_seconds": times[0],
        "seconds_per_round": each,
        "seconds_of_30_rounds": times[0] + 29 * each,
        "seconds_of_testing": testing,
        "rounds_run": len(times),
    }


def main() -> None:
    """Measure, print the tables and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--small", action=argparse.BooleanOptionalAction, help="tiny sizes; by default on a CPU"
    )
    parser.add_argument(
        "--budget", type=float, default=470.0, help="seconds after which no further case begins"
    )
    parser.add_argument("--cap", type=float, default=4.0, help="seconds for one way in one case")
    parser.add_argument("--out")
    args = parser.parse_args()
    device = torch.device(args.device, 0) if args.device == "cuda" else torch.device(args.device)
    watch, began = Stopwatch(device, args.budget), time.perf_counter()
    if device.type == "cpu":
        torch.set_num_threads(1)
    small = device.type == "cpu" if args.small is None else args.small
    cap, steps = (0.2, 2) if small else (args.cap, STEPS)
    if small:
        cases = [
            ("cnn_cifar", 3, 4, "float32"),
            ("resnet20", 2, 2, "float32"),
            ("resnet18", 2, 2, "float32"),
        ]
        cases.append(("cnn_cifar", 3, 4, "bf16"))
        checks, sizes = [("cnn_cifar", torch.float64, "float32")], (20, 9)
        run = 0.2, 3, (4, 12), 1
    else:
        # What the promises are about comes first, and what takes long last.
        cases = [
            ("cnn_cifar", 100, 16, "float32"),
            ("resnet18", 10, 16, "float32"),
            ("resnet20", 100, 16, "float32"),
        ]
        cases += [
            (model, 100, 16, name)
            for model in ("cnn_cifar", "resnet20")
            for name in ("tf32", "bf16")
        ]
        cases += [("resnet18", 10, 64, name) for name in ("float32", "tf32", "bf16")]
        cases += [
            (model, number, size, "float32")
            for number in (10, 100)
            for model in models_of(100)
            for size in (16, 64)
        ]
        cases += [(model, 1000, size, "float32") for size in (16, 64) for model in models_of(1000)]
        checks = [(model, torch.float64, "float32") for model in models_of(100)]
        checks += [
            (model, torch.float32, name)
            for model in models_of(100)
            for name in ("float32", "tf32", "bf16")
        ]
        sizes, run = (600, 400, 330, 20), (20.0, 50, (100, 350), 3)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "date": time.strftime("%Y-%m-%d"),
        "small": small,
    }
    print(json.dumps(result), flush=True)
    result["agreement"] = []
    print("agreement (largest difference after a round / largest movement)")
    for check in checks:
        found = measured(watch, agreement, *check, sizes)
        result["agreement"].append(found)
        if "failed" in found:
            print(f"{check[0]:10} {found['failed']}", flush=True)
            continue
        apart = "  ".join(f"{way} {value:.1e}" for way, value in found["apart"].items())
        print(f"{found['model']:10} {found['dtype']:8} {found['precision']:8} {apart}", flush=True)
    result["a1"] = measured(watch, a1, *run)
    print("A1", json.dumps(result["a1"]), flush=True)
    result["speed"] = speeds(watch, cap, steps, cases)
    result["seconds"] = time.perf_counter() - began
    print(f"{result['seconds']:.0f} s in all")
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(json.dumps(result, indent=1) + "\n")


def models_of(number: int) -> tuple[str, ...]:
    """The networks that are measured with so many clients."""
    return ("cnn_cifar", "resnet20", "resnet18") if number <= 100 else ("cnn_cifar", "resnet20")


if __name__ == "__main__":
    main()
