"""FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous
Networks", MLSys 2020), Algorithm 2, under differential privacy.

DP-FedAvg whose clients minimise ``h(w; w^t) = F(w) + mu / 2 |w - w^t|_2^2``. The penalty pulls a
client back towards the model w^t that it received. Its update is then shorter, so clipping removes
less of it.

    minimises: ``h(w; w^t) = f(w) + weight / 2 |w - w^t|_2^2``, E epochs from ``w^t``
    sends: ``w - w^t``
    keeps: nothing
    tests: the released model after E local epochs without the penalty
    code: litian96/FedProx d2a4501: flearn/optimizer/pgd.py PerturbedGradientDescent;
        flearn/trainers/fedprox.py Server.train

    weight: mu, over all parameters; 0 is DP-FedAvg [ours: the paper chooses it for each data set
        out of 0.001, 0.01, 0.1 and 1]

Differences from the paper: clients are drawn and weighted uniformly. gamma-inexactness, by which
slow devices stop after fewer epochs, is not simulated: every client trains the study's E epochs.
FedProx defines no personal model. Here it is the released model after E local epochs without the
penalty, as in DP-FedAvg, also for a client that was never in training.
"""

from torch import Tensor

from pflpipe import trees
from pflpipe.learning.task import Batch, Batches, Loss, Task
from pflpipe.methods.base import About, Method, NonNegative, Upload
from pflpipe.trees import ClientState, Params, ServerState, Tree

ABOUT = About(title="FedProx", paper="Li et al., MLSys 2020")


def proximal(origin: Tree, weight: float, task: Task) -> Loss:
    """Return the loss ``F(w) + weight / 2 |w - origin|_2^2``, one norm over all parameters."""

    def loss(w: Tree, batch: Batch) -> Tensor:
        # At w = origin, where clients start, the gradient of trees.norm is zero and not NaN.
        return task.loss(w, batch) + 0.5 * weight * trees.norm(trees.sub(w, origin)).square()

    return loss


def fedprox(*, weight: NonNegative = 0.1) -> Method:
    """Return the method."""

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        trained, loss = task.minimize(params, batches.train, proximal(params, weight, task))
        return Upload(update=trees.sub(trained, params), extras={}, loss=loss), state

    return Method(local_update)
