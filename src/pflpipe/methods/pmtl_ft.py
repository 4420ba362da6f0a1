"""PMTL-FT: private multi-task learning (Hu, Wu, Smith, "Private Multi-Task Learning: Formulation
and Applications to Federated Learning", TMLR 2023) with a fine-tuned head, as in the official code
of CENTAUR (Shen et al., ICLR 2023), which compares with it.

DP-FedAvg with a penalty that pulls local training back to the global model. For its personal model
a client trains only the head of the released model, as in DP-FedAvg-fb.

    minimises: ``f(w) + weight |w - w^t|_2^2``, E epochs from ``w^t``
    sends: ``w - w^t``
    keeps: nothing
    tests: the released model with its head trained on the client's examples
    code: shenzebang/CENTAUR-Privacy-Federated-Representation-Learning 71e092e: methods/PMTL.py
        ClientPMTL.step, ServerPMTL.step; methods/api.py Client

    weight: lambda of the penalty, over all parameters; 0 is DP-FedAvg-fb [CENTAUR's scripts]
    detached: the penalty counts in the loss but not in its gradient, as in CENTAUR's code; the
        models are those of weight 0 [ours]
    head_epochs: passes over the client's examples in the head phase [CENTAUR's code]
    head_lr: learning rate of its SGD [CENTAUR's code]
    head_momentum: of that SGD [CENTAUR's code]
    head_weight_decay: of that SGD [CENTAUR's code]
    head_solver: sgd; ridge or newton solve exactly (heads.py), with the penalty head_weight_decay,
        and read no other setting of this phase [ours]

Difference from Hu et al.: their clients keep a model from round to round; here every client starts
from the global one.
"""

from dataclasses import replace

from torch import Tensor

from pflpipe import trees
from pflpipe.learning.task import Batch, Batches, Task
from pflpipe.methods.base import About, Head, Method, NonNegative, Upload, with_head
from pflpipe.methods.dp_fedavg_fb import dp_fedavg_fb
from pflpipe.trees import ClientState, Params, ServerState, Tree

ABOUT = About(title="PMTL-FT", paper="Hu et al., TMLR 2023; baseline of Shen et al., ICLR 2023")


@with_head(trained=False)
def pmtl_ft(*, weight: NonNegative = 1.0, detached: bool = False, head: Head) -> Method:
    """Return the method."""
    fine_tuned = dp_fedavg_fb(head=head)

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        def loss(w: Tree, batch: Batch) -> Tensor:
            # lambda, not lambda / 2 as in FedProx and Ditto. A detached penalty changes the
            # reported loss and no gradient.
            distance = trees.norm(trees.sub(w, params)).square()
            return task.loss(w, batch) + weight * (distance.detach() if detached else distance)

        trained, mean_loss = task.minimize(params, batches.train, loss)
        return Upload(update=trees.sub(trained, params), extras={}, loss=mean_loss), state

    return replace(fine_tuned, local_update=local_update)
