"""MR-MTL, mean-regularised multi-task learning (Liu, Hu, Wu, Smith, "On Privacy and Personalization
in Cross-Silo Federated Learning", NeurIPS 2022) under user-level differential privacy.

There is no model but the clients' own. Each client keeps its model w_k; when it is drawn it trains
w_k for E epochs, pulled towards the mean of all clients' models, and uploads how the mean has to
move. The server keeps the mean alone. The personal model is w_k, trained once more in the same way.

    minimises: ``f(w_k) + weight / 2 |w_k - mean|_2^2``, E epochs from the own last w_k
    sends: the change of w_k, or its distance from the mean
    keeps: w_k
    tests: w_k, trained once more in the same way
    code: kenziyuliu/private-cross-silo-fl f16ff76: trainers/mrmtl.py MRMTL.train

    weight: lambda of the penalty; with 0 every client trains alone [ours: the paper chooses it for
        each data set]
    anchor: what w_k is measured from when it is sent: ``own`` is its last value, with which the
        server's mean is exact without clip and noise; ``server`` is the mean [ours: own]

With ``own``, noise and what is clipped stay in the mean for all rounds, and the models are pulled
towards it. With ``server``, the mean forgets them as fast as it follows the models. On the
quickstart's digits at epsilon 8, with the settings of dp_fedavg, weight 0.1 and one seed, personal
accuracy is 56 against 73 % (dp_fedavg: 82 %).

Differences from the paper: it protects single examples of a silo, by noise in the silo's own steps.
Here a client is protected whole: its upload is clipped and noised as in DP-FedAvg, so that the mean
is one of clipped changes with noise. A client that was never in training starts from the released
mean.
"""

from typing import Literal

from torch import Tensor

from pflpipe import trees
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Method, NonNegative, Upload, own_model, tested
from pflpipe.methods.fedprox import proximal
from pflpipe.trees import ClientState, Params, ServerState, Update

ABOUT = About(title="MR-MTL", paper="Liu et al., NeurIPS 2022", cost=1.2)


def mr_mtl(*, weight: NonNegative = 0.1, anchor: Literal["own", "server"] = "own") -> Method:
    """Return the method."""

    def train(
        params: Params, own: ClientState, batches: Batches, task: Task
    ) -> tuple[ClientState, Tensor]:
        return task.minimize(own, batches.train, proximal(params, weight, task))

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        own, loss = train(params, state, batches, task)
        update = trees.sub(own, params if anchor == "server" else state)
        # A client without steps has nothing to say, however far its model is from the mean.
        stepped = (batches.train.count > 0).any()
        update = Update({name: value.where(stepped, 0.0) for name, value in update.items()})
        return Upload(update=update, extras={}, loss=loss), own

    def aggregate(
        params: Params, released: Update, server: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        # The released mean is over the clients drawn; the mean of all moves by their share.
        rate = task.plan.sample_rate
        return trees.add(params, {name: rate * value for name, value in released.items()}), server

    return Method(local_update, aggregate, tested(train), init_client=own_model)
