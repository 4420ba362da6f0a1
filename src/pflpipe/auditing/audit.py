"""The audit of a claim about anyone's release: a search for the worst two worlds, tests of what it
finds, and a sentence."""

import contextlib
import dataclasses
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pflpipe.auditing import verdict
from pflpipe.auditing.arrays import Attacked, Program, ReleaseError, size_of
from pflpipe.auditing.claim import Claim
from pflpipe.auditing.evidence import Evidence, Sensitivity
from pflpipe.auditing.search import Search
from pflpipe.auditing.trial import Trial, trial, whole_runs
from pflpipe.auditing.worlds import Recipe, absences
from pflpipe.code import guard
from pflpipe.privacy import accounting

LEVEL = 1e-4
"""Probability that an audit refutes a true claim."""
TESTS = 50
"""Largest number of tests of an audit: three of each of at most 15 pairs, and whole runs."""
ROUNDS = 3
"""Consecutive rounds of a release with a state that are tested together."""
FEWEST_PAIRS, MOST_PAIRS = 300, 3_000
FEWEST_OF_SLOW, QUICK_DRAWS, FEWEST_DRAWS, MOST_DRAWS = 200, 400, 600, 20_000
FEWEST_RUNS, MOST_RUNS = 20, 4_000
SLOW = 5
"""Times its estimate from which the time of a call is the measured one. Such a release gets fewer
draws at least, and fewer pairs are tested."""
SUSPECT = 1.2
"""A score of the search from which a pair is tested while the search goes on."""


@dataclass(frozen=True)
class Audited:
    """The result of an audit of a release.

    Attributes:
        row: its row of the table of audits, without the columns of methods.
        sentence: the result for a reader.
        situation: the worst pair of worlds; if ``unsound``, the one that the noise follows most.
        tried: what was tried, what was not, and the level of a refutation.
        notes: what the claim does not cover and a user should know.
    """

    row: dict[str, Any]
    sentence: str
    situation: str
    tried: str
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """``kept``, ``refuted``, or ``unsound``: the noise follows the messages, which no proof
        covers, but no larger epsilon was shown."""
        return str(self.row["verdict"])

    @property
    def said(self) -> list[str]:
        """The result in lines for a reader, the sentence first."""
        return [self.sentence, *(f"note: {one}" for one in self.notes)]

    def __str__(self) -> str:
        values = {name: value for name, value in self.row.items() if value is not None}
        lines = [f"{name:20} {_shown(value)}" for name, value in values.items()]
        lines += [f"{'situation':20} {self.situation}", f"{'tried':20} {self.tried}"]
        return "\n".join([*self.said, *lines])


def audit(
    release: Any, claim: Claim, *, file: str = "", seconds: float = 60.0, seed: int = 0
) -> Audited:
    """Return the result of an audit of a release.

    Args:
        release: a function ``release(messages [m, d] float32, weights [m] float64, rng)`` that
            returns the result ``[k]`` of a round, or single noised messages ``[m, k]``. Weights are
            the clients' numbers of rows. Or a class with ``start(clients, dimension)``, which
            begins a run, and ``step`` with those arguments. All noise comes from ``rng`` or from
            the global generators of Python, NumPy and torch.
        claim: what is claimed of it.
        file: its file, for the line numbers of error messages.
        seconds: what the audit may take, by an estimate of the time of a call from its size alone,
            or as measured if a call takes far longer. It ends as soon as the claim is refuted; some
            thousand calls are always made. Fewer draws lose power, which the result states.
        seed: of all that the auditor draws.

    Raises:
        ReleaseError: the release fails, or returns something else.
        PrivacyError: nobody can have such a claim.
    """
    began = time.perf_counter()
    name = getattr(release, "__name__", type(release).__name__)
    place = (f"{file}:{name}", str(Path(file).resolve())) if file else (name,)
    program = Program(release, *place)
    with _untouched_generators(), guard.restored(), np.errstate(all="ignore"):
        attacked, leaks, notes = _checked(program, claim)
        audited = _Audit(attacked, seconds, np.random.default_rng([seed, 57]))
        audited.run(stop=bool(leaks))
        return _judged(audited, leaks, notes + audited.notes, began)


class _Audit:
    """The search and the tests of one audit."""

    def __init__(self, attacked: Attacked, seconds: float, rng: np.random.Generator) -> None:
        claim = attacked.claim
        self.attacked, self.rng, self.level = attacked, rng, LEVEL / TESTS
        self.trials: dict[Recipe, Trial] = {}
        self.evidence: Evidence | None = None
        self.notes: list[str] = []
        cost, slow = _seconds(attacked)
        calls = seconds / (cost * attacked.rounds)
        self.pairs = int(np.clip(0.3 * calls / 4, FEWEST_PAIRS, MOST_PAIRS))
        fewest = FEWEST_OF_SLOW if slow else FEWEST_DRAWS
        self.draws = int(np.clip(0.5 * calls / 12, fewest, MOST_DRAWS))
        # Of pairs by either score, at the end.
        self.tests = (1, 1) if slow and self.draws < FEWEST_DRAWS else (3, 2)
        runs = 0.2 * seconds / (2 * cost * claim.rounds)
        self.runs = int(np.clip(runs, FEWEST_RUNS, MOST_RUNS))
        self.search = Search(attacked, rng, int(np.clip(self.draws, FEWEST_DRAWS, 2_000)))

    @property
    def refuted(self) -> bool:
        """Whether the claim is refuted."""
        whole = self.evidence is not None and self.evidence.flagged
        return whole or any(one.refutes for one in self.trials.values())

    def run(self, stop: bool) -> None:
        """Search and test until the claim is refuted or the time is spent; ``stop`` after the
        plainest pair."""
        search = self.search
        self._test(search.recipes[0], self.draws)
        if stop:
            return
        structured = len(search.recipes)
        for chunk, count in (
            (search.meet, min(structured, self.pairs)),
            (search.meet, max(0, round(0.6 * self.pairs))),
            (search.climb, round(0.4 * self.pairs)),
        ):
            chunk(count)
            for recipe in search.worst(2, 1):
                score = search.scores[recipe]
                if max(score.length, score.follows) > SUSPECT:
                    self._test(recipe, min(QUICK_DRAWS, self.draws))
            if self.refuted:
                self._test(self.worst.recipe, self.draws)
                break
        else:
            for recipe in search.worst(*self.tests):
                if recipe != search.recipes[0] and not self.refuted:
                    self._test(recipe, self.draws)
        claim = self.attacked.claim
        if claim.rounds > 1 or claim.sample_rate < 1:
            worst = self.worst.recipe
            self.evidence = whole_runs(self.attacked, worst, self.runs, self.level, self.rng)
        count, first = search.failed
        if count:
            self.notes.append(f"the release fails in {count} pairs, first: {first}")
        self.notes += _alone(self.attacked, self.level, self.rng)

    @property
    def worst(self) -> Trial:
        """The test that says most against the claim."""
        trials = list(self.trials.values())
        said = [one for one in trials if one.refutes] or trials
        longest = max(one.measured.length for one in said)
        return next(one for one in said if one.measured.length >= longest / 1.02)

    def _test(self, recipe: Recipe, draws: int) -> None:
        found = trial(self.attacked, recipe, draws, self.level, self.rng)
        before = self.trials.get(recipe)
        # A refutation stands; measured again, its numbers are the more exact ones.
        if before is None or found.refutes or not before.refutes:
            self.trials[recipe] = found


def _checked(program: Program, claim: Claim) -> tuple[Attacked, list[str], list[str]]:
    """Return the release as it is attacked, what shows that a client is there, and notes on what
    fails.

    Raises:
        ReleaseError: a round of ordinary messages fails, is not finite, or has noise that the
            auditor cannot repeat.
    """
    where, leaks, notes = program.location, list[str](), list[str]()
    rounds = min(claim.rounds, ROUNDS) if program.remembers else 1
    base = Recipe(absent=absences(claim)[0])
    pair = base.pair(claim)
    attacked = Attacked(program, claim, rounds=rounds)
    attacked = dataclasses.replace(attacked, size=size_of(attacked, *pair.world(True)))
    once = np.zeros(1, dtype=np.int64)
    for there in (True, False):
        if not there and not len(pair.world(there)[0]):
            continue
        one, again = (attacked.views(pair, there, once)[0] for _ in range(2))
        sent = "ordinary messages" if there else "a client that sends zeros"
        what, is_finite = f"{where}: result of {sent}", not one[attacked.size + 1]
        ReleaseError.unless(is_finite, what, "NaN or infinity", "finite numbers")
        what, do = f"{where}: two calls with the same rng", "draw the noise from rng, or from the "
        do += "global generators of random, numpy or torch, which the auditor seeds"
        is_equal = np.array_equal(one, again)
        ReleaseError.unless(is_equal, what, "different results", "equal ones", do)
    for kind in ("NaN", "infinity"):
        odd = dataclasses.replace(base, odd=kind).pair(claim)
        try:
            if attacked.views(odd, True, once)[0][attacked.size + 1]:
                leaks.append(f"a message of {kind} makes the result NaN or infinite")
        except ReleaseError as error:
            notes.append(f"with a message of {kind} the release fails: {error}")
    empty = True
    weightless = dataclasses.replace(base, rows="none").pair(claim)
    tries = [("a client without rows", weightless.messages, weightless.rows)]
    if claim.sample_rate < 1:
        tries.append(("an empty cohort", weightless.messages[:0], weightless.rows[:0]))
    for what, messages, rows in tries:
        try:
            step = program.begin(claim.clients, claim.dimension)
            finite = bool(np.isfinite(program.result(step, 0 * messages, rows, 0)).all())
            problem = "" if finite else "its result is not finite"
        except ReleaseError as error:
            problem = f"it fails: {error}"
        if problem:
            notes.append(f"with {what}, {problem}")
            empty &= len(rows) > 0
    return dataclasses.replace(attacked, empty=empty), leaks, notes


def _alone(attacked: Attacked, level: float, rng: np.random.Generator) -> list[str]:
    """Return a note if the noise does not cover a client that is alone in its cohort.

    Under sampling the claim includes such cohorts, and the search tries them.
    """
    claim = attacked.claim
    if claim.sample_rate < 1 or claim.clients == 1 or claim.trust == "local":
        return []
    adjacency = "zero_out" if claim.adjacency == "add_remove" else claim.adjacency
    one = dataclasses.replace(claim, clients=1, adjacency=adjacency)
    recipe = Recipe(others="zeros", absent=absences(one)[0])
    alone = dataclasses.replace(attacked, claim=one, rounds=1)
    try:
        found = trial(alone, recipe, QUICK_DRAWS, level, rng)
    except ReleaseError as error:
        return [f"with a cohort of one the release fails: {error}"]
    if not found.measured.short:
        return []
    return [
        f"in a cohort of one the noise covers {_number(1 / found.measured.length)} of what the "
        "client changes: the claim needs every client in every round"
    ]


def _judged(audited: _Audit, leaks: list[str], notes: list[str], began: float) -> Audited:
    """Return the verdict and what follows from it."""
    attacked, found, worst = audited.attacked, audited.worst, audited.worst.measured
    claim, plan = attacked.claim, attacked.claim.plan
    counted = claim.epsilon_of(plan.multiplier)
    promised = counted if claim.epsilon is None else claim.epsilon
    at = f"({_rounds(claim.rounds)}, delta {_exponent(accounting.delta_of(plan))})"
    ratio = _ratio(worst) if found.measured.short else 1.0
    true = claim.epsilon_of(plan.multiplier * ratio) if found.measured.short else counted
    unhidden = _tells_who(found.recipe, claim)
    sentences = []
    if found.leak and found.refutes:
        leaks = [*leaks, f"what one client sends {found.leak}"][:1]
    elif found.refutes and unhidden and (math.isinf(true) or not found.measured.short):
        # Who takes part is seen; what it sends may still be hidden.
        whole = dataclasses.replace(claim, sample_rate=1.0)
        true = whole.epsilon_of(plan.multiplier)
        sentences.append(
            "the result shows who takes part in a round, so that sampling hides nothing: without "
            f"it epsilon is {_epsilon(true)} and not {_epsilon(promised)} {at}"
        )
    elif found.measured.short:
        holds = f"no epsilon holds, and not {_epsilon(promised)}"
        if math.isfinite(true):
            multiplier = _number(plan.multiplier * ratio)
            holds = (
                f"the true multiplier is {multiplier}, epsilon {_epsilon(true)} and not "
                f"{_epsilon(promised)}"
            )
        sentences.append(
            f"one client moves the result by {_number(found.moved)} where the noise covers "
            f"{_number(found.moved * ratio)}: {holds} {at}"
        )
    for leak in leaks:
        sentences.append(f"{leak} and shows that the client is there: no epsilon holds {at}")
    whole_evidence = audited.evidence
    evidence = whole_evidence or found.evidence
    told = [
        (one.evidence, one.plan, "rounds")
        for one in audited.trials.values()
        if not _tells_who(one.recipe, claim)
    ]
    if whole_evidence is not None:
        told.append((whole_evidence, claim.covered, "runs"))
    for seen, of_rounds, what in told:
        if seen.flagged and not any("recognises" in one for one in sentences):
            allowed = promised
            if of_rounds.rounds != claim.rounds or claim.sample_rate < 1:
                allowed = accounting.epsilon(of_rounds, accounting.delta_of(plan))
            elif whole_evidence is None:
                evidence, what = seen, "runs"
            sentences.append(
                f"an attacker recognises {what} with the client more often than epsilon "
                f"{_epsilon(allowed)} allows: it is at least {_epsilon(seen.epsilon_lower)}, with "
                f"{100 * (1 - LEVEL):.2f} % confidence {at}"
            )
    if counted > promised * (1 + 1e-6):
        sentences.append(
            f"noise of multiplier {_number(plan.multiplier)} gives epsilon {_epsilon(counted)} and "
            f"not {_epsilon(promised)} {at}"
        )
    said = "refuted" if sentences else "kept"
    following = max(audited.trials.values(), key=lambda one: one.measured.spread)
    spread = following.measured.spread
    if spread:
        if not sentences:
            said, found = "unsound", following
        sentences.append(
            f"what one client changes is a multiple of the noise, by {spread:.0e}: the size of the "
            "noise follows the messages, which no proof covers"
        )
    detects = max(one.measured.detects for one in audited.trials.values())
    if not sentences:
        sentences.append(
            f"this audit finds nothing against epsilon {_epsilon(promised)} {at}; it would have "
            f"found noise below {detects:.3f} of the claimed"
        )
    row = verdict.result(
        plan,
        claim.covered,
        claim.trust,
        dataclasses.replace(worst, canary=found.measured.canary, spread=spread, detects=detects),
        evidence,
        error=audited.level,
        audit=attacked.program.location,
        verdict=said,
        claim="outside",
        adjacency=claim.adjacency,
        epsilon_claimed=promised,
        epsilon_true=math.inf if leaks else true,
        seconds=time.perf_counter() - began,
    )
    row["flagged_coupled"] = found.measured.short
    row["flagged_runs"] = any(seen.flagged for seen, _, _ in told)
    sentence, *further = sentences
    tried = _tried(audited)
    return Audited(row, sentence, str(found.recipe), tried, (*further, *notes))


def _tells_who(recipe: Recipe, claim: Claim) -> bool:
    """Return whether a pair differs in who is drawn, where neighbours differ in what is sent."""
    return recipe.absent == "out" and claim.adjacency != "add_remove"


def _tried(audited: _Audit) -> str:
    """Return what was tried and what was not."""
    return (
        f"{len(audited.search.scores):,} pairs of worlds (signs, lengths from 0 to 1e37 C, one "
        "coordinate to all, NaN and infinity, what the others send, order, rows), "
        f"{len(audited.trials)} of them tested with {audited.draws:,} draws; a true claim is "
        f"refuted with probability {_exponent(LEVEL)} at most; this cannot find a trigger on one "
        "value"
    )


def _ratio(worst: Sensitivity) -> float:
    """Return the true multiplier over the claimed one: by the energy of the noise where it agrees
    with the length of the movement, because it is the more exact number."""
    by_length = 1 / worst.length
    if worst.noise is None or abs(worst.noise * worst.length - 1) > worst.length_most - 1:
        return by_length
    return worst.noise


def _seconds(attacked: Attacked) -> tuple[float, bool]:
    """Return an estimate of the time of a call, and whether it was measured.

    It follows from the size alone, so that the numbers of pairs and draws are the same on every
    machine, unless calls take far longer.
    """
    claim = attacked.claim
    usual = 1e-4 + 8e-9 * claim.clients * claim.sample_rate * claim.dimension
    pair = Recipe(absent=absences(claim)[0]).pair(claim)
    taken = []
    for seed in range(3):
        began = time.perf_counter()
        attacked.views(pair, True, np.array([seed]))
        taken.append((time.perf_counter() - began) / attacked.rounds)
    slow = min(taken) > SLOW * usual
    return (min(taken) if slow else usual), slow


@contextlib.contextmanager
def _untouched_generators() -> Iterator[None]:
    """Restore the global generators, which the auditor seeds before every call."""
    python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    torch = sys.modules.get("torch")
    of_torch = torch and torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)  # noqa: NPY002
        if torch:
            torch.set_rng_state(of_torch)


def _number(value: float) -> str:
    """Return two digits, without a zero before the point: .91, 1.2, 79."""
    if value == 0 or value >= 100 or value < 1e-3:
        return f"{value:.2g}"
    text = f"{value:#.2g}".rstrip(".")
    return text.removeprefix("0")


def _epsilon(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _rounds(count: int) -> str:
    return "one round" if count == 1 else f"{count} rounds"


def _exponent(delta: float) -> str:
    return f"{delta:g}".replace("e-0", "e-")


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
