"""PPSGD (Bietti, Wei, Dudik, Langford, Wu, "Personalization Improves Privacy-Accuracy Tradeoffs in
Federated Learning", ICML 2022), in the form with two linear heads and local epochs of the official
code of CENTAUR (Shen et al., ICLR 2023), which compares with it.

A client's logits are the sum of those of the global head and those of its personal head. Each round
it trains the personal head with the global model frozen, then the extractor and the global head
with the personal head frozen. It uploads the change of the latter two. The personal head never
leaves it.

    minimises: ``f`` over the personal head with ``w^t`` frozen, then over body and global head w
        with the personal head frozen, E epochs; logits are the sum of both heads'
    sends: ``w - w^t``, body and global head
    keeps: the personal head
    tests: the released model plus a copy of the personal head, trained once more
    code: shenzebang/CENTAUR-Privacy-Federated-Representation-Learning 71e092e: methods/PPSGD.py
        ClientPPSGD.step, ServerPPSGD.step; methods/api.py Client

    head_epochs: passes over the client's examples in the phase of the personal head [ours]
    head_optimizer: of the personal head; newton solves exactly (heads.py), its penalty is
        head_weight_decay, and it reads no other setting of this phase [CENTAUR's code]
    head_lr: learning rate of the personal head. CENTAUR's scripts have 0.1; DP-pFedDSU's paper
        prints 0.01 and 15 epochs for all methods [ours]
    head_momentum: of its SGD only; 0.9 in CENTAUR's code [ours]
    head_weight_decay: of the personal head; 1e-4 in CENTAUR's code [ours]

The personal model is the released one plus a copy of the personal head that is trained once more in
the same way. Differences of CENTAUR's code: it trains the personal head for one epoch a round, and
for 15 epochs the copy that it tests; here both train for head_epochs. Its personal heads start at
random values, here at zero as in Bietti et al.
"""

from typing import Literal

import torch
from torch import Tensor

from pflpipe import trees
from pflpipe.learning.heads import newton
from pflpipe.learning.task import Batch, Batches, Solver, Task
from pflpipe.methods.base import About, Count, Fraction, Method, NonNegative, Upload
from pflpipe.trees import ClientState, Params, ServerState, Tree

ABOUT = About(title="PPSGD", paper="Bietti et al., ICML 2022")


def ppsgd(
    *,
    head_epochs: Count = 1,
    head_optimizer: Literal["sgd", "adam", "newton"] = "sgd",
    head_lr: NonNegative = 0.1,
    head_momentum: Fraction = 0.0,
    head_weight_decay: NonNegative = 0.0,
) -> Method:
    """Return the method."""
    solver = Solver(head_optimizer, head_lr, head_momentum, head_weight_decay)

    def init_client(params: Params, task: Task) -> ClientState:
        # At zero: the first logits are those of the global model.
        return ClientState({name: torch.zeros_like(params[name]) for name in task.head_names})

    def train_head(params: Params, head: ClientState, batches: Batches, task: Task) -> ClientState:
        """Return the personal head, trained on the features of the frozen body."""

        def loss(head: Tree, batch: Batch) -> Tensor:
            # Linear heads on the same features add up: one head with the sum of the weights.
            return task.head_loss(trees.add(head, params), batch)

        features = task.features(params, batches)
        if head_optimizer == "newton" and len(batches.all):
            shared = task.network.head(params, features.x)
            x, y, penalty = features.x, features.y, head_weight_decay
            return ClientState(newton(x, y, batches.n, shared.shape[-1], penalty, shared))
        return task.minimize(head, features, loss, solver=solver)[0]

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        head = train_head(params, state, batches, task)

        def loss(w: Tree, batch: Batch) -> Tensor:
            # The personal head is a constant here: only w is trained and sent.
            return task.loss(trees.add(w, head), batch)

        trained, mean_loss = task.minimize(params, batches.train, loss)
        return Upload(update=trees.sub(trained, params), extras={}, loss=mean_loss), head

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return trees.add(params, train_head(params, state, batches, task))

    return Method(
        local_update, personalize=personalize, init_client=init_client, head_epochs=head_epochs
    )
