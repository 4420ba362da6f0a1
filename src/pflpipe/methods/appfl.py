"""APPFL's personalization (Argonne Privacy-Preserving Federated Learning; its documentation and
official code) for clients that train for epochs, ``PersonalizedClientOptim``. See appfl_steps.py
for clients that take a number of steps.

Layers named in the configuration are personal: they are trained with all others and never leave
the client. The shared layers are averaged, with Laplace noise (the study's ``privacy.mechanism``)
or, in newer versions, Gaussian noise.

    minimises: ``f(w)`` over all layers, from the released shared layers and the client's personal
        layers, E epochs
    sends: the change of the shared layers
    keeps: the personal layers
    tests: the model after one more such local pass
    code: APPFL/APPFL 11006c1: src/appfl/algorithm/personalized_client_optimizer.py
        PersonalizedClientOptim.update

    personal_layers: prefixes of layer names, separated by commas (p_layers); empty shares
        everything [ours]

The code's ``clip_value`` is the study's ``privacy.clip_norm``; its ``clip_norm`` is the norm of the
mechanism, 1 for Laplace.

The published version bounds training instead of the message: the change of each optimizer step,
personal layers included, is shortened to the length clip_value / E in that norm, for E local
epochs. An epoch of several steps can move the model by more than this share, so no public number
bounds the change. The published version also multiplies its noise by 2 lr (``sensitivity = 2.0 *
clip_value * lr``), although the bounded change contains the learning rate already
(``learning_rate_in_noise``), and quotes the budget of one round for the whole run
(``no_composition``). Not imitated: every client adds all of the noise to its message.

The certified version trains freely. It clips the change of the shared layers jointly, in the norm
of its mechanism.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from pflpipe.learning.architectures import layers_named
from pflpipe.learning.task import Solver, Task
from pflpipe.methods.base import About, Method, Option
from pflpipe.methods.fedper import keep

ABOUT = About(
    title="APPFL",
    paper="APPFL documentation, personalization",
    has_global_model=False,
    mechanism="laplace",
    paper_departures=("clip_in_training", "learning_rate_in_noise", "no_composition"),
)


def bounded(task: Task, steps: int) -> Solver:
    """Return the study's optimizer with every step shortened to length clip_value / ``steps``."""
    return replace(task.solver, step_bound=task.clip_norm / steps, step_norm=task.plan.norm)


def keep_layers(method: str, personal_layers: str, solver: Callable[[Task], Solver]) -> Method:
    """Return the method that keeps the named layers on each client and shares the others.

    Args:
        method: name of the method, for errors.
        personal_layers: prefixes of layer names, separated by commas.
        solver: the local optimizer.
    """

    def personal(task: Task) -> tuple[str, ...]:
        """Return the parameters that stay on the client."""
        location = f"method {method}: personal_layers"
        return layers_named(task.network.shapes, personal_layers, location)

    return keep(personal, solver)


def appfl(*, personal_layers: Annotated[str, Option(layers=True)] = "head") -> Method:
    """Return the method."""

    def solver(task: Task) -> Solver:
        # E, the number of epochs, where the published code should have the number of steps.
        published = "clip_in_training" in task.departures
        return bounded(task, task.local_epochs) if published else task.solver

    return keep_layers("appfl", personal_layers, solver)
