"""CENTAUR (Shen, Ye, Kang, Hassani, Shokri, "Share Your Representation Only: Guaranteed Improvement
of the Privacy-Utility Tradeoff in Federated Learning", ICLR 2023), DP-FedRep in its official code.

Every client has its own head. A client first trains its head on the frozen received feature
extractor, then the extractor under the frozen head. It uploads the change of the extractor; the
head never leaves the client. The personal model is the released extractor with the head trained
once more.

    minimises: ``f`` over the head h with ``g^t`` frozen, then over the body g with h frozen, E
        epochs
    sends: ``g - g^t``, the change of the body
    keeps: the head
    tests: the released body with the head trained once more
    code: shenzebang/CENTAUR-Privacy-Federated-Representation-Learning 71e092e: methods/DP_FedRep.py
        ClientDPFedRep.step, ServerDPFedRep.step; methods/api.py Client, Server

    head_epochs: passes over the client's examples in the head phase [official code]
    head_lr: learning rate of its SGD [official code]
    head_momentum: of that SGD [official code]
    head_weight_decay: of that SGD [official code]
    head_solver: sgd; ridge or newton solve exactly (heads.py), with the penalty head_weight_decay,
        and read no other setting of this phase [ours]

The head phase works on features that are computed once, without dropout and transforms, as in the
official code. Differences: a client keeps its head from round to round (the official code does so
only in its parallel branch; elsewhere it starts again from the initial head). Clients are drawn by
Poisson sampling (the code visits disjoint groups).
"""

from pflpipe.learning.task import Batches, Solver, Task
from pflpipe.methods.base import About, Head, Method, Upload, only_body, with_head
from pflpipe.trees import ClientState, Params, ServerState, Update

ABOUT = About(
    title="CENTAUR", paper="Shen et al., ICLR 2023", has_global_model=False, needs=("body",)
)


@with_head()
def centaur(*, head: Head) -> Method:
    """Return the method."""
    solver = Solver(head.solver, head.lr, head.momentum, head.weight_decay)

    def init_client(params: Params, task: Task) -> ClientState:
        return ClientState({name: params[name] for name in task.head_names})

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return task.train_head(Params(params | state), batches, solver)

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        # Head first: the body then trains under a head that already fits the received body.
        start = personalize(params, server, state, batches, task)
        trained, loss = task.minimize(start, batches.train, task.loss, names=task.body_names)
        update = Update({name: trained[name] - params[name] for name in task.body_names})
        head = ClientState({name: start[name] for name in task.head_names})
        # The state goes on with the head alone; the body comes from the server in each round.
        return Upload(update=update, extras={}, loss=loss), head

    return Method(
        local_update,
        personalize=personalize,
        init_client=init_client,
        sends=only_body,
        head_epochs=head.epochs,
    )
