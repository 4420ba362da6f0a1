"""FedBABU (Oh, Kim, Yun, "FedBABU: Toward Enhanced Representation for Federated Image
Classification", ICLR 2022) under differential privacy.

Clients train the feature extractor and upload its change, while the head keeps its random initial
values. These values are public, so there is a global model. For its personal model a client trains
the head on the released extractor.

    minimises: ``f`` over the body g, E epochs from ``g^t``, under the head's initial values
    sends: ``g - g^t``, the change of the body
    keeps: nothing
    tests: the released body with a head trained on the client's examples
    code: jhoon-oh/FedBABU e34c15b: models/Update.py LocalUpdate.train; main_fed.py

    head_epochs: passes over the client's examples in the head phase [as dp_fedavg_fb, so that both
        compare]
    head_lr: learning rate of its SGD [as dp_fedavg_fb]
    head_momentum: of that SGD [as dp_fedavg_fb]
    head_weight_decay: of that SGD [as dp_fedavg_fb]
    head_solver: sgd; ridge or newton solve exactly (heads.py), with the penalty head_weight_decay,
        and read no other setting of this phase [ours]

Differences: the upload is clipped and noised as in DP-FedAvg, with uniform weights. The paper also
fine-tunes whole models.
"""

from dataclasses import replace

from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Head, Method, Upload, only_body, with_head
from pflpipe.methods.dp_fedavg_fb import dp_fedavg_fb
from pflpipe.trees import ClientState, Params, ServerState, Update

ABOUT = About(title="FedBABU", paper="Oh et al., ICLR 2022", needs=("body",))


@with_head(trained=False)
def fedbabu(*, head: Head) -> Method:
    """Return the method."""
    fine_tuned = dp_fedavg_fb(head=head)

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        # The head is a constant here: ``names`` leaves it out of the training.
        trained, loss = task.minimize(params, batches.train, task.loss, names=task.body_names)
        update = Update({name: trained[name] - params[name] for name in task.body_names})
        return Upload(update=update, extras={}, loss=loss), state

    return replace(fine_tuned, local_update=local_update, sends=only_body)
