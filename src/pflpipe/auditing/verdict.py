"""The check that stops a table whose claims an audit refutes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pflpipe.errors import PrivacyError


def require_kept(results: Iterable[Mapping[str, Any]]) -> None:
    """Raise PrivacyError if a certified claim is not kept, or if an audit's lower bound on epsilon
    exceeds the ledger's epsilon.

    No number that depends on such a release may be printed.
    """
    for result in results:
        if result["epsilon_lower"] > float(result["epsilon_true"]):
            raise PrivacyError(
                f"audit {result['audit']}: the ledger is refuted",
                got=f"an epsilon of at least {result['epsilon_lower']}",
                expected=f"at most {result['epsilon_true']}, as src/pflpipe/privacy/ledger.py says",
                do="do not publish epsilons of this version",
            )
        if result["claim"] == "certified" and result["verdict"] != "kept":
            measured = ("sensitivity", "spread", "noise", "excess")
            raise PrivacyError(
                f"audit {result['audit']}: a certified claim is {result['verdict']}",
                got=", ".join(f"{name} {result[name]}" for name in measured),
                expected=(
                    f"at most {result['sensitivity_most']} and 1e-4, at least "
                    f"{result['noise_least']}, at most 0, at epsilon {result['epsilon_claimed']}"
                ),
                do=(
                    "do not publish epsilons of this version; src/pflpipe/privacy/mechanism.py or "
                    "its plan is broken"
                ),
            )
