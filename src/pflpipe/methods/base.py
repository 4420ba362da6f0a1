"""What a method is: a handful of pure functions of ONE client.

A method file is a factory with named hyper-parameters that returns them, and reads like the paper's
algorithm box. The signature of the factory (types, defaults, ranges) is the schema of its block in
a study.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from pflpipe import trees
from pflpipe.learning.architectures import Shapes
from pflpipe.learning.task import Batches, Task
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


def fits_every_model(names: Sequence[str]) -> None:
    """Check of a method whose hyper-parameters name no part of the model."""


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
    releases single messages. ``check(names)`` raises ConfigError when the hyper-parameters do not
    fit a model whose parameters have these names. ``head_epochs`` and ``full_pass`` ask for the
    schedules ``batches.head`` and ``batches.all``; ``local_steps`` makes ``batches.train`` so many
    steps instead of the study's epochs. ``draws`` says that a client draws numbers of its own, from
    ``batches.key``. ``avoids`` names those departures of ``ABOUT`` that these
    hyper-parameters do without, such as a step that an ablation takes out.
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
    check: Callable[[Sequence[str]], object] = fits_every_model
    local_steps: int = 0
    head_epochs: int = 0
    full_pass: bool = False
    draws: bool = False
    avoids: tuple[str, ...] = ()

    def upload(self, task: Task) -> Shapes:
        """Return name -> shape of all that one client sends."""
        return {name: task.network.shapes[name] for name in self.sends(task)} | self.parts(task)


@dataclass(frozen=True)
class About:
    """What a method file says about itself.

    Attributes:
        title: the method's name in print.
        paper: authors, venue, year.
        private: whether what it releases is clipped and noised (else the claim is ``none``).
        sends: whether anything leaves a client; else there is nothing that a server could step by.
        has_global_model: whether there is a server model to test.
        mechanism: the noise of its paper, with which its claims are audited.
        trains: the method whose training this one shares to the bit, given the hyper-parameters
            that the two have in common; empty when it has its own. It may then differ in
            ``personalize`` alone.
        needs: parts that a network must have, out of ``body`` (layers before the head) and ``norm``
            (normalisation layers), because without them the method is another one.
        departures: departures of both profiles (a non-private method's weights, say).
        paper_departures: further departures of ``profile: paper``.
        official_departures: further departures of ``official_code: true``.
    """

    title: str
    paper: str
    private: bool = True
    sends: bool = True
    has_global_model: bool = True
    mechanism: str = "gaussian"
    trains: str = ""
    needs: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()
    paper_departures: tuple[str, ...] = ()
    official_departures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Range:
    """Closed bounds of a hyper-parameter, for ``Annotated[float, Range(0)]``."""

    low: float = -math.inf
    high: float = math.inf


AFTER_TRAINING = "read by personalize alone"
"""Marks a hyper-parameter on which training does not depend: ``Annotated[float, Range(0),
AFTER_TRAINING]``."""
