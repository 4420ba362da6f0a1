"""Small simulations for the engine's tests: ragged clients, a network of a few dozen parameters,
float64."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pflpipe import cells
from pflpipe.data.split import Split
from pflpipe.learning import networks
from pflpipe.methods import registry
from pflpipe.privacy import run_check
from pflpipe.privacy.mechanism import Released, Uploads, release
from pflpipe.privacy.plan import Plan
from pflpipe.simulation import rounds
from pflpipe.simulation.clients import Backend, Examples
from pflpipe.simulation.rounds import Progress
from pflpipe.simulation.simulation import Simulation
from pflpipe.trees import Tree

CLASSES = 3
SIZES = (9, 4, 1, 6)
"""Training examples of each client: several steps, one step, one example, an uneven last step
(batch size 4)."""

TABLE = cells.Model("embedding", (4,), items=5)
"""The network of methods for people and items, whatever network the others have."""

LINEAR = cells.Model("mlp", ())
"""A softmax regression."""

NOTHING_LEARNED = {"sizes": (1,) * len(SIZES), "local_epochs": 1, "lr": 0.0}
"""Settings of ``simulation`` with which every upload is zero, at the least expense: what moves the
model is noise."""


def plan(clients: int = len(SIZES), **changes: Any) -> Plan:
    """Return a Gaussian plan with a little noise."""
    values = {"mechanism": "gaussian", "norm": 2, "clip_norm": 0.5, "noise_multiplier": 0.3}
    shape = {"sample_rate": 1.0, "rounds": 3, "delta": 1e-3, "clients": clients}
    return Plan(**(values | shape | changes))


def open_plan(clients: int = len(SIZES), **changes: Any) -> Plan:
    """Return a plan without privacy."""
    nothing = dict.fromkeys(("clip_norm", "noise_multiplier", "delta"))
    return plan(clients, **({"mechanism": "none"} | nothing | changes))


def simulation(
    method: str,
    hyperparameters: dict[str, Any] | None = None,
    *,
    plan: Plan | None = None,
    backend: Backend = "loop",
    sizes: tuple[int, ...] = SIZES,
    shape: tuple[int, ...] = (5,),
    model: cells.Model | None = None,
    departures: tuple[str, ...] = (),
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    **training: Any,
) -> Simulation:
    """Return a simulation on random examples, indices for a network that looks items up;
    ``training`` changes fields of cells.Training.

    Own tests are ragged; client i keeps i % 4 validation examples, which lie behind all training
    rows.
    """
    about = registry.info(method).about
    if "items" in about.needs and (model is None or model.name != "embedding"):
        model, shape = TABLE, (1,)
    if plan is None:
        plan = globals()["plan"](len(sizes)) if about.private else open_plan(len(sizes))
    settings = {"rounds": plan.rounds, "local_epochs": 2, "batch_size": 4, "lr": 0.3}
    classes = 2 if "two_classes" in about.needs else CLASSES
    rng = np.random.default_rng(seed)
    examples = []
    for count in (sum(sizes), 12, 3 * len(sizes)):
        x = torch.from_numpy(rng.normal(size=(count, *shape))).to(dtype)
        if model is not None and model.items and shape != (model.items,):
            x = x.mul(9).round().remainder(model.items)
        examples.append(Examples(x, torch.from_numpy(rng.integers(0, classes, count))))
    held, test, kept = examples
    arrays = Examples(torch.cat([held.x, kept.x]), torch.cat([held.y, kept.y]))
    ends = np.cumsum(sizes)
    train = [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    own = [np.arange(client, 12, 1 + client % 3) for client in range(len(sizes))]
    validation = [sum(sizes) + 3 * client + np.arange(client % 4) for client in range(len(sizes))]
    split = Split(train=train, validation=validation, test=own, common=np.arange(12))
    values = registry.check_hyperparameters(method, hyperparameters or {})
    return Simulation(
        method=registry.info(method).factory(**values),
        network=networks.build(model or cells.Model("mlp", (4,)), shape, classes),
        plan=plan,
        training=cells.Training(**({"optimizer": "sgd"} | settings | training)),
        departures=frozenset(about.departures + departures),
        split=split,
        train=arrays,
        test=test,
        seed=seed,
        key=f"simulation {seed}",
        backend=backend,
        dtype=dtype,
    )


def quiet(
    method: str,
    hyperparameters: dict[str, Any] | None = None,
    *,
    rounds: int = 3,
    clip_norm: float = 0.5,
    clients: int = len(SIZES),
    **changes: Any,
) -> Simulation:
    """Return a simulation under vmap without noise, whose releases can be computed by hand."""
    rule = plan(clients, noise_multiplier=0.0, clip_norm=clip_norm, rounds=rounds)
    return simulation(method, hyperparameters, plan=rule, backend="vmap", **changes)


def linear(
    method: str,
    hyperparameters: dict[str, Any],
    clip_norm: float,
    lr: float,
    rounds: int = 1,
    **changes: Any,
) -> Simulation:
    """Return a simulation of a linear model whose rounds are computed by hand, without noise."""
    rule = {"clip_norm": clip_norm, "rounds": rounds}
    return quiet(method, hyperparameters, model=LINEAR, lr=lr, **rule, **changes)


def with_states(progress: Progress, change: Callable[[str, Tensor], Tensor]) -> Progress:
    """Change what all clients keep: ``(name, values [M, ...]) -> values [M, ...]``."""
    tree = {name: change(name, value) for name, value in progress.states.items()}
    if tree:
        progress.states = progress.states.replaced(range(len(next(iter(tree.values())))), tree)
    return progress


def shaken(begun: Progress, rng: np.random.Generator, size: float = 1.0) -> Progress:
    """Add noise to what all clients keep, which then differs from the global model, as it does in
    later rounds."""

    def change(name: str, value: Tensor) -> Tensor:
        return value + torch.from_numpy(rng.normal(size=value.shape) * size)

    return with_states(begun, change)


def held(world: Simulation, done: Progress) -> None:
    """Hold a run against its plan, as a table does."""
    found = {"releases": done.releases, "residuals": done.residuals}
    sent = done.uploaded_bits / 32 / done.round
    run_check.check(world.plan, world.departures, "run", uploaded=sent, **found)


def hooked(world: Simulation, **hooks: Any) -> Simulation:
    """Return the simulation of a method with some other hooks."""
    return dataclasses.replace(world, method=dataclasses.replace(world.method, **hooks))


def overheard(world: Simulation, told: Callable[..., None], *hooks: str) -> Simulation:
    """Return the simulation whose hooks tell their arguments before they run."""

    def telling(hook: Callable[..., Any]) -> Callable[..., Any]:
        def tell(*given: Any) -> Any:
            told(*given)
            return hook(*given)

        return tell

    return hooked(world, **{name: telling(getattr(world.method, name)) for name in hooks})


def with_rows(world: Simulation, x: Tensor | None = None, y: Tensor | None = None) -> Simulation:
    """Return the simulation with other training examples."""
    x = world.train.x if x is None else x
    return dataclasses.replace(world, train=Examples(x, world.train.y if y is None else y))


def snapshot(progress: Progress) -> Progress:
    """Return the progress as it is now; the diagnostics are the only part that a run changes in
    place."""
    return dataclasses.replace(progress, rows=list(progress.rows), timing=list(progress.timing))


def finished(world: Simulation) -> Progress:
    """Run all rounds and return their end."""
    return rounds.run(world, rounds.start(world))


def params_after(world: Simulation) -> Tree:
    """Run all rounds and return the global model."""
    return finished(world).params


def ends_of_other_data(world: Simulation, around: Callable[[Any], Any] = lambda f: f) -> Any:
    """Return the ends of two runs whose clients hold other data, when no release has any of it; the
    diagnostics of the releases do. ``around`` wraps the release."""

    def blind(generator: Any, uploads: Uploads, *rest: Any) -> Released:
        zeros = {name: torch.zeros_like(value) for name, value in uploads.update.items()}
        noise = release(generator, Uploads(zeros, uploads.extras), *rest)
        seen = release(np.random.default_rng(0), uploads, *rest)
        return dataclasses.replace(seen, sum=noise.sum)

    world = dataclasses.replace(world, release=around(blind))
    x, y = (torch.flip(rows, [0]) for rows in (world.train.x, world.train.y))
    return [finished(one) for one in (world, with_rows(world, x + 1, y))]


def assert_equal(left: Tree, right: Tree, tolerance: float = 1e-13) -> None:
    """Compare two trees name by name, up to rounding; tolerance 0 asks for the same bits."""
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=tolerance, atol=tolerance)


def of_everybody(world: Simulation, progress: Progress, hook: Callable[..., Any]) -> Any:
    """Return what a hook ``(params, server, state, batches, task)`` returns for all clients after
    ``progress``, stacked ``[M, ...]``."""

    def of_one(state: Tree, batches: Any, others: Any) -> Any:
        return hook(progress.params, progress.server, state, batches, world.task)

    everyone = range(world.plan.clients)
    work = [world.work(client, progress.round) for client in everyone]
    return world.run_clients(of_one, progress.states, everyone, work)


def personal_models(world: Simulation, progress: Progress) -> Tree:
    """Return all clients' personal models, stacked, as evaluation makes them."""
    return of_everybody(world, progress, world.method.personalize)


def next_states(world: Simulation, progress: Progress) -> Tree:
    """Return all clients' states, stacked, as one more round of local work would leave them."""
    return of_everybody(world, progress, lambda *given: world.method.local_update(*given)[1])


def spied(
    world: Simulation, begun: Progress | None = None
) -> tuple[Progress, list[tuple[Uploads, Tree, Released]], list[tuple[Tree, Tree]]]:
    """Run the rounds that are left and listen at the mechanism.

    Args:
        begun: where to begin, instead of the first round.

    Returns:
        the end; for each round its uploads, scale and release; the model and the clients' states
            before the first round and
        after every one.
    """
    seen: list[tuple[Uploads, Tree, Released]] = []
    begun = begun or rounds.start(world)
    states = [(begun.params, begun.states)]

    def spy(generator: Any, uploads: Uploads, *rest: Any) -> Released:
        _, _, scale, _ = rest
        released = world.release(generator, uploads, *rest)
        seen.append((uploads, scale, released))
        return released

    def listen(progress: Progress) -> None:
        states.append((progress.params, progress.states))

    done = rounds.run(dataclasses.replace(world, release=spy), begun, listen)
    return done, seen, states
