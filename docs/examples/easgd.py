"""Elastic averaging, EASGD (Zhang, Choromanska, LeCun, "Deep learning with Elastic Averaging SGD",
NeurIPS 2015) under user-level differential privacy.

Each client keeps its own model x_k, and the server keeps a centre. A spring ties every model to the
centre. When a client is drawn it trains x_k for E epochs, then the spring moves the model and the
centre towards each other. The personal model is x_k, trained once more.

    minimises: ``f(x_k)``, E epochs from the own last x_k
    sends: ``force (x_k - centre)``, what the spring takes from x_k
    keeps: x_k after the spring
    tests: x_k, trained once more

    force: alpha, the part of the distance that the spring takes away; with 0 every client trains
        alone [ours: the paper chooses it for each number of workers]

Differences from the paper: its workers share one data set and the centre is the result; here every
client has data of its own, and x_k is its personal model. What the spring takes is clipped and
noised as in DP-FedAvg before the centre moves by it.
"""

from __future__ import annotations

from typing import Annotated

from pflpipe import trees
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Method, Option, Upload
from pflpipe.trees import ClientState, Params, ServerState, Update

ABOUT = About(title="Elastic averaging", paper="Zhang et al., NeurIPS 2015")


def easgd(*, force: Annotated[float, Option(least=0, most=1)] = 0.5) -> Method:
    """Return the method."""

    def init_client(params: Params, task: Task) -> ClientState:
        return ClientState(params)

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        own, loss = task.minimize(state, batches.train, task.loss)
        pull = {name: force * gap for name, gap in trees.sub(own, params).items()}
        return Upload(Update(pull), {}, loss), ClientState(trees.sub(own, pull))

    def aggregate(
        params: Params, released: Update, server: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        """The released mean is over the clients drawn; the centre moves by their share of all."""
        rate = task.plan.sample_rate
        return trees.add(params, {name: rate * value for name, value in released.items()}), server

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return Params(task.minimize(state, batches.train, task.loss)[0])

    return Method(local_update, aggregate, personalize, init_client=init_client)
