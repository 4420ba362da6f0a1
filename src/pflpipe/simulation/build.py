"""The last step of a simulation's making, for cells of a study (runs.py) and for calls from Python
(interface/training.py)."""

import dataclasses

import torch

from pflpipe.cells import Server
from pflpipe.code import dependencies
from pflpipe.code.dependencies import START
from pflpipe.seeds import derived_key
from pflpipe.simulation.clients import choose_backend
from pflpipe.simulation.server import with_optimizer
from pflpipe.simulation.simulation import Simulation


def build(simulation: Simulation, server: Server, backend: str) -> Simulation:
    """Return the simulation with a server optimizer, on a backend that keeps clients apart.

    Args:
        simulation: on any backend, with the method's own hooks. Its ``key`` is ``seeds.run_key`` of
            all settings; where the network is from outside the package, the values with which it
            starts count too, as its code may have them from elsewhere. Its ``recipe`` is for the
            second process, which only a private run with code from outside has.
        server: the server optimizer.
        backend: ``auto``, ``loop`` or ``vmap``.
    """
    # Only on request: without TF32 both backends, and CPU and GPU, agree up to float32 rounding.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
        simulation.training.precision == "tf32"
    )
    network, code, key = simulation.network, simulation.code, simulation.key
    if any(item.kind == "network" for item in dependencies.outside(code)):
        key = derived_key(key, START, network.start_digest(simulation.seed))
    witnessed = dependencies.unreviewed(code) and simulation.plan.mechanism != "none"
    return dataclasses.replace(
        simulation,
        method=with_optimizer(simulation.method, server),
        key=key,
        recipe=simulation.recipe if witnessed else None,
        backend=choose_backend(backend, simulation.train.x.device.type, network.parameters),
    ).isolated(backend)
