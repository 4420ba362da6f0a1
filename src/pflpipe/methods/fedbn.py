"""FedBN (Li, Jiang, Zhang, Kamp, Dou, "FedBN: Federated Learning on Non-IID Features via Local
Batch Normalization", ICLR 2021) under differential privacy.

All parameters are trained at once. All are shared except those of the normalisation layers, which
never leave the client. The personal model is the model after one more local pass.

    minimises: ``f(w)`` over all parameters, from the released ones and the client's scales and
        shifts, E epochs
    sends: the change of all parameters except those of the normalisation layers
    keeps: scale and shift of the normalisation layers
    tests: the model after one more such local pass
    code: med-air/FedBN 2fa38ad: federated/fed_digits.py communication

Differences: the networks here normalise with GroupNorm, which has no running statistics; its scale
and shift stay local. The upload is clipped and noised as in DP-FedAvg, with uniform weights.
"""

from pflpipe.methods.base import About, Method
from pflpipe.methods.fedper import keep

ABOUT = About(title="FedBN", paper="Li et al., ICLR 2021", has_global_model=False, needs=("norm",))


def fedbn() -> Method:
    """Return the method; it has no hyper-parameters beyond the study's local optimizer."""
    return keep(lambda task: task.norm_names)
