"""FedPAC (Xu, Tong, Huang, "Personalized Federated Learning with Feature Alignment and Classifier
Collaboration", ICLR 2023) under differential privacy: its feature alignment.

Every client has its own head. A client first trains its head on the frozen received feature
extractor g, then the extractor under the frozen head. A penalty pulls the features to the global
centroids c_k of their classes, ``weight mean |g(x) - c_y|^2 / F`` for F features. The client
uploads the change of the extractor and the offsets of its mean features from the centroids. The
head never leaves it. The personal model is the released extractor with the head trained once more.

    minimises: ``f`` over the head h with ``g^t`` frozen, then ``f + weight mean |g(x) - c_y|^2 /
        F`` over the body g, E epochs
    sends: ``g - g^t``, and for each of its classes the offset of its mean feature from the centroid
        c_k
    keeps: the head
    tests: the released body with the head trained once more
    code: JianXu95/FedPAC 5770f4f: methods/fedpac.py LocalUpdate_FedPAC.statistics_extraction,
        local_training; tools.py get_head_agg_weight, protos_aggregation

    weight: lambda of the alignment, a mean over examples and features; 0 sends no centroids and is
        FedRep, to the bit [official code]
    centroid_scale: s, the unit of the centroids relative to the extractor; a smaller s gives the
        offsets more of the clip [ours: near what the study `reviewers` chose on validation data,
        6.05]
    head_epochs: passes over the client's examples in the head phase [official code]
    head_lr: learning rate of its SGD [official code]
    head_momentum: of that SGD [official code]
    head_weight_decay: of that SGD [official code]
    head_solver: sgd; ridge or newton solve exactly (heads.py), with the penalty head_weight_decay,
        and read no other setting of this phase [ours]

A message has two parts: the change u of the extractor, and the offsets o, ``centroids`` [K, F]. The
offset of a class that the client has is the mean feature of its examples minus c_k; that of any
other class is 0. Both parts share one clip and one budget: the public scale is s for the offsets
and 1 for the extractor, so that |u|^2 + |o|^2 / s^2 <= C^2, and the noise on the offsets is s times
that on the extractor. The two are certified as one Gaussian release. A larger s leaves more of C to
the extractor.

The server adds the release, c_k <- c_k + mean_i o_k. This is a step towards the mean over the
clients that have the class; its length is their share among all clients. A full step would divide
by that share, which would have to be released too, and would enlarge the noise of rare classes.
With this step a centroid forgets noise as fast as it follows the features. All clients have equal
weight; the paper weights them by their examples of the class. A centroid is zero until the first
release, and a zero centroid pulls nothing (the paper has centroids from its second round on).

Classifier collaboration is left out, also in ``profile: paper``: it mixes heads with weights that
the server computes for every client from all clients' feature statistics. It sends single heads and
raw second moments to the server and gives every client a mixture of single messages. Here clients
receive functions of one sum (base.py), and no client sees the message of another. Without noise on
each of these messages no epsilon holds; with such noise it is not the paper's mechanism.

Means are taken after local training, in evaluation mode. For classes without a centroid the
official code uses the client's previous mean. A client that was never in training starts from the
initial head, trained on the released extractor.
"""

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from pflpipe import trees
from pflpipe.learning.task import Batch, Batches, Task
from pflpipe.methods.base import (
    About,
    Head,
    Method,
    NonNegative,
    NotTiny,
    Shapes,
    Upload,
    with_head,
    zeros,
)
from pflpipe.methods.centaur import centaur
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ABOUT = About(
    title="FedPAC",
    paper="Xu et al., ICLR 2023",
    has_global_model=False,
    needs=("body", "classes"),
    public_scale=True,
)


def class_means(params: Tree, batches: Batches, task: Task) -> tuple[Tensor, Tensor]:
    """Return the mean feature of each class ``[K, F]`` (0 for a class without examples) and the
    number of examples ``[K]``."""
    # head.weight is [K, F]: it gives both sizes without running the network.
    shape = task.network.shapes["head.weight"]
    sums, counts = params["head.weight"].new_zeros(shape), params["head.weight"].new_zeros(shape[0])
    for batch in batches.all:
        z, _ = task.forward(params, batch)
        one_hot = F.one_hot(batch.y, shape[0]).to(z)  # [B, K]
        if batch.valid is not None:
            one_hot = one_hot * batch.valid.unsqueeze(1)
        sums, counts = sums + one_hot.T @ z, counts + one_hot.sum(0)
    return sums / counts.clamp(min=1).unsqueeze(1), counts


@with_head(epochs=1, lr=0.1, momentum=0.5, weight_decay=5e-4)
def fedpac(*, weight: NonNegative = 1.0, centroid_scale: NotTiny = 6.0, head: Head) -> Method:
    """Return the method."""
    fedrep = centaur(head=head)
    if not weight:
        return fedrep

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        centroids = server["centroids"]

        def loss(w: Tree, batch: Batch) -> Tensor:
            z, logits = task.forward(w, batch)
            targets = centroids[batch.y]
            gap = (z - targets).square().mean(1).where((targets != 0).any(1), 0.0)
            return task.logits_loss(logits, batch) + weight * batch.mean(gap)

        start = fedrep.personalize(params, server, state, batches, task)
        end, mean_loss = task.minimize(start, batches.train, loss, names=task.body_names)
        # Offsets and not means: a class that the client lacks adds 0 to the sum, and the clip is
        # not spent on the centroids, which are public.
        means, counts = class_means(end, batches, task)
        offsets = (means - centroids).where(counts.unsqueeze(1) > 0, 0.0)
        change = {name: end[name] - params[name] for name in task.body_names}
        head = ClientState({name: start[name] for name in task.head_names})
        return Upload(Update(change | {"centroids": offsets}), {}, mean_loss), head

    def scale(params: Params, server: ServerState, task: Task) -> Tree:
        # The body has no entry: its scale is 1.
        return {"centroids": server["centroids"].new_tensor(centroid_scale)}

    def aggregate(
        params: Params, released: Update, server: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        # trees.add keeps names that only its first argument has: the release has body and
        # centroids, the model body and head, the server state centroids alone.
        return trees.add(params, released), trees.add(server, released)

    def parts(task: Task) -> Shapes:
        return {"centroids": task.network.shapes["head.weight"]}

    return replace(
        fedrep,
        local_update=local_update,
        aggregate=aggregate,
        init_server=zeros(parts),
        scale=scale,
        parts=parts,
    )
