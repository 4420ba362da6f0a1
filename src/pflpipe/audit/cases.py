"""Which releases are audited: every distinct one of all methods, in each trust model, at a
reference plan of its kind.

Methods whose messages are clipped, noised and added up alike share an audit. The reference plans
are those at which an audit sees most: mu = 2.6 with everybody taking part (FedDPA's FEMNIST setting
at epsilon 8), DP-FedSim's setting for a secret draw (epsilon 2), and eight rounds of pure epsilon 1
for Laplace noise. Neither the clip bound nor the expected cohort is 1 in any of them, so that the
lack of a factor which the code forgets shows. A release that keeps its claim there keeps it at any
plan of its kind, since multiplier, rate, bound and rounds enter the code as numbers.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pflpipe.audit.worlds import Mechanism, Trust, sizes
from pflpipe.cells import Cell, Privacy
from pflpipe.errors import ConfigError, nearest
from pflpipe.methods import base, registry
from pflpipe.methods.registry import NAMES
from pflpipe.named import DEPARTURES
from pflpipe.privacy import accounting
from pflpipe.privacy.ledger import ledger
from pflpipe.privacy.plan import Plan
from pflpipe.seeds import derived_key

EVERYBODY = Privacy("gaussian", epsilon=8.0, delta=0.02, clip_norm=2.5)
DRAWN = Privacy("gaussian", noise_multiplier=2.248, delta=1e-5, clip_norm=2.5)
BIT_NOISE = 1.6  # of adaptive clipping: both parts of a release then count about alike
LAPLACE = Privacy("laplace", epsilon=8.0, clip_norm=2.5)

Verdict = Literal["kept", "unsound", "refuted"]

OF_SAMPLING = frozenset({"noise_per_participant", "public_sampling"})
"""Departures that weaken nothing when everybody takes part anyway."""


@dataclass(frozen=True)
class Case:
    """One distinct release in one trust model.

    Attributes:
        mechanism: ``gaussian`` or ``laplace``.
        drawn: whether clients take part by a draw.
        scaled_by: the method whose public scale and parts are used; empty without either.
        departures: sorted names.
        trust: what the attacker sees.
        adaptive: whether the clip bound adapts.
    """

    mechanism: str
    drawn: bool
    scaled_by: str
    departures: tuple[str, ...]
    trust: Trust
    adaptive: bool = False

    @property
    def id(self) -> str:
        """Name of the file: the words that tell this case from the others."""
        words = [
            self.mechanism,
            "drawn" * self.drawn,
            "adaptive" * self.adaptive,
            f"scaled_by_{self.scaled_by}" * bool(self.scaled_by),
        ]
        return "-".join([*filter(None, [*words, "+".join(self.departures)]), self.trust])

    @property
    def clients(self) -> int:
        """M, few enough for whole runs to refute single messages; q M is 4 where everybody takes
        part and 2.4 under a draw."""
        return 24 if self.drawn else 4

    @property
    def runs(self) -> int:
        """Evaluation runs in each world: more where one run says less."""
        secret = self.drawn and "public_sampling" not in self.departures
        if self.mechanism == "laplace":
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
        """What is asked for."""
        asked = LAPLACE if self.mechanism == "laplace" else DRAWN if self.drawn else EVERYBODY
        if not self.adaptive:
            return asked
        return dataclasses.replace(asked, clip_quantile=0.5, clip_bit_noise=BIT_NOISE)

    def plan(self, departures: Iterable[str]) -> Plan:
        """Return the plan that such a request gets from ``accounting.make_plan`` with these
        departures."""
        rate, rounds = (0.1, 100) if self.drawn else (1.0, 8 if self.mechanism == "laplace" else 30)
        return accounting.make_plan(
            self.privacy,
            rounds=rounds,
            sample_rate=rate,
            clients=self.clients,
            departures=departures,
            sizes=sizes(self.clients),
            local_epochs=3,
            batch_size=16,
            lr=0.1,
        )

    def mechanism_under_audit(self) -> Mechanism:
        """Return the mechanism, and the claim in its most generous reading: against single
        messages, that of shared noise."""
        claimed = self.plan(())
        if self.trust == "local":
            assert claimed.noise_multiplier is not None
            share = claimed.noise_multiplier / claimed.expected_cohort**0.5
            claimed = dataclasses.replace(claimed, noise_multiplier=share, sample_rate=1.0)
        method = registry.info(self.scaled_by or "dp_fedavg").factory()
        return Mechanism(
            self.plan(self.departures), claimed, frozenset(self.departures), self.trust, method
        )


@dataclass(frozen=True)
class Subject:
    """Who is audited: a method in one of its versions; or, with an empty ``method``, the release
    under adaptive clipping (``profile`` adaptive) or one departure by itself (alone)."""

    method: str
    profile: str
    case: Case


def subjects() -> list[Subject]:
    """Return every version of every private method in each trust model, then adaptive clipping,
    then every departure by itself."""
    found = []
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
            found += [
                Subject(name, profile, case) for case in _cases(about.mechanism, name, departures)
            ]
    found += [Subject("", "adaptive", case) for case in _cases("gaussian", "", (), adaptive=True)]
    for departure in sorted(DEPARTURES):
        found.append(
            Subject(
                "", "alone", Case("gaussian", departure in OF_SAMPLING, "", (departure,), "central")
            )
        )
    return found


def cases() -> dict[str, Case]:
    """Return the distinct cases of all subjects by their id."""
    return {subject.case.id: subject.case for subject in subjects()}


def of_methods(names: Collection[str], drawn: bool) -> list[Subject]:
    """Return every version of these methods, certified and published.

    Args:
        drawn: whether clients take part by a draw in any of their runs; if not, the certified
            release under a draw, the dearest audit of all, says nothing about them.
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
    """Return the cases that a certified run stands on; none for other runs."""
    if cell.privacy.mechanism == "none" or cell.departures:
        return []
    # An audit is found by its name alone, so a scale from outside the package has none of its own:
    # such a run stands on the audits of the mechanism.
    found = _cases(cell.privacy.mechanism, "" if cell.source else cell.method, ())
    if cell.privacy.clip_quantile is not None:
        found += _cases(cell.privacy.mechanism, "", (), adaptive=True)
    return found if cell.training.sample_rate < 1 else [case for case in found if not case.drawn]


def _cases(
    mechanism: str, method: str, departures: tuple[str, ...], *, adaptive: bool = False
) -> list[Case]:
    drawn = "public_sampling" in departures
    scaled = "" if departures or not method or _plain_upload(method) else method
    found = [Case(mechanism, drawn, scaled, departures, "central", adaptive)]
    if mechanism == "gaussian":  # Laplace noise cannot be shared out over the messages
        found.append(Case(mechanism, drawn, scaled, departures, "local", adaptive))
        if not departures:  # how clients are drawn has nothing to do with the scale
            found.append(Case(mechanism, True, "", (), "central", adaptive))
    return found


def _plain_upload(method: str) -> bool:
    """Whether a method's uploads are parameters that are clipped and noised as they are."""
    hooks = registry.info(method).factory()
    return hooks.scale is base.unscaled and hooks.parts is base.only_parameters


def audit_key(case: Case, seed: int) -> str:
    """Return the key of everything that an audit draws: no run and no other audit has it."""
    return derived_key("audit", case.id, seed)


def verdict(case: Case, coupled: bool, runs: bool, claimed: float, true: float) -> Verdict:
    """Return what the two levels say about a claim.

    ``refuted``: the claim is false. For a certified release, which has no number but the claim's,
    any violation refutes it. With departures a violation in single releases shows that the proof
    does not hold, and refutes the number as well where the ledger's own is above it or whole runs
    prove more; else, the release is ``unsound``: it violates what the proof needs, and its number
    holds all the same, because it is generous elsewhere. ``kept``: no violation.

    Args:
        coupled, runs: whether that level found a violation.
        claimed, true: epsilon as claimed and by the ledger, at the same delta.
    """
    if runs or (coupled and (not case.departures or true > claimed)):
        return "refuted"
    return "unsound" if coupled else "kept"


def audit(case: Case, seed: int = 0) -> dict[str, Any]:
    """Audit one case at both levels and return what was claimed, what the ledger says and what was
    found, ready for JSON."""
    from pflpipe.audit.coupled import sensitivity
    from pflpipe.audit.distinguish import detects, distinguish

    began = time.perf_counter()
    mechanism, key = case.mechanism_under_audit(), audit_key(case, seed)
    worst = sensitivity(mechanism, derived_key(key, "coupled"))
    evidence = distinguish(mechanism, worst.canary, case.runs, derived_key(key, "runs"))
    claimed, executed = mechanism.claimed, mechanism.executed
    at = accounting.delta_of(claimed)
    gaussian = claimed.mechanism == "gaussian"
    counts = sizes(case.clients, mechanism.canary)
    entry = ledger(executed, case.privacy, case.departures, counts, tuple(mechanism.shapes))
    epsilon_claimed = accounting.epsilon(claimed, at)
    epsilon_true = entry.epsilon_central if case.trust == "central" else entry.epsilon_local
    assert epsilon_true is not None  # every case has a mechanism, those of local trust a Gaussian
    found = verdict(case, worst.flagged, evidence.flagged, epsilon_claimed, epsilon_true)
    return _plain(
        {
            "audit": case.id,
            "trust": case.trust,
            "claim": case.claim,
            "departures": "+".join(case.departures) or None,
            "adjacency": "zero_out",
            "mechanism": case.mechanism,
            "sample_rate": executed.sample_rate,
            "rounds": executed.rounds,
            "delta": at,
            "noise_multiplier": executed.noise_multiplier,
            "epsilon_claimed": epsilon_claimed,
            "epsilon_claimed_rdp": accounting.epsilon_rdp(claimed, at) if gaussian and at else None,
            "epsilon_claimed_1e5": accounting.epsilon(claimed, 1e-5),
            "epsilon_true": epsilon_true,
            "mu_claimed": (claimed.rounds**0.5 / claimed.noise_multiplier)
            if gaussian and claimed.sample_rate == 1 and claimed.noise_multiplier
            else None,
            "canary": worst.canary,
            "sensitivity": worst.length,
            "sensitivity_most": worst.length_most,
            "spread": worst.spread,
            "noise": worst.noise,
            "noise_least": worst.noise_least,
            **{field.name: getattr(evidence, field.name) for field in dataclasses.fields(evidence)},
            "detects": worst.detects,
            "detects_runs": detects(claimed, case.runs),
            "flagged_coupled": worst.flagged,
            "flagged_runs": evidence.flagged,
            "flagged": found == "refuted",
            "verdict": found,
            "seconds": time.perf_counter() - began,
        }
    )


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: "inf" if value == float("inf") else value for name, value in values.items()}
