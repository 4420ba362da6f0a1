"""pFedFDA (McLaughlin, Su, "Personalized Federated Learning via Feature Distribution Adaptation",
NeurIPS 2024) under differential privacy.

The classifier on the body g is not trained but follows from the distribution of the features. Of
Gaussian classes with means mu_k and one covariance Sigma it is linear discriminant analysis: with
A = (Sigma + ridge I)^-1 and the client's own class frequencies pi,

    logit_k = <A mu_k, g(x)> - <mu_k, A mu_k> / 2 + log pi_k.

A client trains the body under the classifier of the global mu and Sigma, which is frozen. On the
features of the trained body it computes its own mu_i and Sigma_i and chooses how far to trust them:
beta in [0, 1], with which the classifier of ``(1 - beta) mu + beta mu_i`` and ``(1 - beta) Sigma +
beta Sigma_i`` has the least cross-entropy when one half of its rows gives mu_i and Sigma_i and the
other half is classified, both ways. The server averages bodies and interpolated statistics.

    minimises: ``f`` over the body g with the classifier of mu and Sigma, E epochs from ``g^t``
    sends: ``g - g^t``, ``beta (mu_i - mu)`` and ``beta (Sigma_i - Sigma)``
    keeps: nothing
    tests: the released body with the classifier interpolated on the client's rows
    code: cj-mclaughlin/pFedFDA 73c7c40: clients/client_fedfda.py ClientFedFDA;
        servers/server_fedfda.py ServerFedFDA

    ridge: of the covariance [official code, which adds it to every Sigma_i]
    mean_scale: s_m, the unit of the means relative to the body; a smaller one gives them more of
        the clip [ours]
    covariance_scale: s_c, that of the covariance [ours]

A message has three parts under one clip and one budget: ``|u|^2 + |o_m|^2 / s_m^2 + |o_c|^2 / s_c^2
<= C^2`` for the change u of the body and the offsets o_m [K, F] and o_c [F, F]. The three are
certified as one Gaussian release; what the server makes of them reads releases alone. The mean of a
class that the client lacks is mu_k, and its offset 0. Noise can make the mean Sigma indefinite, so
the server raises its negative eigenvalues to 0 [ours].

mu starts at the rows of the initial head, which is public, and Sigma at 0, so that for ridge 1 the
first classifier has the weights of that head [ours: its code draws uniform means]. beta is one of
11 values [ours: its code descends from 0.5], and 0 for a client with one row. The halves alternate
in the rows sorted by class [ours: its code draws them by class]. Statistics are taken after local
training, in evaluation mode; the code takes them during training. Clients have equal weight; the
paper weights them by their rows. Its choice of two betas, for means and covariance, is left out, as
is its last round with all clients. Two small terms of its code are left out, too: it adds 1e-4 to
every entry of a client's covariance (client_fedfda.py:88, 135), and classifies with
(1 - 1e-4) Sigma + 1e-4 tr(Sigma) / F I (lines 204, 223). When it tests, a class of at most two rows
has mu_k for its mean (server_fedfda.py:94); here it has its own.

On people_spi at epsilon 2 (seed 0, lr 5, clip norm 1, nothing tuned) personal models have 68.0 % on
own test rows; dp_fedavg has 68.5 % and fedrep 75.6 %. The body trains under nearly one classifier
for all clients, and one direction has nine tenths of the variance of its features. Solved heads
(heads.ridge) on this body have about 67 %, too. It suits clients whose rows differ, not clients who
answer differently.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from pflpipe import trees
from pflpipe.learning.heads import ALIGNED
from pflpipe.learning.task import HEAD, Batches, Task
from pflpipe.methods.base import About, Method, NotTiny, Shapes, Upload, only_body
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ABOUT = About(
    title="pFedFDA",
    paper="McLaughlin and Su, NeurIPS 2024",
    has_global_model=False,
    needs=("body", "classes"),
    cost=1.2,
    public_scale=True,
)

BETAS = 11
LEAST_FREQUENCY = 1e-4
"""What is added to the frequency of each class [official code]."""


def labels(batches: Batches) -> tuple[Tensor, Tensor]:
    """Return the labels ``[n]`` of a client's rows, and which rows are no padding."""
    y = torch.cat([batches.n.new_zeros(0), *(batch.y for batch in batches.all)])
    return y, torch.arange(len(y), device=y.device) < batches.n


def frequencies(batches: Batches, classes: int) -> Tensor:
    """Return the frequency of each class ``[K]`` among a client's rows."""
    y, real = labels(batches)
    counts = (F.one_hot(y, classes) * real.unsqueeze(1)).sum(0).double()
    found = counts / batches.n.clamp(min=1) + LEAST_FREQUENCY
    return found / found.sum()


def statistics(z: Tensor, y: Tensor, rows: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Return the class means ``[K, F]`` of the rows whose mask is true, ``means`` for a class
    without any, and the covariance within classes ``[F, F]``."""
    members = F.one_hot(y, len(means)).to(z) * rows.unsqueeze(1)  # [n, K]
    counts = members.sum(0).unsqueeze(1)
    own = (members.T @ z / counts.clamp(min=1)).where(counts > 0, means)
    centred = (z - own[y]) * rows.unsqueeze(1)
    return own, centred.T @ centred / (rows.sum() - 1).clamp(min=1)


def classifier(
    means: Tensor, covariance: Tensor, frequencies: Tensor, ridge: float
) -> tuple[Tensor, Tensor]:
    """Return weights ``[..., K, F]`` and biases ``[..., K]`` of linear discriminant analysis."""
    size = covariance.shape[-1]
    gap = -size % ALIGNED  # heads.py says why
    unit = torch.eye(size + gap, dtype=covariance.dtype, device=covariance.device)
    inverse = torch.linalg.inv_ex(F.pad(covariance, (0, gap, 0, gap)) + ridge * unit)[0]
    weights = means @ inverse[..., :size, :size]
    return weights, frequencies.log() - (weights * means).sum(-1) / 2


def pfedfda(
    *, ridge: NotTiny = 1.0, mean_scale: NotTiny = 1.0, covariance_scale: NotTiny = 1.0
) -> Method:
    """Return the method."""

    def adapted(
        params: Params, server: ServerState, batches: Batches, task: Task
    ) -> tuple[Tensor, Tensor]:
        """Return a client's means and covariance, interpolated, in float64."""
        means, covariance = server["means"].double(), server["covariance"].double()
        y, real = labels(batches)
        features = (task.forward(params, batch)[0] for batch in batches.all)
        z = torch.cat([means.new_zeros(0, means.shape[1]), *features])
        z = z.detach().double().where(real.unsqueeze(1), 0.0)
        # Place of a row when rows are sorted by class, padding last: every other one is a half.
        place = y.where(real, len(means)).argsort(stable=True).argsort()
        betas = torch.linspace(0, 1, BETAS, dtype=z.dtype, device=z.device)
        each = betas.view(-1, 1, 1)
        pi = frequencies(batches, len(means))
        loss = torch.zeros_like(betas)
        for rest in (0, 1):
            half = real & (place % 2 == rest)
            own = statistics(z, y, half, means)
            weights, biases = classifier(
                torch.lerp(means, own[0], each), torch.lerp(covariance, own[1], each), pi, ridge
            )
            scores = (z @ weights.mT + biases.unsqueeze(1)).log_softmax(-1)  # [BETAS, n, K]
            right = scores.gather(2, y.expand(BETAS, -1).unsqueeze(2)).squeeze(2)
            other = real & ~half
            loss = loss - right.where(other, 0.0).sum(1) / other.sum().clamp(min=1)
        beta = betas[loss.argmin()].where(batches.n > 1, 0.0)
        own = statistics(z, y, real, means)
        return torch.lerp(means, own[0], beta), torch.lerp(covariance, own[1], beta)

    def with_head(params: Params, means: Tensor, covariance: Tensor, batches: Batches) -> Params:
        pi = frequencies(batches, len(means))
        head = classifier(means.double(), covariance.double(), pi, ridge)
        like = params["head.bias"]
        return Params(params | {name: v.to(like) for name, v in zip(HEAD, head, strict=True)})

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        start = with_head(params, server["means"], server["covariance"], batches)
        end, loss = task.minimize(start, batches.train, task.loss, names=task.body_names)
        update = {name: end[name] - params[name] for name in task.body_names}
        for name, value in zip(parts(task), adapted(end, server, batches, task), strict=True):
            update[name] = value.to(server[name]) - server[name]
        return Upload(Update(update), {}, loss), state

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return with_head(params, *adapted(params, server, batches, task), batches)

    def parts(task: Task) -> Shapes:
        classes, features = task.network.shapes["head.weight"]
        return {"means": (classes, features), "covariance": (features, features)}

    def init_server(params: Params, task: Task) -> ServerState:
        zero = params["head.weight"].new_zeros(parts(task)["covariance"])
        return ServerState({"means": params["head.weight"], "covariance": zero})

    def scale(params: Params, server: ServerState, task: Task) -> Tree:
        units = {"means": mean_scale, "covariance": covariance_scale}
        return {name: server[name].new_tensor(unit) for name, unit in units.items()}

    def aggregate(
        params: Params, released: Update, server: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        server = trees.add(server, released)
        covariance = server["covariance"]
        values, vectors = torch.linalg.eigh((covariance + covariance.T).double() / 2)
        server["covariance"] = ((vectors * values.clamp(min=0)) @ vectors.T).to(covariance)
        return trees.add(params, released), server

    return Method(
        local_update,
        aggregate,
        personalize,
        init_server=init_server,
        scale=scale,
        sends=only_body,
        parts=parts,
        full_pass=True,
    )
