"""The interface of a method: a few pure functions of ONE client.

A method file holds a factory with named hyper-parameters that returns these functions. It reads
like the paper's algorithm box. The signature of the factory (types, defaults, ranges) is the schema
of the method's block in a study.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pflpipe import trees
from pflpipe.learning.architectures import Shapes as Shapes
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.about import About as About
from pflpipe.methods.about import Count as Count
from pflpipe.methods.about import Fraction as Fraction
from pflpipe.methods.about import Head as Head
from pflpipe.methods.about import NonNegative as NonNegative
from pflpipe.methods.about import NotTiny as NotTiny
from pflpipe.methods.about import Positive as Positive
from pflpipe.methods.about import with_head as with_head
from pflpipe.options import Option as Option
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

Personalize = Callable[[Params, ServerState, ClientState, Batches, Task], Params]


@dataclass(frozen=True)
class Upload:
    """One client's message before clipping and noise.

    Attributes:
        update: the tree that is clipped and noised. It may cover a part of the model; it is empty
            if nothing is sent.
        extras: private values that a named departure of the plan reads, such as ``size``; empty in
            a certified run.
        loss: mean of the training objective over this round's steps, regularisers included. A
            diagnostic that is never sent.
    """

    update: Update
    extras: Tree
    loss: Tensor


def no_server(params: Params, task: Task) -> ServerState:
    """Return an empty server state."""
    return ServerState({})


def no_state(params: Params, task: Task) -> ClientState:
    """Return an empty client state."""
    return ClientState({})


def zeros(parts: Callable[[Task], Shapes]) -> Callable[[Params, Task], ServerState]:
    """Return the hook that starts the server with zeros in the shapes of a method's ``parts``."""

    def init_server(params: Params, task: Task) -> ServerState:
        zero = params["head.weight"].new_zeros
        return ServerState({name: zero(shape) for name, shape in parts(task).items()})

    return init_server


def add_released(
    params: Params, released: Update, server: ServerState, task: Task
) -> tuple[Params, ServerState]:
    """Return ``w + released`` (a server step with learning rate 1) and an unchanged state."""
    return trees.add(params, released), server


def unscaled(params: Params, server: ServerState, task: Task) -> Tree:
    """Return no scale: uploads are clipped and noised in their own units."""
    return {}


def everything(task: Task) -> tuple[str, ...]:
    """Return the names of all parameters: no part of the model stays on the client."""
    return tuple(task.network.shapes)


def only_body(task: Task) -> tuple[str, ...]:
    """Return the names of all parameters but the head's: no head leaves a client."""
    return task.body_names


def nothing(task: Task) -> tuple[str, ...]:
    """Return no names: no parameter leaves a client."""
    return ()


def only_parameters(task: Task) -> Shapes:
    """Return no parts: an upload holds changes of parameters and nothing else."""
    return {}


def train_locally(
    params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
) -> Params:
    """Return the personal model after E local epochs from the released parameters."""
    return task.minimize(params, batches.train, task.loss)[0]


def own_model(params: Params, task: Task) -> ClientState:
    """Return the client's own model, which starts as the initial parameters."""
    return ClientState(params)


def tested(train: Callable[[Params, ClientState, Batches, Task], tuple[Any, ...]]) -> Personalize:
    """Return the hook that tests the model of the method's own training, whose results end with
    this model and the loss."""

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return Params(train(params, state, batches, task)[-2])

    return personalize


@dataclass(frozen=True)
class Method:
    """The hooks of a method: pure functions of one client, without noise and without a device.

    Attributes:
        local_update: ``(params, server, state, batches, task) -> (Upload, state)``, one round of a
            client.
        aggregate: ``(params, released, server, task) -> (params, server)``. It receives what was
            released and nothing else of a client.
        personalize: ``(params, server, state, batches, task) -> params``, the model that is tested
            on the client's data.
        init_server, init_client: ``(params, task) ->`` the first state of the server, of a client.
        scale: ``(params, server, task) ->`` a public tree s >= 0, computed from earlier releases
            alone. The update is clipped to ``|update / s|_2 <= C``, its noise is multiplied by s,
            and a coordinate with s = 0 is not sent (mechanism.py).
        sends: ``(task) ->`` names of the parameters that leave the client.
        parts: ``(task) ->`` name -> shape of what is sent besides parameters, such as statistics of
            features. An upload with any other name stops the run (rounds.py). The whole upload is
            clipped jointly under one budget, which ``scale`` divides over its parts.
        absorb: ``(state, message, task) -> state``, for published mechanisms that release single
            messages: it shows a client its own noised message.
        local_steps: number of steps of ``batches.train``; 0 trains the study's local epochs.
        head_epochs: number of epochs of ``batches.head``; 0 builds no such schedule.
        full_pass: whether the method reads ``batches.all``.
        draws: whether a client draws random numbers, from ``batches.key``.
    """

    local_update: Callable[
        [Params, ServerState, ClientState, Batches, Task], tuple[Upload, ClientState]
    ]
    aggregate: Callable[[Params, Update, ServerState, Task], tuple[Params, ServerState]] = (
        add_released
    )
    personalize: Personalize = train_locally
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
        """Return name -> shape of everything that one client sends."""
        return {name: task.network.shapes[name] for name in self.sends(task)} | self.parts(task)
