"""DP-FedAvg's global model: one private model for all clients, tested as it is released.

Sources as dp_fedavg.py. Training is DP-FedAvg. The method personalizes nothing: it is the rival
that personal models have to beat. A study that searches for it tunes the released model on the
clients' own validation examples, and can give its server momentum (``server: {optimizer:
momentum}``, FedAvgM).

    minimises: ``f(w)``, E epochs from ``w^t``
    sends: ``w - w^t``
    keeps: nothing
    tests: the released model as it is
"""

from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Method
from pflpipe.methods.dp_fedavg import local_update
from pflpipe.trees import ClientState, Params, ServerState

ABOUT = About(
    title="DP-FedAvg, global model",
    paper="Geyer et al. 2017; McMahan et al., ICLR 2018",
    trains="dp_fedavg",
)


def dp_fedavg_global() -> Method:
    """Return the method; it has no hyper-parameters beyond the study's optimizers."""

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return params

    return Method(local_update, personalize=personalize)
