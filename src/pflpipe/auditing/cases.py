"""The audited releases: every distinct release of all methods, in each trust model, at a reference
plan of its kind.

Methods whose messages are clipped, noised and summed in the same way share an audit. The reference
plans are those at which an audit is most sensitive: mu = 2.6 with all clients taking part (FedDPA's
FEMNIST setting at epsilon 8), DP-FedSim's setting for a secret draw (epsilon 2), eight rounds of
pure epsilon 1 for Laplace noise, and eight rounds of two groups for noise correlated by a band, of
four groups by a buffer. In none of them is the clip bound or the expected cohort 1, so a factor
that the code forgets is visible. A release that keeps its claim there keeps it at any plan of its
kind, because multiplier, rate, bound, rounds, groups, band and buffers enter the code as numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pflpipe.auditing.verdict import result
from pflpipe.cells import MECHANISMS, Cell, Privacy
from pflpipe.errors import ConfigError, nearest
from pflpipe.facts.departures import DEPARTURES
from pflpipe.methods import registry
from pflpipe.methods.registry import NAMES
from pflpipe.privacy import accounting, correlated, mechanisms
from pflpipe.privacy.ledger import ledger
from pflpipe.privacy.plan import Plan
from pflpipe.seeds import derived_key

if TYPE_CHECKING:  # what a study depends on is known without torch
    from pflpipe.auditing.neighbours import Audited, Trust

DRAWN = Privacy("gaussian", noise_multiplier=2.248, delta=1e-5, clip_norm=2.5)
BIT_NOISE = 1.6  # of adaptive clipping: both parts of a release then have about equal weight
GROUPS, BAND = 2, 3  # a client takes part again while noise of its last round is taken back
OF_BUFFERS = 4  # groups with which a fitted buffer keeps a part of what it holds

Verdict = Literal["kept", "unsound", "refuted"]

OF_SAMPLING = frozenset({"noise_over_all_clients", "noise_per_participant", "public_sampling"})
"""Departures that weaken nothing if all clients take part."""


@dataclass(frozen=True)
class Case:
    """One distinct release in one trust model.

    Attributes:
        mechanism: ``gaussian`` or ``laplace``.
        drawn: whether cohorts are drawn.
        scaled_by: the method whose public scale and parts are used; empty without either.
        departures: sorted names.
        trust: what the attacker sees, see ``neighbours.Audited``.
        adaptive: whether the clip bound adapts.
        correlated: whether groups take part in turn under correlated noise.
        buffered: whether buffers correlate it, not a band.
    """

    mechanism: str
    drawn: bool
    scaled_by: str
    departures: tuple[str, ...]
    trust: Trust
    adaptive: bool = False
    correlated: bool = False
    buffered: bool = False

    @property
    def id(self) -> str:
        """Name of the file, made of the attributes that differ between cases."""
        parts = [
            self.mechanism,
            "drawn" * self.drawn,
            "adaptive" * self.adaptive,
            "correlated" * self.correlated,
            "buffered" * self.buffered,
            f"scaled_by_{self.scaled_by}" * bool(self.scaled_by),
        ]
        return "-".join([*filter(None, [*parts, "+".join(self.departures)]), self.trust])

    @property
    def clients(self) -> int:
        """M, small enough for whole runs to refute single messages. q M is 4 if all clients or half
        of them take part, and 2.4 if cohorts are drawn."""
        return 24 if self.drawn else 4 * self.groups

    @property
    def groups(self) -> int:
        """b; 1 without groups."""
        return OF_BUFFERS if self.buffered else GROUPS if self.correlated else 1

    @property
    def runs(self) -> int:
        """Evaluation runs with and without the canary each: more where one run is less
        informative."""
        secret = self.drawn and "public_sampling" not in self.departures
        if self.mechanism != "gaussian":
            return 10_000
        if self.departures:
            return 10_000 if secret else 2_000
        return 40_000 if secret else 4_000

    @property
    def claim(self) -> str:
        """``certified`` or, with departures, ``nominal``."""
        return "nominal" if self.departures else "certified"

    @property
    def privacy(self) -> Privacy:
        """The privacy request of the reference plan."""
        request = DRAWN if self.drawn else _everybody(self.mechanism)
        if self.buffered:
            return dataclasses.replace(request, buffers=1)
        if self.correlated:
            return dataclasses.replace(request, band=BAND)
        if not self.adaptive:
            return request
        return dataclasses.replace(request, clip_quantile=0.5, clip_bit_noise=BIT_NOISE)

    def plan(self, departures: Iterable[str]) -> Plan:
        """Return the plan of ``accounting.make_plan`` for the request with these departures."""
        from pflpipe.auditing.neighbours import sizes

        short = self.mechanism != "gaussian" or self.correlated
        rate, rounds = (0.1, 100) if self.drawn else (1.0, 8 if short else 30)
        return accounting.make_plan(
            self.privacy,
            rounds=rounds,
            sample_rate=rate,
            clients=self.clients,
            groups=self.groups,
            departures=departures,
            sizes=sizes(self.clients),
            local_epochs=3,
            batch_size=16,
            lr=0.1,
        )

    def audited(self) -> Audited:
        """Return the mechanism with its claim. Against single messages the claim is that of shared
        noise, the most generous reading."""
        from pflpipe.auditing.neighbours import Audited

        # With departures too the claim is the certified plan: that is what the paper proves.
        claimed = correlated.single(self.plan(()))
        if self.trust == "local":
            share = claimed.multiplier / claimed.expected_cohort**0.5
            claimed = dataclasses.replace(claimed, noise_multiplier=share, sample_rate=1.0)
        entry = registry.info(self.scaled_by or "dp_fedavg")
        return Audited(
            self.plan(self.departures),
            claimed,
            frozenset(self.departures),
            self.trust,
            entry.factory(),
            items=registry.ITEMS in entry.about.needs,
        )


def _everybody(mechanism: str) -> Privacy:
    delta = None if mechanisms.of(mechanism).pure else 0.02
    # Coarser rounding would look like a movement that follows the noise.
    bits = 32 if mechanism == "skellam" else Privacy.bits
    return Privacy(mechanism, epsilon=8.0, delta=delta, clip_norm=2.5, bits=bits)


CORRELATED = Case("gaussian", False, "", (), "central", correlated=True)
BUFFERED = dataclasses.replace(CORRELATED, buffered=True)


@dataclass(frozen=True)
class Subject:
    """A method in one of its versions and its case. With an empty ``method``: the release under
    adaptive clipping (``profile`` adaptive) or noise correlated by a band (correlated) or buffers
    (buffered), of a mechanism that no method has (its name), of a method from outside the package
    (outside), or with a single departure (alone)."""

    method: str
    profile: str
    case: Case


@functools.cache
def subjects() -> tuple[Subject, ...]:
    """Return every version of every private method in each trust model, then adaptive clipping,
    correlated noise, and every single departure."""
    result: list[Subject] = []
    for name in NAMES:
        about = registry.info(name).about
        if not about.private:
            continue
        versions = {
            "strict": registry.departures(name, "strict", False),
            "paper": registry.departures(name, "paper", False),
        }
        if about.official_departures:
            versions["official code"] = registry.departures(name, "paper", True)
        if versions["paper"] == versions["strict"]:
            del versions["paper"]
        for profile, departures in versions.items():
            result += [
                Subject(name, profile, case) for case in _cases(about.mechanism, name, departures)
            ]
    audited = {one.case.mechanism for one in result}
    for name in MECHANISMS:
        if name not in audited:
            result += [Subject("", name, case) for case in _cases(name, "", ())]
    result += [Subject("", "adaptive", case) for case in _cases("gaussian", "", (), adaptive=True)]
    result += [Subject("", "correlated", CORRELATED), Subject("", "buffered", BUFFERED)]
    for departure in sorted(DEPARTURES):
        case = Case("gaussian", departure in OF_SAMPLING, "", (departure,), "central")
        result.append(Subject("", "alone", case))
    return tuple(result)


def cases() -> dict[str, Case]:
    """Return the distinct cases of all subjects by their id."""
    return {subject.case.id: subject.case for subject in subjects()}


def of_methods(names: Collection[str], drawn: bool) -> list[Subject]:
    """Return every version of these methods, certified and published.

    Args:
        drawn: whether cohorts are drawn in any of their runs. If not, the certified release under a
            draw, the most expensive audit, is left out.
    """
    return [
        subject
        for subject in subjects()
        if subject.method in names and (drawn or subject.case.departures or not subject.case.drawn)
    ]


def find(name: str) -> Case:
    """Return the case with this id; raises ConfigError with the nearest one."""
    known = cases()
    if name not in known:
        raise ConfigError("audit", got=name, expected="a known one", do=nearest(name, known))
    return known[name]


def of_cell(cell: Cell) -> list[Case]:
    """Return the cases whose verdicts a certified run depends on; none for other runs."""
    if cell.privacy.mechanism == "none" or cell.departures:
        return []
    # Audits are identified by the method's name, so the public scale of a method from outside the
    # package has no audit. Its runs depend on the audits of the mechanism.
    needed = _cases(cell.privacy.mechanism, "" if cell.source else cell.method, ())
    if cell.privacy.clip_quantile is not None:
        needed += _cases(cell.privacy.mechanism, "", (), adaptive=True)
    if cell.fixed:
        needed.append(BUFFERED if cell.privacy.buffers else CORRELATED)
    return needed if cell.training.sample_rate < 1 else [case for case in needed if not case.drawn]


def of_release(cell: Cell) -> list[Case]:
    """Return the cases of the release that a cell makes, certified or not."""
    method = "" if cell.source else cell.method
    return of_cell(cell) or [
        one.case
        for one in subjects()
        if (one.method, one.case.mechanism, one.case.departures)
        == (method, cell.privacy.mechanism, tuple(sorted(cell.departures)))
    ]


def of_rows(cells: Iterable[Cell]) -> list[Subject]:
    """Return the releases of these cells, each version of a method once."""
    found: dict[Subject, None] = {}
    for cell in cells:
        for case in of_release(cell):
            known = [one for one in subjects() if one.case == case]
            own = [one for one in known if one.method == cell.method and not cell.source]
            shared = [one for one in known if not one.method]
            found[(own or shared or [Subject("", "outside", case)])[0]] = None
    return list(found)


def _cases(
    mechanism: str, method: str, departures: tuple[str, ...], *, adaptive: bool = False
) -> list[Case]:
    drawn = "public_sampling" in departures
    is_scaled = method and not departures and registry.info(method).about.public_scale
    scaled = method if is_scaled else ""
    result = [Case(mechanism, drawn, scaled, departures, "central", adaptive)]
    if mechanisms.of(mechanism).stable:  # shares of other noise have no law of their own
        result.append(Case(mechanism, drawn, scaled, departures, "local", adaptive))
        if not departures:  # the draw does not depend on the scale: one case for all methods
            result.append(Case(mechanism, True, "", (), "central", adaptive))
    return result


def audit_key(case: Case, seed: int) -> str:
    """Return the key of an audit's random numbers, which no run and no other audit shares."""
    return derived_key("audit", case.id, seed)


def verdict(case: Case, coupled: bool, runs: bool, claimed: float, true: float) -> Verdict:
    """Return the verdict of both levels on a claim.

    - ``refuted``: the claim is false. For a certified release any violation refutes it, because its
      only number is the claim's. With departures, a violation in single releases shows that the
      proof does not hold. It refutes the number too if the ledger's epsilon is above it or if whole
      runs prove more.
    - ``unsound``: the release violates what the proof needs, but its number holds, because it is
      generous elsewhere.
    - ``kept``: no violation.

    Args:
        coupled, runs: whether that level found a violation.
        claimed, true: epsilon as claimed and by the ledger, at the same delta.
    """
    if runs or (coupled and (not case.departures or true > claimed)):
        return "refuted"
    return "unsound" if coupled else "kept"


def audit(case: Case, seed: int = 0) -> dict[str, Any]:
    """Return the result of an audit of one case at both levels, ready for JSON: the claim, the
    ledger's numbers and the measurements."""
    from pflpipe.auditing.coupled import sensitivity
    from pflpipe.auditing.distinguish import distinguish
    from pflpipe.auditing.neighbours import sizes

    began = time.perf_counter()
    audited, key = case.audited(), audit_key(case, seed)
    worst = sensitivity(audited, derived_key(key, "coupled"))
    # Level 0 chooses the canary of level 1, so that whole runs test a canary that was not chosen on
    # them.
    evidence = distinguish(audited, worst.canary, case.runs, derived_key(key, "runs"))
    claimed, plan = audited.claimed, audited.plan
    at = accounting.delta_of(claimed)
    counts = sizes(case.clients, audited.canary)
    entry = ledger(plan, case.privacy, case.departures, counts, tuple(audited.shapes))
    epsilon_claimed = accounting.epsilon(claimed, at)
    epsilon_true = entry.epsilon_central if case.trust == "central" else entry.epsilon_local
    assert epsilon_true is not None  # every case has a mechanism, those of local trust a Gaussian
    return result(
        plan,
        claimed,
        case.trust,
        worst,
        evidence,
        audit=case.id,
        claim=case.claim,
        departures="+".join(case.departures) or None,
        adjacency="zero_out",
        epsilon_claimed=epsilon_claimed,
        epsilon_true=epsilon_true,
        verdict=verdict(case, worst.flagged, evidence.flagged, epsilon_claimed, epsilon_true),
        seconds=time.perf_counter() - began,
    )
