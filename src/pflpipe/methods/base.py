"""What a method is: a handful of pure functions of ONE client.

A method file is a factory with named hyper-parameters that returns them, and reads like the paper's
algorithm box. The signature of the factory (types, defaults, ranges) is the schema of its block in
a study.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from pflpipe import trees
from pflpipe.learning.architectures import Shapes
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.about import About as About
from pflpipe.options import Option as Option
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update


@dataclass(frozen=True)
class Upload:
    """What one client wants to send.

    Attributes:
        update: the tree that is clipped and noised; it may cover a part of the model, and is empty
            when nothing is sent.
        extras: private extras that a named departure of the plan reads (such as ``size``); empty in
            a certified run.
        loss: mean of the training objective over this round's steps, regularisers included, for the
            diagnostics; never sent.
    """

    update: Update
    extras: Tree
    loss: Tensor


def no_server(params: Params, task: Task) -> ServerState:
    """Server state of a method that keeps none."""
    return ServerState({})


def no_state(params: Params, task: Task) -> ClientState:
    """Client state of a method that keeps none."""
    return ClientState({})


def add_released(
    params: Params, released: Update, server: ServerState, task: Task
) -> tuple[Params, ServerState]:
    """Server step with learning rate 1: ``w <- w + released mean update``."""
    return trees.add(params, released), server


def unscaled(params: Params, server: ServerState, task: Task) -> Tree:
    """Scale of a method whose uploads are clipped and noised as they are."""
    return {}


def everything(task: Task) -> tuple[str, ...]:
    """Names of all parameters: what a method sends that keeps no part of the model to the
    client."""
    return tuple(task.network.shapes)


def only_parameters(task: Task) -> Shapes:
    """Parts of a method whose uploads are changes of parameters and nothing else."""
    return {}


def train_locally(
    params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
) -> Params:
    """Personal model: E local epochs from the released parameters."""
    return task.minimize(params, batches.train, task.loss)[0]


@dataclass(frozen=True)
class Method:
    """The hooks of a method: pure functions of one client, without noise and without a device.

    ``local_update(params, server, state, batches, task) -> (Upload, state)``;
    ``aggregate(params, released, server, task) -> (params, server)`` is given what was released,
    nothing else of a client; ``personalize(params, server, state, batches, task) -> params`` gives
    the model that is tested on the client's data; ``init_server`` and ``init_client`` take
    ``(params, task)``. ``scale(params, server, task)`` is a public tree s >= 0, computed from
    earlier releases alone: the update is clipped to ``|update / s|_2 <= C``, its noise is scaled by
    s, and a coordinate with s = 0 is not sent (mechanism.py). ``sends(task)`` names the parameters
    that leave the client, ``parts(task)`` gives name -> shape of what is sent besides, statistics
    of features, say; an upload with anything else stops the run (rounds.py). All of an upload is
    clipped together and shares one budget, which ``scale`` divides over it. ``absorb(state,
    message, task) -> state`` shows a client its own noised message, where a published mechanism
    releases single messages. ``head_epochs`` and ``full_pass`` ask for the schedules
    ``batches.head`` and ``batches.all``; ``local_steps`` makes ``batches.train`` so many steps
    instead of the study's epochs. ``draws`` says that a client draws numbers of its own, from
    ``batches.key``.
    """

    local_update: Callable[
        [Params, ServerState, ClientState, Batches, Task], tuple[Upload, ClientState]
    ]
    aggregate: Callable[[Params, Update, ServerState, Task], tuple[Params, ServerState]] = (
        add_released
    )
    personalize: Callable[[Params, ServerState, ClientState, Batches, Task], Params] = train_locally
    init_server: Callable[[Params, Task], ServerState] = no_server
    init_client: Callable[[Params, Task], ClientState] = no_state
    scale: Callable[[Params, ServerState, Task], Tree] = unscaled
    sends: Callable[[Task], Sequence[str]] = everything
    parts: Callable[[Task], Shapes] = only_parameters
    absorb: Callable[[ClientState, Update, Task], ClientState] | None = None
    local_steps: int = 0
    head_epochs: int = 0
    full_pass: bool = False
    draws: bool = False

    def upload(self, task: Task) -> Shapes:
        """Return name -> shape of all that one client sends."""
        return {name: task.network.shapes[name] for name in self.sends(task)} | self.parts(task)
