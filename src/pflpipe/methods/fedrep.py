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

    head_epochs: passes over the client's examples in the head phase [official code]
    head_lr: learning rate of its SGD [official code]
    head_momentum: of that SGD [official code]
    head_weight_decay: of that SGD [official code, which applies it to weights only]
    head_solver: sgd; ridge or newton solve exactly (heads.py), with the penalty head_weight_decay,
        and read no other setting of this phase [ours]
"""

from __future__ import annotations

from typing import Annotated, Literal

from pflpipe.methods.base import About, Method, Option
from pflpipe.methods.centaur import centaur

ABOUT = About(
    title="FedRep",
    paper="Collins et al., ICML 2021",
    has_global_model=False,
    trains="centaur",
    needs=("body",),
)


def fedrep(
    *,
    head_epochs: Annotated[int, Option(least=1)] = 10,
    head_lr: Annotated[float, Option(least=0)] = 0.01,
    head_momentum: Annotated[float, Option(least=0, most=1)] = 0.5,
    head_weight_decay: Annotated[float, Option(least=0)] = 1e-4,
    head_solver: Literal["sgd", "ridge", "newton"] = "sgd",
) -> Method:
    """Return the method."""
    # Only the defaults of the head phase differ from CENTAUR.
    return centaur(
        head_epochs=head_epochs,
        head_lr=head_lr,
        head_momentum=head_momentum,
        head_weight_decay=head_weight_decay,
        head_solver=head_solver,
    )
