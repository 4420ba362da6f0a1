"""FedPAC (Xu, Tong, Huang, "Personalized Federated Learning with Feature Alignment and Classifier
Collaboration", ICLR 2023) under differential privacy: its feature alignment.

Every client has its own head. With the received feature extractor f frozen it trains its head, then
with this head frozen the extractor, whose features are pulled to the global centroids c_k of their
classes, ``weight mean |f(x) - c_y|^2 / F`` for F features. It uploads the change of the extractor
and how far the means of its features lie from the centroids; the head never leaves it. The personal
model is the released extractor with the head trained once more.

    minimises: ``f`` over the head h beside the frozen ``g^t``, then ``f + weight mean |g(x) -
        c_y|^2 / F`` over the body g, E epochs
    sends: ``g - g^t``, and for each of its classes how far its mean feature lies from the centroid
        c_k
    keeps: the head
    tests: the released body with the head trained once more

    weight: lambda of the alignment, with the mean over the features too; 0 sends no centroids: this
        is FedRep then, to the bit [official code]
    centroid_scale: s, the unit in which centroids are measured beside the extractor; a smaller one
        takes more of the clip from it [ours: near what the study `reviewers` chose on validation
        data, 6.05]
    head_epochs: passes over the own examples in the head phase [official code]
    head_lr: learning rate of its SGD [official code]
    head_momentum: of that SGD [official code]
    head_weight_decay: of that SGD [official code]

One message has two parts, the change u of the extractor and the offsets o, ``centroids`` [K, F]:
for a class that the client has, the mean feature of its examples less c_k, and 0 for all others.
Both have one clip and one budget: the public scale is s for the offsets and 1 for the extractor, so
that |u|^2 + |o|^2 / s^2 <= C^2, and the noise on the offsets is s times that on the extractor. What
is released is certified as one Gaussian release. A larger s leaves more of C to the extractor.

The server adds what is released, c_k <- c_k + mean_i o_k: a step towards the mean over the clients
that have the class, as long as their share among all. Dividing by that share, to go the whole way,
would need it released as well, and would enlarge the noise of rare classes; this way a centroid
forgets noise as fast as it follows the features. Clients count alike, where the paper weights them
by their examples of the class. A centroid is zero until the first release, and a centroid of zeros
pulls nothing (the paper has centroids from its second round on).

Left out is classifier collaboration, the mixing of heads with weights that the server finds for
every client from all clients' feature statistics, also in ``profile: paper``. It sends single heads
and raw second moments to the server and hands every client a mixture of single messages; here what
clients are given follows from one sum (base.py), and no client sees another's message. Without
noise on each of these no epsilon holds; with noise it is no mechanism that the paper has.

Means are taken after local training, in evaluation mode. The official code uses a client's own old
mean for classes without a centroid. A client that was never in training starts from the initial
head, trained on the released extractor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from pflpipe import trees
from pflpipe.learning.architectures import Shapes
from pflpipe.learning.solvers import Batch
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Method, Option, Upload
from pflpipe.methods.centaur import centaur
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ABOUT = About(title="FedPAC", paper="Xu et al., ICLR 2023", has_global_model=False, needs=("body",))


def class_means(params: Tree, batches: Batches, task: Task) -> tuple[Tensor, Tensor]:
    """Return the mean feature of each class ``[K, F]``, 0 without examples, and the numbers of
    examples ``[K]``."""
    shape = task.network.shapes["head.weight"]
    sums, counts = params["head.weight"].new_zeros(shape), params["head.weight"].new_zeros(shape[0])
    for batch in batches.all:
        z, _ = task.forward(params, batch)
        of = F.one_hot(batch.y, shape[0]).to(z)  # [B, K]
        if batch.valid is not None:
            of = of * batch.valid.unsqueeze(1)
        sums, counts = sums + of.T @ z, counts + of.sum(0)
    return sums / counts.clamp(min=1).unsqueeze(1), counts


def fedpac(
    *,
    weight: Annotated[float, Option(least=0)] = 1.0,
    centroid_scale: Annotated[float, Option(least=1e-6)] = 6.0,
    head_epochs: Annotated[int, Option(least=1)] = 1,
    head_lr: Annotated[float, Option(least=0)] = 0.1,
    head_momentum: Annotated[float, Option(least=0, most=1)] = 0.5,
    head_weight_decay: Annotated[float, Option(least=0)] = 5e-4,
) -> Method:
    """Return the method."""
    own_heads = centaur(
        head_epochs=head_epochs,
        head_lr=head_lr,
        head_momentum=head_momentum,
        head_weight_decay=head_weight_decay,
    )
    if not weight:
        return own_heads

    def init_server(params: Params, task: Task) -> ServerState:
        return ServerState(
            {name: params["head.weight"].new_zeros(shape) for name, shape in parts(task).items()}
        )

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        centroids = server["centroids"]

        def loss(w: Tree, batch: Batch) -> Tensor:
            z, logits = task.forward(w, batch)
            wanted = centroids[batch.y]
            gap = (z - wanted).square().mean(1).where((wanted != 0).any(1), 0.0)
            return task.logits_loss(logits, batch) + weight * batch.mean(gap)

        start = own_heads.personalize(params, server, state, batches, task)
        end, mean_loss = task.minimize(start, batches.train, loss, names=task.body_names)
        means, counts = class_means(end, batches, task)
        offsets = (means - centroids).where(counts.unsqueeze(1) > 0, 0.0)
        change = {name: end[name] - params[name] for name in task.body_names}
        head = ClientState({name: start[name] for name in task.head_names})
        return Upload(Update(change | {"centroids": offsets}), {}, mean_loss), head

    def scale(params: Params, server: ServerState, task: Task) -> Tree:
        return {"centroids": server["centroids"].new_tensor(centroid_scale)}

    def aggregate(
        params: Params, released: Update, server: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        return trees.add(params, released), trees.add(server, released)

    def parts(task: Task) -> Shapes:
        return {"centroids": task.network.shapes["head.weight"]}

    return replace(
        own_heads,
        local_update=local_update,
        aggregate=aggregate,
        init_server=init_server,
        scale=scale,
        parts=parts,
    )
