"""Private FedRep (Snedeker, Zhou, Bassily, "Private Model Personalization Revisited", ICML 2025),
Algorithms 1 and 2.

FedRep for the model ``y = <x, U v_k>`` of its theory: all clients share the embedding U, and each
has its own v_k. Beside fedrep.py and centaur.py it has the estimator for which the paper proves its
rates. In each round a client solves its head v_k exactly on one half of its rows and takes one
gradient step on U on the other half, so that the two are independent. It uploads the change of U.
The server adds the release and makes the rows of U orthonormal again, so that the noise of earlier
rounds does not make later gradients longer. Before that it starts U at the leading directions of

    Z_k = sum over j != l of <y_j, y_l> x_j x_l' / (n (n - 1)),

whose mean over the clients has the column space of U [Algorithm 2, after Duchi, Feldman, Hu,
Talwar, NeurIPS 2022].

    minimises: the loss over the head h on one half of the rows, exactly, then over the body g on
        the other half with h frozen, one step from ``g^t``
    sends: ``g - g^t``, the change of the body; Z_k in the first round
    keeps: nothing
    tests: the released body with the head solved on all rows
    code: learningformality/Private_FedRep 7e690f4: FedRep_Ready.py train_fedrep_dp, model_init,
        solve_ols_v, compute_user_grad_U

    loss: of head and body. ``squared`` is that of the paper, against one-hot labels (heads.ridge);
        ``logistic`` is the cross-entropy (heads.newton) [paper]
    penalty: of the heads' weights [ours: the paper has none]
    halves: split a client's rows for head and body, anew in every round; otherwise both read all
        rows [paper; its code reads all]
    orthonormal: make the rows of U orthonormal after each round [paper]
    spectral: start U at the leading directions of the released Z [paper]
    moment_scale: the unit of Z. At the default the Z of practically every client with two rows is
        shortened to C, so that the noise is in proportion to them [ours]

U is the matrix of the layer that reads the inputs: ``embedding`` is the paper's model, a perceptron
has further layers, and a network that begins with another layer has neither start nor orthonormal
rows [ours]. The labels y are one-hot vectors minus 1/K [ours: the paper's are numbers].

The first round releases Z instead of a change of the body: d^2 numbers for d inputs. It is one of T
releases with the same noise multiplier; the paper spends half of its budget on it. In later rounds
the public scale of Z is 0, so that it is neither sent nor noised.

Read from the abstract, a summary, and code for synthetic data that was published under the
algorithm's name. Its ``model_init`` is not Algorithm 2: it subtracts B (line 624) from A (line
621), which are the same sum of y^2 x x', so that U starts at the singular vectors of what rounding
leaves of A - B. It splits no rows, and the commands that would give each round a batch are
commented out. Differences: the paper's batches are disjoint over the rounds as well, for which
n / 2T rows are too few here. A study's local epochs and batch size are not read.

On people_spi at epsilon 2 (seed 0, lr 5, clip norm 1, nothing tuned) personal models have 73.8 % on
own test rows, and 75.9 % without halves; fedrep has 75.6 %.

On people_jester at epsilon 2, tuned, it has 73.1 % where fedrep has 71.9 %, with neither the start
nor orthonormal rows, which its search did not choose. One seed each: 72.2 % without halves, 71.3 %
to 71.5 % for fedrep with exact heads, 72.0 % for fedrep with rates beyond its range.
"""

from dataclasses import replace
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pflpipe import trees
from pflpipe.learning import counter_rng, heads
from pflpipe.learning.task import Batch, Batches, Schedule, Task
from pflpipe.methods.base import About, Method, NonNegative, Option, Shapes, Upload, only_body
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ABOUT = About(
    title="Private FedRep",
    paper="Snedeker et al., ICML 2025",
    has_global_model=False,
    needs=("body", "classes"),
    cost=0.4,
    public_scale=True,
)


def embedding(task: Task) -> str:
    """Return the name of U; empty if no matrix of the body reads the inputs."""
    name = task.body_names[0]
    reads = name == "embedding.weight" or task.network.known_layers
    return name if reads and len(task.network.shapes[name]) == 2 else ""


def batches_of(batches: Batches, halves: bool) -> tuple[Schedule, Schedule]:
    """Return the rows for the head and those for the body as one batch each: all rows twice, or two
    halves drawn from the client's key, of which the first has one row more if n is odd."""
    whole, n = batches.all, batches.n
    rows = whole.index.flatten()
    places = torch.arange(len(rows), device=rows.device)

    def batch(begin: Tensor, number: Tensor) -> Schedule:
        index = rows[(places + begin) % max(len(rows), 1)]
        return replace(whole, index=index[None], count=number[None], sizes=None)

    if not halves:
        return (batch(0 * n, n),) * 2
    # Real places come first, in random order; padded ones get 2.
    drawn = counter_rng.uniform(batches.key, counter_rng.OWN, (len(rows),))
    rows = rows[torch.where(places < n, drawn, 2.0).argsort(stable=True)]
    first = (n + 1) // 2
    return batch(0 * n, first), batch(first, n - first)


def moment(params: Params, batches: Batches, task: Task) -> Tensor:
    """Return Z ``[d, d]`` of a client's rows; 0 for fewer than two."""
    name, n, classes = embedding(task), batches.n, len(params["head.bias"])
    (batch,) = batches_of(batches, False)[0]
    x, valid = batch.x.flatten(1), torch.arange(len(batch.y), device=n.device)[:, None] < n
    if name == "embedding.weight":
        # The identity as U shows the inputs themselves, one-hot where they are an index.
        unit = torch.eye(task.network.shapes[name][1]).to(params[name])
        x = task.network.body({name: unit}, batch.x, None)
    x = x.where(valid, 0.0)
    y = F.one_hot(batch.y, classes).to(x) - 1 / classes
    cross, same = x.T @ y, x.T @ (y.square().sum(1, keepdim=True) * x)
    return (cross @ cross.T - same).div((n * (n - 1)).clamp(min=1))


def leading(moment: Tensor, rows: Tensor) -> Tensor:
    """Return ``rows [k, d]`` with the first min(k, d) replaced by the leading singular vectors of
    the symmetric part of the moment."""
    vectors = torch.linalg.svd((moment + moment.T).double() / 2)[2][: len(rows)]
    # A vector and its negative are the same direction.
    vectors = vectors * torch.where(vectors.sum(1, keepdim=True) < 0, -1.0, 1.0)
    return torch.cat([vectors.to(rows), rows[len(vectors) :]])


def orthonormalised(matrix: Tensor) -> Tensor:
    """Return the Q of a QR decomposition of the matrix or its transpose, whichever is tall; R has a
    positive diagonal."""
    tall = matrix.shape[0] > matrix.shape[1]
    q, r = torch.linalg.qr((matrix if tall else matrix.T).double())
    q = (q * torch.where(r.diagonal() < 0, -1.0, 1.0)).to(matrix)
    turned: Tensor = q if tall else q.T
    return turned


def private_fedrep(
    *,
    loss: Literal["squared", "logistic"] = "squared",
    penalty: NonNegative = 1e-4,
    halves: bool = True,
    orthonormal: bool = True,
    spectral: bool = True,
    moment_scale: Annotated[float, Option(least=1e-9)] = 1e-6,
) -> Method:
    """Return the method."""

    def with_head(params: Params, rows: Schedule, task: Task) -> Params:
        """Return the model with the head solved on one batch; without rows the head stays."""
        (batch,), n, classes = rows, rows.count[0], len(params["head.bias"])
        z = task.forward(params, batch)[0].detach()
        solve = heads.ridge if loss == "squared" else heads.newton
        found = solve(z, batch.y, n.clamp(min=1), classes, penalty)
        return Params(params | {name: found[name].where(n > 0, params[name]) for name in found})

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        of_head, of_body = batches_of(batches, halves)

        def objective(w: Tree, batch: Batch) -> Tensor:
            if loss == "logistic":
                return task.loss(w, batch)
            logits = task.forward(w, batch)[1]
            gap = logits - F.one_hot(batch.y, logits.shape[1]).to(logits)
            return batch.mean(gap.square().sum(1) / 2)

        start = with_head(params, of_head, task)
        end, value = task.minimize(start, of_body, objective, names=task.body_names)
        update = Update({name: end[name] - params[name] for name in task.body_names})
        if parts(task):
            begun = server["begun"] > 0
            update = Update({name: step.where(begun, 0.0) for name, step in update.items()})
            update["moment"] = moment(params, batches, task).where(~begun, 0.0)
        return Upload(update, {}, value), state

    def parts(task: Task) -> Shapes:
        name = embedding(task) if spectral else ""
        return {"moment": (task.network.shapes[name][1],) * 2} if name else {}

    def init_server(params: Params, task: Task) -> ServerState:
        return ServerState({"begun": params["head.bias"].new_zeros(())} if parts(task) else {})

    def scale(params: Params, server: ServerState, task: Task) -> Tree:
        return {"moment": moment_scale * (1 - server["begun"])} if parts(task) else {}

    def aggregate(
        params: Params, released: Update, server: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        name, stepped = embedding(task), trees.add(params, released)
        if orthonormal and name:
            stepped[name] = orthonormalised(stepped[name])
        if not parts(task):
            return stepped, server
        start = params | {name: leading(released["moment"], params[name])}
        begun = dict.fromkeys(params, server["begun"] > 0)
        after = ServerState({"begun": torch.ones_like(server["begun"])})
        return Params(trees.where(begun, stepped, start)), after

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return with_head(params, batches_of(batches, False)[0], task)

    return Method(
        local_update,
        aggregate,
        personalize,
        init_server=init_server,
        scale=scale,
        sends=only_body,
        parts=parts,
        full_pass=True,
        draws=halves,
    )
