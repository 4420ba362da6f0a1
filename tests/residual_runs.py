"""Real runs seen from outside: what is left of the model's change when the clients' part is taken
away must be the noise that the run's key draws.

A run is watched where the world sees it: the global model before and after every round. What its
clients handed to the release is known too, so their clipped mean is computed here once more, in a
few lines of NumPy that share nothing with the engine, and taken away. What is left, divided by the
plan's public spread, must be the standard noise of the round under the key of the cell, up to
rounding, and the cohort that of its stream. That such noise has its law is tested in test_noise.py,
that other keys and rounds have other noise in test_seeds.py and test_keys.py.
"""

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import two_worlds
from pflpipe import cells, files, seeds
from pflpipe.data import datasets, partition
from pflpipe.methods import base, registry
from pflpipe.privacy.mechanism import Released
from pflpipe.privacy.noise import laplace, normal
from pflpipe.privacy.plan import Plan
from pflpipe.simulation import rounds, runs
from pflpipe.simulation.clients import Examples
from pflpipe.simulation.simulation import Simulation
from pflpipe.trees import Tree, Update
from simulations import plan, simulation

RAREST = 2e-10
"""A finding of a test that draws is what chance makes rarer than this."""
CLOSE = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Distance of two standard numbers that rounding of model and messages explains."""
DRAWS = {"gaussian": normal, "laplace": laplace}

CERTIFIED = tuple(name for name in registry.NAMES if registry.info(name).about.private)
NORMS = {"gaussian": 2, "laplace": 1}
DIGITS = cells.Partition("dirichlet", 6, alpha=0.5, min_size=2)
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Round:
    """One round from outside.

    Attributes:
        clients: who took part.
        scores: name -> flat array of what is left in units of the plan's noise; NaN where nothing
            is sent.
        as_released: whether the model changed by what was released, up to the rounding of its
            numbers, or the server's own step made it of nothing but the release, to the bit.
        rest_kept: whether nothing else of the model changed but by such a step.
    """

    clients: tuple[int, ...]
    scores: Arrays
    as_released: bool
    rest_kept: bool

    @property
    def stream(self) -> np.ndarray:
        """All scores in the order in which they are drawn, NaN where nothing is sent."""
        return np.concatenate(list(self.scores.values()))

    @property
    def carried(self) -> np.ndarray:
        """All scores of coordinates that carry noise."""
        return self.stream[~np.isnan(self.stream)]


@dataclass(frozen=True)
class Run:
    """A watched run: its simulation, the model before the first round, its rounds and its end."""

    world: Simulation
    initial: Arrays
    rounds: list[Round]
    done: rounds.Progress

    @functools.cached_property
    def scores(self) -> np.ndarray:
        """All numbers that carry noise, of all rounds."""
        return np.concatenate([round.carried for round in self.rounds])


def world(
    method: str = "dp_fedavg",
    *,
    seed: int = 0,
    rate: float = 1.0,
    noise: float = 1.0,
    clip_norm: float = 0.5,
    rounds: int = 3,
    **options: Any,
) -> Simulation:
    """Return a small simulation under the key that a study's run of the same settings has.

    The mechanism is the method's own, Gaussian but for a few. A method that needs a network with
    normalisation gets a ResNet, and fewer clients and rounds; one for people and items as many
    items as there are numbers. ``options`` are those of
    ``simulations.simulation``, fields of cells.Training among them.
    """
    model, shape, sizes = cells.Model("mlp", (32,)), (12,), (4, 3, 1, 2, 5)
    if "norm" in registry.info(method).about.needs:
        model, shape, sizes, rounds = cells.Model("resnet20"), (8, 8, 3), (2, 5), min(rounds, 2)
    if "items" in registry.info(method).about.needs:
        model = cells.Model("embedding", (4,), items=12)
    mechanism = mechanism_of(method)
    law = {"mechanism": mechanism, "norm": NORMS[mechanism], "noise_multiplier": noise}
    rule = plan(len(sizes), **law, rounds=rounds, sample_rate=rate, clip_norm=clip_norm)
    settings = {"plan": rule, "sizes": sizes, "shape": shape, "model": model, "seed": seed}
    found = simulation(method, **({"local_epochs": 1} | settings | options))
    data = "random", cells.Partition("iid", len(sizes)), model
    training = dataclasses.replace(found.training, rounds=rounds, sample_rate=rate)
    cell = _cell(data, training, rule, method, seed)
    return dataclasses.replace(found, key=registry.key(cell))


def _cell(data: Any, training: cells.Training, rule: Plan, method: str, seed: int) -> cells.Cell:
    """Return the cell of a run with this plan."""
    noise = rule.noise_multiplier
    privacy = cells.Privacy(rule.mechanism, None, noise, rule.delta, rule.clip_norm)
    values = registry.check_hyperparameters(method, {})
    named = registry.info(method).about.departures
    return cells.Cell(*data, training, privacy, method, values, departures=named, seed=seed)


def mechanism_of(method: str) -> str:
    """Return the mechanism that a method is run with here."""
    return "laplace" if registry.info(method).about.mechanism == "laplace" else "gaussian"


def real(world: Simulation) -> Run:
    """Watch a method's real hooks, which may have a server step of their own; a planted one is a
    fault."""
    return watch(world, own=world.method.aggregate is not base.add_released)


@functools.cache
def certified_run(method: str, rate: float, dtype: torch.dtype) -> Run:
    """Return a watched run of a certified method: float64 in a loop over clients, float32 with
    another seed under vmap, where it keeps clients apart."""
    wide = dtype == torch.float64
    how = {"backend": "loop", "seed": 0} if wide else {"backend": "vmap", "seed": 1}
    return real(world(method, rate=rate, dtype=dtype, **how).isolated("auto"))


def watch(world: Simulation, *, own: bool = False) -> Run:
    """Run a simulation and look on: who is asked to work, what enters the release, and how the
    model changes.

    Args:
        own: whether the method may have a server step of its own.
    """
    asked: list[tuple[int, int]] = []
    heard: list[tuple[Tree, torch.Tensor, Tree, Tree]] = []

    class Watched(Simulation):
        def work(self, client: int, round: int) -> Any:
            asked.append((round, client))
            return super().work(client, round)

    def release(generator: Any, uploads: Any, *rest: Any) -> Released:
        present, _, scale, _ = rest
        released = world.release(generator, uploads, *rest)
        heard.append((uploads.update, present, scale, released.sum))
        return released

    fields = {field.name: getattr(world, field.name) for field in dataclasses.fields(world)}
    watched = Watched(**fields | {"release": release})
    begun = rounds.start(watched)
    models, seen = [_public(watched, begun)], []
    public = [(begun.params, begun.server)]

    def on_round(progress: rounds.Progress) -> None:
        (inputs,) = heard
        heard.clear()
        workers = np.array([client for round, client in asked if round == progress.round - 1])
        after = _public(watched, progress)
        params, server = public[-1]
        stepped = world.method.aggregate(params, Update(inputs[-1]), server, world.task)
        public[-1] = progress.params, progress.server
        pairs = zip(stepped, public[-1], strict=True)
        own_step = own and all(torch.equal(t[k], there[k]) for t, there in pairs for k in t)
        cohort = workers[inputs[1].numpy()]
        seen.append(_round(cohort, models[-1], after, inputs, world.plan, own_step))
        models[-1] = after

    initial = _numpy(begun.params)
    done = rounds.run(watched, begun, on_round)
    return Run(world, initial, seen, done)


def _public(world: Simulation, progress: rounds.Progress) -> Tree:
    """Return the global model, and what the server keeps under the names of an upload's other
    parts, to which it adds what is released of them."""
    parts = world.method.parts(world.task)
    kept = {name: progress.server[name] for name in parts if name in progress.server}
    return progress.params | kept


def _round(
    clients: np.ndarray, before: Tree, after: Tree, heard: Any, plan: Plan, own_step: bool
) -> Round:
    update, present, scale, released = heard
    start, end, sums, scales = map(_numpy, (before, after, released, scale))
    rows = {name: value[present.numpy()] for name, value in _numpy(update).items()}
    mean = clipped_mean(rows, scales, plan)
    unit = plan.clip_norm * plan.noise_multiplier / (plan.sample_rate * plan.clients / plan.groups)
    unsent = start.keys() - mean.keys()
    rest_kept = own_step or all(np.array_equal(start[name], end[name]) for name in unsent)
    scores, as_released = {}, True
    for name, value in mean.items():
        change = sums[name]
        if name in end:
            change = end[name] - start[name]
            rounding = np.abs(start[name]) + np.abs(end[name])
            rounding *= torch.finfo(update[name].dtype).eps
            added = bool((np.abs(change - sums[name]) <= rounding).all())
            as_released &= added or own_step
            change = sums[name] if own_step and not added else change
        spread = np.broadcast_to(scales.get(name, np.ones(())), change.shape) * unit
        rest_kept &= not change[spread == 0].any()
        nothing = np.full(change.shape, np.nan)
        left = np.divide(change - value, spread, out=nothing, where=spread > 0)
        scores[name] = left.ravel()
    return Round(tuple(clients.tolist()), scores, as_released, rest_kept)


def clipped_mean(rows: Arrays, scales: Arrays, plan: Plan) -> Arrays:
    """Return the sum of the clients' uploads ``[n, *shape]``, each clipped jointly to ``|update /
    s| <= C``, over q M / b.

    A client with a number that is not finite counts as zero, and a coordinate with ``s = 0`` is not
    sent.
    """
    units = {}
    for name, value in rows.items():
        scale = np.broadcast_to(scales.get(name, np.ones(())), value.shape)
        units[name] = np.divide(value, scale, out=np.zeros_like(value), where=scale > 0)
    total = {name: np.zeros(value.shape[1:]) for name, value in rows.items()}
    for client in range(len(next(iter(rows.values())))):
        flat = np.concatenate([value[client].ravel() for value in units.values()])
        length = np.linalg.norm(flat, ord=plan.norm)
        if np.isfinite(length):
            for name, value in units.items():
                factor = min(1.0, plan.clip_norm / max(length, 1e-300))
                total[name] += value[client] * scales.get(name, 1.0) * factor
    cohort = plan.sample_rate * plan.clients / plan.groups
    return {name: value / cohort for name, value in total.items()}


def _numpy(tree: Tree) -> Arrays:
    return {name: value.double().numpy().copy() for name, value in tree.items()}


def findings(run: Run) -> set[str]:
    """Return the checks of a run that fail.

    - ``change``: the model changes by what was released; ``rest``: what is not sent stays.
    - ``noise``: what is left is the noise of the run's key in this round.
    - ``cohorts``: who takes part is who the run's key draws.
    """
    found, world = set(), run.world
    plan, close = world.plan, CLOSE[world.dtype]
    for number, round in enumerate(run.rounds):
        generator = seeds.release_rng(world.key, "noise", number)
        shapes = [len(scores) for scores in round.scores.values()]
        noise = np.concatenate([DRAWS[plan.mechanism](generator, (size,)) for size in shapes])
        drawn = np.arange(plan.clients)
        if plan.sample_rate < 1:
            chances = seeds.release_rng(world.key, "sample", number).random(plan.clients)
            drawn = np.flatnonzero(chances < plan.sample_rate)
        kept = {
            "change": round.as_released,
            "rest": round.rest_kept,
            "noise": not np.nanmax(np.abs(round.stream - noise)) > close,
            "cohorts": round.clients == tuple(drawn.tolist()),
        }
        found |= {check for check, passed in kept.items() if not passed}
    return found


def other_data(world: Simulation) -> Simulation:
    """Return the same run on other examples of the same number and shape, all of one class."""
    x, y = world.train.x, world.train.y
    other = torch.from_numpy(np.random.default_rng(99).normal(2.0, 3.0, x.shape)).to(x)
    return dataclasses.replace(world, train=Examples(other, torch.zeros_like(y)))


def without_rows(world: Simulation, client: int) -> Simulation:
    """Return the same run with a client that has no training examples."""
    train = [rows[:0] if place == client else rows for place, rows in enumerate(world.split.train)]
    return dataclasses.replace(world, split=dataclasses.replace(world.split, train=train))


def spoiled(world: Simulation, client: int) -> Simulation:
    """Return the same run with a client whose features, and so its upload, are not numbers."""
    x = world.train.x.clone()
    x[world.split.train[client]] = np.nan
    return dataclasses.replace(world, train=Examples(x, world.train.y))


def differences(left: Run, right: Run) -> list[str]:
    """Return what of two runs of one key and seed shows their data: the first model, the cohorts,
    the noise; the last up to rounding, where both send a coordinate."""
    one, other = left.initial, right.initial
    same_start = one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)
    pairs = list(zip(left.rounds, right.rounds, strict=True))
    gaps = [np.nanmax(np.abs(one.stream - other.stream)) for one, other in pairs]
    same = {"initial parameters": same_start, "noise": all(gap < 1e-9 for gap in gaps)}
    same["cohorts"] = all(one.clients == other.clients for one, other in pairs)
    return [what for what, kept in same.items() if not kept]


def strangers(world: Simulation, client: int) -> list[str]:
    """Return what shows one client's data otherwise than through the releases; nothing where a run
    keeps joint differential privacy."""
    removed = two_worlds.play(without_rows(world, client))
    there = two_worlds.play(world, removed.heard)
    return two_worlds.differences(removed, there, client)


def lay_out(place: Path, changed_data: bool = False) -> Path:
    """Lay out the digits and their partition; or other images, all with one label, in a file of
    the same shapes."""
    datasets.prepare("digits", None, place, place / "digits.npz")
    arrays = datasets.load_arrays(place / "digits.npz")
    partition.make(arrays, DIGITS, 0).save(place / "partition.npz")
    if changed_data:
        other = {"train_images": arrays.train_images[::-1].copy()}
        other["train_labels"] = np.zeros_like(arrays.train_labels)
        found = {name: value for name, value in (vars(arrays) | other).items() if value is not None}
        np.savez(place / "digits.npz", **found)
        (place / "digits.pin").unlink()  # this world has other values
    return place


def final_model(
    place: Path, method: str = "dp_fedavg", *, seed: int = 0, lr: float = 0.1, noise: float = 1000.0
) -> tuple[np.ndarray, np.ndarray]:
    """Train one round as a job does. Return the model of ``state.pt``, flat, in units of the plan's
    noise, and the standard noise of the cell's key.

    At a noise multiplier of 1000 the first model and the clients' part are a thousandth of it: what
    is left is noise.
    """
    kind, clip_norm = mechanism_of(method), 0.5
    rule = Plan(kind, NORMS[kind], clip_norm, noise, 0.7, 1, 1e-3, DIGITS.clients)
    training = cells.Training(1, 1, 16, "sgd", lr, sample_rate=0.7)
    cell = _cell(("digits", DIGITS, cells.Model("mlp", (8,))), training, rule, method, seed)
    files.write_json(place / "plan.json", {"plan": dataclasses.asdict(rule)})
    inputs = runs.Inputs(place / "plan.json", place / "partition.npz", place / "digits.npz")
    settings = {"device": "cpu", "backend": "auto", "checkpoint_seconds": 3600}
    runs.train(cell, inputs, place / "run", place / "checkpoints", **settings)
    params = torch.load(place / "run/state.pt", weights_only=True)["params"]
    generator = seeds.release_rng(registry.key(cell), "noise", 0)
    drawn = [DRAWS[kind](generator, (value.numel(),)) for value in params.values()]
    model = torch.cat([value.flatten() for value in params.values()]).double().numpy()
    return model / (clip_norm * noise / (0.7 * 6)), np.concatenate(drawn)
