"""Level 1: an attacker sees whole runs and guesses whether the canary was there. The rate of its
errors bounds the true epsilon.

Runs with and without the canary are executed thousands of times, all T rounds, with the sampler and
the server step of training. Every run is reduced to a few statistics. Some runs choose one
statistic, with the middle between its two means as threshold; all others count false positives and
false negatives once. Their Clopper-Pearson bounds hold together with 99 %. The claim is the whole
curve delta(epsilon) of the claimed plan. It is refuted if for some epsilon the attacker is better
than any attack on an (epsilon, delta)-private run could be. ``detects`` is the largest factor of
too little noise that this number of runs can detect.

After Nasr et al. ("Adversary Instantiation", IEEE S&P 2021) and, for the lower bound on mu, Nasr et
al. ("Tight Auditing of Differentially Private Machine Learning", USENIX Security 2023).
"""

import math

import numpy as np
import torch
from torch import Tensor

from pflpipe.auditing.evidence import Evidence, judge, likelihood
from pflpipe.auditing.neighbours import Audited, directions, uploads
from pflpipe.privacy import clip_bits, correlated
from pflpipe.privacy.plan import Plan
from pflpipe.seeds import derived_key
from pflpipe.trees import Params, ServerState, Tree, Update

CHOOSING = 2_000
"""Largest number of runs, with and without the canary each, that choose the statistic. They are not
evaluated."""


def distinguish(audited: Audited, canary: str, runs: int, key: str) -> Evidence:
    """Return the evidence of an attack on ``runs`` runs with and ``runs`` runs without the canary.

    Args:
        canary: one of ``neighbours.CANARIES``, chosen independently of these runs.
        runs: evaluation runs with and without the canary each.
        key: of all random numbers.
    """
    first = min(runs, CHOOSING)
    all_runs = first + runs
    statistics = {here: _statistics(audited, canary, here, all_runs, key) for here in (False, True)}
    # The statistic and the threshold are chosen on runs that are not evaluated; otherwise the
    # binomial law of the errors, and with it the bound, would not hold.
    choosing, evaluated = (
        {
            there: {name: value[part] for name, value in runs_of.items()}
            for there, runs_of in statistics.items()
        }
        for part in (slice(first), slice(first, None))
    )
    name, weights = _choose(choosing)
    values = {there: _combine(runs_of, weights) for there, runs_of in choosing.items()}
    middle = (values[True].mean() + values[False].mean()) / 2
    positives = int((_combine(evaluated[False], weights) > middle).sum())
    negatives = int((_combine(evaluated[True], weights) <= middle).sum())
    return judge(audited.claimed, runs, positives, negatives, name)


@torch.no_grad()
def _statistics(
    audited: Audited, canary: str, there: bool, repeats: int, key: str
) -> dict[str, Tensor]:
    """Return the statistics of R = ``repeats`` runs with or without the canary, name -> ``[R]``,
    sums over the rounds."""
    plan = audited.plan
    initial = audited.start(key)
    direction = directions(audited, initial)[canary]
    flat = audited.movement(direction)
    line = flat / torch.linalg.vector_norm(flat)
    unit = line / torch.linalg.vector_norm(line, ord=plan.norm)
    support = flat != 0
    layers = audited.places(direction, len(flat))
    server = ServerState({})
    params = Params({name: value.expand(repeats, *value.shape) for name, value in initial.items()})
    if audited.scaled:
        server = torch.vmap(audited.init_server)(params)
    # The two sides have independent noise, as two runs have. Only level 0 shares it.
    run_key = derived_key(key, "there" if there else "absent")
    total: dict[str, Tensor] = {}
    sent = uploads(audited, direction, there, {}, repeats)
    bounds = torch.ones(repeats, dtype=torch.float64)  # adaptive ones, relative to the first
    noises, views, taken = audited.noises(run_key), list[Tensor](), list[float]()
    for round in range(plan.rounds):
        scale: Tree = {}
        if audited.scaled:
            scale = torch.vmap(audited.scale)(params, server)
        if plan.adaptive is not None:
            # Each repeat has its own bound C_t, but a release has one plan. Clipping to C_t is
            # clipping to C_0 in units of C_t / C_0, so the bounds become a scale.
            scale = {
                name: (bounds.view(-1, *[1] * (value.ndim - 1)) * scale.get(name, 1)).to(value)
                for name, value in params.items()
            }
        if scale:
            sent = uploads(audited, direction, there, scale, repeats)
        present = audited.cohort(round, audited.rng(run_key, "sample", round), repeats)
        if audited.secret and not there:
            present[:, audited.canary] = False
        if audited.trust == "local" and not present[:, audited.canary].any():
            continue  # a client that is not drawn sends no message
        bits = audited.rng(run_key, "bits", round)
        seen, sums = audited.seen(noises(round), sent, present, scale, bits=bits)
        if plan.adaptive is not None:
            bounds = clip_bits.next_bound(plan, bounds, sums)
        known = not audited.secret and bool(present[0, audited.canary])
        share = 1.0
        if plan.fixed:
            views, taken = [seen, *views][: plan.band], [float(known), *taken][: plan.band]
            seen, share = correlated.whitened(plan, views), correlated.whitened(plan, taken)
        for name, value in _round(
            audited.claimed, seen, line, unit * share, support, layers, known
        ).items():
            total[name] = total.get(name, 0) + value
        if audited.scaled:
            params, server = torch.vmap(audited.aggregate)(params, Update(sums), server)
    return total


def _round(
    claimed: Plan,
    seen: Tensor,
    line: Tensor,
    unit: Tensor,
    support: Tensor,
    layers: list[Tensor],
    known: bool,
) -> dict[str, Tensor]:
    """Return the statistics of one round of ``seen [R, d]``.

    Args:
        claimed: the claimed plan, for its noise and its rate.
        line: the canary's direction ``[d]``, of length 1.
        unit: the canary after a correct clip ``[d]``, of length 1 in the plan's norm.
        support: mask of the canary's coordinates, ``[d]``.
        layers: masks of the layers, each ``[d]``.
        known: whether it is public that the canary would take part in this round.
    """
    energy = seen.square()
    tiny = torch.finfo(torch.float64).tiny
    statistics = {
        "likelihood": torch.from_numpy(likelihood(claimed, seen.numpy(), unit.numpy(), known)),
        "energy": (energy.sum(dim=1) + tiny).log(),
        "energy of the canary's coordinates": (energy[:, support].sum(dim=1) + tiny).log(),
        "non-zero coordinates": (seen != 0).double().mean(dim=1),
        "non-zero coordinates of the canary": (seen[:, support] != 0).double().mean(dim=1),
    }
    for place, layer in enumerate(layers):
        statistics[f"projection on layer {place + 1}"] = seen[:, layer] @ line[layer]
    return statistics


def _choose(world: dict[bool, dict[str, Tensor]]) -> tuple[str, dict[str, float]]:
    """Return the name of the statistic that separates the runs best, and its weights.

    Candidates are the single statistics and their linear discriminant. The discriminant is fitted
    to these runs, so it must be clearly better.
    """
    names = list(world[True])
    ranked = {name: _separation(world[True][name], world[False][name]) for name in names}
    best = max(ranked, key=lambda name: abs(ranked[name]))
    moving = [name for name in names if ranked[name] and math.isfinite(ranked[name])]
    if math.isfinite(ranked[best]) and len(moving) > 1:
        columns = {
            there: np.stack([world[there][name].numpy() for name in moving], axis=1)
            for there in world
        }
        shared = (np.cov(columns[True].T) + np.cov(columns[False].T)) / 2
        gap = columns[True].mean(axis=0) - columns[False].mean(axis=0)
        weights = np.linalg.pinv(shared, hermitian=True) @ gap
        joint = {name: float(weight) for name, weight in zip(moving, weights, strict=True)}
        apart = _separation(_combine(world[True], joint), _combine(world[False], joint))
        if apart > 1.1 * abs(ranked[best]):
            return "linear discriminant", joint
    return best, {best: math.copysign(1.0, ranked[best])}


def _separation(there: Tensor, absent: Tensor) -> float:
    """Return the difference of the means in units of the standard deviation."""
    gap = (there.mean() - absent.mean()).item()
    width = ((there.var() + absent.var()) / 2).sqrt().item()
    if width == 0:
        return math.copysign(math.inf, gap) if gap else 0.0
    return gap / width


def _combine(world: dict[str, Tensor], weights: dict[str, float]) -> Tensor:
    return torch.stack([world[name] * weight for name, weight in weights.items()]).sum(dim=0)
