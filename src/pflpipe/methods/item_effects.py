"""Item effects and a number of each person (Rasch, "Probabilistic Models for Some Intelligence and
Attainment Tests", 1960; for numbers the two-way analysis of variance) from one release under
user-level differential privacy.

Of people and items, the easiest model is a sum: how often everybody gives an answer to an item, and
how far this person is from everybody. With one-hot answers of an item, or 1 and the numbers, in
``totals`` [items, C], a client uploads

    totals = its answers, times min(1, sqrt(answers / how many items it answered))

once. The server divides the totals of each item, and shrinks what it gets towards the mean over the
items by the known variance of the noise. The released model has the result, the logarithm of a
share or a mean, for every item. At home a person moves all outputs of it by one offset of its own.

    minimises: the sum over its rows of the loss of the released outputs plus an offset a, plus what
        a normal prior of standard deviation spread takes for a
    sends: totals, no parameters
    keeps: nothing
    tests: the released model, plus the offset

    answers: how many answers a person's message holds at full size. Longer lists are shortened as a
        whole, so that its length has a bound; with the number that most people have, nobody counts
        more than others and few count less [ours]
    bound: of numbers: each is cut off at plus and minus this; classes do not read it [ours]
    spread: standard deviation between persons of the difference of two logits, or of a number, in
        units of that of its rows [ours]

The message has length C whatever C is, if it holds as many answers: ``clip_norm`` changes nothing.
The method has one round, T = 1 in a study (``training: {rounds: 1}``); with more, the server takes
the mean of all rounds, which together are worth one at their budget.

The person's step reads the outputs of the released model alone. Differences: Rasch fits items and
persons together; here items have what everybody answers on average. The offset of classes is fitted
to the cross-entropy whatever the loss of the study is, and the squared error of numbers likewise.

On InstEval (study one_release_insteval, three seeds, nothing tuned) it has 63.4 and 64.4 % on own
test rows at epsilon 2 and 8, and own_constant 56.3 %.
"""

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from pflpipe import trees
from pflpipe.learning import items
from pflpipe.learning.task import Batch, Batches, Task
from pflpipe.methods.base import (
    About,
    Count,
    Method,
    Option,
    Positive,
    Shapes,
    Upload,
    nothing,
    zeros,
)
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ABOUT = About(
    title="Item effects", paper="Rasch 1960", needs=("items",), cost=0.1, public_scale=True
)

STEPS = 50
LEAST_SHARE = 0.01
"""Least share of an answer, so that its logarithm says little more than rare."""


def offset(outputs: Tensor, y: Tensor, real: Tensor, numbers: bool, spread: float) -> Tensor:
    """Return a person's offset a ``[K]``.

    Args:
        outputs: of the released model ``[n, K]``; one of two classes stands for logits 0 and z.
        y: answers ``[n]``, or numbers ``[n, K]``.
        real: which rows are no padding ``[n]``.
        numbers: whether answers are numbers.
        spread: standard deviation of a number of a, or of the difference of two logits.
    """
    width, count = outputs.shape[1], real.sum()
    # Two logits of half the variance have a difference of the whole.
    precision = (1 if numbers or width == 1 else 2) / spread**2
    if numbers:
        gap = (y.view_as(outputs) - outputs).where(real.unsqueeze(1), 0.0)
        return gap.sum(0) / (count + precision)
    right = F.one_hot(y, max(width, 2))[:, -width:].to(outputs)
    a = outputs.new_zeros(width)
    for _ in range(STEPS):
        logits = outputs + a
        chance = logits.sigmoid() if width == 1 else logits.softmax(1)
        slope = (chance - right).where(real.unsqueeze(1), 0.0).sum(0) + precision * a
        # No curvature of the cross-entropy is above 1/2: every such step goes down.
        a = a - slope / (count / 2 + precision)
    return a


def item_effects(
    *,
    answers: Count = 50,
    bound: Positive = 1.0,
    spread: Annotated[float, Option(above=0, trained=False)] = 1.0,
) -> Method:
    """Return the method."""

    def width(task: Task) -> int:
        return max(items.shape(task)[1], 1 if task.loss_function.numbers else 2)

    def of_rows(batch: Batch, task: Task) -> Tensor:
        """Return one-hot answers, or numbers in a vector of at most length 1."""
        if not task.loss_function.numbers:
            return F.one_hot(batch.y, width(task))
        y = batch.y.view(len(batch.y), -1)
        return y.clamp(-bound, bound) / (bound * math.sqrt(y.shape[1]))

    def parts(task: Task) -> Shapes:
        return {"totals": (items.shape(task)[0], width(task) + task.loss_function.numbers)}

    def length(task: Task) -> float:
        """Return the largest length of a message: a 1 beside each number is one more."""
        return math.sqrt(answers * (1 + task.loss_function.numbers))

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        answered, given = items.answers(batches, task, width(task), lambda b: of_rows(b, task))
        if task.loss_function.numbers:
            given = torch.cat([answered, given], 1)
        total = given * items.shortening(answered, answers, lambda count: count)
        return Upload(Update({"totals": total}), {}, total.new_zeros(())), state

    def scale(params: Params, server: ServerState, task: Task) -> Tree:
        return {"totals": server["totals"].new_tensor(length(task) / items.unit(task))}

    def aggregate(
        params: Params, released: Update, server: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        # After the last round this is the mean over the rounds.
        total = trees.add(server, {"totals": released["totals"] / task.plan.rounds})
        found = total["totals"].double()
        each = (length(task) * items.noise(task.plan)) ** 2
        numbers = task.loss_function.numbers
        counts = items.floored(found[:, :1] if numbers else found.sum(1, keepdim=True))
        values = found[:, 1:] if numbers else found
        centre = values.sum(0) / counts.sum()
        means = items.shrunk(values / counts, centre, each / counts.square())
        if numbers:
            outputs = means * (bound * math.sqrt(means.shape[1]))
        else:
            logits = means.clamp(LEAST_SHARE, 1).log()
            one = task.loss_function.one_logit
            outputs = logits[:, 1:] - logits[:, :1] if one else logits
        return items.with_outputs(params, outputs), total

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        like, numbers = params["head.bias"], task.loss_function.numbers
        rows = list(batches.all)
        logits = [like.new_zeros(0, len(like)), *(task.forward(params, b)[1] for b in rows)]
        outputs = torch.cat(logits)
        y = torch.cat([batches.all.y[:0], *(batch.y for batch in rows)])
        real = torch.arange(len(y), device=y.device) < batches.n
        own = offset(outputs, y, real, numbers, spread)
        return Params(params | {"head.bias": params["head.bias"] + own})

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
