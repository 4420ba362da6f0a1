"""Which releases are audited: every distinct one of all methods, in each trust model, at a reference plan of its kind.

Methods whose messages are clipped, noised and added up alike share an audit. The reference plans are those at which an audit
sees most: mu = 2.6 with everybody taking part (FedDPA's FEMNIST setting at epsilon 8), DP-FedSim's setting for a secret draw
(epsilon 2), and eight rounds of pure epsilon 1 for Laplace noise. A release that keeps its claim there keeps it at any plan of
its kind, since multiplier, rate and rounds enter the code as numbers.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pflpipe import accounting, methods
from pflpipe.audit.worlds import Mechanism, Trust, sizes
from pflpipe.cells import Cell, Privacy
from pflpipe.departures import DEPARTURES
from pflpipe.errors import ConfigError, nearest
from pflpipe.ledger import ledger
from pflpipe.privacy import Plan

EVERYBODY = Privacy("gaussian", epsilon=8.0, delta=0.02, clip_norm=1.0)
DRAWN = Privacy("gaussian", noise_multiplier=2.248, delta=1e-5, clip_norm=1.0)
LAPLACE = Privacy("laplace", epsilon=8.0, clip_norm=1.0)
CLIENTS = 10

OF_SAMPLING = frozenset({"noise_per_participant", "public_sampling"})
"""Departures that weaken nothing when everybody takes part anyway."""


@dataclass(frozen=True)
class Case:
    """One distinct release in one trust model.

    Attributes:
        mechanism: ``gaussian`` or ``laplace``.
        drawn: whether clients take part by a draw.
        scaled_by: the method whose public scale is used; empty without one.
        departures: sorted names.
        trust: what the attacker sees.
    """

    mechanism: str
    drawn: bool
    scaled_by: str
    departures: tuple[str, ...]
    trust: Trust

    @property
    def id(self) -> str:
        """Name of the file: the words that tell this case from the others."""
        words = [self.mechanism, "drawn" * self.drawn, f"scaled_by_{self.scaled_by}" * bool(self.scaled_by)]
        return "-".join([*filter(None, [*words, "+".join(self.departures)]), self.trust])

    @property
    def runs(self) -> int:
        """Evaluation runs in each world: more where one run says less."""
        secret = self.drawn and "public_sampling" not in self.departures
        return 10_000 if secret or self.mechanism == "laplace" else 2_000

    @property
    def claim(self) -> str:
        """``certified`` or, with departures, ``nominal``."""
        return "nominal" if self.departures else "certified"

    @property
    def privacy(self) -> Privacy:
        """What is asked for."""
        return LAPLACE if self.mechanism == "laplace" else DRAWN if self.drawn else EVERYBODY

    def plan(self, departures: Iterable[str]) -> Plan:
        """Return the plan that such a request gets from ``accounting.make_plan`` with these departures."""
        rate, rounds = (0.1, 100) if self.drawn else (1.0, 8 if self.mechanism == "laplace" else 30)
        return accounting.make_plan(
            self.privacy,
            rounds=rounds,
            sample_rate=rate,
            clients=CLIENTS,
            departures=departures,
            sizes=sizes(CLIENTS),
            local_epochs=3,
            batch_size=16,
        )

    def mechanism_under_audit(self) -> Mechanism:
        """Return the mechanism, and the claim in its most generous reading: against single messages, that of shared noise."""
        claimed = self.plan(())
        if self.trust == "local":
            assert claimed.noise_multiplier is not None
            share = claimed.noise_multiplier / claimed.expected_cohort**0.5
            claimed = dataclasses.replace(claimed, noise_multiplier=share, sample_rate=1.0)
        method = methods.info(self.scaled_by or "dp_fedavg").factory()
        return Mechanism(self.plan(self.departures), claimed, frozenset(self.departures), self.trust, method)


@dataclass(frozen=True)
class Subject:
    """Who is audited: a method in one of its versions, or one departure by itself (``method`` is then empty)."""

    method: str
    profile: str
    case: Case


def subjects() -> list[Subject]:
    """Return every version of every private method in each trust model, then every departure by itself."""
    found = []
    for name in methods.NAMES:
        about = methods.info(name).about
        if not about.private:
            continue
        mechanism = "laplace" if name == "appfl" else "gaussian"
        versions = {"strict": methods.departures(name, "strict", False), "paper": methods.departures(name, "paper", False)}
        if about.official_departures:
            versions["official code"] = methods.departures(name, "paper", True)
        if versions["paper"] == versions["strict"]:
            del versions["paper"]
        for profile, departures in versions.items():
            found += [Subject(name, profile, case) for case in _cases(mechanism, name, departures)]
    for departure in sorted(DEPARTURES):
        found.append(Subject("", "alone", Case("gaussian", departure in OF_SAMPLING, "", (departure,), "central")))
    return found


def cases() -> dict[str, Case]:
    """Return the distinct cases of all subjects by their id."""
    return {subject.case.id: subject.case for subject in subjects()}


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
    found = _cases(cell.privacy.mechanism, cell.method, ())
    return found if cell.training.sample_rate < 1 else [case for case in found if not case.drawn]


def _cases(mechanism: str, method: str, departures: tuple[str, ...]) -> list[Case]:
    drawn = "public_sampling" in departures
    scaled = "" if departures or methods.info(method).factory().scale is methods.unscaled else method
    found = [Case(mechanism, drawn, scaled, departures, "central")]
    if mechanism == "gaussian":  # Laplace noise cannot be shared out over the messages
        found.append(Case(mechanism, drawn, scaled, departures, "local"))
        if not departures:  # how clients are drawn has nothing to do with the scale
            found.append(Case(mechanism, True, "", (), "central"))
    return found


def audit(case: Case, seed: int = 0) -> dict[str, Any]:
    """Audit one case at both levels and return what was claimed, what the ledger says and what was found, ready for JSON."""
    from pflpipe.audit.coupled import sensitivity
    from pflpipe.audit.distinguish import distinguish

    began = time.perf_counter()
    mechanism = case.mechanism_under_audit()
    worst = sensitivity(mechanism, seed)
    evidence = distinguish(mechanism, worst.canary, case.runs, seed)
    claimed, executed = mechanism.claimed, mechanism.executed
    at = accounting.delta_of(claimed)
    gaussian = claimed.mechanism == "gaussian"
    counts = sizes(CLIENTS, mechanism.canary)
    entry = ledger(executed, case.privacy, case.departures, counts, tuple(mechanism.network.shapes))
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
            "epsilon_claimed": accounting.epsilon(claimed, at),
            "epsilon_claimed_rdp": accounting.epsilon_rdp(claimed, at) if gaussian and at else None,
            "epsilon_claimed_1e5": accounting.epsilon(claimed, 1e-5),
            "epsilon_true": entry["epsilon_central" if case.trust == "central" else "epsilon_local"],
            "mu_claimed": (claimed.rounds**0.5 / claimed.noise_multiplier)
            if gaussian and claimed.sample_rate == 1 and claimed.noise_multiplier
            else None,
            "canary": worst.canary,
            "sensitivity": worst.length,
            "spread": worst.spread,
            **{field.name: getattr(evidence, field.name) for field in dataclasses.fields(evidence)},
            "flagged_coupled": worst.flagged,
            "flagged_runs": evidence.flagged,
            "flagged": worst.flagged or evidence.flagged,
            "seconds": time.perf_counter() - began,
        }
    )


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: "inf" if value == float("inf") else value for name, value in values.items()}
