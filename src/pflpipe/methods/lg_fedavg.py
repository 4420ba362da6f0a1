"""LG-FedAvg (Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, "Think Locally, Act
Globally: Federated Learning with Local and Global Representations", 2020) under differential
privacy.

The mirror image of FedPer: every client has its own feature extractor, and the head is shared. Both
are trained at once, for E epochs, and the change of the head only is uploaded. The personal model
is the model after one more local pass.

    minimises: ``f`` over body and head at once, from the client's body and the released head, E
        epochs
    sends: ``h - h^t``, the change of the head
    keeps: the body
    tests: the model after one more such local pass
    code: pliang279/LG-FedAvg 7af0568: models/Update.py LocalUpdate.train; main_lg.py

Differences: the upload is clipped and noised as in DP-FedAvg, with uniform weights. There is no
auxiliary loss on the local representations, and the paper's initial rounds of FedAvg are left out.
A new client trains its own extractor under the released head. The paper averages all clients'
models for unknown devices; that would need parameters that never leave their clients here.
"""

from pflpipe.methods.base import About, Method
from pflpipe.methods.fedper import keep

ABOUT = About(title="LG-FedAvg", paper="Liang et al. 2020", has_global_model=False, needs=("body",))


def lg_fedavg() -> Method:
    """Return the method; it has no hyper-parameters beyond the study's local optimizer."""
    return keep(lambda task: task.body_names)
