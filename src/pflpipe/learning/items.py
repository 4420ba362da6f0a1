"""Tables of people and items: what a client's answers say of each item, and a model that says it.

The network ``embedding`` declares such a table: an example is an item, as its index or one-hot. A
model that has an output of its own for every item is written into its parameters: the vector of an
item starts with the outputs, and the head is the identity.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from pflpipe.errors import ConfigError
from pflpipe.learning.architectures import LEAVE, check_table
from pflpipe.learning.solvers import Batch
from pflpipe.learning.task import Batches, Task
from pflpipe.privacy.plan import Plan
from pflpipe.trees import Params, Tree

VECTORS = "embedding.weight"
LEAST = 0.1
"""Counts below this part of their mean count as it: noise may leave nothing of them."""
TINY = 1e-12
"""Smaller variances do not differ."""


def shape(task: Task, *, two_classes: bool = False) -> tuple[int, int]:
    """Return the number of items and of outputs.

    Args:
        task: of the run.
        two_classes: whether answers must be of two classes, with an output each.

    Raises:
        ConfigError: the network is not that of a table of people and items (``check_table``).
    """
    outputs = task.network.shapes["head.weight"][0]
    if two_classes and (outputs != 2 or task.loss_function.numbers):
        expected = "2, of two classes"
        raise ConfigError("outputs of the network", got=outputs, expected=expected, do=LEAVE)
    check_table(task.network.model, outputs)
    return task.network.shapes[VECTORS][1], outputs


def answers(
    batches: Batches, task: Task, width: int, columns: Callable[[Batch], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return which items a client answered, 0 or 1 ``[items, 1]``, and its mean answer to each
    ``[items, C]``, 0 where there is none.

    Args:
        batches: with the full pass.
        width: C.
        columns: the answer ``[B, C]`` of each row.
    """
    items, _ = shape(task)
    total = batches.all.x.new_zeros(items, 1 + width)
    for batch in batches.all:
        # Looked up in the identity: the one-hot row of each item, zeros for the index of none.
        asked = task.network.body({VECTORS: torch.eye(items).to(batch.x)}, batch.x, None)
        if batch.valid is not None:
            asked = asked.where(batch.valid.unsqueeze(1), 0.0)
        total = total + asked.T @ F.pad(columns(batch).to(asked), (1, 0), value=1.0)
    counts = total[:, :1]
    return counts.clamp(max=1), total[:, 1:] / counts.clamp(min=1)


def shortening(answered: Tensor, most: float, of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the factor that shortens a message whose squared length is ``of`` the number of
    answers to that of ``most`` answers; at most 1."""
    return (of(answered.new_tensor(most)) / of(answered.sum()).clamp(min=1)).sqrt().clamp(max=1)


def noise(plan: Plan) -> float:
    """Return the standard deviation of the noise on the mean of a plan's releases, for a part of
    the message whose scale is 1 / C."""
    law = math.sqrt(plan.law.variance)
    return law * (plan.noise_multiplier or 0.0) / plan.expected_cohort / math.sqrt(plan.rounds)


def unit(task: Task) -> float:
    """Return the clip bound, or 1 if nothing is clipped: a part with a scale of ``length / unit``
    fills the bound where it is longest."""
    return task.clip_norm if math.isfinite(task.clip_norm) else 1.0


def own_variance(apart: Tensor, variance: Tensor) -> Tensor:
    """Return the variance of each column of ``apart [n, ...]``, what is left of the mean square
    without that of noise of this ``variance``, which broadcasts to it. Rows weigh by what noise
    leaves of them, variance^-2: of items with few answers it leaves nothing.
    """
    # 1 where all are alike, as without noise.
    weight = ((variance.amin() + TINY) / (variance + TINY)).square().expand_as(apart)
    left: Tensor = ((apart.square() - variance) * weight).sum(0).clamp(min=0) / weight.sum(0)
    return left


def shrunk(values: Tensor, centre: Tensor, variance: Tensor) -> Tensor:
    """Return the posterior mean of values around a centre, given the variance of their noise and
    their ``own_variance`` (empirical Bayes).

    Args:
        values: ``[n, ...]``, of which each column has a variance of its own.
        centre, variance: broadcast to them.
    """
    apart = values - centre
    own = own_variance(apart, variance)
    # Without noise nothing is shrunk; without spread all is the centre.
    share = own / (own + variance).where(own + variance > 0, 1.0)
    return centre + share * apart


def floored(counts: Tensor) -> Tensor:
    """Return counts ``[n, ...]`` that may be divided by."""
    least = LEAST * counts.mean(0).clamp(min=0)
    return counts.maximum(least).clamp(min=1e-12)


def with_outputs(params: Params, outputs: Tensor) -> Params:
    """Return the model with these outputs ``[items, K]``, wherever else ``params`` were."""
    vectors, weight = params[VECTORS], params["head.weight"]
    written: Tree = {
        VECTORS: F.pad(outputs.T, (0, 0, 0, len(vectors) - outputs.shape[1])).to(vectors),
        "head.weight": torch.eye(*weight.shape).to(weight),
        "head.bias": torch.zeros_like(params["head.bias"]),
    }
    return Params(params | written)
