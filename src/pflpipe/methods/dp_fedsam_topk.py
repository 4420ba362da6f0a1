"""DP-FedSAM-top-k (Shi, Wei, Shen, Liu, Wang, Yuan, Tao, "Towards the Flatter Landscape and Better
Generalization in Federated Learning under Client-level Differential Privacy", 2023).

Local training is that of DP-FedSAM. Before the clip, only the largest entries of each tensor of the
update are kept, so that the clip shortens these less.

    minimises: as DP-FedSAM, ``max f(w + e)`` over ``|e|_2 <= rho``
    sends: the largest entries of each tensor of ``w - w^t``, zeros for the others
    keeps: nothing
    tests: the released model after E more such epochs
    code: YMJS-Irfan/DP-FedSAM 016bd7f: fedml_api/dpfedsam/sam.py SAM, for the ascent alone

    rho: radius of the ascent of sharpness-aware minimisation (dp_fedsam.py) [SAM: Foret et al.,
        ICLR 2021]
    adaptive: scales the ascent by the weights (dp_fedsam.py) [paper]
    keep_ratio: fraction of each tensor's entries that is kept, the ceil(keep_ratio d) largest by
        absolute value. There is no official code of this step, so the fraction and the choice per
        tensor are uncertain [ours]
    before_noise: every client keeps its own entries, before clip and noise; if false, the server
        keeps the largest entries of the noisy sum, one choice for all [paper]

The paper adds noise only to the kept entries (``profile: paper``, departure ``noise_on_support``).
Which entries a client keeps depends on its data and is visible in the zeros of its message, so this
noise hides no client. The strict profile keeps the same private choice, and its noise covers every
coordinate. A reader of the paper takes it to choose after the noise (issue 8 of DP-FedSAM's code,
unanswered; the code has no such step): ``before_noise: false`` does so for the sum. That choice
reads the release alone, so both profiles are then certified.
"""

from dataclasses import replace

from pflpipe import trees
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Fraction, Method, NonNegative, Upload, add_released
from pflpipe.methods.dp_fedsam import dp_fedsam
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ABOUT = About(
    title="DP-FedSAM-top-k",
    paper="Shi et al. 2023",
    paper_departures=("noise_on_support",),
    only_with={"before_noise": ("noise_on_support",)},
    cost=2.0,
)


def dp_fedsam_topk(
    *,
    rho: NonNegative = 0.05,
    adaptive: bool = False,
    keep_ratio: Fraction = 0.4,
    before_noise: bool = True,
) -> Method:
    """Return the method."""
    dense = dp_fedsam(rho=rho, adaptive=adaptive)

    def largest(update: Tree) -> Tree:
        sizes = {name: value.abs() for name, value in update.items()}
        return trees.largest(sizes, [(name,) for name in sizes], keep_ratio)

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        upload, state = dense.local_update(params, server, state, batches, task)
        # The private choice is made before the clip, so that what is sent still has norm <= C and
        # the sensitivity does not depend on the choice.
        kept = largest(upload.update)
        extras = trees.prefixed("mask.", kept) if "noise_on_support" in task.departures else {}
        return replace(upload, update=trees.mul(upload.update, kept), extras=extras), state

    def aggregate(
        params: Params, released: Update, server: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        return add_released(params, trees.mul(released, largest(released)), server, task)

    if before_noise:
        return replace(dense, local_update=local_update)
    return replace(dense, aggregate=aggregate)
