"""DP-FedSim (Mao, Shan, Li, Lu, Wu, "Efficient Personalized Federated Learning Method with Adaptive
Differential Privacy and Similarity Model Aggregation", IJACSA 16(2), 2025).

Coordinates are split by Fisher information as in FedDPA, then trained without a penalty. The clip
threshold of each layer grows with the spread of the layer's update (AGC). Clients are weighted by
the similarity of their model to the global one (MSA).

    minimises: ``f(w)``, E epochs from ``start``: the client's last model where its Fisher
        information is at least ``threshold``, ``w^t`` elsewhere
    sends: ``w - start``, each layer shortened to its threshold T_s
    keeps: its last trained model
    tests: the model after one more such local pass

    threshold: lambda, on the normalised Fisher information (Eq. 7); above 1 nothing is personal
        [paper]
    agc: adaptive thresholds ``T_s = b (1 + std_s / |mean_s|)`` (Eq. 9), where b is the study's
        ``clip_norm``; if false, every layer has threshold b [paper]
    msa: similarity weights (Eqs. 15-16), only in the published version; if false, uniform weights
        [paper]
    fisher_norm: ``sum`` divides by the layer's sum, as Eq. 6 is printed; at most 1 / lambda
        coordinates of a layer can then be personal, two at the default. ``minmax`` is our variant:
        each tensor is scaled to [0, 1] as in FedDPA, so that lambda divides a layer [paper]
    similarity: mean over layers of the cosine between the models (``params``, Eq. 15) or between
        the client's update and the last released one (``updates``, as the paper's motivation says);
        1 for all clients before the first release [paper]

Reading of the paper, whose Algorithm 1 cannot be run as printed: the split is made once, before the
E epochs. The gradient of a layer (weight and bias) is the update of the round. The sum of Eq. 12
joins the layers again. Each message carries noise of b sigma / sqrt(q M). Eqs. 13-14 and Algorithm
1 add noise to Delta w_i only, but the server weights by the cosine of w_i, "the parameters of the
i-th client model": the model at the end of local work, without noise. The paper's version has three
departures: the thresholds follow the client's update, layers are clipped one by one under noise for
one bound b, and the weights come from models without noise.

In the certified version AGC stays on the client, where it only shapes the update. The whole update
is clipped to b and weights are uniform, so ``msa`` has no effect. Eq. 6 stays as printed, because
the choice of Eqs. 5-8 never leaves the client.
"""

from typing import Literal

import torch
from torch import Tensor

from pflpipe import trees
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Method, NonNegative, Upload, own_model, tested
from pflpipe.methods.feddpa import min_max
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ABOUT = About(
    title="DP-FedSim",
    paper="Mao et al., IJACSA 2025",
    paper_departures=("data_dependent_clip", "per_layer_clip_unscaled", "raw_similarity_weights"),
    cost=1.5,
)


def by_layer(tree: Tree) -> dict[str, Tensor]:
    """Return each layer as one vector."""
    return {layer: trees.flat(part) for layer, part in trees.by_layer(tree).items()}


def layer_shares(information: Tree) -> Tree:
    """Return the information divided by its sum over the layer (Eq. 6); a layer without information
    stays zero."""
    totals = {layer: vector.sum() for layer, vector in by_layer(information).items()}
    shares = {}
    for name, value in information.items():
        total = totals[name.rpartition(".")[0]]
        shares[name] = torch.where(total > 0, value / total, torch.zeros_like(value))
    return shares


def thresholds(update: Tree, bound: float) -> Tensor:
    """Return the clip threshold of each layer, ``[L]`` (Eq. 9)."""
    # Private: std and mean are those of one client's update. 1e-8 keeps a layer of mean 0 finite.
    rows = by_layer(update).values()
    spreads = (row.std(correction=0) / (row.mean().abs() + 1e-8) for row in rows)
    return torch.stack([bound * (1 + spread) for spread in spreads])


def shortened(update: Update, bounds: Tensor) -> Update:
    """Return the update with each layer shortened to its bound ``[L]`` (Eqs. 10-11)."""
    result = Update({})
    for (layer, row), bound in zip(by_layer(update).items(), bounds, strict=True):
        factor = (bound / (torch.linalg.vector_norm(row) + 1e-8)).clamp(max=1)
        result.update({name: update[name] * factor for name in trees.layers(update)[layer]})
    return result


def mean_cosine(tree: Tree, reference: Tree) -> Tensor:
    """Return the mean over layers of the cosine. The cosine of a layer is 1 if the reference is
    zero, and 0 if only the tree is zero."""
    cosines = []
    for row, other in zip(by_layer(tree).values(), by_layer(reference).values(), strict=True):
        lengths = torch.linalg.vector_norm(row) * torch.linalg.vector_norm(other)
        cosine = (row * other).sum() / lengths.clamp(min=torch.finfo(row.dtype).tiny)
        cosines.append(torch.where((other != 0).any(), cosine, torch.ones_like(cosine)))
    return torch.stack(cosines).mean()


def dp_fedsim(
    *,
    threshold: NonNegative = 0.4,
    agc: bool = True,
    msa: bool = True,
    fisher_norm: Literal["sum", "minmax"] = "sum",
    similarity: Literal["params", "updates"] = "params",
) -> Method:
    """Return the method."""
    normalised = layer_shares if fisher_norm == "sum" else min_max

    def init_server(params: Params, task: Task) -> ServerState:
        """Return a state that holds the last released update, to compare directions with."""
        zeros = {name: torch.zeros_like(value) for name, value in params.items()}
        return ServerState(zeros if similarity == "updates" else {})

    def train(
        params: Params, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Params, Params, Tensor]:
        """Return where the client starts, where it ends, and its mean training loss."""
        # Eqs. 5-6: the information of the client's last model, not of the received one.
        information = normalised(task.fisher(state, batches.all))
        # Eqs. 7-8: informative coordinates keep their personal value, the others are global.
        personal = {name: value >= threshold for name, value in information.items()}
        start = trees.where(personal, state, params)
        return start, *task.minimize(start, batches.train, task.loss)

    def similarity_weight(params: Params, server: ServerState, end: Tree, update: Tree) -> Tensor:
        if not msa:
            return next(iter(update.values())).new_ones(())
        if similarity == "updates":
            return mean_cosine(update, server)
        return mean_cosine(end, params)

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        start, end, loss = train(params, state, batches, task)
        update = trees.sub(end, start)
        extras = {}
        if "raw_similarity_weights" in task.departures:
            extras["similarity"] = similarity_weight(params, server, end, update)
        # Published: the mechanism clips each layer to the client's thresholds. Certified: the
        # client shortens its layers, then the mechanism clips the whole to the public bound b.
        if "data_dependent_clip" in task.departures:
            fixed = loss.new_full((len(trees.layers(update)),), task.clip_norm)
            extras["bounds"] = thresholds(update, task.clip_norm) if agc else fixed
        elif agc:
            update = shortened(update, thresholds(update, task.clip_norm))
        return Upload(update, extras, loss), ClientState(end)

    def aggregate(
        params: Params, released: Update, server: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        # Kept only as the direction to which the clients' next updates are compared.
        server = ServerState(released) if similarity == "updates" else server
        return trees.add(params, released), server

    return Method(local_update, aggregate, tested(train), init_server, own_model, full_pass=True)
