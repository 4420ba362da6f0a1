"""Made-up results of audits, for tests of what is made of them."""

import functools
from collections.abc import Collection
from pathlib import Path

import tabled
from pflpipe.auditing import cases
from pflpipe.files import read_json, write_json
from pflpipe.privacy import accounting
from pflpipe.report import audit_table

RESULT = tabled.table("fake_audits")


def write(folder: Path, leave_out: Collection[str] = ()) -> None:
    """Write a result of every case but those left out: certified ones keep their claim, all others
    are refuted centrally and unsound locally."""
    for name, case in cases.cases().items():
        if name in leave_out:
            continue
        broken = bool(case.departures)
        word = "kept" if not broken else "refuted" if case.trust == "central" else "unsound"
        found = dict.fromkeys(set(audit_table.COLUMNS) - {"method", "profile"}) | RESULT
        found |= {"audit": name, "departures": "+".join(case.departures) or None}
        found |= {field: getattr(case, field) for field in ("claim", "trust", "mechanism")}
        found |= {"sample_rate": 0.1 if case.drawn else 1.0, "flagged_coupled": broken}
        found |= {"flagged": word == "refuted", "verdict": word}
        if broken:
            found |= {"noise": None, "noise_least": None, "epsilon_true": "inf"}
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
