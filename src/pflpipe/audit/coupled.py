"""Level 0: two neighbouring worlds under the same noise, whose difference must be fixed and short,
and the noise by itself.

Some consecutive rounds are released thousands of times without the canary, each round with a
generator derived as training derives it. What varies is the noise: (a) its energy must be that of
the claim, by a law that is known exactly. Then the release is called with generators of the same
names with the canary and without. What is left when the results are subtracted (b) must not depend
on the noise, or else the noise itself depends on private data, and (c) must not be longer than the
claim allows, measured by the noise's whole covariance over all coordinates and rounds. Noise that
two coordinates or two rounds share leaves a direction without any, along which a canary is
infinitely long.

A correct mechanism is the same at every clip bound, so a certified one is looked at with the plan's
C and with 1 / C: a factor C that is missing, or there twice, leaves too little noise at one of
them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pflpipe.audit.neighbours import Mechanism, directions, start, uploads
from pflpipe.privacy.mechanism import Uploads
from pflpipe.privacy.plan import Plan
from pflpipe.seeds import derived_key
from pflpipe.trees import Params, Tree

ROUNDS = 3
"""Consecutive rounds that are looked at together."""
DRAWS = 20_000
"""Draws from which the noise's covariance is estimated: a length then comes out with a standard
deviation of 0.5 %, and of 0.8 % under Laplace noise, whose fourth moment is larger."""
FEWER_DRAWS = 5_000
"""The same at 1 / C, and with departures: what is looked for there is no matter of a few
percent."""
DRAWS_AT_ONCE = 2_500
COUPLED = 16
"""Draws of each round from which the movement is taken; it is the same in all of them if the
mechanism is correct."""
WIDEST = 1e-4
"""Float32 leaves about 1e-6."""
RARE = 1e-9
"""Probability with which enough noise would be taken for too little, in each of up to four checks
of an audit."""
RARE_LENGTH = 1e-11
"""Probability with which a length of 1 comes out above ``longest``; an audit takes some hundred
lengths, most of them alike."""
POWER = 0.9
"""Probability of a flag that is meant by a factor that "is detected"."""
SILENT = 1e-9
"""Variance along a direction, relative to that of single coordinates, that counts as no noise;
float32 leaves about 1e-14."""


@dataclass(frozen=True)
class Sensitivity:
    """The worst canary of one mechanism.

    Attributes:
        canary: its name.
        length: how far it moves a release, in units of what the claim covers: at most 1 for a
            correct mechanism.
        length_most: what ``length`` comes out above with probability ``RARE_LENGTH`` in a correct
            mechanism.
        spread: how much that movement depends on the noise's seed, relative to its largest
            coordinate: 0 if correct.
        noise: how much noise there is without the canary, as a fraction of what is claimed (1 if
            correct); None with departures, whose noise has no law of its own but is measured by
            ``length``.
        noise_least: what ``noise`` comes out below with probability ``RARE`` in a correct
            mechanism.
        detects: the largest factor by which all noise could be too small such that these checks
            flag it with probability ``POWER``, in a mechanism that is correct otherwise.
    """

    canary: str
    length: float
    length_most: float
    spread: float
    noise: float | None = None
    noise_least: float | None = None
    detects: float = 0.0

    @property
    def flagged(self) -> bool:
        """Whether the release moves too far, has noise that follows private data, or less of it
        than is claimed."""
        quiet = (
            self.noise is not None
            and self.noise_least is not None
            and self.noise < self.noise_least
        )
        return self.length > self.length_most or self.spread > WIDEST or quiet


def sensitivity(mechanism: Mechanism, key: str) -> Sensitivity:
    """Return the worst of all canaries, cohorts and clip bounds.

    Args:
        key: of the audit's noise; the verdict is the same for nearly all of them.
    """
    found: list[Sensitivity] = []
    bound = mechanism.executed.clip_norm
    assert bound is not None
    for tried in (bound,) if mechanism.departures else (bound, 1 / bound):
        plan = dataclasses.replace(mechanism.executed, clip_norm=tried)
        draws = DRAWS if tried == bound and not mechanism.departures else FEWER_DRAWS
        at = dataclasses.replace(mechanism, executed=plan)
        found += _all_canaries(at, draws, derived_key(key, "bound", str(tried)))
    # Equal lengths differ by the estimate of the noise's size; the first of the library, one
    # coordinate, is then the worst: under Laplace noise a movement of one coordinate tells the
    # worlds apart better than the same length spread over many.
    candidates = [one for one in found if one.flagged] or found
    farthest = max(one.length for one in candidates)
    alike = [one for one in candidates if one.length * one.length_most >= farthest]
    worst = max(alike, key=lambda one: one.spread if one.spread > WIDEST else 0)
    return dataclasses.replace(worst, detects=max(one.detects for one in found))


def longest(draws: float, coordinates: int, probability: float) -> float:
    """Return the length that one of 1 is estimated above with this probability, from draws of
    Gaussian noise.

    The inverse of an estimated covariance has the inverse Wishart law: the square of a length comes
    out as that of the true one times (n - p - 1) / chi-square(n - p + 1), for n + 1 draws of p
    coordinates.
    """
    from scipy.stats import chi2

    n, p = draws - 1, coordinates
    return math.sqrt((n - p - 1) / float(chi2.ppf(probability, n - p + 1)))


def _all_canaries(mechanism: Mechanism, draws: int, key: str) -> Iterator[Sensitivity]:
    """Yield what each canary does in each cohort, at the clip bound of the plan."""
    params = Params(start(mechanism, key))
    scale = mechanism.scale(params, mechanism.init_server(params))
    library = directions(mechanism, params)
    all_of_them = list(library.values())
    for cohort in _cohorts(mechanism):
        # Without the canary it is the same which one it would have been.
        alone = _rounds(
            mechanism, all_of_them[:1], False, cohort, scale, draws, derived_key(key, "noise alone")
        )
        noise = alone - alone.mean(dim=0)
        ruler = _Ruler(noise, mechanism.claimed)
        law = _law(mechanism, noise, scale)
        # All canaries in one release each, as repeats of it.
        there, absent = (
            _rounds(
                mechanism, all_of_them, here, cohort, scale, COUPLED, derived_key(key, "coupled")
            )
            for here in (True, False)
        )
        coupled = (there - absent).reshape(len(library), COUPLED * ROUNDS, -1)
        for name, moved in zip(library, coupled, strict=True):
            mean = moved.mean(dim=0)
            largest, loose = mean.abs().max().item(), moved.std(dim=0).max().item()
            spread = 0.0 if loose == 0 else loose / largest if largest else math.inf
            detects = law.detects if law else ruler.longest(POWER) / ruler.longest(RARE_LENGTH)
            yield Sensitivity(
                canary=name,
                length=ruler.length(mean),
                length_most=ruler.longest(RARE_LENGTH),
                spread=spread,
                noise=law.found if law else None,
                noise_least=law.least if law else None,
                detects=detects,
            )


def _cohorts(mechanism: Mechanism) -> list[Tensor]:
    """Return the cohorts that are looked at, bool ``[M]``.

    Everybody; where a schedule is public, the first cohort of the canary; where a draw is secret,
    the canary by itself and among twice as many clients as are drawn on average, so that noise
    which follows the drawn number is too small.
    """
    plan, canary = mechanism.executed, mechanism.canary
    numbers = torch.arange(plan.clients)
    if mechanism.secret:
        many = torch.arange(plan.clients) < max(2, round(2 * plan.expected_cohort))
        return [many, numbers == canary]
    rng = np.random.default_rng(0)  # nothing is drawn from it: everybody knows this cohort
    drawn = (mechanism.cohort(round, rng, 1)[0] for round in range(plan.rounds))
    return [next(cohort for cohort in drawn if cohort[canary])]


def _rounds(
    mechanism: Mechanism,
    directions: list[Tree],
    there: bool,
    cohort: Tensor,
    scale: Tree,
    draws: int,
    key: str,
) -> Tensor:
    """Return what the attacker sees in consecutive rounds of the same clients and scale, so many
    draws of the noise for each direction in turn, ``[directions draws, rounds, d]``."""
    present = cohort.clone()
    if mechanism.secret:
        present[mechanism.canary] &= there
    counts = [min(DRAWS_AT_ONCE, draws - done) for done in range(0, draws, DRAWS_AT_ONCE)]
    sent = {
        count: _repeats([uploads(mechanism, one, there, scale, count) for one in directions])
        for count in set(counts)
    }
    found = []
    for round in range(ROUNDS):
        generator, bits = (mechanism.rng(key, name, round) for name in ("noise", "bits"))
        parts = []
        for count in counts:
            here = present.expand(len(directions) * count, -1)
            parts.append(
                mechanism.seen(generator, sent[count], here, scale, others=1, bits=bits)[0]
            )
        found.append(torch.cat(parts))
    return torch.stack(found, dim=1)


def _repeats(worlds: list[Uploads]) -> Uploads:
    """Return the uploads ``[R, M, ...]`` of several worlds as repeats of one."""
    together = (
        {name: torch.cat([tree[name] for tree in trees]) for name in trees[0]}
        for trees in zip(*((world.update, world.extras) for world in worlds), strict=True)
    )
    return Uploads(*together)


@dataclass(frozen=True)
class _Law:
    """How much of the claimed noise there is, how little that may come out as, and the largest
    factor that is detected."""

    found: float
    least: float
    detects: float


def _law(mechanism: Mechanism, noise: Tensor, scale: Tree) -> _Law | None:
    """Return what the sizes of noise ``[draws, rounds, d]`` of mean 0 say, if the mechanism has no
    departures.

    In units of the claim, the squares of n draws of p Gaussian coordinates around their means add
    up to a chi-square number of (n - 1) p degrees of freedom, the absolute values of n p Laplace
    numbers to a Gamma number. (Around an estimated mean the latter are too large by 1 / n of their
    sum, a tenth of their standard deviation.)
    """
    from scipy import stats

    if mechanism.departures:
        return None
    claimed, shapes = mechanism.claimed, mechanism.shapes
    assert claimed.noise_multiplier is not None
    kept = torch.cat(
        [
            (scale[name] > 0 if name in scale else torch.ones(shapes[name])).reshape(-1)
            for name in shapes
        ]
        + [torch.ones(1)] * (mechanism.executed.adaptive is not None)
    )
    units = noise[:, :, (kept > 0).repeat(noise.shape[2] // len(kept))] / claimed.noise_multiplier
    if claimed.mechanism == "laplace":
        number, root = units.numel(), 1.0
        total, law = units.abs().sum().item(), stats.gamma(number)
    else:
        number, root = (len(units) - 1) * units[0].numel(), 0.5
        total, law = units.square().sum().item(), stats.chi2(number)
    least, usual = float(law.ppf(RARE)), float(law.ppf(POWER))
    return _Law((total / number) ** root, (least / number) ** root, (least / usual) ** root)


class _Ruler:
    """Measures movements by the noise, relative to what a claim covers.

    Args:
        noise: ``[draws, rounds, d]``, of mean 0.
        claimed: the plan.
    """

    def __init__(self, noise: Tensor, claimed: Plan) -> None:
        self.claimed, self.rounds = claimed, noise.shape[1]
        flat = noise.flatten(1)
        # A variance is estimated with a relative variance of (kurtosis - 1) / n: 2 / n, under
        # Laplace noise 5 / n.
        self.draws = len(flat) * (0.4 if claimed.mechanism == "laplace" else 1)
        self.sizes = flat.std(dim=0)
        self.absolute = noise.abs().mean(dim=(0, 1))
        self.noisy = self.sizes > 0
        sizes = self.sizes[self.noisy]
        n, p = len(flat) - 1, len(sizes)
        covariance = (flat.T @ flat / n)[self.noisy][:, self.noisy]
        values, self.axes = torch.linalg.eigh(covariance / torch.outer(sizes, sizes))
        self.tied = values < SILENT
        self.weights = torch.where(self.tied, 0, (n - p - 1) / n / values)

    def longest(self, probability: float) -> float:
        """Return the length that one of 1 is estimated above with this probability."""
        return longest(self.draws, len(self.tied), probability)

    def length(self, mean: Tensor) -> float:
        """Return the length of a movement ``[d]`` in the worst choice of rounds in which it is
        made.

        k rounds of a correct mechanism cover a length of sqrt(k) if they are Gaussian. For Laplace
        noise, where a movement counts by its L1 length in one round, sqrt(2) times the length by
        the covariance is a lower bound of it.
        """
        assert self.claimed.noise_multiplier is not None
        laplace = self.claimed.mechanism == "laplace"
        unit = self.claimed.noise_multiplier * (math.sqrt(2) if laplace else 1)
        worst = 0.0
        for chosen in itertools.product((0, 1), repeat=self.rounds):
            if any(chosen):
                vector = torch.cat([mean * here for here in chosen])
                worst = max(worst, self._whitened(vector) * unit / math.sqrt(sum(chosen)))
        if laplace and math.isfinite(worst):
            touched = mean != 0
            worst = max(
                worst,
                (mean[touched].abs() / self.absolute[touched]).sum().item()
                * self.claimed.noise_multiplier,
            )
        return worst

    def _whitened(self, vector: Tensor) -> float:
        """Return the length of ``[rounds d]`` in standard deviations of the noise; infinite where
        it leaves the noise."""
        if bool((vector[~self.noisy] != 0).any()):
            return math.inf
        steps = vector[self.noisy] / self.sizes[self.noisy]
        along = steps @ self.axes
        if bool((along[self.tied].abs() > 1e-4 * torch.linalg.vector_norm(steps)).any()):
            return math.inf
        return math.sqrt((along.square() * self.weights).sum().item())
