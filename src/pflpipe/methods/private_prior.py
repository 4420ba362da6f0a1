"""A prior from one release: empirical Bayes (Robbins, "An Empirical Bayes Approach to Statistics",
1956) under user-level differential privacy.

Where a client's own rows say most, as in a hospital, one model for all is worse than learning
alone, and what others can tell is how models differ between clients. A client fits a head h [K, F +
1] to the features of its rows, the bias last, with the prior N(0, spread^2) of all of it, and
uploads, once,

    estimate = h min(1, length / |h|_2),    square = estimate^2 + s - spread^2 by coordinate,

the latter cut to the length length^2. s is the variance that the rows leave: the diagonal of the
inverse of the Hessian at h (Laplace). The mean of the estimates and variance = spread^2 + mean of
square - mean^2 are a prior of h, N(mean, variance). This is one step of expectation maximisation
(Dempster, Laird, Rubin, "Maximum Likelihood from Incomplete Data via the EM Algorithm", 1977)
from the first prior. Without s, the variance is that of penalised estimates, which goes to 0
where rows are few: with two rows a person, models lost up to 4 points when there was less noise.
square is what the rows change of the first prior, so few rows make a short message, and a cut one
moves to the first prior. Without that difference it would have to be longer, or would be cut more.

The personal model is the mode of the posterior: the own rows decide where they are many, and the
prior where they are few. The released model has the mean. The body stays as it was initialised; on
features of a study or of a table, a network without a body is meant.

    minimises: ``n f(h)``, plus half of the squared distance of h from the mean in units of the
        standard deviation of each coordinate; in its message from 0 in units of spread
    sends: estimate and square, no parameters
    keeps: nothing
    tests: the mode

    spread: standard deviation of the first prior; with few rows it decides the second one too
        [ours]
    length: bound of the length of estimate, and its square that of square [ours]
    noise: of numbers: standard deviation of a row around its expectation; classes do not read it
        [ours]

Each part gets half of the budget, and the whole is certified as one Gaussian release: the message
has at most length C whatever C is, and ``clip_norm`` changes nothing. The variance is at least its
noise, and at least LEAST. The method has one round, T = 1 in a study
(``training: {rounds: 1}``); with more, the server takes the mean of all rounds, which together are
worth one at their budget. A head of more than 512 numbers is refused, as Newton's method holds the
square of it.

``mr_mtl`` and ``pmtl_ft`` draw models to a mean too, with one weight for all coordinates that is
chosen by hand.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pflpipe.learning import heads, items
from pflpipe.learning.task import HEAD, Batches, Task
from pflpipe.methods.base import About, Method, Positive, Shapes, Upload, nothing
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ABOUT = About(title="Private prior", paper="Robbins 1956", cost=0.2, public_scale=True)

LEAST = 1e-4
"""Least variance of a coordinate between clients."""
FIXED = 1e-6
"""Variance of the first of two logits where the network has one: it stays where it is."""


def posterior(
    params: Params, batches: Batches, task: Task, mean: Tensor, variance: Tensor, noise: float
) -> tuple[Tensor, Tensor]:
    """Return the head ``[K, F + 1]`` with the highest posterior density given a client's rows and
    the prior N(mean, variance), both of its shape, and the posterior variance of its numbers; those
    of the prior for a client without rows."""
    rows = list(batches.all)
    none = params["head.weight"].new_zeros(0, mean.shape[1] - 1)
    z = torch.cat([none, *(task.forward(params, batch)[0] for batch in rows)]).detach()
    y = torch.cat([batches.all.y[:0], *(batch.y for batch in rows)])
    n = batches.n.clamp(min=1)
    real = (torch.arange(len(z), device=z.device) < batches.n).unsqueeze(1)
    z1 = F.pad(z, (0, 1), value=1.0).where(real, 0.0)
    mean, variance = mean.to(z), variance.to(z)
    expected = z1 @ mean.T
    if task.loss_function.numbers:
        gap = (y.view(len(y), len(mean)) - expected).where(real, 0.0)
        moved, left = ridge(z1, gap, variance, noise)
        return mean + moved, left
    if task.loss_function.one_logit:
        expected = F.pad(expected, (1, 0))
        variance = torch.cat([torch.full_like(variance, FIXED), variance])
    outputs = expected.shape[1]
    found = heads.newton(z.where(real, 0.0), y, n, outputs, 1 / (variance * n), expected)
    moved = torch.cat([found["head.weight"], found["head.bias"].unsqueeze(1)], 1)
    left = remaining(z1, (expected + z1 @ moved.T).softmax(-1), variance)
    return mean + moved[-len(mean) :], left[-len(mean) :]


def design(z: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows ``z [n, F + 1]`` and the reciprocals of ``variance [K, F + 1]``, both as wide as
    heads.py says."""
    wide = F.pad(z.double(), (0, -z.shape[1] % heads.ALIGNED))
    return wide, F.pad(1 / variance.double(), (0, wide.shape[1] - z.shape[1]), value=1.0)


def ridge(z: Tensor, gap: Tensor, variance: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Return the mode of h ``[K, F + 1]`` around 0, given numbers ``gap [n, K]`` at ``z [n, F +
    1]``, and its posterior variance."""
    wide, weights = design(z, variance)
    systems = wide.T @ wide / noise**2 + torch.diag_embed(weights)  # [K, ., .]
    right = gap.T.double() @ wide / noise**2
    solved: Tensor = torch.linalg.solve_ex(systems, right.unsqueeze(2))[0]
    left = torch.linalg.inv_ex(systems)[0].diagonal(dim1=1, dim2=2)
    return solved[:, : z.shape[1], 0].to(z), left[:, : z.shape[1]].to(z)


def remaining(z: Tensor, p: Tensor, variance: Tensor) -> Tensor:
    """Return the variance ``[K, F + 1]`` that rows ``z [n, F + 1]`` of probabilities ``p [n, K]``
    leave of a prior's (Laplace)."""
    wide, weights = design(z, variance)
    p = p.double()
    # diag(p) - p p^T is the sum of p_a (e_a - p) (e_a - p)^T over the classes a.
    apart = (torch.eye(p.shape[1]).to(p) - p.unsqueeze(1)) * p.sqrt().unsqueeze(2)
    rows = (apart.unsqueeze(3) * wide.unsqueeze(1).unsqueeze(1)).flatten(0, 1).flatten(1)
    curve = rows.T @ rows + torch.diag(weights.flatten())
    left: Tensor = torch.linalg.inv_ex(curve)[0].diagonal().view(weights.shape)
    return left[:, : z.shape[1]].to(z)


def cut(values: Tensor, length: float) -> Tensor:
    """Return values with a length of at most ``length``."""
    factor: Tensor = length / torch.linalg.vector_norm(values).clamp(min=length)
    return values * factor


def private_prior(
    *, spread: Positive = 1.0, length: Positive = 3.0, noise: Positive = 1.0
) -> Method:
    """Return the method."""

    def parts(task: Task) -> Shapes:
        outputs, features = task.network.shapes["head.weight"]
        return dict.fromkeys(("estimate", "square"), (outputs, features + 1))

    def units() -> dict[str, float]:
        """Return the length of each part by its half of the budget, at a budget of 1."""
        return {"estimate": length * math.sqrt(2), "square": length**2 * math.sqrt(2)}

    def init_server(params: Params, task: Task) -> ServerState:
        shape = parts(task)["estimate"]
        begun = {name: params["head.weight"].new_zeros(shape) for name in units()}
        return ServerState(begun | {"variance": params["head.weight"].new_ones(shape)})

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        zero = torch.zeros_like(server["estimate"])
        found, left = posterior(params, batches, task, zero, zero + spread**2, noise)
        estimate = cut(found, length)
        square = cut(estimate.square() + left - spread**2, length**2)
        update = Update({"estimate": estimate, "square": square})
        return Upload(update, {}, found.new_zeros(())), state

    def scale(params: Params, server: ServerState, task: Task) -> Tree:
        unit = items.unit(task)
        return {name: server[name].new_tensor(value / unit) for name, value in units().items()}

    def aggregate(
        params: Params, released: Update, server: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        # After the last round these are the means over the rounds.
        found = {name: server[name] + released[name] / task.plan.rounds for name in units()}
        least = max(LEAST, units()["square"] * items.noise(task.plan))
        mean = found["estimate"]
        variance = (spread**2 + found["square"] - mean.square()).clamp(min=least)
        head = dict(zip(HEAD, (mean[:, :-1], mean[:, -1]), strict=True))
        return Params(params | head), ServerState(found | {"variance": variance})

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        mean, variance = server["estimate"], server["variance"]
        own, _ = posterior(params, batches, task, mean, variance, noise)
        return Params(params | dict(zip(HEAD, (own[:, :-1], own[:, -1]), strict=True)))

    return Method(
        local_update,
        aggregate,
        personalize,
        init_server=init_server,
        scale=scale,
        sends=nothing,
        parts=parts,
        full_pass=True,
    )
