"""Made-up results of audits, for tests of what is made of them."""

import functools
from collections.abc import Collection
from pathlib import Path

from pflpipe.auditing import cases
from pflpipe.files import read_json, write_json
from pflpipe.privacy import accounting
from pflpipe.report import audit_table

RESULT = {"audit": "gaussian-central", "claim": "certified", "flagged": False, "verdict": "kept"}
RESULT |= {"sensitivity": 1.0, "sensitivity_most": 1.03, "spread": 0.0, "excess": -0.1}
RESULT |= {"noise": 1.0, "noise_least": 0.99, "epsilon_claimed": 8.0}
RESULT |= {"epsilon_lower": 7.1, "epsilon_true": 8.0, "detects": 0.99, "detects_runs": 0.9}


def write(folder: Path, leave_out: Collection[str] = ()) -> None:
    """Write a result of every case but those left out: certified ones keep their claim, all others
    are refuted centrally and unsound locally."""
    for name, case in cases.cases().items():
        if name in leave_out:
            continue
        broken = bool(case.departures)
        word = "kept" if not broken else "refuted" if case.trust == "central" else "unsound"
        found = dict.fromkeys(set(audit_table.COLUMNS) - {"method", "profile"}) | RESULT
        found |= {
            "audit": name,
            "claim": case.claim,
            "trust": case.trust,
            "mechanism": case.mechanism,
            "delta": 0.02,
            "departures": "+".join(case.departures) or None,
            "sample_rate": 0.1 if case.drawn else 1.0,
            "epsilon_true": "inf" if broken else 8.0,
            "epsilon_lower": 7.1,
            "epsilon_direct": 2.0,
            "flagged": word == "refuted",
            "verdict": word,
            "flagged_coupled": broken,
            "flagged_runs": False,
        }
        found |= {"noise": None, "noise_least": None} if broken else {}
        write_json(folder / f"{name}.json", found)


def claim_truly(folder: Path) -> None:
    """Give all results in a folder the epsilons that their plans claim, as a certificate wants."""
    for name, claimed in _claims().items():
        result = read_json(folder / f"{name}.json")
        true = claimed if result["claim"] == "certified" else "inf"
        numbers = {"epsilon_claimed": claimed, "epsilon_lower": 0.9 * claimed, "epsilon_true": true}
        write_json(folder / f"{name}.json", result | numbers)


@functools.cache
def _claims() -> dict[str, float]:
    """Id -> the epsilon that the audited plan claims, as an audit computes it."""
    claimed = {name: case.audited().claimed for name, case in cases.cases().items()}
    return {
        name: accounting.epsilon(plan, accounting.delta_of(plan)) for name, plan in claimed.items()
    }
