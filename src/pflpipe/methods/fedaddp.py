"""FedADDP (Guo, Zhang, Mu, Li, Dong, Li, "FedADDP: Privacy-Preserving Personalized Federated
Learning with Adaptive Dimensional Differential Privacy", ICA3PP 2024), after its official code; the
text of the paper was not available.

Coordinates are split into personal and shared ones by Fisher information, as in FedDPA. Every
coordinate has its own clip bound and noise scale, proportional to the size of the trained weight.

    minimises: ``f(w) + lambda_1 / 2 S(w - w^t)`` over the personal, ``f(w) + lambda_2 / 2 |S(w -
        w^t) - c|`` over the shared coordinates, S the sum of the tensors' norms, c the last clip
        bound
    sends: the change of the shared coordinates, in units of ``s = beta / 2 |w^t| + r_min``
    keeps: its last trained model, which determines the mask, and c
    tests: the model after one more such local pass
    code: yyguo-xdu/FedADDP 19dc976: fedaddp.py local_update, main; utils.py get_sigma0,
        compute_fisher_diag

    tau: threshold on the Fisher information, min-max normalised per tensor; above 1 nothing is
        personal [official code]
    lambda_1: weight of the regulariser of the personal coordinates, the sum of the tensors'
        distances to the global model [official code]
    lambda_2: weight of the regulariser of the shared coordinates, which pulls that sum towards the
        client's previous clip bound, initially 0 [official code]
    beta: the bound of a coordinate is beta / 2 times the size of its weight [official code]
    r_min: floor of the public bounds of the certified version, so that weights near 0 can move
        [ours]

The paper's version clamps the trained model to theta^0 +- r with r = beta/2 |theta^1| and sends all
of it, personal coordinates too, with noise of sqrt(K) sigma 2 r in every message (K tensors),
weighted by the clients' numbers of examples: four departures. Instead of theta^1 the official code
uses one plain gradient step of the last minibatch from the model before it, which is about as
large. Not imitated: training in evaluation mode, and the code's formula for sigma. The plan's sigma
is used instead (3.27 instead of 5.95 at epsilon 2, T = 20, delta = 0.1).

The certified version sends the change of the shared coordinates, clipped jointly to |change / s|_2
<= C with noise C sigma s, for the public scale s = beta/2 |w_g| + r_min. The clip bound of the
regulariser then follows from s. C is in units of s: d coordinates that each move by their bound
have length sqrt(d), so a C chosen for unscaled updates clips far more.
"""

import torch
from torch import Tensor

from pflpipe import trees
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Method, NonNegative, Upload, tested
from pflpipe.methods.feddpa import fisher_mask, split_objectives
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ABOUT = About(
    title="FedADDP",
    paper="Guo et al., ICA3PP 2024",
    paper_departures=(
        "private_clamp",
        "data_dependent_noise",
        "data_size_weights",
        "noise_not_divided",
    ),
    cost=2.4,
    public_scale=True,
)


def sum_of_norms(tree: Tree) -> Tensor:
    """Return the sum of the tensors' L2 norms, which the paper uses as the norm of the whole."""
    return torch.stack([torch.linalg.vector_norm(value) for value in tree.values()]).sum()


def fedaddp(
    *,
    tau: NonNegative = 0.4,
    lambda_1: NonNegative = 0.1,
    lambda_2: NonNegative = 0.05,
    beta: NonNegative = 0.1,
    r_min: NonNegative = 1e-3,
) -> Method:
    """Return the method."""

    def published(task: Task) -> bool:
        return "private_clamp" in task.departures

    def radius(w: Tree) -> Tree:
        """Return the clip bound of each coordinate, half of ``beta |w|``."""
        return {name: 0.5 * beta * value.abs() for name, value in w.items()}

    def init_client(params: Params, task: Task) -> ClientState:
        nothing = next(iter(params.values())).new_zeros(())
        return ClientState(trees.prefixed("local.", params) | {"clip_total": nothing})

    def scale(params: Params, server: ServerState, task: Task) -> Tree:
        """Return the public bounds s; they are finite even if the global model has overflowed."""
        if published(task):
            return {}
        return {name: value.nan_to_num(0) + r_min for name, value in radius(params).items()}

    def train(
        params: Params, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Tree, Params, Params, Tensor]:
        """Return the mask of personal coordinates, where the client starts and ends, and its mean
        training loss."""
        local = trees.within("local.", state)
        personal = fisher_mask(local, batches, tau, task)
        start = trees.where(personal, local, params)

        objectives = split_objectives(
            personal, params, state["clip_total"], lambda_1, lambda_2, task.loss, whole=True
        )
        return personal, start, *task.minimize(start, batches.train, *objectives)

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        personal, start, end, loss = train(params, state, batches, task)
        # Published bounds follow from the trained model and are private; certified ones follow
        # from the released model.
        bounds = radius(end) if published(task) else scale(params, server, task)
        # A client without examples keeps c, because it has trained no model to take bounds from.
        total = torch.where(batches.n > 0, 2 * sum_of_norms(bounds), state["clip_total"])
        state = ClientState(trees.prefixed("local.", end) | {"clip_total": total})
        if not published(task):
            # Personal coordinates are sent as zeros and noised like all others: the mask is
            # private, so the support of the noise must not show it.
            change = trees.sub(end, start).items()
            update = {name: torch.where(personal[name], 0.0, value) for name, value in change}
            return Upload(Update(update), {}, loss), state
        # The clamp theta^0 +- r, relative to the received model like the upload.
        extras = (
            trees.prefixed("centre.", trees.sub(start, params))
            | trees.prefixed("radius.", bounds)
            | {"size": batches.n}
        )
        return Upload(trees.sub(end, params), extras, loss), state

    return Method(
        local_update,
        personalize=tested(train),
        init_client=init_client,
        scale=scale,
        full_pass=True,
    )
