"""CENTAUR (Shen, Ye, Kang, Hassani, Shokri, "Share Your Representation Only: Guaranteed Improvement
of the Privacy-Utility Tradeoff in Federated Learning", ICLR 2023), DP-FedRep in its official code.

Every client has its own head. With the received feature extractor frozen it trains its head, then
with this head frozen the extractor, and uploads the change of the extractor; the head never leaves
it. The personal model is the released extractor with the head trained once more.

    minimises: ``f`` over the head h beside the frozen ``g^t``, then over the body g beside the
        frozen h, E epochs
    sends: ``g - g^t``, the change of the body
    keeps: the head
    tests: the released body with the head trained once more

    head_epochs: passes over the own examples in the head phase [official code]
    head_lr: learning rate of its SGD [official code]
    head_momentum: of that SGD [official code]
    head_weight_decay: of that SGD [official code]

The head phase works on features computed once, without dropout and transforms, as in the official
code. Differences: a head is kept from round to round (the official code does so in its parallel
branch only, and else starts again from the initial head); clients are drawn by Poisson sampling
(the code visits disjoint groups).
"""

from __future__ import annotations

from typing import Annotated

from pflpipe.learning.solvers import Solver
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Method, Option, Upload
from pflpipe.trees import ClientState, Params, ServerState, Update

ABOUT = About(
    title="CENTAUR", paper="Shen et al., ICLR 2023", has_global_model=False, needs=("body",)
)


def centaur(
    *,
    head_epochs: Annotated[int, Option(least=1)] = 15,
    head_lr: Annotated[float, Option(least=0)] = 0.01,
    head_momentum: Annotated[float, Option(least=0, most=1)] = 0.9,
    head_weight_decay: Annotated[float, Option(least=0)] = 1e-4,
) -> Method:
    """Return the method."""
    solver = Solver("sgd", head_lr, head_momentum, head_weight_decay)

    def init_client(params: Params, task: Task) -> ClientState:
        return ClientState({name: params[name] for name in task.head_names})

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return task.train_head(Params(params | state), batches, solver)

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        start = personalize(params, server, state, batches, task)
        trained, loss = task.minimize(start, batches.train, task.loss, names=task.body_names)
        update = Update({name: trained[name] - params[name] for name in task.body_names})
        head = ClientState({name: start[name] for name in task.head_names})
        return Upload(update=update, extras={}, loss=loss), head

    return Method(
        local_update,
        personalize=personalize,
        init_client=init_client,
        sends=lambda task: task.body_names,
        head_epochs=head_epochs,
    )
