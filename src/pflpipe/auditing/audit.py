"""The audit of a claim about anyone's release: both levels, in every situation, and a sentence."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pflpipe.auditing import cases
from pflpipe.auditing.arrays import ODD, OfArrays, Program, ReleaseError, Situation
from pflpipe.auditing.claim import Adjacency, Claim
from pflpipe.auditing.coupled import FEWER_DRAWS, WIDEST, Sensitivity, sensitivity, worst_of
from pflpipe.auditing.distinguish import Evidence, distinguish
from pflpipe.data import outside
from pflpipe.privacy import accounting
from pflpipe.seeds import derived_key

FEWEST_DRAWS, FEWEST_RUNS, MOST_RUNS = 300, 20, 4_000


@dataclass(frozen=True)
class Audited:
    """The result of an audit of a release.

    Attributes:
        row: its row of the table of audits, without the columns of methods.
        sentence: the result for a reader.
        situation: where the worst canary was found.
        notes: what the claim does not cover and a user should know.
    """

    row: dict[str, Any]
    sentence: str
    situation: str
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """``kept``, ``refuted``, or ``unsound``: the noise follows the messages, which no proof
        covers, but no larger epsilon was shown."""
        verdict: str = self.row["verdict"]
        return verdict

    def __str__(self) -> str:
        values = {name: value for name, value in self.row.items() if value is not None}
        lines = [f"{name:20} {_shown(value)}" for name, value in values.items()]
        found = f"{'situation':20} {self.situation}"
        return "\n".join([*lines, found, *(f"note: {one}" for one in self.notes), self.sentence])


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
        seconds: what each level may take, by an estimate of the time of a call from its size alone.
            Fewer draws and runs lose power, which the result states.
        seed: of all that the auditor draws.

    Raises:
        ReleaseError: the release fails, or returns something else.
        PrivacyError: nobody can have such a claim.
    """
    began = time.perf_counter()
    name = getattr(release, "__name__", type(release).__name__)
    program = (
        Program(release, f"{file}:{name}", str(Path(file).resolve()))
        if file
        else Program(release, name)
    )
    key = derived_key("audit", "of arrays", seed)
    base = OfArrays(
        executed=claim.plan,
        claimed=claim.covered,
        trust=claim.trust,
        program=program,
        dimension=claim.dimension,
        adjacency=claim.adjacency,
        situation=_situations(claim.clients)[0],
    )
    with _untouched_generators(), outside.restored(), torch.no_grad():
        base, leaks, notes = _odd_messages(base)
        tried = []
        cost = _seconds(base)
        situations = _situations(claim.clients)
        draws = int(np.clip(seconds / (3 * len(situations) * cost), FEWEST_DRAWS, FEWER_DRAWS))
        for situation in situations:
            mechanism = dataclasses.replace(base, situation=situation).through_a_lens(key)
            found = sensitivity(mechanism, derived_key(key, situation.name), draws)
            tried.append((mechanism, found))
        worst = worst_of([found for _, found in tried])
        mechanism = next(m for m, one in tried if _same(one, worst))
        runs = int(np.clip(seconds / (4 * claim.rounds * cost), FEWEST_RUNS, MOST_RUNS))
        evidence = distinguish(mechanism, worst.canary, runs, derived_key(key, "runs"))
        notes += _alone(base, key, draws)
        return _judged(claim, mechanism, worst, evidence, leaks, notes, began)


def _situations(clients: int) -> list[Situation]:
    """Return the situations to try, the plainest first: equal and unequal numbers of rows, other
    clients who send nothing or the opposite."""

    def rows(large: int | None) -> np.ndarray:
        counts = np.full(clients, 9.0)
        if large is not None:
            counts[large] = 91.0 * max(clients - 1, 1)
        return counts

    equal = rows(None)
    return [
        Situation("all clients have equally many rows", equal),
        Situation("this client has 91 % of the rows", rows(clients - 1)),
        Situation("another client has 91 % of the rows", rows(0)),
        Situation("all other clients send zeros", equal, "zeros"),
        Situation("all other clients send the opposite", equal, "opposite"),
    ][: 5 if clients > 1 else 1]


def _odd_messages(base: OfArrays) -> tuple[OfArrays, list[str], list[str]]:
    """Return the mechanism with the odd canaries that it survives, what shows that a client is
    there, and notes on what fails.

    Raises:
        ReleaseError: a round of ordinary messages fails, is not finite, or has noise that the
            auditor cannot repeat.
    """
    where, leaks, notes, survived = base.program.location, list[str](), list[str](), list[str]()
    library = dataclasses.replace(base, odd=tuple(ODD)).canaries(base.start("odd"))
    first = library["dirac"]
    for there in (True, False):
        one, again = (base.once(first, there) for _ in range(2))
        if not bool(torch.isfinite(one).all()):
            sent = "ordinary messages" if there else "a client that sends zeros"
            raise ReleaseError(
                f"{where}: result of {sent}", got="NaN or infinity", expected="finite numbers"
            )
        if not torch.equal(one, again):
            raise ReleaseError(
                f"{where}: two calls with the same rng",
                got="different results",
                expected="equal ones",
                do="draw the noise from rng, or from the global generators of random, numpy or "
                "torch, which the auditor seeds",
            )
    for name in ODD:
        kind = "NaN" if name == "nan" else "infinity"
        try:
            finite = bool(torch.isfinite(base.once(library[name], True)).all())
        except ReleaseError as error:
            notes.append(f"with a message of {kind} the release fails: {error}")
            continue
        if finite:
            survived.append(name)
        else:
            leaks.append(f"a message of {kind} makes the result NaN or infinite")
    weightless = base.situation.rows.copy()
    weightless[-1] = 0
    empty = True
    tries = [("a client without rows", weightless, base.executed.clients)]
    if base.executed.sample_rate < 1:
        tries.append(("an empty cohort", weightless, 0))
    for what, rows, count in tries:
        messages = np.zeros((count, base.dimension), dtype=np.float32)
        try:
            step = base.begin(1)[0]
            finite = bool(np.isfinite(base.program.result(step, messages, rows[:count], 0)).all())
            problem = "" if finite else "its result is not finite"
        except ReleaseError as error:
            problem = f"it fails: {error}"
        if problem:
            notes.append(f"with {what}, {problem}")
            empty &= count > 0
    return dataclasses.replace(base, odd=tuple(survived), empty=empty), leaks, notes


def _alone(base: OfArrays, key: str, draws: int) -> list[str]:
    """Return a note if a single client is not covered where the others are missing. Under sampling
    that is a part of the claim, and ``coupled`` tests it."""
    if base.executed.sample_rate < 1 or base.executed.clients == 1 or base.trust == "local":
        return []
    executed, claimed = (
        dataclasses.replace(plan, clients=1) for plan in (base.executed, base.claimed)
    )
    adjacency: Adjacency = "zero_out" if base.leaves else base.adjacency
    one = dataclasses.replace(
        base,
        executed=executed,
        claimed=claimed,
        adjacency=adjacency,
        situation=_situations(1)[0],
    )
    try:
        found = sensitivity(one.through_a_lens(key), derived_key(key, "alone"), draws)
    except ReleaseError as error:
        return [f"with a cohort of one the release fails: {error}"]
    if not found.flagged:
        return []
    return [
        f"in a cohort of one the noise covers {_number(1 / found.length)} of what the client "
        "changes: the claim needs every client in every round"
    ]


def _judged(
    claim: Claim,
    mechanism: OfArrays,
    worst: Sensitivity,
    evidence: Evidence,
    leaks: list[str],
    notes: list[str],
    began: float,
) -> Audited:
    """Return the verdict and what follows from it."""
    plan = claim.plan
    counted = claim.epsilon_of(plan.multiplier)
    promised = counted if claim.epsilon is None else claim.epsilon
    at = f"({_rounds(claim.rounds)}, delta {_exponent(accounting.delta_of(plan))})"
    short = worst.length > worst.length_most or (
        worst.noise is not None
        and worst.noise_least is not None
        and worst.noise < worst.noise_least
    )
    ratio = _ratio(worst) if short else 1.0
    true = claim.epsilon_of(plan.multiplier * ratio) if short else counted
    sentences = []
    if short:
        direction = mechanism.canaries(mechanism.start(derived_key("audit", "shown")))[worst.canary]
        bare = dataclasses.replace(mechanism, lens=None)
        moved = torch.linalg.vector_norm(bare.moved(direction), ord=plan.norm).item()
        holds = f"no epsilon holds, and not {_epsilon(promised)}"
        if math.isfinite(true):
            multiplier = _number(plan.multiplier * ratio)
            holds = (
                f"the true multiplier is {multiplier}, epsilon {_epsilon(true)} and not "
                f"{_epsilon(promised)}"
            )
        sentences.append(
            f"one client moves the result by {_number(moved)} where the noise covers "
            f"{_number(moved * ratio)}: {holds} {at}"
        )
    for leak in leaks:
        sentences.append(f"{leak} and shows that the client is there: no epsilon holds {at}")
    if evidence.flagged:
        sentences.append(
            f"an attacker recognises runs with the client more often than epsilon "
            f"{_epsilon(promised)} allows: it is at least {_epsilon(evidence.epsilon_lower)} {at}, "
            "with 99 % confidence"
        )
    if counted > promised * (1 + 1e-6):
        sentences.append(
            f"noise of multiplier {_number(plan.multiplier)} gives epsilon {_epsilon(counted)} and "
            f"not {_epsilon(promised)} {at}"
        )
    verdict = "refuted" if sentences else "kept"
    if worst.spread > WIDEST:
        verdict = "refuted" if sentences else "unsound"
        sentences.append(
            f"what one client changes depends on the noise by {worst.spread:.0e}: the noise "
            "follows the messages, which no proof covers"
        )
    if not sentences:
        sentences.append(
            f"this audit finds nothing against epsilon {_epsilon(promised)} {at}; it would have "
            f"found noise below {worst.detects:.3f} of the claimed"
        )
    row = cases.result(
        mechanism,
        worst,
        evidence,
        audit=mechanism.program.location,
        verdict=verdict,
        claim="outside",
        adjacency=claim.adjacency,
        epsilon_claimed=promised,
        epsilon_true=math.inf if leaks else true,
        seconds=time.perf_counter() - began,
    )
    sentence, *further = sentences
    return Audited(row, sentence, mechanism.situation.name, (*further, *notes))


def _ratio(worst: Sensitivity) -> float:
    """Return the true multiplier over the claimed one: by the energy of the noise where it agrees
    with the length of the movement, because it is the more exact number."""
    by_length = 1 / worst.length
    if worst.noise is None or abs(worst.noise * worst.length - 1) > worst.length_most - 1:
        return by_length
    return worst.noise


def _same(one: Sensitivity, other: Sensitivity) -> bool:
    return (one.canary, one.length, one.noise) == (other.canary, other.length, other.noise)


def _seconds(mechanism: OfArrays) -> float:
    """Return an estimate of the time of a call, from its size alone, so that the numbers of draws
    and runs are the same on every machine."""
    return 1e-4 + 8e-9 * mechanism.executed.expected_cohort * mechanism.dimension


@contextlib.contextmanager
def _untouched_generators() -> Iterator[None]:
    """Restore the global generators, which the auditor seeds before every call."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])


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
