"""The builder of a simulation, for cells of a study (runs.py) and for calls from Python
(interface/training.py)."""

from __future__ import annotations

from typing import Any

from pflpipe.cells import Server
from pflpipe.code import dependencies
from pflpipe.code.dependencies import START, Dependency
from pflpipe.learning.networks import Network
from pflpipe.methods.base import Method
from pflpipe.privacy.plan import Plan
from pflpipe.seeds import derived_key
from pflpipe.simulation.clients import Examples, choose_backend
from pflpipe.simulation.server import with_optimizer
from pflpipe.simulation.simulation import Recipe, Simulation


def build(
    *,
    method: Method,
    server: Server,
    network: Network,
    plan: Plan,
    train: Examples,
    seed: int,
    key: str,
    code: tuple[Dependency, ...],
    recipe: Recipe,
    backend: str,
    **others: Any,
) -> Simulation:
    """Return the simulation, on a backend that keeps clients apart.

    Args:
        method: its hooks, without the server optimizer.
        server: the server optimizer.
        key: ``seeds.run_key`` of all settings. Where the network is from outside the package, the
            values with which it starts count too: its code may have them from elsewhere.
        code: dependencies from outside the package.
        recipe: for the second process, which only a private run with code from outside has.
        backend: ``auto``, ``loop`` or ``vmap``.
        network, plan, train, seed, others: fields of ``Simulation``.
    """
    if any(item.kind == "network" for item in dependencies.outside(code)):
        key = derived_key(key, START, network.start_digest(seed))
    witnessed = dependencies.unreviewed(code) and plan.mechanism != "none"
    simulation = Simulation(
        method=with_optimizer(method, server),
        network=network,
        plan=plan,
        train=train,
        seed=seed,
        key=key,
        code=code,
        recipe=recipe if witnessed else None,
        backend=choose_backend(backend, train.x.device.type, network.parameters),
        **others,
    )
    return simulation.isolated(backend)
