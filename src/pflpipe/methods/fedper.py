"""FedPer (Arivazhagan, Aggarwal, Singh, Choudhary, "Federated Learning with Personalization
Layers", 2019) under differential privacy.

Every client has its own head. It trains the shared feature extractor and its head at once, for E
epochs, and uploads the change of the extractor only; the head never leaves it. The personal model
is the model after one more such local pass.

    minimises: ``f`` over body and head at once, from the released body and the client's head, E
        epochs
    sends: ``g - g^t``, the change of the body
    keeps: the head
    tests: the model after one more such local pass

Differences: the upload is clipped and noised as in DP-FedAvg, with uniform weights. Only the last
linear layer is personal (the paper also tries more layers). ``keep`` is the same algorithm for
other choices of personal parameters; see fedbn.py and lg_fedavg.py.
"""

from collections.abc import Callable

from torch import Tensor

from pflpipe.learning.task import Batches, Solver, Task
from pflpipe.methods.base import About, Method, Upload, tested
from pflpipe.trees import ClientState, Params, ServerState, Update

ABOUT = About(
    title="FedPer", paper="Arivazhagan et al. 2019", has_global_model=False, needs=("body",)
)


def keep(
    private: Callable[[Task], tuple[str, ...]],
    solver: Callable[[Task], Solver] = lambda task: task.solver,
) -> Method:
    """Return the method that trains all parameters at once and keeps those named by
    ``private(task)`` on each client."""

    def train(
        params: Params, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Params, Tensor]:
        # Personal parameters of the global model keep their initial values; the client's replace
        # them.
        whole = Params(params | state)
        return task.minimize(whole, batches.train, task.loss, solver=solver(task))

    def init_client(params: Params, task: Task) -> ClientState:
        return ClientState({name: params[name] for name in private(task)})

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        trained, loss = train(params, state, batches, task)
        shared = [name for name in trained if name not in state]
        update = Update({name: trained[name] - params[name] for name in shared})
        kept = ClientState({name: trained[name] for name in state})
        return Upload(update=update, extras={}, loss=loss), kept

    def sends(task: Task) -> list[str]:
        kept = private(task)
        return [name for name in task.network.shapes if name not in kept]

    return Method(local_update, personalize=tested(train), init_client=init_client, sends=sends)


def fedper() -> Method:
    """Return the method; it has no hyper-parameters beyond the study's local optimizer."""
    return keep(lambda task: task.head_names)
