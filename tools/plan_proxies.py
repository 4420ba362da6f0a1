"""Train the proxies that the planner's curve is fitted to: ``python tools/plan_proxies.py``.

A proxy is a small federation of public or made-up rows: nobody's private data. Each is trained at
several lengths of the noise, from none to far too long. At every length the learning rate and the
clip norm are chosen among the same random candidates, on another seed than the runs that count.
Each line of docs/planner/proxies.csv is one chosen setting. tools/plan_curve.py fits.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from pflpipe.cells import Model, Privacy, Training
from pflpipe.interface.training import Shard, federation
from pflpipe.learning.metrics import over_clients
from pflpipe.methods import registry
from pflpipe.seeds import numpy_rng
from pflpipe.simulation import rounds
from pflpipe.simulation.clients import one_thread
from pflpipe.simulation.evaluation import accuracies
from pflpipe.simulation.runs import write_rows

FILE = Path("docs/planner/proxies.csv")
COLUMNS = (
    *("proxy", "method", "clients", "sample_rate", "rounds", "sent", "noise_length"),
    *("personal_own", "global_own", "lr", "clip_norm"),
)
LENGTHS = (0.0, 0.5, 1.5, 3.0, 6.0, 24.0)
"""Noise on the mean of a round, in clip bounds: r = sigma sqrt(d) / (q M)."""
CANDIDATES, SEARCHED, FINAL = 6, 100, (0, 1)
CLIP_NORMS = (0.05, 3.0)


@dataclass(frozen=True)
class Proxy:
    """One federation: rows of every client for a seed, and how they are trained. ``lr`` is the
    range of the candidates."""

    shards: Callable[[int], list[Shard]]
    model: Model
    classes: int
    rounds: int
    sample_rate: float
    lr: tuple[float, float]
    methods: tuple[str, ...] = ("dp_fedavg",)


def digits(clients: int) -> Callable[[int], list[Shard]]:
    """Return scikit-learn's digits, dealt to clients who hold a few kinds each."""

    def shards(seed: int) -> list[Shard]:
        bunch = load_digits()
        rng = numpy_rng(seed, "proxy digits")
        shares = rng.dirichlet(np.full(10, 0.3), clients)
        shares /= shares.sum(0)
        # A client gets more rows of the classes of which it has the larger shares.
        owner = [rng.choice(clients, p=shares[:, y]) for y in bunch.target]
        rows = np.argsort(owner, kind="stable")
        ends = np.cumsum(np.bincount(owner, minlength=clients))[:-1]
        x = (bunch.data / 16).astype(np.float32)
        dealt: list[Shard] = [(x[r], bunch.target[r]) for r in np.split(rows, ends)]
        return dealt

    return shards


def clusters(
    clients: int, rows: int, dimensions: int, classes: int
) -> Callable[[int], list[Shard]]:
    """Return made-up rows: Gaussian classes whose means a client moves by an amount of its own."""

    def shards(seed: int) -> list[Shard]:
        rng = numpy_rng(seed, "proxy clusters")
        means = rng.normal(size=(classes, dimensions))
        made: list[Shard] = []
        for _ in range(clients):
            own = means + 0.7 * rng.normal(size=(classes, dimensions))
            y = rng.integers(classes, size=rows)
            x = own[y] + 1.5 * rng.normal(size=(rows, dimensions))
            made.append((x.astype(np.float32) / math.sqrt(dimensions), y))
        return made

    return shards


def answers(clients: int, items: int, tastes: int) -> Callable[[int], list[Shard]]:
    """Return made-up answers, yes or no, of people to every item: a logistic factor model."""

    def shards(seed: int) -> list[Shard]:
        rng = numpy_rng(seed, "proxy answers")
        loads, level = rng.normal(size=(items, tastes)), rng.normal(size=items)
        made: list[Shard] = []
        for _ in range(clients):
            logits = level + loads @ rng.normal(size=tastes)
            y = (rng.random(items) < 1 / (1 + np.exp(-logits))).astype(np.int64)
            made.append((np.arange(items, dtype=np.float32)[:, None], y))
        return made

    return shards


PROXIES = {
    "digits, perceptron": Proxy(
        digits(100), Model("mlp", hidden=(32,)), 10, 20, 0.5, (0.1, 2), ("dp_fedavg", "fedper")
    ),
    "digits, linear": Proxy(digits(100), Model("mlp", hidden=()), 10, 20, 0.5, (0.2, 5)),
    "clusters, perceptron": Proxy(
        clusters(300, 20, 30, 5),
        Model("mlp", hidden=(16,)),
        5,
        20,
        0.2,
        (0.1, 3),
        ("dp_fedavg", "fedper"),
    ),
    "clusters, linear": Proxy(
        clusters(300, 20, 30, 5), Model("mlp", hidden=()), 5, 40, 0.2, (0.2, 5)
    ),
    "answers, embedding": Proxy(
        answers(400, 50, 3),
        Model("embedding", hidden=(4,), items=50),
        2,
        20,
        0.2,
        (0.5, 20),
        ("dp_fedavg", "fedper"),
    ),
}


def measure(
    proxy: Proxy, method: str, length: float, lr: float, clip_norm: float, seed: int
) -> dict[str, float]:
    """Return a run's accuracies in percent, and how many numbers a client sends."""
    shards = proxy.shards(seed)
    about = registry.info(method).about
    sample_rate = proxy.sample_rate if about.sends else 1.0
    # Any noise: that of the wanted length follows when the size of a message is known.
    privacy = Privacy("gaussian", noise_multiplier=1.0, delta=1e-5, clip_norm=clip_norm)
    simulation = federation(
        method,
        shards,
        model=proxy.model,
        training=Training(proxy.rounds, 5, 0, "sgd", lr, sample_rate=sample_rate),
        privacy=privacy if about.private else None,
        test_fraction=0.25,
        classes=proxy.classes,
        seed=seed,
        # Public rows: anyone may draw this noise again.
        secret="proxy",  # noqa: S106
    )
    sent = sum(map(math.prod, simulation.method.upload(simulation.task).values()))
    if about.private:
        multiplier = length * simulation.plan.expected_cohort / math.sqrt(sent)
        plan = dataclasses.replace(simulation.plan, noise_multiplier=multiplier)
        simulation = dataclasses.replace(simulation, plan=plan)
    done = rounds.run(simulation, rounds.start(simulation), lambda progress: None)
    clients = accuracies(simulation, done)
    names = "personal_own", "global_own"
    return {"sent": sent} | {name: over_clients(row[name] for row in clients) for name in names}


def lines() -> Iterator[dict[str, Any]]:
    """Yield one line per proxy, method and length of the noise: means over the final seeds."""
    for name, proxy in PROXIES.items():
        # The same candidates at every length.
        rng = numpy_rng(0, "proxy candidates", name)
        candidates = [(_drawn(rng, proxy.lr), _drawn(rng, CLIP_NORMS)) for _ in range(CANDIDATES)]
        for method in ("local_only", *proxy.methods):
            alone = {"proxy": name, "method": method, "clients": len(proxy.shards(0))}
            for length in LENGTHS if method != "local_only" else LENGTHS[:1]:
                tried = {
                    values: measure(proxy, method, length, *values, SEARCHED)["personal_own"]
                    for values in candidates
                }
                lr, clip_norm = max(tried, key=lambda values: tried[values])
                runs = [measure(proxy, method, length, lr, clip_norm, seed) for seed in FINAL]
                yield {
                    **alone,
                    "sample_rate": proxy.sample_rate,
                    "rounds": proxy.rounds,
                    "noise_length": length,
                    **{key: statistics.fmean(run[key] for run in runs) for key in runs[0]},
                    "lr": lr,
                    "clip_norm": clip_norm,
                }


def _drawn(rng: np.random.Generator, between: tuple[float, float]) -> float:
    low, high = between
    return float(low * (high / low) ** rng.random())


def main() -> None:
    """Train everything and write the file: half an hour on one core."""
    found = []
    with one_thread():
        for line in lines():
            found.append(
                {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in line.items()}
            )
            print(found[-1], flush=True)
    write_rows(FILE, COLUMNS, found)


if __name__ == "__main__":
    main()
