"""Local training without communication: the accuracy that a client reaches alone.

Every client trains its own model for as many epochs as a federated client: in the rounds in which
it is drawn, and in the pass that makes a personal model. It sends nothing and therefore needs no
guarantee: the claim is ``none``, and there is no global model.

    minimises: ``f(w)``, E epochs from its last model
    sends: nothing
    keeps: its model
    tests: its model after E more epochs
"""

from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Method, Upload, nothing, own_model
from pflpipe.trees import ClientState, Params, ServerState, Update

ABOUT = About(
    title="Local only", paper="baseline", private=False, sends=False, has_global_model=False
)


def local_only() -> Method:
    """Return the method; it has no hyper-parameters."""

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        # ``params`` stays at its initial value, since no update is ever released.
        trained, loss = task.minimize(state, batches.train, task.loss)
        return Upload(update=Update({}), extras={}, loss=loss), trained

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return Params(task.minimize(state, batches.train, task.loss)[0])

    return Method(local_update, personalize=personalize, init_client=own_model, sends=nothing)
