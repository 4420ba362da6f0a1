"""DP-pFedDSU (Wang, Zhang, Gao, Luo, "Differential Privacy Personalized Federated Learning Based on
Dynamically Sparsified Client Updates", arXiv:2503.09192, 2025), Algorithm 1.

CENTAUR with two additions. RT, reparameterized training: in the last weight layers of the feature
extractor only the largest weights are used, trained and sent. DAN, the dynamic adaptive norm: a
penalty pulls the length of the change to the clip bound.

    minimises: ``f`` over the head, then ``f(g M) + weight / 2 | |(g - g^t) M|_2 - C |`` over the
        body g, E epochs; M keeps the largest weights of the last layers of the body
    sends: ``(g - g^t) M``
    keeps: the head
    tests: the released masked body with the head trained once more

    keep_ratio: S, the fraction of a layer's weights that is kept: the ceil(S d) largest by absolute
        value, layer by layer [paper]
    masked_layers: k, the number of the extractor's last weight layers that are masked. Convolutions
        of shortcuts count (in ResNet20 the fifth from the end is one, unless its shortcuts are
        paddings); biases and normalisation are never masked [paper]
    weight: lambda of the regulariser (Eq. 10), one norm over the whole extractor [paper]
    rt: reparameterized training, for the paper's ablation (Table IV) [paper]
    dan: the dynamic adaptive norm, for the same ablation; without rt and dan this is CENTAUR
        [paper]
    head_epochs: passes over the client's examples in the head phase [paper]
    head_lr: learning rate of its SGD [paper]
    head_momentum: of that SGD [ours]
    head_weight_decay: of that SGD [ours]
    head_solver: sgd; ridge or newton solve exactly (heads.py), with the penalty head_weight_decay,
        and read no other setting of this phase [ours]

Reading of the paper: Eq. 8 masks the last k layers, as its text says. Eq. 11 means (theta -
theta^0) M. The mask is a constant in the gradient of every step, so only momentum and weight decay
move dropped weights. The head phase and the personal model also use the masked extractor.

In the paper each client chooses its mask in every step from its current weights, and adds noise
only to the coordinates that its last mask keeps (``profile: paper``, departure
``noise_on_support``). Such a mask is private and is visible in the zeros of the message, which no
noise hides. The strict profile uses the mask of the released weights for the whole round, the same
for all clients; clip and noise on its support are then certified.
"""

import torch
from torch import Tensor

from pflpipe import trees
from pflpipe.learning.task import Batch, Batches, Solver, Task
from pflpipe.methods.base import (
    About,
    Count,
    Fraction,
    Head,
    Method,
    NonNegative,
    Upload,
    only_body,
    with_head,
)
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ABOUT = About(
    title="DP-pFedDSU",
    paper="Wang et al. 2025",
    has_global_model=False,
    needs=("body",),
    paper_departures=("noise_on_support",),
    cost=1.5,
    public_scale=True,
)


@with_head()
def dp_pfeddsu(
    *,
    keep_ratio: Fraction = 0.05,
    masked_layers: Count = 4,
    weight: NonNegative = 0.2,
    rt: bool = True,
    dan: bool = True,
    head: Head,
) -> Method:
    """Return the method."""
    solver = Solver(head.solver, head.lr, head.momentum, head.weight_decay)

    def init_client(params: Params, task: Task) -> ClientState:
        return ClientState({name: params[name] for name in task.head_names})

    def masks(w: Tree, task: Task) -> Tree:
        """Return the masks M of the masked layers' weights (Eqs. 6 and 8); other parameters have no
        mask and are kept whole."""
        # Weights have more than one axis; biases and the parameters of GroupNorm have one.
        every = [name for name in task.body_names if len(task.network.shapes[name]) > 1]
        weights = every[-masked_layers:] if rt else []
        sizes = {name: w[name].detach().abs() for name in weights}
        return trees.largest(sizes, [(name,) for name in weights], keep_ratio)

    def sparse(w: Tree, kept: Tree) -> Tree:
        return w | {name: w[name] * mask for name, mask in kept.items()}  # Eq. 7

    def train_head(
        params: Params, state: ClientState, kept: Tree, batches: Batches, task: Task
    ) -> Params:
        return task.train_head(Params(sparse(params | state, kept)), batches, solver)

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        private, public = "noise_on_support" in task.departures, masks(params, task)
        # The head phase runs before any private mask exists, so both profiles use the public one.
        headed = train_head(params, state, public, batches, task)  # phase 1
        head = ClientState({name: headed[name] for name in task.head_names})

        def change(w: Tree, kept: Tree) -> Tree:
            return sparse({name: w[name] - params[name] for name in task.body_names}, kept)

        def loss(w: Tree, batch: Batch) -> Tensor:
            kept = masks(w, task) if private else public
            value = task.loss(sparse(w, kept), batch)
            pull = 0.5 * weight * (trees.norm(change(w, kept)) - task.clip_norm).abs() if dan else 0
            return value + pull  # Eq. 10

        # Phase 2.
        end, mean_loss = task.minimize(params | head, batches.train, loss, names=task.body_names)
        kept = masks(end, task) if private else public
        update = Update(change(end, kept))  # Eq. 11
        # ``noise_on_support`` reads a mask for every tensor, so unmasked ones get a mask of ones.
        ones = {name: torch.ones_like(value, dtype=torch.bool) for name, value in update.items()}
        extras = trees.prefixed("mask.", ones | kept) if private else {}
        return Upload(update=update, extras=extras, loss=mean_loss), head

    def scale(params: Params, server: ServerState, task: Task) -> Tree:
        if "noise_on_support" in task.departures:
            return {}
        # The public mask as a scale: a coordinate with s = 0 is neither sent nor noised.
        return {name: mask.to(params[name]) for name, mask in masks(params, task).items()}

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return train_head(params, state, masks(params, task), batches, task)

    return Method(
        local_update,
        personalize=personalize,
        init_client=init_client,
        scale=scale,
        sends=only_body,
        head_epochs=head.epochs,
    )
