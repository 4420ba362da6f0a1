"""The row of an audit, and the check that stops a table whose claims an audit refutes."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pflpipe.errors import PrivacyError
from pflpipe.privacy import accounting
from pflpipe.privacy.plan import Plan

if TYPE_CHECKING:
    from pflpipe.auditing.evidence import Evidence, Sensitivity


def require_kept(results: Iterable[Mapping[str, Any]]) -> None:
    """Raise PrivacyError if a certified claim is not kept, or if an audit's lower bound on epsilon
    exceeds the ledger's epsilon.

    No number that depends on such a release may be printed.
    """
    for result in results:
        what, do = f"audit {result['audit']}", "do not publish epsilons of this version"
        if result["epsilon_lower"] > float(result["epsilon_true"]):
            got = f"an epsilon of at least {result['epsilon_lower']}"
            expected = f"at most {result['epsilon_true']}, as src/pflpipe/privacy/ledger.py says"
            raise PrivacyError(f"{what}: the ledger is refuted", got=got, expected=expected, do=do)
        if result["claim"] == "certified" and result["verdict"] != "kept":
            measured = ("sensitivity", "spread", "noise", "excess")
            raise PrivacyError(
                f"{what}: a certified claim is {result['verdict']}",
                got=", ".join(f"{name} {result[name]}" for name in measured),
                expected=f"at most {result['sensitivity_most']} and 1e-4, at least "
                f"{result['noise_least']}, at most 0, at epsilon {result['epsilon_claimed']}",
                do=f"{do}; src/pflpipe/privacy/mechanism.py or its plan is broken",
            )


def result(
    plan: Plan,
    claimed: Plan,
    trust: str,
    worst: Sensitivity,
    evidence: Evidence,
    error: float = 0.01,
    **more: Any,
) -> dict[str, Any]:
    """Return the result of an audit at both levels, ready for JSON: the columns of its table, of
    which ``more`` has those that do not follow from the measurements.

    Args:
        plan, claimed, trust: what is audited.
        worst, evidence: the measurements.
        error: of the bounds of the evidence.
        more: further columns.
    """
    from pflpipe.auditing.evidence import detects

    at = accounting.delta_of(claimed)
    measured = {
        "trust": trust,
        "mechanism": claimed.mechanism,
        "sample_rate": plan.sample_rate,
        "rounds": plan.rounds,
        "delta": at,
        "noise_multiplier": plan.noise_multiplier,
        "epsilon_claimed_rdp": accounting.epsilon_rdp(claimed, at)
        if claimed.law.stable and at and importlib.util.find_spec("opacus")
        else None,
        "epsilon_claimed_1e5": accounting.epsilon(claimed, 1e-5),
        "mu_claimed": accounting.mu(claimed),
        "canary": worst.canary,
        "sensitivity": worst.length,
        "sensitivity_most": worst.length_most,
        "spread": worst.spread,
        "noise": worst.noise,
        "noise_least": worst.noise_least,
        **{field.name: getattr(evidence, field.name) for field in dataclasses.fields(evidence)},
        "detects": worst.detects,
        "detects_runs": detects(claimed, evidence.runs, error),
        "flagged_coupled": worst.flagged,
        "flagged_runs": evidence.flagged,
        "flagged": more["verdict"] == "refuted",
    }
    return _plain(more | measured)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: "inf" if value == float("inf") else value for name, value in values.items()}
