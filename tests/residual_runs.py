"""Real runs seen from outside: what is left of the model's change when the clients' part is taken
away must be fresh noise.

A run is watched where the world sees it: the global model before and after every round. What its
clients handed to the release is known too, so their clipped mean is computed here once more, in a
few lines of NumPy that share nothing with the engine, and taken away. What is left, divided by the
plan's public spread, must be independent standard normal numbers, whatever the run's settings are;
Laplace noise becomes normal through its own distribution function, so that one set of checks is for
both.

Every check gives the probability with which chance alone does worse (an exact one, or a bound that
holds for every number of coordinates), multiplied by the number of places that it looked at. Below
``RAREST`` it is a finding.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import fft, special, stats

from pflpipe import cells, files
from pflpipe.data import datasets, partition
from pflpipe.methods import registry
from pflpipe.methods.base import add_released
from pflpipe.methods.registry import NAMES
from pflpipe.privacy.mechanism import Released
from pflpipe.privacy.plan import Plan
from pflpipe.simulation import rounds, runs
from pflpipe.simulation.clients import Examples
from pflpipe.simulation.rounds import Progress
from pflpipe.simulation.simulation import Simulation
from pflpipe.trees import Tree, Update
from simulations import plan, simulation

RAREST = 2e-10
"""A finding is what chance makes rarer than this. The suite makes fewer than two thousand checks,
so that all of them together raise a false alarm with a probability below 1e-6; and seeds are fixed,
so that an alarm once silent stays so."""

CERTIFIED = tuple(name for name in NAMES if registry.info(name).about.private)
LAPLACE = tuple(name for name in CERTIFIED if registry.info(name).about.mechanism == "laplace")
NORMS = {"gaussian": 2, "laplace": 1}
DIGITS = cells.Partition("dirichlet", 6, alpha=0.5, min_size=2)
STARTS = 2000
"""Coordinates at the beginning of every round that are compared with those of all other rounds."""

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Round:
    """One round from outside.

    Attributes:
        clients: who took part.
        scores: name -> flat array of what is left in units of the plan's noise, as normal numbers;
            NaN where nothing is sent.
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
    done: Progress

    @functools.cached_property
    def scores(self) -> np.ndarray:
        """All numbers that carry noise, of all rounds."""
        return np.concatenate([round.carried for round in self.rounds])


def world(
    method: str = "dp_fedavg",
    *,
    mechanism: str = "",
    seed: int = 0,
    rate: float = 1.0,
    noise: float = 1.0,
    clip_norm: float = 0.5,
    rounds: int = 3,
    sizes: tuple[int, ...] = (4, 3, 1, 2, 5),
    shape: tuple[int, ...] = (12,),
    hidden: tuple[int, ...] = (32,),
    **options: Any,
) -> Simulation:
    """Return a small simulation under the key that a study's run of the same settings has.

    The mechanism is the method's own, Gaussian but for a few. A method that needs a network with
    normalisation gets a ResNet, and fewer clients and rounds; one for people and items as many
    items as there are numbers. ``options`` are those of
    ``simulations.simulation``, fields of cells.Training among them.
    """
    model = cells.Model("mlp", hidden)
    if "norm" in registry.info(method).about.needs:
        model, shape, sizes, rounds = cells.Model("resnet20"), (8, 8, 3), sizes[-2:], min(rounds, 2)
    if "items" in registry.info(method).about.needs:
        model = cells.Model("embedding", (4,), items=shape[0])
    mechanism = mechanism or mechanism_of(method)
    law = {"mechanism": mechanism, "norm": NORMS[mechanism]}
    rule = plan(
        len(sizes),
        **law,
        rounds=rounds,
        sample_rate=rate,
        noise_multiplier=noise,
        clip_norm=clip_norm,
    )
    settings = {
        "local_epochs": 1,
        "plan": rule,
        "sizes": sizes,
        "shape": shape,
        "model": model,
        "seed": seed,
    }
    found = simulation(method, **(settings | options))
    cell = cells.Cell(
        "random",
        cells.Partition("iid", len(sizes)),
        model,
        dataclasses.replace(found.training, rounds=rounds, sample_rate=rate),
        cells.Privacy(rule.mechanism, None, noise, rule.delta, clip_norm),
        method,
        registry.check_hyperparameters(method, {}),
        departures=registry.info(method).about.departures,
        seed=seed,
    )
    return dataclasses.replace(found, key=registry.key(cell))


def mechanism_of(method: str) -> str:
    """Return the mechanism that a method is run with here."""
    return "laplace" if method in LAPLACE else "gaussian"


def real(world: Simulation) -> Run:
    """Watch a method's real hooks, which may have a server step of their own; a planted one is a
    fault."""
    return watch(world, own=world.method.aggregate is not add_released)


@functools.cache
def certified_run(method: str, rate: float, dtype: torch.dtype) -> Run:
    """Return a watched run of a certified method: float64 in a loop over clients, float32 with
    another seed under vmap, where it keeps clients apart."""
    wide = dtype == torch.float64
    found = world(
        method,
        rate=rate,
        dtype=dtype,
        backend="loop" if wide else "vmap",
        seed=0 if wide else 1,
    )
    return real(found.isolated("auto"))


@functools.cache
def wide_run(mechanism: str) -> Run:
    """Return a watched run of six million released numbers: one step of one client, a linear model
    of a million numbers."""
    one_step = {"sizes": (1,), "shape": (333_333,), "hidden": ()}
    return watch(world(mechanism=mechanism, rounds=6, **one_step, dtype=torch.float32))


@functools.cache
def many_runs() -> list[Run]:
    """Return 24 runs of 40 rounds that differ in one setting each: 960 rounds, enough to meet twice
    in 16 bits of a seed."""
    small = {"rounds": 40, "sizes": (2,), "shape": (100,), "hidden": ()}
    changes: list[dict[str, Any]] = [{"seed": seed} for seed in range(8)]
    changes += [{"lr": lr} for lr in (0.1, 0.2, 0.4)]
    changes += [{"noise": noise} for noise in (0.5, 2.0, 4.0)]
    changes += [{"rate": rate} for rate in (0.3, 0.5, 0.9)]
    changes += [
        {"clip_norm": 1.0},
        {"local_epochs": 2},
        {"batch_size": 1},
        {"optimizer": "adam"},
        {"momentum": 0.5},
    ]
    changes += [{"method": "dp_fedsam"}, {"weight_decay": 1e-3}]
    return [watch(world(**(small | change))) for change in changes]


@functools.cache
def sampled_runs() -> list[Run]:
    """Return four runs of sixty clients that differ in one setting, the rate of their cohorts or
    another."""
    many = {"rounds": 6, "sizes": (1,) * 60, "shape": (20,), "hidden": (), "backend": "vmap"}
    return [
        watch(world(rate=rate, lr=lr, **many))
        for rate, lr in ((0.5, 0.3), (0.5, 0.2), (0.3, 0.3), (0.2, 0.3))
    ]


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

    def release(
        generator: Any, uploads: Any, present: Any, plan: Plan, scale: Tree, departures: Any
    ) -> Released:
        released = world.release(generator, uploads, present, plan, scale, departures)
        heard.append((uploads.update, present, scale, released.sum))
        return released

    fields = {field.name: getattr(world, field.name) for field in dataclasses.fields(world)}
    watched = Watched(**fields | {"release": release})
    begun = rounds.start(watched)
    models, seen = [_public(watched, begun)], []
    public = [(begun.params, begun.server)]

    def on_round(progress: Progress) -> None:
        (inputs,) = heard
        heard.clear()
        workers = np.array([client for round, client in asked if round == progress.round - 1])
        after = _public(watched, progress)
        params, server = public[-1]
        stepped = world.method.aggregate(params, Update(inputs[-1]), server, world.task)
        public[-1] = progress.params, progress.server
        own_step = own and all(
            torch.equal(value, there[name])
            for tree, there in zip(stepped, public[-1], strict=True)
            for name, value in tree.items()
        )
        cohort = workers[inputs[1].numpy()]
        seen.append(_round(cohort, models[-1], after, *inputs, world.plan, own_step))
        models[-1] = after

    initial = _numpy(begun.params)
    done = rounds.run(watched, begun, on_round)
    return Run(world, initial, seen, done)


def _public(world: Simulation, progress: Progress) -> Tree:
    """Return the global model, and what the server keeps under the names of an upload's other
    parts, to which it adds what is released of them."""
    parts = world.method.parts(world.task)
    kept = {name: progress.server[name] for name in parts if name in progress.server}
    return progress.params | kept


def _round(
    clients: np.ndarray,
    before: Tree,
    after: Tree,
    update: Tree,
    present: Any,
    scale: Tree,
    released: Tree,
    plan: Plan,
    own_step: bool,
) -> Round:
    start, end, sums = _numpy(before), _numpy(after), _numpy(released)
    scales = _numpy(scale)
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
            rounding = torch.finfo(update[name].dtype).eps
            rounding = rounding * (np.abs(start[name]) + np.abs(end[name]))
            added = bool((np.abs(change - sums[name]) <= rounding).all())
            as_released &= added or own_step
            change = sums[name] if own_step and not added else change
        spread = np.broadcast_to(scales.get(name, np.ones(())), change.shape) * unit
        rest_kept &= not change[spread == 0].any()
        left = np.divide(
            change - value, spread, out=np.full(change.shape, np.nan), where=spread > 0
        )
        scores[name] = (normal_scores(left) if plan.mechanism == "laplace" else left).ravel()
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
        length = np.linalg.norm(
            np.concatenate([value[client].ravel() for value in units.values()]), ord=plan.norm
        )
        if np.isfinite(length):
            for name, value in units.items():
                total[name] += (
                    value[client]
                    * scales.get(name, 1.0)
                    * min(1.0, plan.clip_norm / max(length, 1e-300))
                )
    cohort = plan.sample_rate * plan.clients / plan.groups
    return {name: value / cohort for name, value in total.items()}


def normal_scores(laplace: np.ndarray) -> np.ndarray:
    """Return the normal numbers that lie as far out in their law as standard Laplace numbers do in
    theirs."""
    return np.sign(laplace) * -special.ndtri(0.5 * np.exp(-np.abs(laplace)))


def _numpy(tree: Tree) -> Arrays:
    return {name: value.double().numpy().copy() for name, value in tree.items()}


def findings(*runs: Run) -> dict[str, float]:
    """Return the checks of single runs that fail, with the probability of as much by chance."""
    found: dict[str, float] = {}
    for check, probability in itertools.chain.from_iterable(
        probabilities(run).items() for run in runs
    ):
        if not probability >= RAREST:
            found[check] = min(probability, found.get(check, 1.0))
    return found


def probabilities(run: Run) -> dict[str, float]:
    """Return the probability of every check of a run.

    - ``change``: the model changes by what was released; ``rest``: what is not sent stays (both
      without any chance).
    - ``size``, ``mean``, ``shape``, ``tails``: the noise has its plan's law, in size in every
      single round.
    - ``halves``: no half of a tensor's noise follows from the other half; ``neighbours``: nor does
      any number from another one at a fixed distance, in its own tensor or the next.
    - ``cohorts``: as many take part as the plan's rate draws.
    """
    plan, rounds = run.world.plan, run.rounds
    return {
        "change": float(all(round.as_released for round in rounds)),
        "rest": float(all(round.rest_kept for round in rounds)),
        "size": (1 + len(rounds))
        * min(size(part) for part in (run.scores, *(round.carried for round in rounds))),
        "mean": mean(run.scores),
        "shape": shape(run.scores),
        "tails": tails(run.scores),
        "halves": halves(rounds),
        "neighbours": neighbours(rounds),
        "cohorts": stats.binomtest(
            sum(len(round.clients) for round in rounds),
            plan.clients * len(rounds),
            plan.sample_rate / plan.groups,
        ).pvalue,
    }


def whitened(run: Run) -> Run:
    """Return a run with correlated noise as one with the independent noise of which it is made: a
    round's own, plus c_j of that of j rounds before, c_j = (1/2)(3/4)(5/6) ... of j factors, or a
    sum of geometric series."""
    lags, buffers = np.arange(1, run.world.plan.band), run.world.plan.buffers
    weights = np.cumprod([1.0, *((2 * lags - 1) / (2 * lags))])
    if buffers:
        series = zip(buffers.decays, buffers.scales, strict=True)
        weights = np.r_[1.0, sum(scale * decay ** (lags - 1) for decay, scale in series)]
    rounds = []
    for last in range(len(run.rounds)):
        latest = run.rounds[last::-1][: len(weights)]
        scores = {
            name: sum(
                weight * one.scores[name] for weight, one in zip(weights, latest, strict=False)
            )
            for name in latest[0].scores
        }
        rounds.append(dataclasses.replace(latest[0], scores=scores))
    return dataclasses.replace(run, rounds=rounds)


def size(scores: np.ndarray) -> float:
    """Sum of squares against chi-square."""
    squares = scores @ scores
    return 2 * min(special.chdtr(len(scores), squares), special.chdtrc(len(scores), squares))


def mean(scores: np.ndarray) -> float:
    """Sum against the normal law."""
    return _normal(scores.sum() / np.sqrt(len(scores)))


def shape(scores: np.ndarray) -> float:
    """Largest distance from the normal distribution function, by the bound of Dvoretzky, Kiefer,
    Wolfowitz and Massart."""
    heights = special.ndtr(np.sort(scores))
    steps = np.arange(len(scores) + 1) / len(scores)
    distance = max(np.max(steps[1:] - heights), np.max(heights - steps[:-1]))
    return 2 * float(np.exp(-2 * len(scores) * distance**2))


def tails(scores: np.ndarray) -> float:
    """Numbers beyond 2.5, 2.55, ... 5.5 standard deviations, below, above and both, against the
    binomial law.

    What is cut off at a bound is missed beyond the next one, wherever rounding puts it.
    """
    bounds, chances = np.arange(50, 111) / 20, []
    for side, both in ((scores, 1), (-scores, 1), (np.abs(scores), 2)):
        far = np.sort(side[side > bounds[0]])
        beyond, rate = (
            len(far) - np.searchsorted(far, bounds, side="right"),
            both * special.ndtr(-bounds),
        )
        least = np.minimum(
            stats.binom.cdf(beyond, len(side), rate), stats.binom.sf(beyond - 1, len(side), rate)
        )
        chances.append(2 * least.min())
    return 3 * len(bounds) * min(chances)


def halves(rounds: Iterable[Round]) -> float:
    """Product of the first and the second half of every tensor: given one of them, exactly a normal
    number."""
    first, second = [], []
    for round in rounds:
        for scores in round.scores.values():
            half = len(scores) // 2
            first.append(scores[:half])
            second.append(scores[half : 2 * half])
    return _products(np.concatenate(first), np.concatenate(second))


def neighbours(rounds: Sequence[Round]) -> float:
    """Products of all pairs of numbers of a round at each distance, summed over the rounds, for all
    distances."""
    streams = np.stack([round.stream for round in rounds])
    here = ~np.isnan(streams)
    length = streams.shape[1]
    sums = _lagged(np.where(here, streams, 0))[1:]
    whole = here.all()
    pairs = len(streams) * np.arange(length - 1, 0, -1) if whole else _lagged(here).round()[1:]
    known = pairs > 0
    return int(known.sum()) * float(_quadratic(sums[known], pairs[known]).min())


def _lagged(rows: np.ndarray) -> np.ndarray:
    """Sum of ``x[i] x[i + k]`` over all rows for every distance k, by the Fourier transform."""
    length = rows.shape[1]
    wide = fft.next_fast_len(2 * length, real=True)
    power = sum(np.abs(fft.rfft(row, wide)) ** 2 for row in rows)
    return fft.irfft(power, wide)[:length]


def _quadratic(sums: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Bound of Chernoff on the probability of a sum of so many products of normal numbers at one
    distance.

    The matrix of such a form has eigenvalues in [-1, 1], symmetric around 0, with ``pairs / 2`` for
    the sum of their squares; so ``E exp(t S) <= (1 - 4 t^2)^(-pairs / 8)``, which is least at the t
    below.
    """
    away = np.maximum(np.abs(sums), 1e-12)
    best = (-pairs + np.sqrt(pairs**2 + 16 * away**2)) / (8 * away)
    return np.minimum(1, 2 * np.exp(-(best * away + pairs / 8 * np.log1p(-4 * best**2))))


def _products(left: np.ndarray, right: np.ndarray) -> float:
    both = ~np.isnan(left) & ~np.isnan(right)
    return _normal(left[both] @ right[both] / max(np.linalg.norm(right[both]), 1e-300))


def shared(runs: Sequence[Run]) -> dict[str, float]:
    """Return the checks that fail of runs against each other, all of which differ in a setting that
    training reads.

    - ``streams``: the noise of two rounds is independent, for all pairs of rounds of all runs.
    - ``repeats``: no number comes twice, in whatever place and with whatever sign (runs in
      float64).
    - ``joint cohorts``: two runs' cohorts meet as often as independent ones do, for all pairs of
      runs of equally many clients.
    """
    streams = [round.stream[:STARTS] for run in runs for round in run.rounds]
    fine = [
        round.stream[:STARTS]
        for run in runs
        if run.world.dtype == torch.float64
        for round in run.rounds
    ]
    found = {
        "streams": pairs(streams),
        "repeats": repeats(np.concatenate(fine)),
        "joint cohorts": joint_cohorts(runs),
    }
    return {check: probability for check, probability in found.items() if not probability >= RAREST}


def pairs(streams: Sequence[np.ndarray]) -> float:
    """Products of all pairs of streams, over the coordinates that both have; given one of them,
    exactly normal numbers."""
    padded = np.full((len(streams), max(map(len, streams))), np.nan)
    for row, stream in zip(padded, streams, strict=True):
        row[: len(stream)] = stream
    here = ~np.isnan(padded)
    values = np.where(here, padded, 0)
    above = np.triu_indices(len(streams), 1)
    lengths = np.sqrt(here.astype(float) @ (values**2).T)[above]
    products = (values @ values.T)[above]
    known = lengths > 0
    return int(known.sum()) * _normal(np.max(np.abs(products[known] / lengths[known]), initial=0))


def repeats(scores: np.ndarray, within: float = 1e-12) -> float:
    """Sizes that come twice against the Poisson law of chance meetings: two half-normal numbers are
    equal with density 0.56."""
    sizes = np.sort(np.abs(scores[~np.isnan(scores)]))
    return float(
        stats.poisson.sf(
            (np.diff(sizes) < within).sum() - 1, within * len(sizes) ** 2 / np.sqrt(np.pi)
        )
    )


def joint_cohorts(runs: Sequence[Run]) -> float:
    """Meetings of a client in the cohorts of two runs against the binomial law; everybody meets at
    q = 1."""
    drawn = [run for run in runs if run.world.plan.sample_rate < 1]
    tables = [
        np.array(
            [[c in round.clients for c in range(run.world.plan.clients)] for round in run.rounds]
        )
        for run in drawn
    ]
    chances = [1.0]
    for (one, left), (other, right) in itertools.combinations(zip(drawn, tables, strict=True), 2):
        if left.shape == right.shape:
            rate = one.world.plan.sample_rate * other.world.plan.sample_rate
            chances.append(stats.binomtest(int((left & right).sum()), left.size, rate).pvalue)
    return len(chances) * min(chances)


def _normal(value: float) -> float:
    """Probability that a standard normal number is at least as far from 0."""
    return 2 * float(special.ndtr(-abs(value)))


def other_data(world: Simulation) -> Simulation:
    """Return the same run on other examples of the same number and shape, all of one class."""
    draw = np.random.default_rng(99)
    x, y = world.train.x, world.train.y
    return dataclasses.replace(
        world,
        train=Examples(torch.from_numpy(draw.normal(2.0, 3.0, x.shape)).to(x), torch.zeros_like(y)),
    )


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
    found = []
    if left.initial.keys() != right.initial.keys() or not all(
        np.array_equal(value, right.initial[name]) for name, value in left.initial.items()
    ):
        found.append("initial parameters")
    if [round.clients for round in left.rounds] != [round.clients for round in right.rounds]:
        found.append("cohorts")
    gaps = [one.stream - other.stream for one, other in zip(left.rounds, right.rounds, strict=True)]
    if not all(np.nanmax(np.abs(gap)) < 1e-9 for gap in gaps):
        found.append("noise")
    return found


def strangers(world: Simulation, client: int) -> list[str]:
    """Return what other clients send or keep that shows one client's data otherwise than through
    the releases; nothing where a run keeps joint differential privacy.

    The run is made twice, the second time without the client's rows and with the releases of the
    first one: all that others see of the client is then the same, so all that they do must be.
    """
    others = torch.arange(world.plan.clients) != client
    played: list[Released] = []

    def recording(*arguments: Any) -> Released:
        played.append(world.release(*arguments))
        return played[-1]

    def watched(run: Simulation, release: Any) -> tuple[Progress, list[Tree]]:
        sent: list[Tree] = []

        def listening(generator: Any, uploads: Any, *rest: Any) -> Released:
            sent.append(dict(uploads.update))
            return release(generator, uploads, *rest)

        run = dataclasses.replace(run, release=listening)
        return rounds.run(run, rounds.start(run)), sent

    first, said = watched(world, recording)
    again = iter(played)
    second, says = watched(without_rows(world, client), lambda *arguments: next(again))
    found = set()
    for left, right in zip([*said, dict(first.states)], [*says, dict(second.states)], strict=True):
        found |= {name for name in left if not torch.equal(left[name][others], right[name][others])}
    return sorted(found)


def lay_out(place: Path, changed_data: bool = False) -> Path:
    """Lay out the digits and their partition; or other images, all with one label, in a file of
    the same shapes."""
    datasets.prepare("digits", None, place, place / "digits.npz")
    arrays = datasets.load_arrays(place / "digits.npz")
    partition.make(arrays, DIGITS, 0).save(place / "partition.npz")
    if changed_data:
        other = {
            "train_images": arrays.train_images[::-1].copy(),
            "train_labels": np.zeros_like(arrays.train_labels),
        }
        found = {name: value for name, value in (vars(arrays) | other).items() if value is not None}
        np.savez(place / "digits.npz", **found)
        (place / "digits.pin").unlink()  # this world has other values
    return place


def final_model(
    place: Path,
    method: str = "dp_fedavg",
    *,
    seed: int = 0,
    lr: float = 0.1,
    noise: float = 1000.0,
    clip_norm: float = 0.5,
    epochs: int = 1,
) -> np.ndarray:
    """Train one round as a job does, and return the model of ``state.pt``, flat, in units of the
    plan's noise.

    At a noise multiplier of 1000 the first model and the clients' part are a thousandth of it: what
    is left is noise.
    """
    cell = cells.Cell(
        "digits",
        DIGITS,
        cells.Model("mlp", (8,)),
        cells.Training(1, epochs, 16, "sgd", lr, sample_rate=0.7),
        cells.Privacy(mechanism_of(method), None, noise, 1e-3, clip_norm),
        method,
        registry.check_hyperparameters(method, {}),
        seed=seed,
    )
    rule = {
        "mechanism": mechanism_of(method),
        "norm": NORMS[mechanism_of(method)],
        "clip_norm": clip_norm,
    }
    rule |= {
        "noise_multiplier": noise,
        "sample_rate": 0.7,
        "rounds": 1,
        "delta": 1e-3,
        "clients": DIGITS.clients,
        "adaptive": None,
        "groups": 1,
        "band": 1,
        "buffers": None,
    }
    files.write_json(place / "plan.json", {"plan": rule})
    inputs = runs.Inputs(place / "plan.json", place / "partition.npz", place / "digits.npz")
    settings = {"device": "cpu", "backend": "auto", "checkpoint_seconds": 3600}
    runs.train(cell, inputs, place / "run", place / "checkpoints", **settings)
    params = torch.load(place / "run/state.pt", weights_only=True)["params"]
    return torch.cat([value.flatten() for value in params.values()]).double().numpy() / (
        clip_norm * noise / (0.7 * 6)
    )
