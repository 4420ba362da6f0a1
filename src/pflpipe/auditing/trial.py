"""The test of one pair of worlds, on draws that chose nothing.

Two tests, each with the level that is asked for. (a) The movement of the canary is known from
coupled draws. If it is the same under all noise, the noise along one direction, chosen on other
draws, must be as large as the claim says: a chi-square law. The same holds for the noise of all
coordinates together, each measured by the farthest that one client moves it. (b) An attacker tells
the worlds apart by a statistic and a threshold that other draws chose; Clopper-Pearson bounds of
its errors hold against the whole curve of the claim. Only (b) judges a movement that depends on the
noise: a result that was rounded, clipped or thresholded after its noise is as private as before.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

from pflpipe.auditing.arrays import Attacked, Lens, seeds
from pflpipe.auditing.evidence import (
    POWER,
    WHOLE,
    WIDEST,
    Evidence,
    Noise,
    Sensitivity,
    curve,
    excess_of,
    judge,
    size_of_noise,
)
from pflpipe.auditing.search import PILOT
from pflpipe.auditing.worlds import Recipe
from pflpipe.privacy.plan import Plan

COUPLED = 64
"""Draws that show whether a movement depends on the noise."""
SPREAD, WEAKEST = 24, 8
"""Of a long view, so many places at equal distances are looked at, so many with the least noise,
and so many that the canary moves farthest."""
SLIGHT = 0.05
"""Relative spread of a movement, as by rounding to a fine grid, up to which its length is tested,
with ``SLACK`` times the spread allowed."""
SLACK = 4
LINEAR = 1e-6
"""Share of the spread of a movement that a multiple of the noise leaves unexplained, up to which
the movement is that multiple: the size of the noise follows the canary."""
TOGETHER = 46
"""Coordinates whose noise is measured together."""
THRESHOLDS = 200
Statistic = Callable[[np.ndarray], np.ndarray]


class Choice(NamedTuple):
    """How an attacker decides: "there" if ``sign * statistic`` is above the threshold.

    Attributes:
        statistic: its name.
        sign: 1, or -1 where small values speak for "there".
        threshold: of the signed statistic.
    """

    statistic: str
    sign: float
    threshold: float


@dataclass(frozen=True)
class Trial:
    """What the test of one pair found.

    Attributes:
        recipe: the pair.
        measured: length of the movement and size of the noise; ``spread`` is 0 unless the noise
            follows the canary.
        evidence: of the attacker that tells the worlds apart.
        moved: length of the movement of the result, in its own units.
        leak: what shows that the client is there in every result, in words, or empty.
        plan: the claim about the rounds of the evidence.
    """

    recipe: Recipe
    measured: Sensitivity
    evidence: Evidence
    moved: float
    leak: str
    plan: Plan

    @property
    def refutes(self) -> bool:
        """Whether the claim is false."""
        return self.measured.short or self.evidence.flagged


def trial(
    attacked: Attacked, recipe: Recipe, draws: int, level: float, rng: np.random.Generator
) -> Trial:
    """Return the test of a pair.

    Args:
        attacked: the release.
        recipe: the pair, chosen on other draws.
        draws: with and without the canary each.
        level: probability of a refutation by each of the tests if the claim is true.
        rng: of the draws.
    """
    claim, pair = attacked.claim, recipe.pair(attacked.claim)
    plan = claim.covered
    see = functools.partial(attacked.views, pair, rounds=recipe.rounds)
    drawn = seeds(rng, COUPLED)
    there, absent = see(True, drawn), see(False, drawn)
    each = there - absent
    whole = each.mean(axis=0)
    lens = _lens(see(False, seeds(rng, PILOT)), whole, attacked)
    if lens is not None:
        see = functools.partial(see, lens=lens)
        there, absent = (np.stack([lens.view(one) for one in views]) for views in (there, absent))
        each = there - absent
    first = min(draws, 2_000)
    pilots = {here: see(here, seeds(rng, first)) for here in (True, False)}
    fresh = {here: see(here, seeds(rng, draws)) for here in (True, False)}

    rounds = np.repeat(np.arange(attacked.rounds), attacked.length) if lens is None else None
    kept, spread = _independent(each, rounds)
    sent = 1 if recipe.rounds == "first" and claim.sample_rate < 1 else attacked.rounds
    length, most = 0.0, 1.0
    if kept.any():
        movement = each[:, kept].mean(axis=0)
        # The length is measured in the kept rounds alone; the attacker below sees all of them.
        over = sent if rounds is None else min(sent, len(np.unique(rounds[kept])))
        length, most = _length(
            pilots[False][:, kept], fresh[False][:, kept], movement, plan, over, level
        )
        most *= 1 + SLACK * spread if spread > WIDEST else 1
    law = None
    if spread <= WIDEST and lens is None:
        law = _law(attacked, recipe, fresh[False][:, : attacked.size], level)
    of_rounds = dataclasses.replace(plan, rounds=sent, sample_rate=1.0)
    evidence = _told_apart(of_rounds, pilots, fresh, each.mean(axis=0), level)
    leak = ""
    if not each.std(axis=0)[-2:].any() and lens is None:
        leak = "changes the length of the result" * bool(whole[attacked.size])
        leak = "makes the result NaN or infinite" if whole[attacked.size + 1] > 0 else leak
    return Trial(
        recipe,
        Sensitivity(
            canary=_canary(recipe),
            length=length,
            length_most=most,
            spread=_following(each, absent),
            noise=law[0] if law else None,
            noise_least=law[1] if law else None,
            detects=law[2] if law else _detects(draws, level),
        ),
        evidence,
        float(np.linalg.norm(whole[: attacked.size], ord=plan.norm)),
        leak,
        of_rounds,
    )


def _canary(recipe: Recipe) -> str:
    if recipe.odd and not recipe.odd.startswith("one"):
        return recipe.odd
    return f"{recipe.length:.3g} C on {recipe.count}"


def _lens(views: np.ndarray, movement: np.ndarray, attacked: Attacked) -> Lens | None:
    """Return what is looked at of views ``[n, k]``; None if they are short."""
    size = views.shape[1]
    if size <= WHOLE:
        return None
    sizes = views.std(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.nan_to_num(np.abs(movement) / sizes, nan=0, posinf=1e300)
    even = np.linspace(0, size, SPREAD, endpoint=False).astype(int)
    weakest = np.argsort(np.where(sizes > 0, sizes, np.inf))[:WEAKEST]
    farthest = np.argsort(-steps, kind="stable")[:WEAKEST]
    line = np.where(sizes > 0, movement / np.maximum(sizes, 1e-300) ** 2, 0)
    chosen = np.unique(np.concatenate([even, weakest, farthest, [size - 2, size - 1]]))
    # What is seen through the line must not be seen twice.
    line[chosen] = 0
    length = np.linalg.norm(line)
    return Lens(chosen, line / length if length else line)


def _independent(each: np.ndarray, rounds: np.ndarray | None) -> tuple[np.ndarray, float]:
    """Return the numbers of a view, bool ``[k]``, of the first rounds in which the movements
    ``[n, k]`` are the same under all noise, and their relative spread."""
    size = each.shape[1]
    owners = np.zeros(size, dtype=int) if rounds is None else rounds
    kept, widest = np.zeros(size, dtype=bool), 0.0
    for round in np.unique(owners):
        here = owners == round
        largest = np.abs(each[:, here].mean(axis=0)).max()
        deviation = each[:, here].std(axis=0).max()
        spread = 0.0 if deviation == 0 else deviation / largest if largest else math.inf
        if spread > SLIGHT:
            break
        kept |= here
        widest = max(widest, spread)
    return kept, float(widest)


def _following(each: np.ndarray, absent: np.ndarray) -> float:
    """Return the relative spread of movements ``[n, k]`` that are multiples of the noise, else
    0."""
    moved, noise = each - each.mean(axis=0), absent - absent.mean(axis=0)
    energy = (moved**2).sum()
    largest = np.abs(each).max()
    if energy == 0 or np.sqrt(moved.var(axis=0).max()) <= WIDEST * largest:
        return 0.0
    squares = (noise**2).sum(axis=0)
    factor = np.where(squares > 0, (moved * noise).sum(axis=0) / np.maximum(squares, 1e-300), 0)
    left = ((moved - factor * noise) ** 2).sum()
    return float(np.sqrt(moved.var(axis=0).max()) / largest) if left <= LINEAR * energy else 0.0


def _length(
    pilot: np.ndarray, fresh: np.ndarray, movement: np.ndarray, plan: Plan, sent: int, level: float
) -> tuple[float, float]:
    """Return the length of a movement ``[k]`` over what the claim covers in so many rounds, and the
    value that it exceeds with probability ``level`` in a correct mechanism."""
    if not movement.any():
        return 0.0, 1.0
    n = len(fresh) - 1
    centred = fresh - fresh.mean(axis=0)
    if plan.norm == 1:
        # The mean of n absolute values is a Gamma number, and least where a single one counts.
        most = n / float(stats.gamma(n).ppf(level))
        length = Noise(fresh).length_in_sum(movement) * plan.multiplier / sent
        n, root = round(2 * n / (plan.law.kurtosis - 1)), math.sqrt(plan.law.variance)
    else:
        length, most, root = 0.0, 1.0, 1.0
    ruler = Noise(pilot)
    silent = math.isinf(ruler.length(movement))
    along = _direction(pilot, movement)
    gap, width = float(along @ movement), float((centred @ along).std(ddof=1))
    # What rounding leaves of a direction without noise.
    still = width <= 1e-6 * np.abs(along) @ centred.std(axis=0)
    if silent and not (centred[:, movement != 0] != 0).any():
        return math.inf, most
    by_direction = math.inf if silent and still else gap / max(width, 1e-300)
    by_direction *= plan.multiplier * root / math.sqrt(sent)
    most_of = math.sqrt(n / float(stats.chi2.ppf(level, n)))
    if by_direction / most_of > length / most:
        return by_direction, most_of
    return length, most


def _direction(pilot: np.ndarray, movement: np.ndarray) -> np.ndarray:
    """Return the direction ``[k]`` along which a movement is longest for its noise, as the pilot
    estimates both of them: by the whole covariance, or number by number."""
    sizes = pilot.std(axis=0)
    noisy = sizes > 0
    if (movement[~noisy] != 0).any():
        return np.where(noisy, 0, movement)
    steps = (pilot - pilot.mean(axis=0))[:, noisy] / sizes[noisy]
    moved = movement[noisy] / sizes[noisy]
    n, p = steps.shape
    candidates = [moved]
    if n > 2 * p:
        values, axes = np.linalg.eigh(steps.T @ steps / n)
        candidates.append(axes @ ((moved @ axes) / np.maximum(values, 1e-13)))
    found = []
    for number, one in enumerate(candidates):
        width = float((steps @ one).std())
        # A direction fitted to p numbers is too good by about p / n on the draws of its fit.
        fitted = math.sqrt(max(0.0, 1 - p / n)) if number else 1.0
        found.append(fitted * float(one @ moved) / max(width, 1e-300))
    best = candidates[int(np.argmax(found))]
    along = np.zeros(len(movement))
    along[noisy] = best / np.abs(best).max() / sizes[noisy]
    return along


def _law(
    attacked: Attacked, recipe: Recipe, noise: np.ndarray, level: float
) -> tuple[float, float, float] | None:
    """Return the size of the noise of a result ``[n, k]`` over the claimed one, its least value in
    a correct mechanism, and the largest factor that is detected; None where no movement is the same
    under all noise.

    It is measured in units of the farthest that one client moves a coordinate. More noise, in
    whatever directions, only makes its energy larger (Anderson's inequality).
    """
    claim, plan = attacked.claim, attacked.claim.covered
    pair, of_one = recipe.pair(claim), dataclasses.replace(attacked, rounds=1)
    few = np.arange(2)
    everywhere = dataclasses.replace(
        recipe, support="first", count=claim.dimension, odd="", length=math.sqrt(claim.dimension)
    ).pair(claim)
    drawn = np.arange(COUPLED)
    each = of_one.views(everywhere, True, drawn) - of_one.views(everywhere, False, drawn)
    if each.std(axis=0).max() > WIDEST * np.abs(each.mean(axis=0)).max():
        return None
    reach = np.zeros(attacked.length)
    places = np.linspace(0, claim.dimension, min(TOGETHER, claim.dimension), endpoint=False)
    far = max(recipe.length if math.isfinite(recipe.length) else 1.0, 1.0)
    for place in places.astype(int):
        for length in {claim.clip_norm, far * claim.clip_norm}:
            messages = pair.messages.copy()
            messages[pair.place] = 0
            messages[pair.place, place] = length
            other = None if pair.other is None else np.zeros_like(pair.other)
            if recipe.absent == "opposite" and other is not None:
                other[place] = -length
            single = dataclasses.replace(pair, messages=messages, other=other)
            moved = of_one.views(single, True, few) - of_one.views(single, False, few)
            if np.ptp(moved, axis=0).max() <= WIDEST * np.abs(moved).max():
                reach = np.maximum(reach, np.abs(moved[0]))
    units = reach[: attacked.size]
    if not units.any():
        return None
    kept = units > 0
    steps = (noise - noise.mean(axis=0))[:, kept] / units[kept] / plan.multiplier
    return size_of_noise(plan, steps, level)


def _detects(draws: int, level: float) -> float:
    law = stats.chi2(draws - 1)
    return math.sqrt(float(law.ppf(level)) / float(law.ppf(POWER)))


def _told_apart(
    plan: Plan,
    pilots: dict[bool, np.ndarray],
    fresh: dict[bool, np.ndarray],
    movement: np.ndarray,
    level: float,
) -> Evidence:
    """Return the evidence on fresh views of the attacker that the pilots choose."""
    statistics = fitted(pilots, movement)
    values = {here: {name: of(pilots[here]) for name, of in statistics.items()} for here in pilots}
    choice = chosen(plan, values, level)
    of = statistics[choice.statistic]
    return judged(plan, choice, of(fresh[False]), of(fresh[True]), level)


def judged(
    plan: Plan, choice: Choice, absent: np.ndarray, there: np.ndarray, level: float
) -> Evidence:
    """Return the evidence of an attacker who decides by a choice, from values of its statistic."""
    wrong = int((choice.sign * absent > choice.threshold).sum())
    missed = int((choice.sign * there <= choice.threshold).sum())
    return judge(plan, len(absent), wrong, missed, choice.statistic, level)


def fitted(pilots: dict[bool, np.ndarray], movement: np.ndarray) -> dict[str, Statistic]:
    """Return statistics of views ``[n, k]`` that tell there from absent, fitted to pilots."""
    means = {here: views.mean(axis=0) for here, views in pilots.items()}
    gap = means[True] - means[False]
    floor = 1e-9 * (np.abs(means[True]) + np.abs(means[False])) + 1e-12
    sizes = {here: np.maximum(views.std(axis=0), floor) for here, views in pilots.items()}
    shared = np.sqrt((sizes[True] ** 2 + sizes[False] ** 2) / 2)
    along = _direction(pilots[False], movement) if movement.any() else gap / shared**2
    best = int(np.argmax(np.abs(gap) / shared))

    def likelihood(views: np.ndarray) -> np.ndarray:
        terms = [
            ((views - means[here]) / sizes[here]) ** 2 / 2 + np.log(sizes[here]) for here in pilots
        ]
        # A number without noise is worth at most e^50.
        ratio = np.clip(terms[list(pilots).index(False)] - terms[list(pilots).index(True)], -50, 50)
        return np.asarray(ratio.sum(axis=1))

    def farthest(views: np.ndarray) -> np.ndarray:
        return np.asarray((np.abs(views - means[False]) / sizes[False]).max(axis=1))

    atoms = {here: _atoms(views) for here, views in pilots.items()}

    def repeated(views: np.ndarray) -> np.ndarray:
        found = [view.tobytes() for view in views.astype(np.float32)]
        return np.array([(one in atoms[True]) - (one in atoms[False]) for one in found], float)

    return {
        "projection on the movement": lambda views: views @ along,
        "projection on the means": lambda views: views @ (gap / shared**2),
        "likelihood of the coordinates": likelihood,
        "energy": lambda views: (((views - means[False]) / sizes[False]) ** 2).sum(axis=1),
        "farthest coordinate": farthest,
        "one coordinate": lambda views: views[:, best],
        "coordinates that are zero": lambda views: (views == 0).mean(axis=1),
        "results that occur again": repeated,
    }


def _atoms(views: np.ndarray) -> set[bytes]:
    seen, again = set[bytes](), set[bytes]()
    for view in views.astype(np.float32):
        key = view.tobytes()
        (again if key in seen else seen).add(key)
    return again


def chosen(plan: Plan, values: dict[bool, dict[str, np.ndarray]], level: float) -> Choice:
    """Return the choice that speaks most against a claim."""
    claimed = curve(plan)
    best, found = -math.inf, Choice("projection on the movement", 1.0, 0.0)
    for name in values[True]:
        for sign in (1.0, -1.0):
            there, absent = (np.sort(sign * values[here][name]) for here in (True, False))
            joint = np.sort(np.concatenate([there, absent]))
            places = np.linspace(0, len(joint) - 1, THRESHOLDS).astype(int)
            # In the middle between two values, so that a fresh one that is equal is on its side.
            above = np.minimum(places + 1, len(joint) - 1)
            thresholds = np.unique((joint[places] + joint[above]) / 2)
            alarms = len(absent) - np.searchsorted(absent, thresholds, side="right")
            errors = np.stack([alarms, np.searchsorted(there, thresholds, side="right")])
            excess = excess_of(claimed, len(there), errors, level)
            place = int(np.argmax(excess))
            if excess[place] > best:
                best = float(excess[place])
                found = Choice(name, sign, float(thresholds[place]))
    return found


def whole_runs(
    attacked: Attacked, recipe: Recipe, runs: int, level: float, rng: np.random.Generator
) -> Evidence:
    """Return the evidence of an attacker who sees all rounds of runs, whose cohorts are drawn.

    The statistics of a round are fitted to single rounds in which the canary takes part; a run is
    the sum of them over its rounds, or those of single rounds.
    """
    claim, of_one = attacked.claim, dataclasses.replace(attacked, rounds=1)
    plan = claim.covered
    pair = recipe.pair(claim)
    first = min(runs, 1_000)
    count = max(first, 300)
    pilots = {here: of_one.views(pair, here, seeds(rng, count)) for here in (True, False)}
    lens = _lens(pilots[False], (pilots[True] - pilots[False]).mean(axis=0), attacked)
    if lens is not None:
        pilots = {h: np.stack([lens.view(one) for one in v]) for h, v in pilots.items()}
    drawn = seeds(rng, PILOT)
    there, absent = (of_one.views(pair, here, drawn, lens=lens) for here in (True, False))
    statistics = fitted(pilots, (there - absent).mean(axis=0))
    everybody = dataclasses.replace(claim, sample_rate=1.0)
    whole = dataclasses.replace(recipe, cohort="all").pair(everybody)

    def run(there: bool, seed: int) -> np.ndarray:
        chance = np.random.default_rng(seed)
        step = attacked.program.begin(claim.clients, claim.dimension, seed)
        views = []
        for t in range(claim.rounds):
            present = chance.random(claim.clients) < claim.sample_rate
            takes_part = bool(present[whole.place]) and (recipe.rounds == "all" or t == 0)
            if not there and whole.other is None:
                present[whole.place] = False
            messages, rows = whole.messages.copy(), whole.rows
            if not (there and takes_part) and whole.other is not None:
                messages[whole.place] = whole.other
            place = int(present[: whole.place].sum())
            view = attacked.view(step, messages[present], rows[present], seed + t, place)
            views.append(view if lens is None else lens.view(view))
        return np.stack(views)

    def all_runs(there: bool, count: int) -> dict[str, np.ndarray]:
        views = np.stack([run(there, seed) for seed in seeds(rng, count).tolist()])
        found: dict[str, np.ndarray] = {}
        for name, of in statistics.items():
            values = of(views.reshape(-1, views.shape[2])).reshape(count, claim.rounds)
            found[name] = values.sum(axis=1)
            if name.startswith("likelihood") and claim.sample_rate < 1:
                mixed = np.log1p(claim.sample_rate * np.expm1(np.minimum(values, 700)))
                found["likelihood of drawn rounds"] = mixed.sum(axis=1)
            if name.startswith("projection"):
                found[f"{name}, last round"] = values[:, -1]
                later = values[:, claim.rounds // 2 :]
                found[f"{name}, second half"] = later.sum(axis=1)
        return found

    values = {here: all_runs(here, first) for here in (True, False)}
    choice = chosen(plan, values, level)
    fresh = {here: all_runs(here, runs)[choice.statistic] for here in (True, False)}
    return judged(plan, choice, fresh[False], fresh[True], level)
