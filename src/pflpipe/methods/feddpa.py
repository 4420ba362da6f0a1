"""FedDPA (Yang, Huang, Ye, "Dynamic Personalized Federated Learning with Adaptive Differential
Privacy", NeurIPS 2023), Algorithm 1.

DFP, dynamic Fisher personalization: coordinates of the client's last local model with much Fisher
information stay local (u), the others are overwritten by the global model (v). AC, adaptive
constraint: u is pulled to its start, and the length of v's change towards the clip bound, so that
clipping removes less.

    minimises: ``f(w) + lambda_1 / 2 |u - u^0|_2`` over the personal coordinates u, ``f(w) +
        lambda_2 / 2 | |v - v^0|_2 - C |`` over the shared v, from ``theta^0``: the client's last
        model in u, ``w^t`` in v
    sends: ``w - theta^0``, both u and v
    keeps: its last trained model, which determines the mask
    tests: the model after one more such local pass
    code: xiyuanyang45/DynamicPFL 4461ecb (utils.py:9-22, ours.py:229-258): ours.py
        local_update, main; utils.py compute_noise_multiplier, compute_fisher_diag

    tau: threshold on the Fisher information, min-max normalised per tensor (Eqs. 5-6) [official
        code]
    lambda_1: weight of the regulariser of u (Eqs. 8-11: norms, not squares) [paper]
    lambda_2: weight of the regulariser of v [paper]
    dfp: the personalization, for the paper's ablation (Table 3); if false, nothing is personal
        [paper]
    ac: the two regularisers, for the same ablation [paper]
    schedule: ``alternate`` trains u then v on every minibatch (our reading of Algorithm 1), each
        with its own optimizer; ``two_phase`` trains E epochs on u, then E epochs on v, as the
        official code does [ours]

Reading of the paper: Fisher information is taken per example (Eq. 4 literally squares a sum). The
change is measured from the start point theta^0 and uploaded whole, both u and v, so that the joint
clip and dense noise certify it. The masks never leave the client.

Differences of the official code, executed under ``official_code: true``: the upload and both
regularisers are taken against the global model, and the norms of all tensors are summed
(``update_against_global``). Weights follow data sizes, and the noise is calibrated for samples
(departures.py). Local training has no dropout. A client is tested with its model from before the
last aggregation; at a ``sample_rate`` below 1, the paper's value, a client that was never drawn is
tested untrained. Its loaders of CIFAR-10 and SVHN drop the last, smaller minibatch of an epoch: set
``training.drop_last``. Not imitated: masks tested by ``value != 0``, and ``>`` for Eq. 6's ``>=``;
Fisher information of transformed images; separate minibatches for the second phase; random
transforms of CIFAR-10's and SVHN's test images.
"""

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from pflpipe import trees
from pflpipe.learning.penalties import DistancePenalty
from pflpipe.learning.task import Batches, Loss, Objective, Task
from pflpipe.methods.base import About, Method, NonNegative, Upload, own_model
from pflpipe.trees import ClientState, Params, ServerState, Tree

ABOUT = About(
    title="FedDPA",
    paper="Yang et al., NeurIPS 2023",
    official_departures=("sample_level_calibration", "data_size_weights", "update_against_global"),
    cost=2.4,
)


def min_max(information: Tree) -> Tree:
    """Return each tensor scaled to [0, 1] (Eq. 5); a constant tensor becomes zero."""
    scaled = {}
    for name, value in information.items():
        low, high = value.amin(), value.amax()
        unit = (value - low) / (high - low)
        scaled[name] = torch.where(high > low, unit, torch.zeros_like(value))
    return scaled


def fisher_mask(local: Tree, batches: Batches, tau: float, task: Task) -> Tree:
    """Return bool masks of the coordinates of a local model whose normalised Fisher information is
    at least ``tau`` (lines 5-6)."""
    return {name: value >= tau for name, value in min_max(task.fisher(local, batches.all)).items()}


def split_objectives(
    personal: Tree,
    origin: Tree,
    bound: float | Tensor,
    lambda_1: float,
    lambda_2: float,
    loss: Loss,
    *,
    whole: bool = False,
) -> tuple[Objective, Objective]:
    """Return the objectives of the personal and of the shared coordinates, each with the mask of
    the coordinates that it moves (Eqs. 8-11).

    Args:
        personal: bool masks of the personal coordinates.
        origin: point from which changes are measured. The penalty pulls the length of the personal
            coordinates' change to 0.
        bound: the penalty pulls the length of the shared coordinates' change to this number.
        lambda_1, lambda_2: weights of the two penalties; a penalty of weight 0 is left out.
        loss: the cross-entropy, the same for both.
        whole: measure both lengths over all coordinates, as the sum of the tensors' norms.
    """
    # A penalty is a DistancePenalty and not part of the loss, because its gradient is then a few
    # kernels on one flat vector. Norms are not squared in Eqs. 8-11.
    shared = {name: ~mask for name, mask in personal.items()}
    near = DistancePenalty(0.5 * lambda_1, origin, None if whole else personal, 0.0, whole)
    far = DistancePenalty(0.5 * lambda_2, origin, None if whole else shared, bound, whole)
    return Objective(loss, personal, near), Objective(loss, shared, far)


def feddpa(
    *,
    tau: NonNegative = 0.4,
    lambda_1: NonNegative = 0.05,
    lambda_2: NonNegative = 0.1,
    dfp: bool = True,
    ac: bool = True,
    schedule: Literal["alternate", "two_phase"] = "alternate",
) -> Method:
    """Return the method."""
    pulls = (lambda_1, lambda_2) if ac else (0.0, 0.0)

    def official(task: Task) -> bool:
        return "update_against_global" in task.departures

    def train(
        params: Params, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Params, Params, Tensor]:
        """Return where the client starts, where it ends, and its mean training loss."""
        if dfp:
            personal = fisher_mask(state, batches, tau, task)
        else:
            personal = {
                name: torch.zeros_like(value, dtype=torch.bool) for name, value in params.items()
            }
        start = trees.where(personal, state, params)  # line 7, Eq. 7

        # Without DFP the first objective moves no coordinate, so only the second one is run.
        origin = params if official(task) else start
        loss = partial(task.loss, dropout=not official(task))
        phases = split_objectives(
            personal, origin, task.clip_norm, *pulls, loss, whole=official(task)
        )[0 if dfp else 1 :]
        if schedule == "alternate":
            return start, *task.minimize(start, batches.train, *phases)
        # Two phases: each call has its own E epochs and a new optimizer.
        end = start
        for phase in phases:
            end, mean_loss = task.minimize(end, batches.train, phase)
        return start, end, mean_loss

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        start, end, loss = train(params, state, batches, task)
        # From the start: the personal part of the start is not sent, only its change. From the
        # global model: the message contains how far the kept coordinates are from it.
        origin = params if official(task) else start
        extras = {"size": batches.n} if "data_size_weights" in task.departures else {}
        upload = Upload(update=trees.sub(end, origin), extras=extras, loss=loss)
        return upload, ClientState(end)  # lines 12-14

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        # The official code tests the model from before the last aggregation.
        return Params(state) if official(task) else train(params, state, batches, task)[1]

    return Method(local_update, personalize=personalize, init_client=own_model, full_pass=dfp)
