"""A factor model of people's answers from one release of moments (after Dwork, Talwar, Thakurta,
Zhang, "Analyze Gauss: Optimal Bounds for Privacy-Preserving Principal Component Analysis", STOC
2014) under user-level differential privacy.

A table of people and items needs no rounds: means and products of pairs of answers determine a
factor model, and a person predicts at home from its own answers. With the answers x in {-1, 1} of a
person to k of p items, a 0 elsewhere, and o = |x|, a client uploads

    counts, sums = f o, f x [p],    pair_counts, pairs = g o_a o_b, g x_a x_b [p (p - 1) / 2]

once, where f = min(1, sqrt(cap / k)) and g = min(1, sqrt(cap (cap - 1) / (k (k - 1)))) with cap =
answers. The parts are then no longer than sqrt(cap) and sqrt(cap (cap - 1) / 2). The server makes
of their noisy sums the means m and the covariance of pairs, and of that a factor model: covariance
= B B' + diag(psi). At home the mean of the posterior, f = (I + B' psi^-1 B)^-1 B' psi^-1 (x - m)
over the items that the person answered, predicts m + B f for all. The released model has m.

    minimises: nothing; solves for the mean of the posterior of its factors
    sends: counts, sums, pair_counts and pairs: p (p + 1) numbers and no parameters
    keeps: nothing
    tests: the network whose output for every item is m + B f, as a logit

    answers: how many answers a person's message holds at full size. Longer lists are shortened, so
        that each part has a bound; with the number that most people have, nobody counts more than
        others and few count less [ours]
    rank: most factors. The number that noise leaves is often smaller [ours]
    equal: everybody answers ``answers`` items, each as often as another. Counts then are public
        and are not sent. Where it is not true the privacy is the same, and the model is worse
        [ours]

The parts, four or with ``equal`` two, share one clip and one budget by fixed shares of its square,
SHARES or EQUAL: the message has length C whatever C is, if it holds as many answers, and
``clip_norm`` changes nothing. The noise of every part is known, and the server uses it three times.
Counts, pair counts and means are shrunk towards what they would be if items did not differ and
pairs were independent (empirical Bayes). Eigenvalues of the covariance below 2 sd sqrt(p), the
largest of noise alone (Wigner's semicircle law), are left out, and those above lose what noise adds
to them, sqrt(l^2 - 4 sd^2 p) (Gavish, Donoho, "Optimal Shrinkage of Singular Values", 2017). The
diagonal follows from the means, and what of it is common to the items is found with the factors, by
the principal factor method.

The method has one round, T = 1 in a study (``training: {rounds: 1}``); with more, the server takes
the mean of all rounds, which together are worth one at their budget. Messages are long where there
are many items: at a thousand half a million pairs, too many for the noise. Differences from the
paper: it releases the second moments of vectors without gaps, and stops at their eigenvectors.

On SPI (study one_release_spi, five seeds, nothing tuned) it has 71.9, 74.6, 76.4, 77.7 and 79.0 %
on own test rows at epsilon 0.5, 1, 2, 4 and 8, and 72.8, 75.2, 76.7, 78.0 and 79.1 % with
``equal``; the released model has 68.4 %, item_effects 68.4 % and own_constant 58.8 %.
"""

import math
from typing import Annotated

import torch
from torch import Tensor

from pflpipe.learning import items
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Count, Method, Option, Shapes, Upload, nothing
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ABOUT = About(
    title="One-release factors",
    paper="Dwork et al. 2014",
    needs=("items", "two_classes"),
    cost=0.1,
    public_scale=True,
)

SHARES = {"counts": 0.05, "sums": 0.1, "pair_counts": 0.15, "pairs": 0.7}
"""Parts of the square of the clip bound, and so of the budget mu^2."""
EQUAL = {"sums": 0.1, "pairs": 0.9}
"""The same where counts are public."""
REPEATS = 20
"""Number of steps of the principal factor method."""
MOST_COMMON = 0.9
"""Largest part of an item's variance that is common to others."""
LEAST_OWN = 0.05
"""Least variance that an item has of its own."""
MOST_MEAN = 0.98
"""Largest mean of an item, and prediction of an answer, so that both have finite logits."""


def places(count: int) -> Tensor:
    """Return the pairs a < b of items, ``[2, p (p - 1) / 2]``."""
    return torch.triu_indices(count, count, 1)


def factors(found: Tree, deviations: dict[str, float], rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the means ``[p]``, the loadings ``[p, R]`` with zeros for factors that noise hides,
    and the variances ``[p]`` that items have of their own, from noisy sums.

    Args:
        found: the four parts, up to a common factor.
        deviations: part -> standard deviation of its noise.
        rank: R, at most p.
    """
    counts, sums, pair_counts, pairs = (found[name].double() for name in SHARES)
    variances = {name: counts.new_tensor(value).square() for name, value in deviations.items()}
    first, second = places(len(counts)).to(counts.device)
    counts = items.floored(items.shrunk(counts, counts.mean(), variances["counts"]))
    raw, centre = sums / counts, sums.sum() / counts.sum()
    of_means = variances["sums"] / counts.square()
    means = items.shrunk(raw, centre, of_means).clamp(-MOST_MEAN, MOST_MEAN)
    # As many pairs as if answering one item said nothing about answering another.
    apart = counts[first] * counts[second]
    apart = apart * (pair_counts @ apart / apart.square().sum())
    pair_counts = items.floored(items.shrunk(pair_counts, apart, variances["pair_counts"]))
    covariance = counts.new_zeros(len(counts), len(counts))
    between = pairs / pair_counts - means[first] * means[second]
    covariance = covariance.index_put((first, second), between)
    covariance = covariance + covariance.mT
    edge = 2 * ((variances["pairs"] / pair_counts.square()).mean() * len(counts)).sqrt()
    whole = 1 - means.square()
    common = torch.zeros_like(means)
    for _ in range(REPEATS):
        values, vectors = torch.linalg.eigh(covariance + torch.diag_embed(common))
        values, vectors = values[-rank:], vectors[:, -rank:]
        size = (values.square() - edge.square()).clamp(min=0).sqrt().where(values > edge, 0.0)
        common = (vectors.square() @ size).minimum(MOST_COMMON * whole)
    loadings = vectors * size.sqrt()
    # Noise may leave an item with more in common than it has.
    most = MOST_COMMON * whole / loadings.square().sum(1).clamp(min=1e-12)
    loadings = loadings * most.clamp(max=1).sqrt().unsqueeze(1)
    return means, loadings, (whole - loadings.square().sum(1)).clamp(min=LEAST_OWN)


def equal_counts(found: Tree, answers: int) -> Tree:
    """Return the mean counts of items ``[p]`` and pairs of them, if everybody answers as many and
    each as often as another."""
    sums, pairs = found["sums"], found["pairs"]
    count = len(sums)
    of_pair = answers * (answers - 1) / (count * (count - 1))
    return {
        "counts": torch.full_like(sums, answers / count),
        "pair_counts": torch.full_like(pairs, of_pair),
    }


def own_answers(batches: Batches, task: Task) -> tuple[Tensor, Tensor]:
    """Return which items a person answered, 0 or 1, and its answers, -1 or 1 and 0 where there is
    none, both ``[p]``."""
    answered, given = items.answers(batches, task, 1, lambda batch: 2 * batch.y.unsqueeze(1) - 1)
    return answered[:, 0], given[:, 0]


def own_factors(
    answered: Tensor, given: Tensor, means: Tensor, loadings: Tensor, own: Tensor
) -> Tensor:
    """Return the expected factors ``[R]`` of a person with the answers ``given [p]`` to the items
    that are ``answered [p]``, 0 or 1."""
    weighted = loadings * (answered / own).unsqueeze(1)
    unit = torch.eye(loadings.shape[1], dtype=loadings.dtype, device=loadings.device)
    system, right = unit + loadings.mT @ weighted, weighted.mT @ (given - means)
    found: Tensor = torch.linalg.solve_ex(system, right)[0]
    return found


def predicted(
    answered: Tensor, given: Tensor, means: Tensor, loadings: Tensor, own: Tensor
) -> Tensor:
    """Return the expected answers ``[p]`` of the person of ``own_factors`` to all items."""
    return means + loadings @ own_factors(answered, given, means, loadings, own)


def with_expected(params: Params, expected: Tensor) -> Params:
    """Return the model with the logits 0 and z of expected answers ``[p]``."""
    expected = expected.clamp(-MOST_MEAN, MOST_MEAN)
    z = (1 + expected).log() - (1 - expected).log()
    return items.with_outputs(params, torch.stack([torch.zeros_like(z), z], 1))


def one_release_factors(
    *, answers: Annotated[int, Option(least=2)] = 50, rank: Count = 30, equal: bool = False
) -> Method:
    """Return the method."""
    shares = EQUAL if equal else SHARES

    def parts(task: Task) -> Shapes:
        count = items.shape(task, two_classes=True)[0]
        pairs = count * (count - 1) // 2
        shapes = {"counts": count, "sums": count, "pair_counts": pairs, "pairs": pairs}
        return {name: (shapes[name],) for name in shares}

    def lengths() -> dict[str, float]:
        """Return the length of each part by its share, at a budget of 1."""
        one, two = math.sqrt(answers), math.sqrt(answers * (answers - 1) / 2)
        longest = {"counts": one, "sums": one, "pair_counts": two, "pairs": two}
        return {name: longest[name] / math.sqrt(share) for name, share in shares.items()}

    def init_server(params: Params, task: Task) -> ServerState:
        zero, shapes = params["head.weight"].new_zeros, parts(task)
        (count,) = shapes["sums"]
        model = {"means": (count,), "loadings": (count, min(rank, count)), "own": (count,)}
        begun = {name: zero(shape) for name, shape in (shapes | model).items()}
        return ServerState(begun | {"own": torch.ones_like(begun["own"])})

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        answered, given = own_answers(batches, task)
        first, second = places(len(given)).to(given.device)
        one = items.shortening(answered, answers, lambda count: count)
        two = items.shortening(answered, answers, lambda count: count * (count - 1))
        update = {
            "counts": one * answered,
            "sums": one * given,
            "pair_counts": two * answered[first] * answered[second],
            "pairs": two * given[first] * given[second],
        }
        sent = {name: update[name] for name in shares}
        return Upload(Update(sent), {}, one.new_zeros(())), state

    def scale(params: Params, server: ServerState, task: Task) -> Tree:
        unit = items.unit(task)
        return {n: server[n].new_tensor(length / unit) for n, length in lengths().items()}

    def aggregate(
        params: Params, released: Update, server: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        # After the last round these are the means over the rounds.
        found = {n: server[n] + released[n] / task.plan.rounds for n in shares}
        deviations = dict.fromkeys(SHARES, 0.0)
        deviations |= {n: length * items.noise(task.plan) for n, length in lengths().items()}
        known = found | (equal_counts(found, answers) if equal else {})
        fitted = factors(known, deviations, min(rank, len(found["sums"])))
        model = dict(zip(("means", "loadings", "own"), fitted, strict=True))
        kept = {name: value.to(server[name]) for name, value in model.items()}
        return with_expected(params, model["means"]), ServerState(found | kept)

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        model = (server[name].double() for name in ("means", "loadings", "own"))
        answered, given = (value.double() for value in own_answers(batches, task))
        return with_expected(params, predicted(answered, given, *model))

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
