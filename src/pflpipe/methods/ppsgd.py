"""PPSGD (Bietti, Wei, Dudik, Langford, Wu, "Personalization Improves Privacy-Accuracy Tradeoffs in
Federated Learning", ICML 2022), in the form with two linear heads and local epochs of the official
code of CENTAUR (Shen et al., ICLR 2023), which compares with it.

A client's logits are those of the global head plus those of its own. Each round it trains its own
head beside the frozen global model, then extractor and global head beside its own frozen head, and
uploads the change of the latter two. Its own head never leaves it.

    minimises: ``f`` over the own head beside the frozen ``w^t``, then over body and global head w
        beside the frozen own head, E epochs; logits are the sum of both heads'
    sends: ``w - w^t``, body and global head
    keeps: the own head
    tests: the released model plus a copy of the own head, trained once more

    head_epochs: passes over the own examples in the phase of the own head [ours]
    head_optimizer: of the own head [CENTAUR's code]
    head_lr: learning rate of the own head. CENTAUR's scripts have 0.1; DP-pFedDSU's paper prints
        0.01 and 15 epochs for all methods [ours]
    head_momentum: of its SGD only; 0.9 in CENTAUR's code [ours]
    head_weight_decay: of the own head; 1e-4 in CENTAUR's code [ours]

The personal model is the released one plus a copy of the own head that is trained once more in the
same way. Differences of CENTAUR's code: it trains the own head for one epoch a round and the copy
that it tests for 15, where here both are head_epochs; own heads start at random, here at zero as in
Bietti et al.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from pflpipe import trees
from pflpipe.learning.solvers import Batch, Solver
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Method, Option, Upload
from pflpipe.trees import ClientState, Params, ServerState, Tree

ABOUT = About(title="PPSGD", paper="Bietti et al., ICML 2022")


def ppsgd(
    *,
    head_epochs: Annotated[int, Option(least=1)] = 1,
    head_optimizer: Literal["sgd", "adam"] = "sgd",
    head_lr: Annotated[float, Option(least=0)] = 0.1,
    head_momentum: Annotated[float, Option(least=0, most=1)] = 0.0,
    head_weight_decay: Annotated[float, Option(least=0)] = 0.0,
) -> Method:
    """Return the method."""
    solver = Solver(head_optimizer, head_lr, head_momentum, head_weight_decay)

    def init_client(params: Params, task: Task) -> ClientState:
        return ClientState({name: torch.zeros_like(params[name]) for name in task.head_names})

    def train_own_head(
        params: Params, own: ClientState, batches: Batches, task: Task
    ) -> ClientState:
        def loss(head: Tree, batch: Batch) -> Tensor:  # linear heads on the same features add up
            return task.head_loss(trees.add(head, params), batch)

        return task.minimize(own, task.features(params, batches), loss, solver=solver)[0]

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        own = train_own_head(params, state, batches, task)

        def loss(w: Tree, batch: Batch) -> Tensor:
            return task.loss(trees.add(w, own), batch)

        trained, mean_loss = task.minimize(params, batches.train, loss)
        return Upload(update=trees.sub(trained, params), extras={}, loss=mean_loss), own

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return trees.add(params, train_own_head(params, state, batches, task))

    return Method(
        local_update, personalize=personalize, init_client=init_client, head_epochs=head_epochs
    )
