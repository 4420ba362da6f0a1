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

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from pflpipe.auditing.neighbours import Mechanism
from pflpipe.privacy import accounting, adaptive, correlated
from pflpipe.privacy.plan import Plan
from pflpipe.seeds import derived_key
from pflpipe.trees import Params, ServerState, Tree, Update

ERROR = 0.01
"""Probability that one of the two bounds does not hold."""
EPSILONS = np.linspace(0, 15, 151)
"""Points at which the claimed curve is compared; 40,000 runs cannot refute an epsilon above 9."""
CHOOSING = 2_000
"""Largest number of runs, with and without the canary each, that choose the statistic. They are not
evaluated."""
POWER = 0.9
"""The factor counts as detected if it is flagged with this probability."""


@dataclass(frozen=True)
class Evidence:
    """The errors of the attacker and the bounds that follow from them.

    Attributes:
        runs: evaluation runs with and without the canary each.
        false_positives, false_negatives: runs without the canary taken for runs with it, and the
            reverse.
        statistic: name of the attacker's statistic.
        excess: largest excess of the attack over the claimed curve; at most 0 if the claim is not
            refuted.
        mu_lower: lower bound on mu if the mechanism is mu-GDP; None if the claim has another form.
        epsilon_lower: lower bound on epsilon at the plan's delta, from ``mu_lower`` or, without it,
            ``epsilon_direct``.
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
    """Return the evidence of an attack on ``runs`` runs with and ``runs`` runs without the canary.

    Args:
        canary: one of ``neighbours.CANARIES``, chosen independently of these runs.
        runs: evaluation runs with and without the canary each.
        key: of all random numbers.
    """
    first = min(runs, CHOOSING)
    statistics = {
        there: _all_runs(mechanism, canary, there, first + runs, key) for there in (False, True)
    }
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
    return judge(mechanism.claimed, runs, positives, negatives, name)


def judge(
    claimed: Plan, runs: int, false_positives: int, false_negatives: int, statistic: str = ""
) -> Evidence:
    """Return the evidence against a claim from an attacker's errors in ``runs`` runs with and
    ``runs`` runs without the canary."""
    errors = np.array([[false_positives], [false_negatives]])
    excess = _excess(_curve(claimed), runs, errors).item()
    upper_fp, upper_fn = _upper(runs, errors)[:, 0].tolist()
    at = accounting.delta_of(claimed)
    # (epsilon, delta)-privacy in both directions: 1 - FN <= e^epsilon FP + delta, and the same with
    # the errors exchanged.
    direct = 0.0
    for wrong, missed in ((upper_fp, upper_fn), (upper_fn, upper_fp)):
        if missed < 1 - at:
            direct = max(direct, math.log((1 - at - missed) / wrong))
    mu, epsilon = None, direct
    if claimed.mechanism == "gaussian" and claimed.sample_rate == 1:
        # The trade-off curve of mu-GDP: Phi^-1(1 - FP) - Phi^-1(FN) <= mu (Nasr et al., 2023).
        mu = max(0.0, float(stats.norm.ppf(1 - upper_fp) - stats.norm.ppf(upper_fn)))
        epsilon = accounting.gdp_epsilon(mu, at) if mu > 0 else 0.0
    return Evidence(runs, false_positives, false_negatives, statistic, excess, mu, epsilon, direct)


@functools.lru_cache(maxsize=8)
def detects(claimed: Plan, runs: int) -> float:
    """Return the largest factor on all noise, below 1, that whole runs flag with probability
    ``POWER``.

    It is computed for an attacker that uses the one coordinate that the canary moves and the
    likelihood ratio of the claimed plan: the law of a run's sum is the T-fold convolution of that
    of a round, and the counts of its errors are binomial. 0 if no factor above 0.01 is flagged, for
    example because the claim is very weak.
    """
    curve = _curve(claimed)
    # The same quantiles for every factor, so that the power decreases with the factor and bisection
    # works. 4,000 give the power to half a percent.
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

    The law of one round's log likelihood ratio is put on a grid. Its T-th power under the Fourier
    transform is the law of T rounds.
    """
    real = claimed.multiplier * factor
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
    # The grid is circular: large enough that T rounds do not wrap around into each other.
    size = 2 ** math.ceil(math.log2(2 * reach / step))
    places = np.rint((ratio - centre) / step).astype(int) % size
    # The sum of T rounds minus T times the centre, in steps, for each place of the grid.
    totals = (np.arange(size) + size // 2) % size - size // 2
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
    """Return the Clopper-Pearson upper bounds of the error rates, ``[...]``."""
    bounds: np.ndarray = np.nan_to_num(
        stats.beta.ppf(1 - ERROR / 2, errors + 1, runs - errors), nan=1.0
    )
    return bounds


def _excess(curve: np.ndarray, runs: int, errors: np.ndarray) -> np.ndarray:
    """Return the largest excess of each of n attacks over a claimed curve, ``[n]``.

    Args:
        curve: the claimed delta at ``EPSILONS``.
        errors: false positives and false negatives ``[2, n]``.
    """
    upper = _upper(runs, errors)[:, :, None]
    sides = ((upper[0], upper[1]), (upper[1], upper[0]))
    # One pair of bounds serves all epsilons: they are bounds of the rates, not of delta, so the
    # maximum over epsilon needs no correction for many comparisons.
    gaps = [(1 - missed - np.exp(EPSILONS) * wrong - curve).max(axis=1) for wrong, missed in sides]
    largest: np.ndarray = np.maximum(*gaps)
    return largest


def _all_runs(
    mechanism: Mechanism, canary: str, there: bool, repeats: int, key: str
) -> dict[str, Tensor]:
    """Return ``_statistics`` of so many runs, joined from as many at a time as the mechanism can
    hold."""
    parts = []
    for done in range(0, repeats, mechanism.at_once):
        count = min(mechanism.at_once, repeats - done)
        its_key = derived_key(key, "after", done) if done else key
        parts.append(_statistics(mechanism, canary, there, count, its_key))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@torch.no_grad()
def _statistics(
    mechanism: Mechanism, canary: str, there: bool, repeats: int, key: str
) -> dict[str, Tensor]:
    """Return the statistics of R = ``repeats`` runs with or without the canary, name -> ``[R]``,
    sums over the rounds."""
    plan = mechanism.executed
    initial = mechanism.start(key)
    direction = mechanism.canaries(initial)[canary]
    flat = mechanism.movement(direction)
    line = flat / torch.linalg.vector_norm(flat)
    unit = line / torch.linalg.vector_norm(line, ord=plan.norm)
    support = flat != 0
    layers = mechanism.places(direction, len(flat))
    server = ServerState({})
    params = Params({name: value.expand(repeats, *value.shape) for name, value in initial.items()})
    if mechanism.scaled:
        server = torch.vmap(mechanism.init_server)(params)
    # The two sides have independent noise, as two runs have. Only level 0 shares it.
    run_key = derived_key(key, "there" if there else "absent")
    total: dict[str, Tensor] = {}
    sent, runs = mechanism.sent(direction, there, {}, repeats), mechanism.begin(repeats)
    bounds = torch.ones(repeats, dtype=torch.float64)  # adaptive ones, relative to the first
    noises, views, taken = mechanism.noises(run_key), list[Tensor](), list[float]()
    for round in range(plan.rounds):
        scale: Tree = {}
        if mechanism.scaled:
            scale = torch.vmap(mechanism.scale)(params, server)
        if plan.adaptive is not None:
            # Each repeat has its own bound C_t, but a release has one plan. Clipping to C_t is
            # clipping to C_0 in units of C_t / C_0, so the bounds become a scale.
            scale = {
                name: (bounds.view(-1, *[1] * (value.ndim - 1)) * scale.get(name, 1)).to(value)
                for name, value in params.items()
            }
        if scale:
            sent = mechanism.sent(direction, there, scale, repeats)
        present = mechanism.cohort(round, mechanism.rng(run_key, "sample", round), repeats)
        if mechanism.leaves and not there:
            present[:, mechanism.canary] = False
        if mechanism.trust == "local" and not present[:, mechanism.canary].any():
            continue  # a client that is not drawn sends no message
        bits = mechanism.rng(run_key, "bits", round)
        seen, sums = mechanism.seen(noises(round), sent, present, scale, bits=bits, runs=runs)
        if plan.adaptive is not None:
            bounds = adaptive.next_bound(plan, bounds, sums)
        known = not mechanism.secret and bool(present[0, mechanism.canary])
        share = 1.0
        if plan.fixed:
            views, taken = [seen, *views][: plan.band], [float(known), *taken][: plan.band]
            seen, share = correlated.whitened(plan, views), correlated.whitened(plan, taken)
        for name, value in _round(
            mechanism.claimed, seen, line, unit * share, support, layers, known
        ).items():
            total[name] = total.get(name, 0) + value
        if mechanism.scaled:
            params, server = torch.vmap(mechanism.aggregate)(params, Update(sums), server)
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
        "likelihood": _likelihood(claimed, seen, unit, known),
        "energy": (energy.sum(dim=1) + tiny).log(),
        "energy of the canary's coordinates": (energy[:, support].sum(dim=1) + tiny).log(),
        "non-zero coordinates": (seen != 0).double().mean(dim=1),
        "non-zero coordinates of the canary": (seen[:, support] != 0).double().mean(dim=1),
    }
    for place, layer in enumerate(layers):
        statistics[f"projection on layer {place + 1}"] = seen[:, layer] @ line[layer]
    return statistics


def _likelihood(claimed: Plan, seen: Tensor, unit: Tensor, known: bool) -> Tensor:
    """Return log p(seen | canary) / p(seen | no canary) by the claimed plan, up to the part of the
    other clients."""
    spread, rate = claimed.multiplier, 1.0 if known else claimed.sample_rate
    if claimed.mechanism == "laplace":
        ratio = ((seen.abs() - (seen - unit).abs()) / spread).sum(dim=1)
    else:
        ratio = (seen @ unit - unit.square().sum() / 2) / spread**2
    # Under a secret draw: log(1 - q + q e^ratio); e^700 is the last power that float64 holds.
    return ratio if rate == 1 else torch.log1p(rate * torch.expm1(ratio.clamp(max=700)))


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
    """Return the difference of the means in units of the standard deviation."""
    gap = (there.mean() - absent.mean()).item()
    width = ((there.var() + absent.var()) / 2).sqrt().item()
    if width == 0:
        return math.copysign(math.inf, gap) if gap else 0.0
    return gap / width


def _combine(world: dict[str, Tensor], weights: dict[str, float]) -> Tensor:
    return torch.stack([world[name] * weight for name, weight in weights.items()]).sum(dim=0)
