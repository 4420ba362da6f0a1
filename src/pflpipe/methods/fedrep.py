"""FedRep (Collins, Hassani, Mokhtari, Shakkottai, "Exploiting Shared Representations for
Personalized Federated Learning", ICML 2021) under differential privacy.

A client trains its head first, then the feature extractor, and uploads the change of the extractor
only. With the upload clipped and noised this is the algorithm of CENTAUR, which is based on it
(centaur.py). The two differ in the head phase of their official codes.

    minimises: ``f`` over the head h with ``g^t`` frozen, then over the body g with h frozen, E
        epochs
    sends: ``g - g^t``, the change of the body
    keeps: the head
    tests: the released body with the head trained once more
    code: lgcollins/FedRep d82e629: models/Update.py LocalUpdate.train; main_fedrep.py

    head_epochs: passes over the client's examples in the head phase [official code]
    head_lr: learning rate of its SGD [official code]
    head_momentum: of that SGD [official code]
    head_weight_decay: of that SGD [official code, which applies it to weights only]
    head_solver: sgd; ridge or newton solve exactly (heads.py), with the penalty head_weight_decay,
        and read no other setting of this phase [ours]
"""

from pflpipe.methods.base import About, Head, Method, with_head
from pflpipe.methods.centaur import centaur

ABOUT = About(
    title="FedRep",
    paper="Collins et al., ICML 2021",
    has_global_model=False,
    trains="centaur",
    needs=("body",),
)


@with_head(epochs=10, momentum=0.5)
def fedrep(*, head: Head) -> Method:
    """Return the method."""
    # Only the defaults of the head phase differ from CENTAUR.
    return centaur(head=head)
