"""Level 0: the noise alone, and the difference of two neighbouring runs under the same noise.

Some consecutive rounds are released thousands of times without the canary, each round with a
generator derived as in training. Only the noise varies. (a) Its energy must be that of the claim,
by a law that is known exactly. Then the release is called with and without the canary, with
generators of the same names. The difference of the results (b) must not depend on the noise,
otherwise the noise depends on private data, and (c) must not be longer than the claim allows,
measured by the covariance of the noise over all coordinates and rounds. If two coordinates or two
rounds share noise, some direction has no noise, and a canary along it is infinitely long.

With groups or a band all rounds of a run are one release, whose noise is correlated, and they are
tested together: the canary takes part in the rounds of the first group.

A correct mechanism is the same at every clip bound, so a certified one is tested with the plan's C
and with 1 / C: a factor C that is missing, or present twice, leaves too little noise at one of
them.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from pflpipe.auditing.evidence import POWER, WIDEST, Noise, Sensitivity, size_of_noise
from pflpipe.auditing.neighbours import Audited, directions, uploads
from pflpipe.privacy import correlated
from pflpipe.privacy.plan import Plan
from pflpipe.seeds import derived_key
from pflpipe.trees import Params, Tree

ROUNDS = 3
"""Consecutive rounds that are tested together."""
DRAWS = 20_000
"""Draws for the estimate of the noise's covariance. A length then has a standard deviation of
0.5 %, and of 0.8 % under Laplace noise, whose fourth moment is larger."""
FEWER_DRAWS = 5_000
"""Draws at 1 / C, and with departures: violations are larger than a few percent there."""
DRAWS_AT_ONCE = 2_500
COUPLED = 16
"""Draws of each round for the canary's movement, which is the same in all of them if the mechanism
is correct."""
RARE = 1e-9
"""Probability of flagging sufficient noise, in each of up to four checks of an audit."""
RARE_LENGTH = 1e-11
"""Probability that a length of 1 is estimated above ``longest``. An audit measures some hundred
lengths, most of them nearly equal."""


def sensitivity(audited: Audited, key: str, draws: int | None = None) -> Sensitivity:
    """Return the worst of all canaries, cohorts and clip bounds.

    Args:
        key: of the audit's noise; the verdict is the same for almost every key.
        draws: of the noise; by default ``DRAWS``, or ``FEWER_DRAWS`` where they suffice.
    """
    measured: list[Sensitivity] = []
    bound, *_ = bounds = audited.clip_norms
    for tried in bounds:
        plan = dataclasses.replace(audited.plan, clip_norm=tried)
        fewer = FEWER_DRAWS if tried != bound or audited.departures else DRAWS
        at = dataclasses.replace(audited, plan=plan)
        measured += _all_canaries(at, draws or fewer, derived_key(key, "bound", str(tried)))
    return worst_of(measured)


def worst_of(measured: Sequence[Sensitivity]) -> Sensitivity:
    """Return the worst of several measurements of one mechanism, with their best power."""
    # Equal lengths differ by the estimation error of the noise. ``max`` then takes the first canary
    # of the list, one coordinate: under Laplace noise a movement of one coordinate is easier to
    # detect than the same length spread over many.
    candidates = [one for one in measured if one.flagged] or measured
    farthest = max(one.length for one in candidates)
    ties = [one for one in candidates if one.length * one.length_most >= farthest]
    worst = max(ties, key=lambda one: one.spread if one.spread > WIDEST else 0)
    return dataclasses.replace(worst, detects=max(one.detects for one in measured))


def longest(draws: float, coordinates: int, probability: float) -> float:
    """Return the value above which a length of 1 is estimated with this probability, from
    ``draws`` draws of Gaussian noise.

    The inverse of an estimated covariance has the inverse Wishart law: for n + 1 draws of p
    coordinates, the estimated square of a length is the true square times (n - p - 1) / chi-square(
    n - p + 1).
    """
    from scipy.stats import chi2

    n, p = draws - 1, coordinates
    return math.sqrt((n - p - 1) / float(chi2.ppf(probability, n - p + 1)))


def _all_canaries(audited: Audited, draws: int, key: str) -> Iterator[Sensitivity]:
    """Yield the measurements of each canary in each cohort, at the clip bound of the plan."""
    params = Params(audited.start(key))
    scale = audited.scale(params, audited.init_server(params))
    library, fixed = directions(audited, params), audited.plan.fixed
    for cohorts in _cohorts(audited):
        # Without the canary all directions give the same uploads, so the first one serves.
        first = next(iter(library.values()))
        alone, absent = (
            _rounds(audited, first, False, cohorts, scale, count, derived_key(key, name))
            for count, name in ((draws, "noise alone"), (COUPLED, "coupled"))
        )
        noise = alone - alone.mean(dim=0)
        ruler = _Ruler(noise, audited.claimed)
        measured, least, power = _size(audited, noise, scale) or (None, None, None)
        for name, direction in library.items():
            # Both calls use generators of the same names, so the noise of each repeat is equal and
            # cancels in the difference.
            its_key = derived_key(key, "coupled")
            there = _rounds(audited, direction, True, cohorts, scale, COUPLED, its_key)
            each = there - absent
            # Where rounds are one release, the canary moves some of them; otherwise all alike.
            moved = (each.flatten(1) if fixed else each.flatten(0, 1)).numpy()
            mean = moved.mean(axis=0)
            largest, deviation = np.abs(mean).max(), moved.std(axis=0, ddof=1).max()
            spread = 0.0 if deviation == 0 else deviation / largest if largest else math.inf
            yield Sensitivity(
                canary=name,
                length=ruler.length_of_run(mean) if fixed else ruler.length(mean),
                length_most=ruler.longest(RARE_LENGTH),
                spread=spread,
                noise=measured,
                noise_least=least,
                detects=power or ruler.longest(POWER) / ruler.longest(RARE_LENGTH),
            )


def _cohorts(audited: Audited) -> list[list[Tensor]]:
    """Return the sequences of cohorts that are tested, one bool ``[M]`` a round.

    All clients; under a public schedule, the first cohort of the canary; under a secret draw, the
    canary alone, and the canary among twice the mean number of clients, where noise that follows
    the number drawn is too small. With groups or a band it is the whole run.
    """
    plan, canary = audited.plan, audited.canary
    numbers = torch.arange(plan.clients)
    if audited.secret:
        first = max(2, round(2 * plan.expected_cohort))
        secret = (numbers - canary) % plan.clients < first, numbers == canary
        return [[cohort] * ROUNDS for cohort in secret]
    rng = np.random.default_rng(0)  # not used: this cohort is public
    drawn = (audited.cohort(round, rng, 1)[0] for round in range(plan.rounds))
    if plan.fixed:
        return [list(drawn)]
    return [[next(cohort for cohort in drawn if cohort[canary])] * ROUNDS]


def _rounds(
    audited: Audited,
    direction: Tree,
    there: bool,
    cohorts: Sequence[Tensor],
    scale: Tree,
    draws: int,
    key: str,
) -> Tensor:
    """Return what the attacker sees in consecutive rounds of these clients with the same scale,
    ``[draws, rounds, d]``."""
    present = torch.stack(list(cohorts))
    if audited.secret:
        present[:, audited.canary] &= there
    bits = [audited.rng(key, "bits", round) for round in range(len(cohorts))]
    views = []
    for done in range(0, draws, DRAWS_AT_ONCE):
        count = min(DRAWS_AT_ONCE, draws - done)
        sent = uploads(audited, direction, there, scale, count)
        if not done or audited.plan.band > 1:  # correlated rounds have no stream to go on
            noise_of = audited.noises(derived_key(key, "draws", done) if done else key)
            noises = [noise_of(round) for round in range(len(cohorts))]
        rounds = [
            audited.seen(noise, sent, here.expand(count, -1), scale, 1, of_bits)[0]
            for noise, here, of_bits in zip(noises, present, bits, strict=True)
        ]
        views.append(torch.stack(rounds, dim=1))
    return torch.cat(views)


def _size(audited: Audited, noise: Tensor, scale: Tree) -> tuple[float, float, float] | None:
    """Return ``size_of_noise`` of noise ``[draws, rounds, d]`` of mean 0; None with departures."""
    kept, claimed, plan = audited.with_known_noise(scale), audited.claimed, audited.plan
    if kept is None:
        return None
    if plan.fixed:
        latest = noise.unbind(1)[::-1]
        rows = [correlated.whitened(plan, latest[done:]) for done in range(len(latest))]
        noise = torch.stack(rows, dim=1)
    units = noise[:, :, kept.repeat(noise.shape[2] // len(kept))] / claimed.multiplier
    return size_of_noise(claimed, units.flatten(1).numpy(), RARE)


class _Ruler:
    """Lengths of movements in units of the noise, relative to what a claim covers.

    Args:
        noise: ``[draws, rounds, d]``, of mean 0.
        claimed: the claimed plan.
    """

    def __init__(self, noise: Tensor, claimed: Plan) -> None:
        self.claimed, self.rounds = claimed, noise.shape[1]
        flat = noise.flatten(1).numpy()
        # A variance is estimated with a relative variance of (kurtosis - 1) / n.
        self.draws = len(flat) * 2 / (claimed.law.kurtosis - 1)
        self.noise = Noise(flat, flat.shape[1])
        # Only the L1 length needs the rounds one by one.
        self.single = Noise(noise.flatten(0, 1).numpy(), 0) if claimed.norm == 1 else self.noise

    def longest(self, probability: float) -> float:
        """Return the value above which a length of 1 is estimated with this probability."""
        return longest(self.draws, int(self.noise.noisy.sum()), probability)

    def length(self, movement: np.ndarray) -> float:
        """Return the length of a movement ``[d]`` of every round for the worst choice of the rounds
        that make it.

        k Gaussian rounds of a correct mechanism cover a length of sqrt(k). For Laplace noise the L1
        length of a movement in one round counts; sqrt(2) times the length by the covariance is a
        lower bound of it.
        """
        # All subsets of rounds, because noise that rounds share is missing only in some of them.
        claimed, worst = self.claimed, 0.0
        for chosen in itertools.product((0, 1), repeat=self.rounds):
            if any(chosen):
                covered = math.sqrt(sum(chosen) / claimed.law.variance)
                worst = max(worst, self.noise.length(np.kron(chosen, movement)) / covered)
        worst *= claimed.multiplier
        if claimed.norm == 1 and math.isfinite(worst):
            worst = max(worst, self.single.length_in_sum(movement) * claimed.multiplier)
        return worst

    def length_of_run(self, mean: np.ndarray) -> float:
        """Return the length of the movement ``[rounds d]`` of a whole run, for the worst choice of
        what the canary sends in its rounds: its update, the opposite, or nothing."""
        rounds = mean.reshape(self.rounds, -1)
        taken = np.flatnonzero(rounds.any(axis=1))
        worst = 0.0
        for signs in itertools.product((1.0, 0.0, -1.0), repeat=len(taken)):
            of_rounds = np.zeros((self.rounds, 1))
            of_rounds[taken, 0] = signs
            worst = max(worst, self.noise.length((rounds * of_rounds).ravel()))
        return worst * self.claimed.multiplier
