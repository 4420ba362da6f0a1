"""Rounds on a CPU: against a plain PyTorch loop, method against method, and how their cost grows.

    python tools/benchmarks/bench_rounds.py [PART ...] [--pairs 5] [--images 2000]
    [--out rounds.json]
    python tools/benchmarks/bench_rounds.py methods --methods dp_fedavg feddpa --backends loop
    --clients 10 100 1000

One process, one thread; with ``--processes 2`` the parts plain and feddpa use two cores: the plain
loop with two threads of torch, ours with two processes of one. What is compared is run in turn, so
that a busy machine slows all of it; the first turn only warms up. Times are CPU seconds
(``time.process_time``), medians over the turns, with wall-clock seconds beside; ratios are medians
of the turns' own ratios. Images are random unless ``--data`` names a CIFAR-10 file of this
project, which costs the same.

methods: one round of every method, network and backend, by number of clients, each in a child
process for its peak memory (its
    parent's included). Clients have 32 images, batch 16, one epoch; of 100 clients or more a
    tenth takes part. ``--clients`` and the other options choose; a method that needs layers the
    network lacks is left out.
plain: a round with per-client evaluation against plain.py. CIFAR-10 CNN, batch 16, 10 clients, one
epoch of Adam; every client
    trains and then classifies the shared test set, a fifth as large as all training data, in
    batches of 256 as in FedDPA's official code. ``PIL``: the loader transforms PIL images (crop
    and flip in training, ToTensor, Normalize). The line ``accuracies`` is what ``evaluate_every:
    1`` does instead: it trains personal models from the released model, so that every client trains
    twice.
feddpa: the same work for FedDPA, its Fisher information taken by examples: from one forward pass of
a batch, as in FedDPA's
    official code, or from one for each.
gradients: CPU seconds for each minibatch gradient at the papers' CIFAR-10 setting, E = 4, in units
of DP-FedAvg's; whole rounds
    without evaluation. FedDPA, FedGLP-ADP and DP-FedSAM take two gradients of a minibatch. The
    papers' clients have ten times as many images, so that what is done once in a round weighs
    more here.
estimates: a round of every method at that setting, in units of DP-FedAvg's for an image, as
src/pflpipe/study/runtime_estimate.py counts it.
passes: Fisher information and evaluation, images by CPU second.
growth: the exponent a of cost = c n^a, fitted for clients that take part, for clients of whom 20
take part, for parameters (one
    hidden layer) and for rounds.
backends: the loop against vmap for perceptrons of four widths, with clients of one size and of
many; ``auto``'s border on a CPU follows from it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import functools
import itertools
import json
import math
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import plain
import torch
from torch.utils.data import DataLoader, TensorDataset

from pflpipe import cells, trees
from pflpipe.cells import Privacy
from pflpipe.data import datasets
from pflpipe.errors import ConfigError
from pflpipe.interface.training import federation
from pflpipe.learning import networks
from pflpipe.learning.augment import Augment
from pflpipe.methods import registry
from pflpipe.methods.registry import NAMES
from pflpipe.simulation import rounds
from pflpipe.simulation.clients import Backend, Examples, Rows, choose_backend
from pflpipe.simulation.evaluation import accuracies
from pflpipe.simulation.processes import ALONE, Processes, joined
from pflpipe.simulation.simulation import Simulation

CNN, CLIENTS, BATCH, ROUNDS = cells.Model("cnn_cifar"), 10, 16, 10**6
Case = Callable[[], object]


def cifar_images(path: str | None, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images uint8 ``[count, 32, 32, 3]`` and their labels."""
    rng = np.random.default_rng(0)
    if path is None:
        return rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, count)
    with np.load(path, allow_pickle=False) as file:
        rows = rng.permutation(len(file["train_labels"]))[:count]
        return file["train_images"][rows], file["train_labels"][rows].astype(np.int64)


SCALE = datasets.DATASETS["cifar10"].mean, datasets.DATASETS["cifar10"].std


def examples(images: np.ndarray, labels: np.ndarray) -> Examples:
    """Return normalised images on the CPU."""
    return Examples(
        torch.from_numpy(datasets.normalise(images, *SCALE)),
        torch.from_numpy(labels),
    )


def world(
    method: str,
    train: Examples,
    test: Examples,
    *,
    clients: int | Sequence[int] = CLIENTS,
    sample_rate: float = 1.0,
    model: cells.Model = CNN,
    backend: Backend = "loop",
    batch: int = BATCH,
    epochs: int = 1,
    processes: Processes = ALONE,
) -> Simulation:
    """Return a simulation of so many clients with equal shares of ``train``, or of clients with so
    many examples each, who all test on the whole of ``test``."""
    ends = clients if isinstance(clients, int) else np.cumsum(clients)[:-1]
    shares = np.array_split(np.arange(len(train.y)), ends)
    private = registry.info(method).about.private
    noise = Privacy(noise_multiplier=plain.NOISE_MULTIPLIER, delta=1e-3, clip_norm=plain.CLIP_NORM)
    simulation = federation(
        method,
        [(train.x[rows], train.y[rows]) for rows in shares],
        model=model,
        training=cells.Training(ROUNDS, epochs, batch, "adam", plain.LR, sample_rate=sample_rate),
        privacy=noise if private else None,
        tests=[(test.x[:0], test.y[:0])] * len(shares),
        classes=10,
        secret="benchmark",
        device="cpu",
        backend=backend,
    )
    split = dataclasses.replace(simulation.split, common=np.arange(len(test.y)))
    return dataclasses.replace(simulation, split=split, test=test, processes=processes)


def more_rounds(simulation: Simulation) -> Case:
    """Return a function that runs one more round each time."""
    shared = None
    if simulation.processes.size > 1:  # one file for all of them
        shared = (
            Path(tempfile.gettempdir())
            / f"{os.environ['TORCHELASTIC_RUN_ID']}-{simulation.augment is None}.states"
        )
    progress = rounds.start(simulation, shared)
    return lambda: rounds.one_round(simulation, progress)


def in_turn(
    cases: Mapping[str, Case], pairs: int, processes: Processes = ALONE
) -> dict[str, dict[str, list[float]]]:
    """Run the cases in turn, once to warm up and ``pairs`` times; return the CPU and the wall-clock
    seconds of each.

    Of several processes, the first one alone runs the plain cases, with as many threads. CPU
    seconds are then only its own.
    """
    times: dict[str, dict[str, list[float]]] = {name: {"cpu": [], "wall": []} for name in cases}
    for turn in range(pairs + 1):
        for name, case in cases.items():
            alone = name.startswith("plain")
            torch.set_num_threads(processes.size if alone else 1)
            processes.from_first(torch.zeros(1))
            cpu, wall = time.process_time(), time.perf_counter()
            if processes.is_first or not alone:
                case()
            processes.from_first(torch.zeros(1))
            if turn:
                times[name]["cpu"].append(time.process_time() - cpu)
                times[name]["wall"].append(time.perf_counter() - wall)
    return times


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Return the median of the turns' ratios."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Print rows with the same columns under a title, and return them."""
    cells_ = [
        [f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()]
        for row in rows
    ]
    lines = [list(rows[0]), *cells_]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    print(f"\n{title}")
    for line in lines:
        print(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip(),
            flush=True,
        )
    return [dict(row) for row in rows]


def compared(
    title: str, times: Mapping[str, Mapping[str, list[float]]], images: int, ours: Mapping[str, str]
) -> Any:
    """Print what rounds of so many training images cost; ``ours`` names for a case the one that
    does the same work."""
    rows = []
    for name, one in times.items():
        mine = times.get(ours.get(name, ""))
        rows.append(
            {
                "round with evaluation": name,
                "CPU s": statistics.median(one["cpu"]),
                "wall s": statistics.median(one["wall"]),
                "images/CPU s": round(images / statistics.median(one["cpu"])),
                "compared with": ours.get(name, ""),
                "CPU ratio": median_ratio(one["cpu"], mine["cpu"]) if mine else "",
                "wall ratio": median_ratio(one["wall"], mine["wall"]) if mine else "",
            }
        )
    return table(title, rows)


def tested(simulation: Simulation) -> Simulation:
    """Return the simulation with clients that classify the test set by the model they have just
    trained, as plain.py's do.

    That model is a FedDPA client's state; a client of DP-FedAvg has no state and uploads the
    change.
    """
    method = simulation.method
    common = simulation.test.schedule(simulation.in_order(simulation.split.common))

    def init_client(params: trees.Tree, task: Any) -> trees.Tree:
        return method.init_client(params, task) | {"right": common.count.new_zeros(())}

    def local_update(
        params: trees.Tree, server: trees.Tree, state: trees.Tree, batches: Any, task: Any
    ) -> Any:
        own = {name: value for name, value in state.items() if name != "right"}
        upload, new = method.local_update(params, server, own, batches, task)
        model = new or trees.add(params, upload.update)
        return upload, new | {"right": task.score(model, common)}

    return dataclasses.replace(
        simulation,
        method=dataclasses.replace(method, init_client=init_client, local_update=local_update),
    )


def shuffled(x: torch.Tensor, y: torch.Tensor, batch: int) -> DataLoader:
    """Return a loader over tensors, images as ``[N, C, H, W]``."""
    return DataLoader(
        TensorDataset(x.permute(0, 3, 1, 2).contiguous(), y), batch_size=batch, shuffle=True
    )


def pil_federation(images: np.ndarray, labels: np.ndarray, test: int) -> plain.Federation:
    """Return a plain federation whose loaders transform PIL images, the last ``test`` of which
    are the test set."""
    from PIL import Image
    from torchvision import transforms as T

    known = datasets.DATASETS["cifar10"]
    last = [T.ToTensor(), T.Normalize(known.mean, known.std)]
    first = [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip()]
    opened = [Image.fromarray(image) for image in images]
    count = len(labels) - test

    def loader(rows: Sequence[int], transform: list[Any], batch: int) -> DataLoader:
        chosen = plain.Images(
            [opened[i] for i in rows], [int(labels[i]) for i in rows], T.Compose(transform)
        )
        return DataLoader(chosen, batch_size=batch, shuffle=True)

    shares = np.array_split(np.arange(count), CLIENTS)
    loaders = [loader(rows.tolist(), first + last, BATCH) for rows in shares]
    return plain.Federation(loaders, loader(range(count, len(labels)), last, plain.TEST_BATCH))


def crop_and_flip() -> Augment:
    """Return the training transforms of the papers' CIFAR-10 runs."""
    known = datasets.DATASETS["cifar10"]
    return Augment(
        ("crop", "flip"),
        torch.tensor([-mean / std for mean, std in zip(known.mean, known.std, strict=True)]),
    )


def bench_plain(args: argparse.Namespace) -> Any:
    """DP-FedAvg against plain loops."""
    images, labels = cifar_images(args.data, args.images + args.images // 5)
    everything = examples(images, labels)
    x, y = everything.x, everything.y
    train, test = (
        Examples(x[: args.images], y[: args.images]),
        Examples(x[args.images :], y[args.images :]),
    )
    shares = np.array_split(np.arange(args.images), CLIENTS)
    tensors = plain.Federation(
        [shuffled(x[rows], y[rows], BATCH) for rows in shares], shuffled(test.x, test.y, 256)
    )
    ours = world("dp_fedavg", train, test, processes=args.together)
    scored, progress = ours, rounds.start(ours)

    def with_accuracies() -> None:
        rounds.one_round(scored, progress)
        accuracies(scored, progress)

    cases: dict[str, Case] = {
        "plain, tensors": tensors.dp_fedavg,
        "plain, PIL": pil_federation(images, labels, len(test.y)).dp_fedavg,
        "pflpipe": more_rounds(tested(ours)),
        "pflpipe, crop and flip": more_rounds(
            dataclasses.replace(tested(ours), augment=crop_and_flip())
        ),
        "pflpipe, accuracies": with_accuracies,
    }
    pairs = {
        "plain, tensors": "pflpipe",
        "plain, PIL": "pflpipe, crop and flip",
        "pflpipe, accuracies": "pflpipe",
    }
    title = (
        f"plain: DP-FedAvg, cnn_cifar, batch {BATCH}, {CLIENTS} clients, {len(train.y)} + "
        f"{len(test.y)} images"
    )
    return compared(title, in_turn(cases, args.pairs, args.together), len(train.y), pairs)


def bench_feddpa(args: argparse.Namespace) -> Any:
    """FedDPA against plain loops with per-sample Fisher information."""
    count = args.images
    images, labels = cifar_images(args.data, count + count // 5)
    everything = examples(images, labels)
    x, y = everything.x, everything.y
    train, test = Examples(x[:count], y[:count]), Examples(x[count:], y[count:])
    shares = np.array_split(np.arange(count), CLIENTS)

    def federation() -> plain.Federation:
        return plain.Federation(
            [shuffled(x[rows], y[rows], BATCH) for rows in shares], shuffled(test.x, test.y, 256)
        )

    one, each, pil = federation(), federation(), pil_federation(images, labels, len(test.y))
    ours = tested(world("feddpa", train, test, processes=args.together))
    cases: dict[str, Case] = {
        "plain, one forward pass for a batch": lambda: one.feddpa(plain.gradients_of_one_forward),
        "plain, one for each example": lambda: each.feddpa(plain.gradients_one_by_one),
        "plain, PIL, one forward pass for a batch": lambda: pil.feddpa(
            plain.gradients_of_one_forward
        ),
        "pflpipe": more_rounds(ours),
        "pflpipe, crop and flip": more_rounds(dataclasses.replace(ours, augment=crop_and_flip())),
    }
    peers = {
        name: "pflpipe, crop and flip" if "PIL" in name else "pflpipe"
        for name in cases
        if name.startswith("plain")
    }
    title = (
        f"feddpa: FedDPA, cnn_cifar, batch {BATCH}, {CLIENTS} clients, {count} + {len(test.y)} "
        "images"
    )
    return compared(title, in_turn(cases, args.pairs, args.together), count, peers)


def bench_gradients(args: argparse.Namespace) -> Any:
    """Cost of one minibatch gradient at the papers' setting."""
    number = {"dp_fedavg": 1, "feddpa": 2, "fedglp_adp": 2, "dp_fedsam": 2}
    train = examples(*cifar_images(args.data, args.images // 2))
    rows = []
    for batch in (64, 16):
        cases = {
            name: more_rounds(world(name, train, train, clients=2, batch=batch, epochs=4))
            for name in number
        }
        times = in_turn(cases, args.pairs)
        gradients = 2 * 4 * math.ceil(len(train.y) / 2 / batch)
        for name, count in number.items():
            cpu, wall = (
                [second / count for second in times[name][kind]] for kind in ("cpu", "wall")
            )
            rows.append(
                {
                    "batch": batch,
                    "method": name,
                    "CPU ms/gradient": 1000 * statistics.median(cpu) / gradients,
                    "wall ms/gradient": 1000 * statistics.median(wall) / gradients,
                    "CPU ratio": median_ratio(cpu, times["dp_fedavg"]["cpu"]),
                    "wall ratio": median_ratio(wall, times["dp_fedavg"]["wall"]),
                }
            )
    return table(
        f"gradients: cnn_cifar, E = 4, Adam, 2 clients of {len(train.y) // 2} images", rows
    )


def bench_estimates(args: argparse.Namespace) -> Any:
    """What each method takes for an image at the papers' setting: ``About.cost``."""
    train = examples(*cifar_images(args.data, args.images // 2))
    cases = {}
    for name in dict.fromkeys(["dp_fedavg", *args.methods]):
        with contextlib.suppress(ConfigError):  # of a method that this network does not suit
            registry.check_model(name, CNN)
            cases[name] = more_rounds(world(name, train, train, clients=2, batch=64, epochs=4))
    times = {name: turns["cpu"] for name, turns in in_turn(cases, args.pairs).items()}
    rows = [
        {
            "method": name,
            "images/CPU s": round(4 * len(train.y) / statistics.median(cpu)),
            "CPU ratio": median_ratio(cpu, times["dp_fedavg"]),
        }
        for name, cpu in times.items()
    ]
    return table(
        f"estimates: cnn_cifar, E = 4, batch 64, Adam, 2 clients of {len(train.y) // 2} images",
        rows,
    )


def bench_passes(args: argparse.Namespace) -> Any:
    """Fisher information and evaluation."""
    few = examples(*cifar_images(args.data, 128))
    many = examples(*cifar_images(args.data, 1024))
    chw = many.x.permute(0, 3, 1, 2).contiguous()
    module = plain.network()
    loader = DataLoader(TensorDataset(chw, many.y), batch_size=plain.TEST_BATCH)

    def by_example(method: Callable[..., Any]) -> Case:
        batches = DataLoader(TensorDataset(chw[:128], many.y[:128]), batch_size=BATCH)
        return lambda: [
            sum(g.square().sum() for g in each) for x, y in batches for each in method(module, x, y)
        ]

    cases: dict[str, Case] = {
        "Fisher, plain, one forward pass for a batch": by_example(plain.gradients_of_one_forward),
        "Fisher, plain, one for each example": by_example(plain.gradients_one_by_one),
        "evaluation, plain": lambda: plain.accuracy(module, loader),
    }
    images = dict.fromkeys(cases, 128) | {"evaluation, plain": 1024}
    for model in ("cnn_cifar", "resnet20"):
        one = world("dp_fedavg", many, many, model=cells.Model(model), clients=1)
        params = rounds.start(one).params
        pass_ = few.schedule(Rows.epochs(np.arange(128), 1, 32))
        whole = many.schedule(one.in_order(np.arange(1024)))
        cases[f"Fisher, {model}"] = lambda task=one.task, params=params, rows=pass_: task.fisher(
            params, rows
        )
        cases[f"evaluation, {model}"] = lambda task=one.task, params=params, rows=whole: task.score(
            params, rows
        )
        images |= {f"Fisher, {model}": 128, f"evaluation, {model}": 1024}
    times = in_turn(cases, args.pairs)
    peers = {name: "cnn_cifar" for name in cases if "plain" in name}
    rows = []
    for name, one_ in times.items():
        mine = times[f"{name.split(',')[0]}, cnn_cifar"]
        rows.append(
            {
                "pass": name,
                "images/CPU s": round(images[name] / statistics.median(one_["cpu"])),
                "CPU ratio to cnn_cifar": median_ratio(one_["cpu"], mine["cpu"])
                if name in peers
                else "",
            }
        )
    return table("passes: plain.py has the network cnn_cifar", rows)


def in_a_child(case: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a function returns in a forked process, and that process's peak memory."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work() -> None:
        result = case()
        sender.send(
            result | {"peak MiB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)}
        )

    child = context.Process(target=work)
    child.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        return dict.fromkeys(
            ("CPU s", "wall s", "images/CPU s", "peak MiB")
        )  # it died: out of memory, say
    finally:
        child.join()


def round_of(
    method: str, model: str, backend: Backend, clients: int, path: str | None
) -> dict[str, Any]:
    """Return what a round of one method costs, the better of two."""
    train = examples(*cifar_images(path, 32 * clients))
    rate = 1.0 if clients < 100 else 0.1
    one = world(
        method,
        train,
        train,
        clients=clients,
        sample_rate=rate,
        model=cells.Model(model),
        backend=backend,
    )
    progress = rounds.start(one)
    times = in_turn({"round": lambda: rounds.one_round(one, progress)}, 2)["round"]
    best = min((0, 1), key=lambda turn: times["cpu"][turn])
    cpu, wall = times["cpu"][best], times["wall"][best]
    return {
        "CPU s": cpu,
        "wall s": wall,
        "images/CPU s": round(progress.timing[1 + best]["images"] / cpu),
    }


def bench_methods(args: argparse.Namespace) -> Any:
    """One round of every method."""
    rows = []
    for model, backend, clients, method in itertools.product(
        args.models, args.backends, args.clients, args.methods
    ):
        try:
            registry.check_model(method, cells.Model(model))
        except ConfigError:
            continue
        found = in_a_child(functools.partial(round_of, method, model, backend, clients, args.data))
        rows.append(
            {"network": model, "backend": backend, "clients": clients, "method": method} | found
        )
    return table(
        "methods: a round of clients with 32 images, batch 16, one epoch of Adam; the better of "
        "two rounds",
        rows,
    )


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the slope of log seconds against log size by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def bench_growth(args: argparse.Namespace) -> Any:
    """Fitted exponents."""
    digits = cells.Model("mlp", (32,))
    rng = np.random.default_rng(0)

    def one(
        method: str,
        clients: int,
        width: int = 32,
        rate: float = 1.0,
        backend: Backend | None = None,
    ) -> Simulation:
        model = dataclasses.replace(digits, hidden=(width,))
        x = torch.from_numpy(rng.normal(size=(16 * clients, 64)).astype(np.float32))
        train = Examples(x, torch.from_numpy(rng.integers(0, 10, len(x))))
        chosen = backend or choose_backend(
            "auto", "cpu", networks.build(model, (64,), 10).parameters
        )
        return world(
            method, train, train, clients=clients, sample_rate=rate, model=model, backend=chosen
        )

    def many(count: int) -> Case:
        simulation = one("dp_fedavg", 20)
        return lambda: [step() for step in [more_rounds(simulation)] for _ in range(count)]

    grids: dict[str, tuple[list[int], Callable[[str, int], Case]]] = {
        "clients that take part": (
            [100, 200, 400, 800],
            lambda method, n: more_rounds(one(method, n)),
        ),
        "clients, of whom 20 take part": (
            [100, 400, 1600, 6400],
            lambda method, n: more_rounds(one(method, n, rate=20 / n)),
        ),
        "parameters, 4 clients, loop": (
            [256, 512, 1024, 2048],
            lambda method, n: more_rounds(one(method, 4, width=n, backend="loop")),
        ),
    }
    rows = []
    for name, (sizes, case) in grids.items():
        for method in ("dp_fedavg", "feddpa"):
            times = in_turn({str(n): case(method, n) for n in sizes}, args.pairs)
            seconds = [statistics.median(times[str(n)]["cpu"]) for n in sizes]
            real = [75 * n + 10 for n in sizes] if name.startswith("parameters") else sizes
            rows.append(
                {
                    "growth with": name,
                    "method": method,
                    "sizes": f"{real[0]} to {real[-1]}",
                    "CPU s of the first": seconds[0],
                    "CPU s of the last": seconds[-1],
                    "exponent": exponent(real, seconds),
                }
            )
    sizes = [5, 10, 20, 40]
    times = in_turn({str(n): many(n) for n in sizes}, args.pairs)
    seconds = [statistics.median(times[str(n)]["cpu"]) for n in sizes]
    row = {"growth with": "rounds, 20 clients", "method": "dp_fedavg", "sizes": "5 to 40"}
    rows.append(
        row
        | {
            "CPU s of the first": seconds[0],
            "CPU s of the last": seconds[-1],
            "exponent": exponent(sizes, seconds),
        }
    )
    return table("growth: 16 examples of 64 features for each client, one hidden layer", rows)


def bench_backends(args: argparse.Namespace) -> Any:
    """The loop against vmap, by the width of a perceptron."""
    rng = np.random.default_rng(0)
    uneven = rng.lognormal(np.log(38), 0.5, 100).astype(int).clip(6, 131).tolist()
    rows = []
    for width, (shape, sizes) in itertools.product(
        (16, 64, 128, 256), {"38 each": [38] * 100, "6 to 131": uneven}.items()
    ):
        x = torch.from_numpy(rng.normal(size=(sum(sizes), 784)).astype(np.float32))
        train = Examples(x, torch.from_numpy(rng.integers(0, 10, len(x))))
        model = cells.Model("mlp", (width,))
        for method in ("dp_fedavg", "fedrep", "feddpa"):
            cases = {
                backend: more_rounds(
                    world(
                        method, train, train, model=model, backend=backend, batch=20, clients=sizes
                    )
                )
                for backend in ("loop", "vmap")
            }
            times = in_turn(cases, args.pairs)
            loop, vmap = (times[name]["cpu"] for name in cases)
            rows.append(
                {
                    "parameters": networks.build(model, (784,), 10).parameters,
                    "examples of a client": shape,
                    "method": method,
                    "loop, images/CPU s": round(len(x) / statistics.median(loop)),
                    "vmap, images/CPU s": round(len(x) / statistics.median(vmap)),
                    "CPU, vmap to loop": median_ratio(vmap, loop),
                }
            )
    return table(
        "backends: a round of 100 clients, 784 features, one hidden layer, batch 20, one epoch of "
        "Adam",
        rows,
    )


PARTS = {  # methods first: a child's peak memory contains what its parent holds
    "methods": bench_methods,
    "plain": bench_plain,
    "feddpa": bench_feddpa,
    "gradients": bench_gradients,
    "estimates": bench_estimates,
    "passes": bench_passes,
    "growth": bench_growth,
    "backends": bench_backends,
}


def machine() -> dict[str, Any]:
    """Return where and when this was measured."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "load before": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
    }


def main() -> None:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"out of {', '.join(PARTS)}; all when none is named",
    )
    parser.add_argument("--data", help="a CIFAR-10 file of this project (.npz)")
    parser.add_argument("--pairs", type=int, default=5, help="turns of what is compared")
    parser.add_argument("--images", type=int, default=2000, help="of all training clients together")
    parser.add_argument("--methods", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument(
        "--models", nargs="+", default=["cnn_cifar"], choices=["cnn_cifar", "resnet20"]
    )
    parser.add_argument("--backends", nargs="+", default=["loop", "vmap"], choices=["loop", "vmap"])
    parser.add_argument("--clients", nargs="+", type=int, default=[10])
    parser.add_argument(
        "--processes", type=int, default=1, help="cores that the parts plain and feddpa use"
    )
    parser.add_argument("--out", help="write the figures here as JSON")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; known are {', '.join(PARTS)}")
    if args.processes > 1 and (not args.parts or set(args.parts) - {"plain", "feddpa"}):
        parser.error("--processes is for the parts plain and feddpa")
    with joined("cpu", args.processes) as (args.together, _):
        if not args.together.is_first:
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - to the end of the process
        run(args)


def run(args: argparse.Namespace) -> None:
    """Run the parts, print their tables and write their figures."""
    torch.set_num_threads(1)
    options = {name: value for name, value in vars(args).items() if name != "together"}
    result: dict[str, Any] = {"machine": machine(), "options": options}
    print(", ".join(f"{name} {value}" for name, value in result["machine"].items()))
    for name, part in PARTS.items():
        if not args.parts or name in args.parts:
            result[name] = part(args)
    if args.out and args.together.is_first:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
