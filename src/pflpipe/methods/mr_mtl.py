"""MR-MTL, mean-regularised multi-task learning (Liu, Hu, Wu, Smith, "On Privacy and Personalization
in Cross-Silo Federated Learning", NeurIPS 2022) under user-level differential privacy.

There is no model but the clients' own. Each client keeps its model w_k; when it is drawn it trains
w_k for E epochs, pulled towards the mean of all clients' models, and uploads the change of w_k. The
server keeps the mean alone. The personal model is w_k, trained once more in the same way.

    minimises: ``f(w_k) + weight / 2 |w_k - mean|_2^2``, E epochs from the own last w_k
    sends: the change of w_k
    keeps: w_k
    tests: w_k, trained once more in the same way

    weight: lambda of the penalty; with 0 every client trains alone [ours: the paper chooses it for
        each data set]

Differences from the paper: it protects single examples of a silo, by noise in the silo's own steps.
Here a client is protected whole: its upload is clipped and noised as in DP-FedAvg, so that the mean
is one of clipped changes with noise. A client that was never in training starts from the released
mean.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from pflpipe import trees
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Method, Option, Upload
from pflpipe.methods.fedprox import proximal
from pflpipe.trees import ClientState, Params, ServerState, Update

ABOUT = About(title="MR-MTL", paper="Liu et al., NeurIPS 2022", cost=1.2)


def mr_mtl(*, weight: Annotated[float, Option(least=0)] = 0.1) -> Method:
    """Return the method."""

    def init_client(params: Params, task: Task) -> ClientState:
        return ClientState(params)

    def train(
        params: Params, own: ClientState, batches: Batches, task: Task
    ) -> tuple[ClientState, Tensor]:
        return task.minimize(own, batches.train, proximal(params, weight, task))

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        own, loss = train(params, state, batches, task)
        return Upload(update=trees.sub(own, state), extras={}, loss=loss), own

    def aggregate(
        params: Params, released: Update, server: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        # The released mean is over the clients drawn; the mean of all moves by their share.
        rate = task.plan.sample_rate
        return trees.add(params, {name: rate * value for name, value in released.items()}), server

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return Params(train(params, state, batches, task)[0])

    return Method(local_update, aggregate, personalize, init_client=init_client)
