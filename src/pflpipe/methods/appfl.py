"""APPFL's personalization (Argonne Privacy-Preserving Federated Learning; its documentation and
official code): the clients that train for epochs, ``PersonalizedClientOptim``. Those that take a
number of steps are in appfl_steps.py.

Layers named in the configuration are personal: they are trained with all the others and never leave
the client. The shared layers are averaged, with Laplace noise (the study's ``privacy.mechanism``)
or, in newer versions, Gaussian noise.

    minimises: ``f(w)`` over all layers, from the released shared and the own personal ones, E
        epochs
    sends: the change of the shared layers
    keeps: the personal layers
    tests: the model after one more such local pass

    personal_layers: beginnings of layer names, separated by commas (p_layers); empty shares
        everything [ours]

The code's ``clip_value`` and ``clip_norm`` are the study's ``privacy.clip_norm`` and the norm of
its mechanism, 1 for Laplace.

The published version bounds training instead of the message: the change of each optimizer step,
personal layers included, is shortened to the length clip_value / E in that norm, E local epochs. An
epoch of more than one step can then move the model by more than its share, so that nothing public
bounds the change; and it quotes the budget of one round for the whole run. Not imitated: the code
multiplies its noise by 2 lr, although the change that it bounds has the learning rate in it
already, and every client adds all of the noise to its message.

The certified version trains freely and clips the change of the shared layers, all together, in the
norm of its mechanism.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from pflpipe.learning.architectures import layers_named
from pflpipe.learning.solvers import Solver
from pflpipe.learning.task import Task
from pflpipe.methods.base import About, Method, Option
from pflpipe.methods.fedper import keep

ABOUT = About(
    title="APPFL",
    paper="APPFL documentation, personalization",
    has_global_model=False,
    mechanism="laplace",
    paper_departures=("clip_in_training", "no_composition"),
)


def bounded(task: Task, steps: int) -> Solver:
    """Return the study's optimizer, each of whose steps is at most clip_value / ``steps`` long."""
    return replace(task.solver, step_bound=task.clip_norm / steps, step_norm=task.plan.norm)


def keep_layers(method: str, personal_layers: str, solver: Callable[[Task], Solver]) -> Method:
    """Return the method that keeps the named layers on each client and shares the others.

    Args:
        method: name for errors.
        personal_layers: beginnings of layer names, separated by commas.
        solver: the local optimizer.
    """

    def personal(task: Task) -> tuple[str, ...]:
        """Return the parameters that stay on the client."""
        return layers_named(
            task.network.shapes, personal_layers, f"method {method}: personal_layers"
        )

    return keep(personal, solver)


def appfl(*, personal_layers: Annotated[str, Option(layers=True)] = "head") -> Method:
    """Return the method."""

    def solver(task: Task) -> Solver:
        published = "clip_in_training" in task.departures
        return bounded(task, task.local_epochs) if published else task.solver

    return keep_layers("appfl", personal_layers, solver)
