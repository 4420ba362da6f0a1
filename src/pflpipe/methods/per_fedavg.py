"""Per-FedAvg (Fallah, Mokhtari, Ozdaglar, "Personalized Federated Learning with Theoretical
Guarantees: A Model-Agnostic Meta-Learning Approach", NeurIPS 2020), Algorithm 1, under differential
privacy.

The global model is trained to be good after one gradient step of each client: every client
minimises ``F(w) = f(w - alpha grad f(w))``. The gradient is ``(I - alpha H(w)) grad f(w - alpha
grad f(w))``, where H is the Hessian of f. Its parts are estimated on up to three minibatches D, D',
D'':

    w~ = w - alpha grad f(w; D)
    g  = grad f(w~; D')
    FO:  w <- w - beta g
    HF:  w <- w - beta (g - alpha d),
         d = (grad f(w + delta g; D'') - grad f(w - delta g; D'')) / (2 delta), about H(w) g

    minimises: ``F(w) = f(w - alpha grad f(w))``, E epochs from ``w^t``
    sends: ``w - w^t``
    keeps: nothing
    tests: ``w - alpha grad f(w)`` at the released w

    alpha: learning rate of the clients' personal step; 0 is DP-FedAvg [ours]
    variant: ``fo``, first order, leaves the Hessian out; ``hf``, Hessian-free, replaces its product
        with g by a difference of gradients [paper: its experiments prefer HF]
    delta: length of that difference in units of g [FL-bench and flgo]

beta is the study's learning rate. A study with Adam, momentum or weight decay applies these to the
same gradient. D' is the scheduled minibatch of the step, so that the steps are those of DP-FedAvg.
D and D'' have as many examples as D': those that follow it in the client's schedule, which starts
again at its end. A client without other examples has D = D'' = D'; if a minibatch holds all
examples, the gradients are exact. (The paper draws all three at random, with replacement.)

The personal model is ``w - alpha grad f(w)`` at the released w: one step on all examples of the
client, without dropout and transforms. It needs no client state, so a client that was never in
training has one too.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from pflpipe import trees
from pflpipe.learning.directions import batch_gradient, surrogate
from pflpipe.learning.task import Batch, Batches, Schedule, Task
from pflpipe.methods.base import About, Method, NonNegative, NotTiny, Upload
from pflpipe.trees import AnyTree, ClientState, Params, ServerState, Tree

ABOUT = About(title="Per-FedAvg", paper="Fallah et al., NeurIPS 2020", cost=4.1)


def moved(w: AnyTree, gradient: Tree, rate: float) -> AnyTree:
    """Return ``w - rate * gradient``."""
    return trees.add(w, {name: -rate * value for name, value in gradient.items()})


def with_followers(schedule: Schedule, number: int) -> Schedule:
    """Return a schedule with the same steps whose ``x`` holds row indices instead of examples.

    Args:
        schedule: S steps of B places.
        number: how many further minibatches each step needs.

    Returns:
        ``x [S B, 1 + number]``: for each place of a step the row of ``schedule`` at this place of
        the minibatch, and at this place of each of the next ``number`` minibatches of its size.
    """
    steps, width = schedule.index.shape
    place = torch.arange(width, device=schedule.index.device)
    real = (place < schedule.count[:, None]).reshape(-1)
    # Real places in the order of the schedule, then the padded ones.
    order = torch.argsort((~real).to(torch.int64), stable=True)
    # A step's first example, counted in real places; its k-th follower is k minibatches later,
    # modulo the length of the schedule.
    begin = (schedule.count.cumsum(0) - schedule.count)[:, None] + place
    shifts = torch.arange(number + 1, device=place.device) * schedule.count[:, None, None]
    following = (begin[..., None] + shifts) % real.sum().clamp(min=1)  # [S, B, 1 + number]
    rows = schedule.index.reshape(-1)[order[following.reshape(-1)]]
    rows = rows.reshape(steps * width, number + 1)
    index = torch.arange(steps * width, device=place.device).reshape(steps, width)
    return replace(schedule, x=rows, y=schedule.y[rows[:, 0]], index=index)


def minibatches(schedule: Schedule, batch: Batch) -> Iterator[Batch]:
    """Yield D', D and D'' of a step: the examples of ``schedule`` in the rows ``batch.x [B, 3]``,
    each with its own key."""
    for number, rows in enumerate(batch.x.unbind(1)):
        # D' keeps the key of the step, so that alpha = 0 has the dropout masks of DP-FedAvg.
        key = None if batch.key is None else batch.key + (number << 32)
        yield Batch(schedule.x[rows], schedule.y[rows], batch.valid, key)


def per_fedavg(
    *, alpha: NonNegative = 0.1, variant: Literal["fo", "hf"] = "hf", delta: NotTiny = 1e-3
) -> Method:
    """Return the method."""

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        def meta_gradient(w: Tree, batch: Batch) -> tuple[Tree, Tensor]:
            outer, inner, *third = minibatches(batches.train, batch)  # D', D, D''
            inner_gradient, _ = batch_gradient(task.loss, w, inner)
            g, loss = batch_gradient(task.loss, moved(w, inner_gradient, alpha), outer)
            if variant == "fo":
                return g, loss
            # A central difference (error of order delta^2) instead of a second derivative, which
            # would need the graph of the inner gradient.
            ahead, behind = (
                batch_gradient(task.loss, moved(w, g, -sign * delta), third[0])[0]
                for sign in (1, -1)
            )
            return moved(g, trees.sub(ahead, behind), alpha / (2 * delta)), loss

        steps = with_followers(batches.train, 1 if variant == "fo" else 2)
        trained, loss = task.minimize(params, steps, surrogate(meta_gradient))
        return Upload(update=trees.sub(trained, params), extras={}, loss=loss), state

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return moved(params, task.gradient(params, batches.all), alpha)

    return Method(local_update, personalize=personalize, full_pass=True)
