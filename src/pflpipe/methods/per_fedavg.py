"""Per-FedAvg (Fallah, Mokhtari, Ozdaglar, "Personalized Federated Learning with Theoretical
Guarantees: A Model-Agnostic Meta-Learning Approach", NeurIPS 2020), Algorithm 1, under differential
privacy.

The global model is to be good after one gradient step of each client: every client minimises
``F(w) = f(w - alpha grad f(w))``, whose gradient is ``(I - alpha H(w)) grad f(w - alpha grad
f(w))`` with H the Hessian of f. Its parts are estimated on up to three minibatches D, D', D'':

    w~ = w - alpha grad f(w; D)
    g  = grad f(w~; D')
    FO:  w <- w - beta g
    HF:  w <- w - beta (g - alpha d),
         d = (grad f(w + delta g; D'') - grad f(w - delta g; D'')) / (2 delta), about H(w) g

    minimises: ``F(w) = f(w - alpha grad f(w))``, E epochs from ``w^t``
    sends: ``w - w^t``
    keeps: nothing
    tests: ``w - alpha grad f(w)`` at the released w

    alpha: learning rate of the clients' own step; 0 is DP-FedAvg [ours]
    variant: ``fo``, first order, leaves the Hessian out; ``hf``, Hessian-free, replaces its product
        with g by a difference of gradients [paper: its experiments prefer HF]
    delta: length of that difference in units of g [FL-bench and flgo]

beta is the study's learning rate; a study with Adam, momentum or weight decay steps with these
along the same gradient. D' is the minibatch that is a step's turn, so that the steps are those of
DP-FedAvg. D and D'' are as many examples of the client each: those that follow in its schedule,
which begins anew at its end. They are D' itself where a client has no others, and where a minibatch
holds all examples the gradients are exact. (The paper draws all three at random, with replacement.)

The personal model is ``w - alpha grad f(w)`` at the released w, one step on all own examples,
without dropout and transforms. It needs nothing kept, so a client that was never in training has
one as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from pflpipe import trees
from pflpipe.learning.directions import along, slope
from pflpipe.learning.solvers import Batch, Schedule
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Method, Option, Upload
from pflpipe.trees import AnyTree, ClientState, Params, ServerState, Tree

ABOUT = About(title="Per-FedAvg", paper="Fallah et al., NeurIPS 2020", cost=4.1)


def moved(w: AnyTree, slopes: Tree, rate: float) -> AnyTree:
    """Return ``w - rate * slopes``."""
    return trees.add(w, {name: -rate * value for name, value in slopes.items()})


def with_followers(schedule: Schedule, number: int) -> Schedule:
    """Return the same steps, whose examples are rows of ``schedule`` instead: ``x [S B, 1 +
    number]`` has for each place in a step the row there, and those in the same place of as many
    examples that follow in the schedule, as often as asked for."""
    steps, width = schedule.index.shape
    place = torch.arange(width, device=schedule.index.device)
    real = (place < schedule.count[:, None]).reshape(-1)
    # Real places in the order of the schedule, then the padded ones.
    order = torch.argsort((~real).to(torch.int64), stable=True)
    begin = (schedule.count.cumsum(0) - schedule.count)[:, None] + place
    turns = torch.arange(number + 1, device=place.device) * schedule.count[:, None, None]
    following = (begin[..., None] + turns) % real.sum().clamp(min=1)  # [S, B, 1 + number]
    rows = schedule.index.reshape(-1)[order[following.reshape(-1)]]
    rows = rows.reshape(steps * width, number + 1)
    index = torch.arange(steps * width, device=place.device).reshape(steps, width)
    return replace(schedule, x=rows, y=schedule.y[rows[:, 0]], index=index)


def minibatches(schedule: Schedule, batch: Batch) -> Iterator[Batch]:
    """Yield D', D and D'' of a step: examples of ``schedule`` whose rows are ``batch.x [B, 3]``,
    each with a key of its own."""
    for turn, rows in enumerate(batch.x.unbind(1)):
        key = None if batch.key is None else batch.key + (turn << 32)
        yield Batch(schedule.x[rows], schedule.y[rows], batch.valid, key)


def per_fedavg(
    *,
    alpha: Annotated[float, Option(least=0)] = 0.1,
    variant: Literal["fo", "hf"] = "hf",
    delta: Annotated[float, Option(least=1e-6)] = 1e-3,
) -> Method:
    """Return the method."""

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        def meta_gradient(w: Tree, batch: Batch) -> tuple[Tree, Tensor]:
            outer, inner, *third = minibatches(batches.train, batch)
            g, loss = slope(task.loss, moved(w, slope(task.loss, w, inner)[0], alpha), outer)
            if variant == "fo":
                return g, loss
            ahead, behind = (
                slope(task.loss, moved(w, g, -sign * delta), third[0])[0] for sign in (1, -1)
            )
            return moved(g, trees.sub(ahead, behind), alpha / (2 * delta)), loss

        steps = with_followers(batches.train, 1 if variant == "fo" else 2)
        trained, loss = task.minimize(params, steps, along(meta_gradient))
        return Upload(update=trees.sub(trained, params), extras={}, loss=loss), state

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return moved(params, task.gradient(params, batches.all), alpha)

    return Method(local_update, personalize=personalize, full_pass=True)
