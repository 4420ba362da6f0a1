"""Ditto (Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through
Personalization", ICML 2021), Algorithm 1, under differential privacy.

Federated training is DP-FedAvg. Beside the global model w every client keeps a model v of its own:
when it is drawn it trains v as well, for E epochs, pulled towards the w that it received. v never
leaves the client, so what is released is what DP-FedAvg releases, whatever lambda is. The personal
model is v, trained once more in the same way beside the last released w.

    minimises: ``f(w)`` over w from ``w^t``, and ``f(v) + weight / 2 |v - w^t|_2^2`` over v, E
        epochs each
    sends: ``w - w^t``
    keeps: v
    tests: v, trained once more beside the last released model

    weight: lambda of the penalty; with 0 every client's v is trained alone [ours: the paper chooses
        it for each data set]

Differences from the paper: the upload is clipped and noised as in DP-FedAvg, with uniform weights;
v is trained on the minibatches of w and by the same solver. The v of a client begins as the w that
it first receives, which is the paper's w^0 only where all take part in the first round; that of a
client that was never in training begins as the released w.
"""

from __future__ import annotations

from typing import Annotated

import torch

from pflpipe import trees
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Method, Option, Upload
from pflpipe.methods.fedprox import proximal
from pflpipe.trees import ClientState, Params, ServerState, Tree

ABOUT = About(title="Ditto", paper="Li et al., ICML 2021", cost=2.1)


def nothing_kept(params: Params) -> ClientState:
    """Return the state of a client that will keep a model and has not been in training yet."""
    begun = torch.zeros((), dtype=torch.bool, device=next(iter(params.values())).device)
    return ClientState(trees.prefixed("own.", params) | {"begun": begun})


def keep(own: Tree, state: ClientState, batches: Batches) -> ClientState:
    """Return the state with this model kept, for a client that has trained it; one without examples
    never begins."""
    return ClientState(trees.prefixed("own.", own) | {"begun": state["begun"] | (batches.n > 0)})


def kept(state: ClientState, params: Params) -> Tree:
    """Return the client's own model; before its first round, the one that it receives."""
    begun = dict.fromkeys(params, state["begun"])
    return trees.where(begun, trees.within("own.", state), params)


def ditto(*, weight: Annotated[float, Option(least=0)] = 0.1) -> Method:
    """Return the method."""

    def init_client(params: Params, task: Task) -> ClientState:
        return nothing_kept(params)

    def train_own(params: Params, state: ClientState, batches: Batches, task: Task) -> Tree:
        pulled = proximal(params, weight, task)
        return task.minimize(kept(state, params), batches.train, pulled)[0]

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        trained, loss = task.minimize(params, batches.train, task.loss)
        upload = Upload(update=trees.sub(trained, params), extras={}, loss=loss)
        return upload, keep(train_own(params, state, batches, task), state, batches)

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return Params(train_own(params, state, batches, task))

    return Method(local_update, personalize=personalize, init_client=init_client)
