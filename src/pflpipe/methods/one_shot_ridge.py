"""One-shot ridge regression (Alsulaimawi, "One-Shot Federated Ridge Regression: Exact Recovery via
Sufficient Statistic Aggregation", arXiv:2601.08216, 2026) under user-level differential privacy.

A linear head on frozen features needs no rounds: the moments of the clients' features and labels
determine it. With the features z of a client's n rows, a 1 behind them, and targets e_y, a client
uploads

    gram = mean of z z' [F + 1, F + 1],    cross = mean of z e_y' [F + 1, K]

once. Targets are the one-hot labels of K classes, -1 and 1 for one logit, or the K numbers to
predict; the absolute error has no such solution and gets that of the squared one. The server
averages both parts and solves ``(gram + penalty I) head = cross``. The body stays as it was
initialised; on features of a study (scattering, a file) a network without a body is meant.

    minimises: nothing
    sends: gram and cross, F^2 numbers instead of the model
    keeps: nothing
    tests: the released model as it is

    penalty: of ridge regression, also of the bias: noise alone would determine a direction without
        any [ours: the paper chooses it by cross-validation]
    cross_scale: s, the unit of cross relative to gram; a smaller s gives cross more of the clip
        [ours]
    sums: send sums over the rows instead of means, so that rows count equally and not clients; the
        clip norm is then one of sums, and what it shortens is the same either way [ours: the paper
        sends sums]

Both parts share one clip and one budget, |gram|^2 + |cross|^2 / s^2 <= C^2, and are certified as
one Gaussian release. Noise can make the mean gram indefinite, so the server raises its negative
eigenvalues to 0 [ours].

The paper has one round, T = 1 in a study (``training: {rounds: 1}``). With more, every round
releases the same moments of the clients that it draws, and the server takes the mean of all rounds.
With all clients drawn, T rounds at their budget are worth one round at its budget. Differences: the
paper bounds each row and adds noise at each client; here the whole message of a client is clipped
and the sum gets the noise. Clients count equally, as their moments are means and not sums. With
``sums`` and neither clip nor noise the head is that of ridge regression on the rows of all M
clients together with the penalty ``M penalty``, whatever their numbers of rows: the paper's exact
recovery. The paper's projection to fewer features is left out. It defines no personal model; local
epochs from logits near 0 and 1 forget the head.

What is measured is accuracy, for classes; nothing is for numbers. On the quickstart's digits with a
network without a body (seed 0, clip norm 3, cross_scale and penalty 0.1, nothing tuned) one round
has 78.3 % on own test rows at epsilon 8 and 56.4 % at 2; dp_fedavg_global has 81.3 % and 53.4 %
after 30.

On the scattering features of people_mnist (study one_round_mnist, three seeds), one round has 34.6,
67.1, 84.5 and 91.7 % at epsilon 0.5, 2, 8 and 64, with the better of two penalties;
dp_fedavg_global has 82.2, 90.3, 91.0 and 91.1 % after 20. With 33 times as many numbers to hide,
one round is better only where there is little noise.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from pflpipe import trees
from pflpipe.learning.task import HEAD, Batch, Batches, Task
from pflpipe.methods.base import About, Method, NotTiny, Shapes, Upload, nothing, zeros
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ABOUT = About(title="One-shot ridge", paper="Alsulaimawi 2026", cost=0.1, public_scale=True)


def targets(batch: Batch, task: Task) -> Tensor:
    """Return what ridge regression fits ``[B, K]``."""
    if task.loss_function.numbers:
        return batch.y.view(len(batch.y), -1)
    if task.loss_function.one_logit:
        return 2 * batch.y.unsqueeze(1) - 1
    return F.one_hot(batch.y, task.network.shapes["head.weight"][0])


def moments(params: Tree, batches: Batches, task: Task, sums: bool) -> Update:
    """Return gram ``[F + 1, F + 1]`` and cross ``[F + 1, K]``, sums or means of a client's rows; 0
    without any."""
    classes, features = task.network.shapes["head.weight"]
    like = params["head.weight"]
    gram = like.new_zeros(features + 1, features + 1)
    cross = like.new_zeros(features + 1, classes)
    for batch in batches.all:
        z = F.pad(task.forward(params, batch)[0], (0, 1), value=1.0)
        if batch.valid is not None:
            z = z.where(batch.valid.unsqueeze(1), 0.0)
        gram, cross = gram + z.T @ z, cross + z.T @ targets(batch, task).to(z)
    n = torch.ones_like(like[0, 0]) if sums else batches.n.clamp(min=1).to(like)
    return Update({"gram": gram / n, "cross": cross / n})


def solved(gram: Tensor, cross: Tensor, penalty: float) -> Tree:
    """Return the head of ridge regression from mean moments."""
    values, vectors = torch.linalg.eigh((gram + gram.T).double() / 2)
    scaled = vectors.T @ cross.double() / (values.clamp(min=0) + penalty).unsqueeze(1)
    head = (vectors @ scaled).to(cross)  # [F + 1, K]
    return dict(zip(HEAD, (head[:-1].T, head[-1]), strict=True))


def one_shot_ridge(
    *, penalty: NotTiny = 0.01, cross_scale: NotTiny = 1.0, sums: bool = False
) -> Method:
    """Return the method."""

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return params

    def parts(task: Task) -> Shapes:
        classes, features = task.network.shapes["head.weight"]
        return {"gram": (features + 1, features + 1), "cross": (features + 1, classes)}

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        found = moments(params, batches, task, sums)
        return Upload(found, {}, found["gram"].new_zeros(())), state

    def scale(params: Params, server: ServerState, task: Task) -> Tree:
        return {"cross": server["cross"].new_tensor(cross_scale)}

    def aggregate(
        params: Params, released: Update, server: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        # After the last round this is the mean over the rounds.
        share = {name: value / task.plan.rounds for name, value in released.items()}
        total = trees.add(server, share)
        return Params(params | solved(total["gram"], total["cross"], penalty)), total

    return Method(
        local_update,
        aggregate,
        personalize,
        init_server=zeros(parts),
        scale=scale,
        sends=nothing,
        parts=parts,
        full_pass=True,
    )
