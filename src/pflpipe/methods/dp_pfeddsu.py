"""DP-pFedDSU (Wang, Zhang, Gao, Luo, "Differential Privacy Personalized Federated Learning Based on
Dynamically Sparsified Client Updates", arXiv:2503.09192, 2025), Algorithm 1.

CENTAUR with two additions. RT, reparameterized training: of the last weight layers of the feature
extractor only the largest weights are used, trained and sent. DAN, the dynamic adaptive norm: the
length of the change is pulled to the clip bound.

    minimises: ``f`` over the head, then ``f(g M) + weight / 2 | |(g - g^t) M|_2 - C |`` over the
        body g, E epochs; M keeps the largest weights of the last layers of the body
    sends: ``(g - g^t) M``
    keeps: the head
    tests: the released masked body with the head trained once more

    keep_ratio: S, the fraction of a layer's weights that is kept: the ceil(S d) largest by absolute
        value, layer by layer [paper]
    masked_layers: k, how many of the extractor's last weight layers are masked, convolutions of
        shortcuts counted (in ResNet20 the fifth from the end is one); biases and normalisation
        never are [paper]
    weight: lambda of the regulariser (Eq. 10), one norm over the whole extractor [paper]
    rt: reparameterized training, for the paper's ablation (Table IV) [paper]
    dan: the dynamic adaptive norm, for the same ablation; without both this is CENTAUR [paper]
    ste: give the weights that a mask drops the gradient of the kept model as well
        (straight-through) [ours]
    head_epochs: passes over the own examples in the head phase [paper]
    head_lr: learning rate of its SGD [paper]
    head_momentum: of that SGD [ours]
    head_weight_decay: of that SGD [ours]

Reading of the paper: Eq. 8 masks the last k layers, as its text says; Eq. 11 means (theta -
theta^0) M; the mask is a constant of every step's gradient, so that only momentum and weight decay
move dropped weights; head phase and personal model see the masked extractor too.

In the paper each client chooses its mask anew in every step from its own weights, and adds noise
only where its last mask keeps (``profile: paper``, departure ``noise_on_support``): such a mask is
private and shows in the zeros of the message, which no noise hides. The strict profile takes the
mask of the released weights for the whole round, the same for everybody; clip and noise on its
support are then certified. There ``ste`` changes nothing, as a dropped weight cannot come back
within the round.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from pflpipe import trees
from pflpipe.learning.solvers import Batch, Solver
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Method, Option, Upload
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ABOUT = About(
    title="DP-pFedDSU",
    paper="Wang et al. 2025",
    has_global_model=False,
    needs=("body",),
    paper_departures=("noise_on_support",),
    cost=1.5,
)


def dp_pfeddsu(
    *,
    keep_ratio: Annotated[float, Option(least=0, most=1)] = 0.05,
    masked_layers: Annotated[int, Option(least=1)] = 4,
    weight: Annotated[float, Option(least=0)] = 0.2,
    rt: bool = True,
    dan: bool = True,
    ste: bool = False,
    head_epochs: Annotated[int, Option(least=1)] = 15,
    head_lr: Annotated[float, Option(least=0)] = 0.01,
    head_momentum: Annotated[float, Option(least=0, most=1)] = 0.9,
    head_weight_decay: Annotated[float, Option(least=0)] = 1e-4,
) -> Method:
    """Return the method."""
    solver = Solver("sgd", head_lr, head_momentum, head_weight_decay)

    def init_client(params: Params, task: Task) -> ClientState:
        return ClientState({name: params[name] for name in task.head_names})

    def masks(w: Tree, task: Task) -> Tree:
        """Return the masks M of the masked layers' weights (Eqs. 6 and 8); every other parameter is
        kept whole."""
        weights = (
            [name for name in task.body_names if len(task.network.shapes[name]) > 1][
                -masked_layers:
            ]
            if rt
            else []
        )
        return trees.largest(
            {name: w[name].detach().abs() for name in weights},
            [(name,) for name in weights],
            keep_ratio,
        )

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
        with_head = train_head(params, state, public, batches, task)  # phase 1
        head = ClientState({name: with_head[name] for name in task.head_names})

        def change(w: Tree, kept: Tree) -> Tree:
            return sparse({name: w[name] - params[name] for name in task.body_names}, kept)

        def loss(w: Tree, batch: Batch) -> Tensor:
            kept = masks(w, task) if private else public
            forward = sparse(w, kept)
            if ste:
                forward = w | {name: w[name] + (forward[name] - w[name]).detach() for name in kept}
            value = task.loss(forward, batch)
            return (
                value + 0.5 * weight * (trees.norm(change(w, kept)) - task.clip_norm).abs()
                if dan
                else value
            )  # Eq. 10

        end, mean_loss = task.minimize(
            params | head, batches.train, loss, names=task.body_names
        )  # phase 2
        kept = masks(end, task) if private else public
        update = Update(change(end, kept))  # Eq. 11
        everything = {
            name: value.new_ones(value.shape, dtype=torch.bool) for name, value in update.items()
        }
        extras = (
            {f"mask.{name}": mask for name, mask in (everything | kept).items()} if private else {}
        )
        return Upload(update=update, extras=extras, loss=mean_loss), head

    def scale(params: Params, server: ServerState, task: Task) -> Tree:
        if "noise_on_support" in task.departures:
            return {}
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
        sends=lambda task: task.body_names,
        head_epochs=head_epochs,
    )
