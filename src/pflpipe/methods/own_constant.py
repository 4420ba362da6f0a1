"""Each client's most frequent class, or the mean of its numbers: what is known without features.

A model that learns alone has to beat it. Of people and items, where nobody answers an item twice,
it cannot: no row says anything about another item. A client sends nothing and therefore needs no
guarantee: the claim is ``none``, and there is no global model.

    minimises: the loss of a constant, in closed form
    sends: nothing
    keeps: nothing
    tests: the network with a head of zeros, whose bias is the client's constant

The constant is the logarithm of each class's share of the training rows, with half a row more of
each class (Krichevsky and Trofimov, 1981), so that all logits are finite; of equal shares the first
class counts. For the absolute error the mean is not the best constant. A client without rows has
zeros.
"""

import torch
import torch.nn.functional as F

from pflpipe.learning.task import HEAD, Batches, Task
from pflpipe.methods.base import About, Method, Upload, nothing
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ABOUT = About(
    title="Own constant",
    paper="baseline",
    private=False,
    sends=False,
    has_global_model=False,
    cost=0.1,
)


def constant(params: Tree, batches: Batches, task: Task) -> Tree:
    """Return the head of the best constant of a client's training rows."""
    like, loss = params["head.bias"], task.loss_function
    classes = 2 if loss.one_logit else len(like)
    total = like.new_zeros(classes)
    for batch in batches.all:
        y = batch.y.view(len(batch.y), -1) if loss.numbers else F.one_hot(batch.y, classes)
        each = y.to(like)
        if batch.valid is not None:
            each = each.where(batch.valid.unsqueeze(1), 0.0)
        total = total + each.sum(0)
    if loss.numbers:
        bias = total / batches.n.clamp(min=1).to(like)
    else:
        logits = ((total + 0.5) / (total + 0.5).sum()).log()
        bias = logits[1:] - logits[:1] if loss.one_logit else logits
    return dict(zip(HEAD, (torch.zeros_like(params["head.weight"]), bias), strict=True))


def own_constant() -> Method:
    """Return the method; it has no hyper-parameters."""

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        return Upload(Update({}), {}, params["head.bias"].new_zeros(())), state

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return Params(params | constant(params, batches, task))

    return Method(local_update, personalize=personalize, sends=nothing, full_pass=True)
