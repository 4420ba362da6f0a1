"""Private alternating least squares (Chien, Jain, Krichene, Rendle, Song, Thakurta, Zhang, "Private
Alternating Least Squares: Practical Private Matrix Completion with Tighter Rates", ICML 2021;
Krichene, Jain, Song, Sundararajan, Thakurta, Zhang, "Multi-Task Differential Privacy Under
Distribution Skew", ICML 2023) under user-level differential privacy.

For tables with so many items that the products of all pairs of answers are too long a message. Of
the answers x in {-1, 1} of a person, the one to item j is u v_j plus noise, with u = (1, f) of the
person, R factors f, and v_j [R + 1] of the item, its mean first. In every round a client solves for
its f anew, given all v, with a normal prior; it cuts f to length 1, and uploads

    counts = w o [p],    gram = u u' [R + 1, R + 1],    cross = w x u' [p, R + 1]

where o is 1 for the items that it answered, and w = min(1, sqrt(answers / how many there are)). The
server solves for all v: of the whole table first, v = second^-1 E x u with second = E u u', and
then for each item what its answers add to that. In the first round one factor is everybody's
inclination to say 1, the others are cosines of the item's number. The personal model has u v_j with
the f that follows from the last v; the released model has the mean of u in place of u.

    minimises: the squared error of its answers, plus that of the prior of its f
    sends: counts, gram and cross, and no parameters
    keeps: nothing
    tests: the network whose output for every item is u v_j, as a logit

    answers: how many answers a person's message holds at full size, as in item_effects [ours: the
        paper draws so many]
    rank: R, the number of factors [ours: the paper chooses it on validation rows]

The parts share one clip and one budget by fixed shares of its square, SHARES. No message is longer
than C, whatever C is: ``clip_norm`` changes nothing. The noise of every part is known, and the
server uses it: the variance of v between items is what is left of their mean square without the
noise's, and each v_j is the best linear estimate with that variance (empirical Bayes). After each
round the factors get the mean square 1 / 2, half of what a message may hold.

Rounds are alternations: two or four are enough, and each has its share of the budget. With one
round and R = 1 a person has one number, and the items differ in how far they follow it; with more
factors take more rounds. Differences from the papers: they have a matrix u u' of each item, with
(R + 1) (R + 2) / 2 numbers; here it is the item's count times the common matrix, as if who answers
did not depend on f. Tried outside of the package on InstEval, matrices of the items cost 2 points
at epsilon 2, as noise leaves little of them where an item has 30 answers. The papers have a fixed
penalty of v, no item means but those taken off before, and all factors at random; Krichene et al.
weight items by how rare they are.

On InstEval (study one_release_insteval, three seeds, nothing tuned), with 1,128 items, one round
with one factor has 62.9 and 64.6 % on own test rows at epsilon 2 and 8, two rounds with two factors
62.0 and 63.8 %. item_effects has 63.4 and 64.4 %, own_constant 56.3 %: there is little to gain from
factors. On SPI (the people of one_release_spi, three seeds), four rounds with four factors have
68.6, 73.5 and 75.7 % at epsilon 0.5, 2 and 8, and one_release_factors 71.7, 76.4 and 79.0 %: where
pairs are few enough to send, send them.
"""

import math

import torch
from torch import Tensor

from pflpipe.learning import items
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Count, Method, Shapes, Upload, nothing
from pflpipe.methods.one_release_factors import own_answers, own_factors, predicted, with_expected
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ABOUT = About(
    title="DPALS",
    paper="Chien et al., ICML 2021",
    needs=("items", "two_classes"),
    cost=0.1,
    public_scale=True,
)

SHARES = {"counts": 0.1, "gram": 0.1, "cross": 0.8}
"""Parts of the square of the clip bound, and so of the budget mu^2."""
HALF = 0.5
"""Mean square of a person's factors, whose bound is 1."""
COMMON = 0.2
"""Part of an answer's variance that factors explain at the start."""
LEAST = 1e-6
"""Least eigenvalue of a matrix that is inverted."""
LEAST_OWN = 0.05
"""Least variance of an answer around its mean, and least share of people with answers."""


def started(count: int, rank: int) -> Tensor:
    """Return the first v ``[p, R + 1]``: no means, and cosines of the items' numbers."""
    turns = torch.outer(torch.arange(count) + 0.5, torch.arange(rank)) * (math.pi / count)
    waves = turns.cos() * math.sqrt(2)
    waves[:, 0] = 1
    return torch.cat([torch.zeros(count, 1), waves * math.sqrt(COMMON / HALF)], 1)


def packed(matrix: Tensor) -> Tensor:
    """Return a symmetric matrix ``[K, K]`` as ``[K (K + 1) / 2]`` numbers of the same length."""
    row, column = torch.triu_indices(len(matrix), len(matrix)).to(matrix.device)
    return matrix[row, column] * torch.where(row == column, 1.0, math.sqrt(2)).to(matrix)


def unpacked(numbers: Tensor, size: int) -> Tensor:
    """Return the symmetric matrix ``[K, K]`` of ``packed`` numbers."""
    row, column = torch.triu_indices(size, size).to(numbers.device)
    half = numbers / torch.where(row == column, 2.0, math.sqrt(2)).to(numbers)
    upper = numbers.new_zeros(size, size).index_put((row, column), half)
    return upper + upper.mT


def vectors(found: Tree, deviations: dict[str, float], people: float) -> tuple[Tensor, Tensor]:
    """Return v of all items ``[p, R + 1]`` and the expected answers of the mean person ``[p]``.

    Args:
        found: noisy means over the people of the three parts.
        deviations: part -> standard deviation of its noise.
        people: how many there are.
    """
    counts, gram, cross = (found[name].double() for name in SHARES)
    noise = {name: value**2 for name, value in deviations.items()}
    size = cross.shape[1]
    counts = items.floored(items.shrunk(counts, counts.mean(), counts.new_tensor(noise["counts"])))
    whole = unpacked(gram, size)
    # The largest eigenvalue of noise alone (Wigner's semicircle law) hides what is below it.
    edge = deviations["gram"] * math.sqrt(2 * size)
    values, axes = torch.linalg.eigh(whole / whole[0, 0].clamp(min=LEAST_OWN))
    second = axes * values.clamp(min=max(edge, LEAST)) @ axes.mT
    inverse = torch.linalg.inv(second)
    mean = cross.sum(0) / counts.sum()
    common = inverse @ mean
    around = (1 - mean[0].square()).clamp(min=LEAST_OWN)  # variance of an answer
    n = counts.view(-1, 1)
    rest = cross - n * mean
    apart = rest / n @ inverse
    unsure = noise["cross"] / n.square() * inverse.square().sum(0)
    unsure = unsure + around / (people * n) * inverse.diagonal()
    between = items.own_variance(apart, unsure)
    # rest = (n second) (v - common) + noise + what single answers differ: the best linear estimate
    slope = n.unsqueeze(2) * second
    spread = slope * between @ slope + around / people * slope
    spread = spread + (noise["cross"] + LEAST**2) * torch.eye(size).to(spread)
    v = common + (torch.linalg.solve(spread, rest.unsqueeze(2)).mT @ slope).squeeze(1) * between
    values, axes = torch.linalg.eigh(second[1:, 1:])
    root = axes * values.clamp(min=LEAST).sqrt() @ axes.mT / math.sqrt(HALF / (size - 1))
    return torch.cat([v[:, :1], v[:, 1:] @ root], 1), v @ second[0]


def dpals(*, answers: Count = 50, rank: Count = 4) -> Method:
    """Return the method."""

    def parts(task: Task) -> Shapes:
        count, size = items.shape(task, two_classes=True)[0], rank + 1
        return {"counts": (count,), "gram": (size * (size + 1) // 2,), "cross": (count, size)}

    def lengths() -> dict[str, float]:
        """Return the length of each part by its share, at a budget of 1; that of u is sqrt(2)."""
        longest = {"counts": math.sqrt(answers), "gram": 2.0, "cross": math.sqrt(2 * answers)}
        return {name: longest[name] / math.sqrt(share) for name, share in SHARES.items()}

    def model(server: ServerState) -> tuple[Tensor, Tensor, Tensor]:
        """Return the items' means, their loadings on factors of variance 1, and the variance of
        their noise."""
        v = server["vectors"].double()
        return v[:, 0], v[:, 1:] * math.sqrt(HALF / rank), torch.ones_like(v[:, 0])

    def init_server(params: Params, task: Task) -> ServerState:
        count = items.shape(task, two_classes=True)[0]
        return ServerState({"vectors": started(count, rank).to(params["head.weight"])})

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        answered, given = own_answers(batches, task)
        f = own_factors(answered.double(), given.double(), *model(server)) * math.sqrt(HALF / rank)
        f = f / torch.linalg.vector_norm(f).clamp(min=1)
        u = torch.cat([torch.ones_like(f[:1]), f]).to(given)
        w = items.shortening(answered, answers, lambda count: count)
        update = {
            "counts": w * answered,
            "gram": packed(torch.outer(u, u)) * answered.max(),  # nothing without answers
            "cross": w * torch.outer(given, u),
        }
        return Upload(Update(update), {}, w.new_zeros(())), state

    def scale(params: Params, server: ServerState, task: Task) -> Tree:
        unit = items.unit(task)
        return {n: server["vectors"].new_tensor(v / unit) for n, v in lengths().items()}

    def aggregate(
        params: Params, released: Update, server: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        each = items.noise(task.plan) * math.sqrt(task.plan.rounds)  # of one round
        deviations = {name: length * each for name, length in lengths().items()}
        v, expected = vectors(released, deviations, task.plan.expected_cohort)
        return with_expected(params, expected), ServerState({"vectors": v.to(server["vectors"])})

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        answered, given = (value.double() for value in own_answers(batches, task))
        return with_expected(params, predicted(answered, given, *model(server)))

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
