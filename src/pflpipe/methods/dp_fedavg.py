"""DP-FedAvg: user-level differentially private FedAvg.

Sources: Geyer, Klein, Nabi, "Differentially Private Federated Learning: A Client Level Perspective"
(2017); McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models",
ICLR 2018, Algorithm 1.

Each drawn client trains E epochs from the global model and uploads its update. The mechanism
(mechanism.py) clips the update to C, jointly over all parameters, adds one Gaussian draw to the sum
and divides by the public expected cohort q M. Difference from the paper: weights are uniform, so
that the sensitivity is C for clients of any size.

    minimises: ``f(w)``, E epochs from ``w^t``
    sends: ``w - w^t``
    keeps: nothing
    tests: the released model after E local epochs
"""

from pflpipe import trees
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Method, Upload
from pflpipe.trees import ClientState, Params, ServerState

ABOUT = About(title="DP-FedAvg", paper="Geyer et al. 2017; McMahan et al., ICLR 2018")


def local_update(
    params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
) -> tuple[Upload, ClientState]:
    """Train E local epochs and upload the change of the whole model."""
    # No clip and no noise here: mechanism.py applies both, the same for every method.
    trained, loss = task.minimize(params, batches.train, task.loss)
    return Upload(update=trees.sub(trained, params), extras={}, loss=loss), state


def dp_fedavg() -> Method:
    """Return the method; it has no hyper-parameters beyond the study's local optimizer."""
    return Method(local_update)
