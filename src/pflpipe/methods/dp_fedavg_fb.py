"""DP-FedAvg with a fine-tuned head (DP-FedAvg-fb, also DP-FedAvg-ft).

Source: baseline of CENTAUR (Shen et al., "Share Your Representation Only", ICLR 2023) and of
DP-pFedDSU. Federated training is DP-FedAvg. For its personal model a client takes the released
global model and trains only the last linear layer on its data. The trained head stays on the device
and is never released.

    minimises: ``f(w)``, E epochs from ``w^t``
    sends: ``w - w^t``
    keeps: nothing
    tests: the released model with its head trained on the client's examples
    code: shenzebang/CENTAUR-Privacy-Federated-Representation-Learning 71e092e:
        methods/DP_FedAvg_ft.py ClientDPFedAvgFT.step; methods/api.py Client._fine_tune_over_head

    head_epochs: passes over the client's examples in the head phase [CENTAUR's code]
    head_lr: learning rate of its SGD [CENTAUR's code]
    head_momentum: of that SGD [CENTAUR's code]
    head_weight_decay: of that SGD [CENTAUR's code]
    head_solver: sgd; ridge or newton solve exactly (heads.py), with the penalty head_weight_decay,
        and read no other setting of this phase [ours]
"""

from pflpipe.learning.task import Batches, Solver, Task
from pflpipe.methods.base import About, Head, Method, with_head
from pflpipe.methods.dp_fedavg import local_update
from pflpipe.trees import ClientState, Params, ServerState

ABOUT = About(
    title="DP-FedAvg-fb", paper="baseline of Shen et al. (CENTAUR), ICLR 2023", trains="dp_fedavg"
)


@with_head(trained=False)
def dp_fedavg_fb(*, head: Head) -> Method:
    """Return the method."""
    solver = Solver(head.solver, head.lr, head.momentum, head.weight_decay)

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return task.train_head(params, batches, solver)

    # Training is DP-FedAvg's to the bit, so both methods share one training run (ABOUT.trains).
    return Method(local_update, personalize=personalize, head_epochs=head.epochs)
