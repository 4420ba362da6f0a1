"""FedAvg (McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of
Deep Networks from Decentralized Data", AISTATS 2017), Algorithm 1.

Every round each drawn client trains E epochs from the global model, and the server averages the
updates with weights proportional to the clients' numbers of examples. No clipping, no noise: claim
``none``.

    minimises: ``f(w)``, E epochs from ``w^t``
    sends: ``w - w^t`` and the number of examples, neither clipped nor noised
    keeps: nothing
    tests: the released model after E local epochs
"""

from pflpipe import trees
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Method, Upload
from pflpipe.trees import ClientState, Params, ServerState

ABOUT = About(
    title="FedAvg",
    paper="McMahan et al., AISTATS 2017",
    private=False,
    departures=("data_size_weights",),
)


def fedavg() -> Method:
    """Return the method; it has no hyper-parameters beyond the study's local optimizer."""

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        trained, loss = task.minimize(params, batches.train, task.loss)
        update = trees.sub(trained, params)
        # The number of examples is a private value, read by the departure ``data_size_weights``.
        return Upload(update=update, extras={"size": batches.n}, loss=loss), state

    return Method(local_update)
