"""Ditto (Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through
Personalization", ICML 2021), Algorithm 1, under differential privacy.

Federated training is DP-FedAvg. Every client also keeps a personal model v. When it is drawn it
trains v for E epochs with a penalty that pulls v towards the received w. v never leaves the client,
so the release is that of DP-FedAvg for every lambda. The personal model is v, trained once more in
the same way with the last released w.

    minimises: ``f(w)`` over w from ``w^t``, and ``f(v) + weight / 2 |v - w^t|_2^2`` over v, E
        epochs each
    sends: ``w - w^t``
    keeps: v
    tests: v, trained once more with the last released model
    code: litian96/ditto 26d9b29: flearn/trainers_MTL/ditto.py Server.train

    weight: lambda of the penalty; with 0 every client trains v alone [ours: the paper chooses it
        for each data set]

Differences from the paper: the upload is clipped and noised as in DP-FedAvg, with uniform weights.
v is trained on the minibatches of w and by the same solver. A client's v starts at the first w that
it receives; this is the paper's w^0 only if all clients take part in the first round. If a client
was never in training, its v starts at the released w.
"""

import torch

from pflpipe import trees
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Method, NonNegative, Upload
from pflpipe.methods.fedprox import proximal
from pflpipe.trees import ClientState, Params, ServerState, Tree

ABOUT = About(title="Ditto", paper="Li et al., ICML 2021", cost=2.1)


def nothing_kept(params: Params) -> ClientState:
    """Return the state of a client that keeps a model and has not been in training yet."""
    # The model is a placeholder of the right shapes: ``kept`` reads it only if ``begun`` is set.
    begun = torch.zeros((), dtype=torch.bool, device=next(iter(params.values())).device)
    return ClientState(trees.prefixed("own.", params) | {"begun": begun})


def keep(model: Tree, state: ClientState, batches: Batches) -> ClientState:
    """Return the state that keeps ``model``, marked as begun if the client has examples."""
    return ClientState(trees.prefixed("own.", model) | {"begun": state["begun"] | (batches.n > 0)})


def kept(state: ClientState, params: Params) -> Tree:
    """Return the kept model, or ``params`` before the client's first round."""
    # A mask and no ``if``: under vmap one call serves clients that have begun and clients that
    # have not.
    begun = dict.fromkeys(params, state["begun"])
    return trees.where(begun, trees.within("own.", state), params)


def ditto(*, weight: NonNegative = 0.1) -> Method:
    """Return the method."""

    def init_client(params: Params, task: Task) -> ClientState:
        return nothing_kept(params)

    def train_personal(params: Params, state: ClientState, batches: Batches, task: Task) -> Tree:
        loss = proximal(params, weight, task)
        return task.minimize(kept(state, params), batches.train, loss)[0]

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        trained, loss = task.minimize(params, batches.train, task.loss)
        upload = Upload(update=trees.sub(trained, params), extras={}, loss=loss)
        # v is pulled towards the received w^t, not towards the w that was just trained.
        return upload, keep(train_personal(params, state, batches, task), state, batches)

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return Params(train_personal(params, state, batches, task))

    return Method(local_update, personalize=personalize, init_client=init_client)
