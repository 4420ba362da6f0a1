"""The search for the worst pair of worlds, on the difference that the canary makes under equal
noise.

Equal seeds draw equal noise, so a call with and a call without the canary show what it moves
without any noise. Its length in standard deviations of the noise is compared with what the claim
covers: 1 is a whole claim. Where the size of the noise itself differs between the two worlds, that
is a second score. Both only rank pairs; ``trial`` tests the worst of them on other draws.
"""

import itertools
import math
from dataclasses import dataclass, field

import numpy as np

from pflpipe.auditing.arrays import Attacked, ReleaseError, seeds
from pflpipe.auditing.evidence import WHOLE, WIDEST, Noise
from pflpipe.auditing.worlds import Recipe, changed, drawn, starts

PILOT = 64
"""Draws that measure the noise of single numbers of a long view."""
COUPLED, AGAIN = 2, 8
"""Draws of a pair when it is met, and when it is among the worst."""
ELITE = 8


@dataclass(frozen=True)
class Score:
    """What a pair shows without noise.

    Attributes:
        length: of the movement, over what the claim covers.
        follows: how much the size of the noise follows the canary, on the same scale.
    """

    length: float
    follows: float


@dataclass
class Search:
    """The pairs that were tried, and the worst of them.

    Attributes:
        attacked: the release.
        rng: of everything that is drawn.
        draws: for the estimate of the noise.
        scores: of each recipe, in the order in which they were tried.
        failed: the first failure of a release, and how many there were.
    """

    attacked: Attacked
    rng: np.random.Generator
    draws: int
    scores: dict[Recipe, Score] = field(default_factory=dict)
    failed: tuple[int, str] = (0, "")

    def __post_init__(self) -> None:
        claim, attacked = self.attacked.claim, self.attacked
        self.recipes = starts(claim, attacked.program.remembers)
        pair = self.recipes[0].pair(claim)
        long = attacked.length * attacked.rounds > WHOLE
        count = PILOT if long else self.draws
        views = attacked.views(pair, False, seeds(self.rng, count))
        self.noise = Noise(views)
        self.seeds = seeds(self.rng, AGAIN)
        plain = attacked.views(pair, False, self.seeds)
        self.plain = {count: self._spread(plain[:count]) for count in (COUPLED, AGAIN)}

    def meet(self, count: int) -> None:
        """Try the structured pairs first, then drawn ones, ``count`` in all."""
        claim, remembers = self.attacked.claim, self.attacked.program.remembers
        for recipe in self.recipes[:count]:
            self._try(recipe)
        for _ in range(count - len(self.recipes)):
            self._try(drawn(claim, remembers, self.rng))

    def climb(self, count: int) -> None:
        """Change the worst pairs a little, and go on from those that are worse."""
        claim, remembers = self.attacked.claim, self.attacked.program.remembers
        kinds = itertools.cycle(("length", "length", "follows"))
        for step, kind in zip(range(count), kinds, strict=False):
            elite = self._ranked(kind)[:ELITE]
            start = elite[step % len(elite)] if elite else self.recipes[0]
            self._try(next(changed(start, claim, remembers, self.rng)))

    def worst(self, lengths: int, follows: int) -> list[Recipe]:
        """Return so many of the worst pairs by either score, measured again on more draws."""
        found: list[Recipe] = []
        for kind, count in (("length", lengths), ("follows", follows)):
            again = {}
            for recipe in self._ranked(kind)[: 3 * count]:
                score = self._scored(recipe, self.seeds)
                if score is not None:
                    again[recipe] = score
            ranked = sorted(again, key=lambda one: _rank(getattr(again[one], kind)))
            found += [one for one in ranked if one not in found][:count]
        return found

    def _ranked(self, kind: str) -> list[Recipe]:
        scores = {one: getattr(score, kind) for one, score in self.scores.items()}
        moving = [one for one, score in scores.items() if score > 0.01]
        return sorted(moving, key=lambda one: _rank(scores[one]))

    def _try(self, recipe: Recipe) -> None:
        if recipe in self.scores:
            return
        score = self._scored(recipe, self.seeds[:COUPLED])
        if score is not None:
            self.scores[recipe] = score

    def _scored(self, recipe: Recipe, drawn: np.ndarray) -> Score | None:
        """Return the scores of a pair; None if the release fails."""
        pair, attacked = recipe.pair(self.attacked.claim), self.attacked
        try:
            there, absent = (attacked.views(pair, t, drawn, recipe.rounds) for t in (True, False))
        except ReleaseError as error:
            count, first = self.failed
            self.failed = count + 1, first or f"{recipe}: {error}"
            return None
        plan, moved = attacked.claim.covered, there - absent
        mean = moved.mean(axis=0)
        scales = [self._spread(there), self._spread(absent)]
        plain = self.plain[len(drawn)]
        scales = [scale / plain if plain else 0.0 for scale in scales]
        summed = plan.norm == 1
        length = self.noise.length_in_sum(mean) if summed else self.noise.length(mean)
        variance = moved.var(axis=0, ddof=1)
        if not summed and np.sqrt(variance.max()) > WIDEST * np.abs(mean).max():
            # The mean of a movement that follows the noise is too long by its own error.
            noisy = self.noise.noisy
            excess = (variance[noisy] / self.noise.sizes[noisy] ** 2).sum() / len(drawn)
            length = math.sqrt(max(0.0, length**2 - excess))
        sent = 1 if recipe.rounds == "first" and attacked.claim.sample_rate < 1 else attacked.rounds
        length *= plan.multiplier / (sent if summed else math.sqrt(sent))
        largest, least = max(scales), min(scales)
        if length:
            length = length / largest if largest > 1e-9 else math.inf
        follows = 0.0
        if largest > 1e-9:
            ratio = math.log((largest + 1e-12) / (least + 1e-12))
            follows = plan.multiplier * math.sqrt(2 * self.noise.noisy.sum()) * ratio
        return Score(length, follows)

    def _spread(self, views: np.ndarray) -> float:
        """Return the size of the noise of some views, in units of the plain pair's."""
        noisy = self.noise.noisy
        steps = (views - views.mean(axis=0))[:, noisy] / self.noise.sizes[noisy]
        count = max(len(views) - 1, 1) * max(noisy.sum(), 1)
        return float(np.linalg.norm(steps) / math.sqrt(count))


def _rank(score: float) -> float:
    """Return a key that sorts scores from the largest; those within 2 % are equal, so that the
    plainest of them comes first."""
    return -round(50 * math.log(score)) if 0 < score < math.inf else -score
