"""APFL (Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning", 2020), Algorithm 1,
under differential privacy.

A client tests the mixture ``alpha v + (1 - alpha) w`` of its personal model v and the global model
w. When it is drawn it trains both on the same minibatches, for E epochs. w starts at the received
model, as in DP-FedAvg. v follows the gradient of the mixture's loss with respect to v, which is
alpha times the gradient at the mixture. The client uploads the change of w. v and alpha never leave
it, so the release is that of DP-FedAvg for every alpha.

    minimises: ``f(w)`` over w from ``w^t``, and ``f(alpha v + (1 - alpha) w)`` over v, E epochs on
        the same minibatches
    sends: ``w - w^t``
    keeps: v and alpha
    tests: ``alpha v + (1 - alpha) w`` after one more such round
    code: MLOPTPSU/FedTorch ab8068d: fedtorch/comms/trainings/federated/apfl.py
        train_and_validate_federated_apfl; fedtorch/comms/utils/eval.py inference_personal;
        fedtorch/comms/utils/flow_utils.py alpha_update

    alpha: initial value of every client; 0 tests the local w, 1 trains v alone [official code]
    adaptive: one projected gradient step on alpha in each round (Eq. 10), ``alpha <- alpha - eta <v
        - w, grad f(alpha v + (1 - alpha) w)>``, kept in [0, 1] [paper]

The personal model is the mixture after one more such round from the last released w. A client's v
starts at the first w that it receives; this is the paper's w^0 if all clients take part in the
first round. If a client was never in training, its v starts at the released w.

Reading of the paper: Eq. 10 is written for every local step, but alpha moves once in a round, as in
the authors' code (FedTorch). Here it moves before the minibatches, along the gradient over all
examples of the client at the received w. That step has the study's learning rate eta, without
momentum and weight decay. Differences of the authors' code: it mixes the logits of the two models
instead of their parameters, moves alpha after the first minibatch by a mean of the two models'
gradients, and adds 0.02 alpha to that mean.
"""

import torch
from torch import Tensor

from pflpipe import trees
from pflpipe.learning.task import Batch, Batches, Task
from pflpipe.methods.base import About, Fraction, Method, Upload
from pflpipe.methods.ditto import keep, kept, nothing_kept
from pflpipe.trees import ClientState, Params, ServerState, Tree

ABOUT = About(title="APFL", paper="Deng, Kamani, Mahdavi 2020", cost=2.3)


def mixed(alpha: Tensor, v: Tree, w: Tree) -> Params:
    """Return ``alpha v + (1 - alpha) w``."""
    return Params({name: alpha * v[name] + (1 - alpha) * w[name] for name in w})


def apfl(*, alpha: Fraction = 0.5, adaptive: bool = True) -> Method:
    """Return the method."""

    def init_client(params: Params, task: Task) -> ClientState:
        share = next(iter(params.values())).new_tensor(alpha)
        return ClientState(nothing_kept(params) | {"alpha": share})

    def next_alpha(share: Tensor, v: Tree, w: Params, batches: Batches, task: Task) -> Tensor:
        """Return alpha after one step (Eq. 10)."""
        # The chain rule: d/dalpha f(alpha v + (1 - alpha) w) = <v - w, grad f at the mixture>.
        gradient = task.gradient(mixed(share, v, w), batches.all)
        products = [(gap * gradient[name]).sum() for name, gap in trees.sub(v, w).items()]
        return (share - task.solver.lr * torch.stack(products).sum()).clamp(0, 1)

    def train(
        params: Params, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Tree, Tree, Tensor, Tensor]:
        """Return v, w and alpha after a round, and the mean sum of the losses of w and of the
        mixture."""
        v = kept(state, params)
        share = next_alpha(state["alpha"], v, params, batches, task) if adaptive else state["alpha"]

        def loss(both: Tree, batch: Batch) -> Tensor:
            # One minimisation over both models, so that they see the same minibatches and the same
            # dropout. w is detached in the mixture: the upload must not follow from v or alpha.
            v, w = trees.within("own.", both), trees.within("global.", both)
            fixed = {name: value.detach() for name, value in w.items()}
            return task.loss(w, batch) + task.loss(mixed(share, v, fixed), batch)

        start = trees.prefixed("own.", v) | trees.prefixed("global.", params)
        end, mean_loss = task.minimize(start, batches.train, loss)
        return trees.within("own.", end), trees.within("global.", end), share, mean_loss

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        v, w, share, loss = train(params, state, batches, task)
        upload = Upload(update=trees.sub(w, params), extras={}, loss=loss)
        return upload, ClientState(keep(v, state, batches) | {"alpha": share})

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        v, w, share, _ = train(params, state, batches, task)
        return mixed(share, v, w)

    return Method(
        local_update, personalize=personalize, init_client=init_client, full_pass=adaptive
    )
