"""Level 1: an attacker watches whole runs and says whether the canary was there; how often it errs
bounds the true epsilon.

Both worlds are run thousands of times, all T rounds, with the sampler and the server step that
training uses. Every run is boiled down to a few statistics; some runs choose one statistic and the
middle between its two means as threshold, all others count false positives and false negatives
once. Their Clopper-Pearson bounds hold together with 99 %. The claim is the whole curve
delta(epsilon) of the claimed plan: it is refuted when for some epsilon the attacker does better
than any attack on an (epsilon, delta)-private run could. ``detects`` says how much too little noise
so many runs can see at all.

After Nasr et al. ("Adversary Instantiation", IEEE S&P 2021) and, for the lower bound on mu, Nasr et
al. ("Tight Auditing of Differentially Private Machine Learning", USENIX Security 2023).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from pflpipe import trees
from pflpipe.audit.neighbours import Mechanism, directions, start, uploads
from pflpipe.privacy import accounting, adaptive
from pflpipe.privacy.plan import Plan
from pflpipe.seeds import derived_key
from pflpipe.trees import Params, ServerState, Tree, Update

ERROR = 0.01
"""Probability with which one of the two bounds does not hold."""
EPSILONS = np.linspace(0, 15, 151)
"""Where the claimed curve is compared; with 40,000 runs nothing above 9 can be refuted."""
CHOOSING = 2_000
"""Runs of each world, beside those that count, from which an attacker learns what to look at; fewer
if fewer count."""
POWER = 0.9
"""Probability of a flag that is meant by a factor that "is detected"."""


@dataclass(frozen=True)
class Evidence:
    """What the attacker achieved.

    Attributes:
        runs: evaluation runs in each world.
        false_positives, false_negatives: runs without the canary taken for runs with it, and the
            other way round.
        statistic: what the attacker looked at.
        excess: by how much the attack beats the claimed curve where it does so most; at most 0 when
            the claim is not refuted.
        mu_lower: lower bound on mu, if the mechanism is mu-GDP; None when the claim is not of that
            form.
        epsilon_lower: lower bound on epsilon at the plan's delta: from ``mu_lower``, or where there
            is none the direct one.
        epsilon_direct: lower bound without any assumption; it cannot exceed the logarithm of a
            fifth of the runs.
    """

    runs: int
    false_positives: int
    false_negatives: int
    statistic: str
    excess: float
    mu_lower: float | None
    epsilon_lower: float
    epsilon_direct: float

    @property
    def flagged(self) -> bool:
        """Whether the claim is refuted."""
        return self.excess > 0


def distinguish(mechanism: Mechanism, canary: str, runs: int, key: str) -> Evidence:
    """Attack so many runs of each world, and some more to choose how.

    Args:
        canary: one of ``neighbours.CANARIES``, chosen without looking at these runs.
        runs: evaluation runs in each world.
        key: of everything random.
    """
    first = min(runs, CHOOSING)
    worlds = {
        there: _statistics(mechanism, canary, there, first + runs, key) for there in (False, True)
    }
    chosen = {
        there: {name: value[:first] for name, value in world.items()}
        for there, world in worlds.items()
    }
    judged = {
        there: {name: value[first:] for name, value in world.items()}
        for there, world in worlds.items()
    }
    name, weights = _choose(chosen)
    values = {there: _combine(world, weights) for there, world in chosen.items()}
    middle = (values[True].mean() + values[False].mean()) / 2
    positives = int((_combine(judged[False], weights) > middle).sum())
    negatives = int((_combine(judged[True], weights) <= middle).sum())
    return judge(mechanism.claimed, runs, positives, negatives, name)


def judge(
    claimed: Plan, runs: int, false_positives: int, false_negatives: int, statistic: str = ""
) -> Evidence:
    """Return what so many errors of an attacker in so many runs of each world say about a claim."""
    errors = np.array([[false_positives], [false_negatives]])
    excess = _excess(_curve(claimed), runs, errors).item()
    upper_fp, upper_fn = _upper(runs, errors)[:, 0].tolist()
    at = accounting.delta_of(claimed)
    sides = ((upper_fp, upper_fn), (upper_fn, upper_fp))
    direct = max(
        0.0,
        *(
            math.log((1 - at - missed) / wrong) if missed < 1 - at else 0.0
            for wrong, missed in sides
        ),
    )
    mu, epsilon = None, direct
    if claimed.mechanism == "gaussian" and claimed.sample_rate == 1:
        mu = max(0.0, float(stats.norm.ppf(1 - upper_fp) - stats.norm.ppf(upper_fn)))
        epsilon = accounting.gdp_epsilon(mu, at) if mu > 0 else 0.0
    return Evidence(runs, false_positives, false_negatives, statistic, excess, mu, epsilon, direct)


@functools.lru_cache(maxsize=8)
def detects(claimed: Plan, runs: int) -> float:
    """Return the largest factor by which all noise could be too small such that whole runs flag it
    with probability ``POWER``.

    Computed for an attacker who looks at the one coordinate that the canary moves, by the
    likelihood ratio of the claimed plan: the law of a run's sum is the T-fold convolution of that
    of a round, and the counts of its errors are binomial. 0 if so many runs see no such factor
    above 0.01, as when the claim is so weak that they prove nothing about it.
    """
    curve = _curve(claimed)
    # The same quantiles for every factor, so that power falls with it; 4,000 give it to half a
    # percent.
    chance = np.random.default_rng(0).random((2, 4_000))

    def power(factor: float) -> float:
        rates = np.array(errors_of_midpoint(claimed, factor))[:, None]
        errors = stats.binom.ppf(chance, runs, rates)
        return float((_excess(curve, runs, errors) > 0).mean())

    low, high = 0.01, 1.0
    if power(low) < POWER:
        return 0.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle) >= POWER else (low, middle)
    return low


def errors_of_midpoint(claimed: Plan, factor: float) -> tuple[float, float]:
    """Return an attacker's rates of false positives and of false negatives if all noise is smaller
    by a factor.

    The law of one round's log likelihood ratio is put on a grid, and Fourier's transform makes the
    law of T rounds of it.
    """
    assert claimed.noise_multiplier is not None
    real = claimed.noise_multiplier * factor
    noise = stats.laplace(scale=real) if claimed.mechanism == "laplace" else stats.norm(scale=real)
    edge = float(noise.isf(1e-13))
    x = np.linspace(-edge, 1 + edge, 50_001)
    middles = torch.from_numpy((x[1:] + x[:-1]) / 2).unsqueeze(1)
    ratio = _likelihood(claimed, middles, torch.ones(1, dtype=torch.float64), known=False).numpy()
    absent = np.diff(noise.cdf(x))
    there = (1 - claimed.sample_rate) * absent + claimed.sample_rate * np.diff(noise.cdf(x - 1))
    centre, gap = float(ratio @ absent), float(ratio @ (there - absent))
    width = math.sqrt((ratio - centre) ** 2 @ (absent + there) / 2)
    step = width / 1000
    reach = claimed.rounds * gap + 10 * math.sqrt(claimed.rounds) * width + float(np.ptp(ratio))
    size = 2 ** math.ceil(math.log2(2 * reach / step))
    places = np.rint((ratio - centre) / step).astype(int) % size
    totals = (
        np.arange(size) + size // 2
    ) % size - size // 2  # a sum less T times the centre, in steps
    laws = []
    for law in (absent, there):
        single = np.bincount(places, weights=law, minlength=size)
        laws.append(np.fft.irfft(np.fft.rfft(single) ** claimed.rounds, size).clip(min=0))
    middle = sum(float(law @ totals) for law in laws) / 2
    return float(laws[0][totals > middle].sum()), float(laws[1][totals <= middle].sum())


@functools.lru_cache(maxsize=8)
def _curve(claimed: Plan) -> np.ndarray:
    return np.array([accounting.delta(claimed, epsilon) for epsilon in EPSILONS])


def _upper(runs: int, errors: np.ndarray) -> np.ndarray:
    """Return the Clopper-Pearson upper bounds of the rates behind so many errors, ``[...]``."""
    bounds: np.ndarray = np.nan_to_num(
        stats.beta.ppf(1 - ERROR / 2, errors + 1, runs - errors), nan=1.0
    )
    return bounds


def _excess(curve: np.ndarray, runs: int, errors: np.ndarray) -> np.ndarray:
    """Return by how much attackers beat a claimed curve where each does so most, ``[n]``.

    Args:
        curve: the claimed delta at ``EPSILONS``.
        errors: false positives and false negatives ``[2, n]``.
    """
    upper = _upper(runs, errors)[:, :, None]
    sides = ((upper[0], upper[1]), (upper[1], upper[0]))
    found = [(1 - missed - np.exp(EPSILONS) * wrong - curve).max(axis=1) for wrong, missed in sides]
    best: np.ndarray = np.maximum(*found)
    return best


@torch.no_grad()
def _statistics(
    mechanism: Mechanism, canary: str, there: bool, repeats: int, key: str
) -> dict[str, Tensor]:
    """Run one world so many times; return the statistics of each run, name -> ``[R]``, sums over
    the rounds."""
    plan = mechanism.executed
    begun = start(mechanism, key)
    direction = directions(mechanism, begun)[canary]
    flat = mechanism.movement(direction)
    line = flat / torch.linalg.vector_norm(flat)
    unit = line / torch.linalg.vector_norm(line, ord=plan.norm)
    support = flat != 0
    layers = _places(direction, len(flat))
    server = ServerState({})
    params = Params({name: value.expand(repeats, *value.shape) for name, value in begun.items()})
    if mechanism.scaled:
        server = torch.vmap(mechanism.init_server)(params)
    own = derived_key(key, "there" if there else "absent")
    total: dict[str, Tensor] = {}
    sent = uploads(mechanism, direction, there, {}, repeats)
    bounds = torch.ones(repeats, dtype=torch.float64)  # adaptive ones, relative to the first
    for round in range(plan.rounds):
        scale: Tree = {}
        if mechanism.scaled:
            scale = torch.vmap(mechanism.scale)(params, server)
        if plan.adaptive is not None:
            # Repeats have bounds of their own: a bound is a unit in which the first one holds.
            scale = {
                name: (bounds.view(-1, *[1] * (value.ndim - 1)) * scale.get(name, 1)).to(value)
                for name, value in params.items()
            }
        if scale:
            sent = uploads(mechanism, direction, there, scale, repeats)
        present = mechanism.cohort(round, mechanism.rng(own, "sample", round), repeats)
        if mechanism.secret and not there:
            present[:, mechanism.canary] = False
        if mechanism.trust == "local" and not present[:, mechanism.canary].any():
            continue  # a client that is not drawn sends no message
        noise, bits = (mechanism.rng(own, name, round) for name in ("noise", "bits"))
        seen, sums = mechanism.seen(noise, sent, present, scale, bits=bits)
        if plan.adaptive is not None:
            bounds = adaptive.next_bound(plan, bounds, sums)
        known = not mechanism.secret and bool(present[0, mechanism.canary])
        for name, value in _round(
            mechanism.claimed, seen, line, unit, support, layers, known
        ).items():
            total[name] = total.get(name, 0) + value
        if mechanism.scaled:
            params, server = torch.vmap(mechanism.aggregate)(params, Update(sums), server)
    return total


def _places(tree: Tree, length: int) -> list[Tensor]:
    """Return for each layer the places of its parameters in the flat vector of this length, bool
    ``[d]``."""
    owner = [
        layer
        for layer, names in trees.layers(tree).items()
        for name in names
        for _ in range(tree[name].numel())
    ]
    owner += [""] * (length - len(owner))  # the bit
    return [torch.tensor([name == layer for name in owner]) for layer in trees.layers(tree)]


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
        claimed: its noise and its rate tell what to expect.
        line: the canary's direction ``[d]``, of length 1.
        unit: the canary as a correct clip leaves it ``[d]``, 1 in the plan's norm.
        support: where the canary is not 0, ``[d]``.
        layers: where each layer is, each ``[d]``.
        known: whether everybody knows that the canary's turn has come.
    """
    energy = seen.square()
    tiny = torch.finfo(torch.float64).tiny
    found = {
        "likelihood": _likelihood(claimed, seen, unit, known),
        "energy": (energy.sum(dim=1) + tiny).log(),
        "energy of the canary's coordinates": (energy[:, support].sum(dim=1) + tiny).log(),
        "non-zero coordinates": (seen != 0).double().mean(dim=1),
        "non-zero coordinates of the canary": (seen[:, support] != 0).double().mean(dim=1),
    }
    for place, layer in enumerate(layers):
        found[f"projection on layer {place + 1}"] = seen[:, layer] @ line[layer]
    return found


def _likelihood(claimed: Plan, seen: Tensor, unit: Tensor, known: bool) -> Tensor:
    """Return log p(seen | canary there) / p(seen | not) by the claimed plan, up to what the others
    add."""
    assert claimed.noise_multiplier is not None
    spread, rate = claimed.noise_multiplier, 1.0 if known else claimed.sample_rate
    if claimed.mechanism == "laplace":
        ratio = ((seen.abs() - (seen - unit).abs()) / spread).sum(dim=1)
    else:
        ratio = (seen @ unit - unit.square().sum() / 2) / spread**2
    return ratio if rate == 1 else torch.log1p(rate * torch.expm1(ratio.clamp(max=700)))


def _choose(world: dict[bool, dict[str, Tensor]]) -> tuple[str, dict[str, float]]:
    """Return the statistic that tells the worlds apart best, and the weights that make it up.

    Candidates are the single statistics and their linear discriminant; the latter, which fits its
    runs, must be clearly better.
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
        weights = np.linalg.pinv(shared, hermitian=True) @ (
            columns[True].mean(axis=0) - columns[False].mean(axis=0)
        )
        joint = {name: float(weight) for name, weight in zip(moving, weights, strict=True)}
        if _separation(_combine(world[True], joint), _combine(world[False], joint)) > 1.1 * abs(
            ranked[best]
        ):
            return "linear discriminant", joint
    return best, {best: math.copysign(1.0, ranked[best])}


def _separation(there: Tensor, absent: Tensor) -> float:
    """Return the difference of the means in standard deviations."""
    gap = (there.mean() - absent.mean()).item()
    width = ((there.var() + absent.var()) / 2).sqrt().item()
    if width == 0:
        return math.copysign(math.inf, gap) if gap else 0.0
    return gap / width


def _combine(world: dict[str, Tensor], weights: dict[str, float]) -> Tensor:
    return torch.stack([world[name] * weight for name, weight in weights.items()]).sum(dim=0)
