"""Errors of the audit: how often a certified release is flagged under fresh seeds, and how often
too little noise is.

    python tools/benchmarks/bench_audit_errors.py [--seeds 20] [--power-seeds 20] [--processes 2]

Audits every certified release at both levels once per seed, and the three mechanisms with their
noise multiplied by the largest factor that an audit says it detects: at level 0 by ``detects``, in
whole runs by ``detects_runs``, each of which should be flagged nine times of ten. Prints counts,
and the CPU seconds of one audit, as JSON. Exits with 1 when a certified release is flagged, or when
what is said to be detected is so rarely flagged as chance makes it once in a thousand times.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from scipy.stats import binom

from pflpipe.auditing import cases
from pflpipe.auditing.coupled import sensitivity
from pflpipe.auditing.distinguish import distinguish
from pflpipe.auditing.evidence import detects

POWER = ("gaussian-central", "gaussian-local", "gaussian-drawn-central", "laplace-central")


def alarm(job: tuple[str, int]) -> dict[str, Any]:
    """Return the audit of a certified release under a seed."""
    name, seed = job
    began = time.process_time()
    return cases.audit(cases.find(name), seed) | {"cpu": time.process_time() - began}


def power(job: tuple[str, int]) -> tuple[str, bool, bool]:
    """Return whether each level flags a release with as little noise as it says that it detects,
    under a seed."""
    name, seed = job
    case = cases.find(name)
    sound, key = case.audited(), f"power of {cases.audit_key(case, seed)}"

    def with_less(factor: float) -> Any:
        multiplier = sound.plan.noise_multiplier
        assert multiplier is not None
        less = dataclasses.replace(sound.plan, noise_multiplier=multiplier * factor)
        return dataclasses.replace(sound, plan=less)

    single = sensitivity(with_less(sensitivity(sound, "any").detects), key)
    whole = distinguish(with_less(detects(sound.claimed, case.runs)), "dirac", case.runs, key)
    return name, single.flagged, whole.flagged


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="audits of each certified release")
    parser.add_argument(
        "--power-seeds", type=int, default=20, help="audits of each mechanism with too little noise"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    args = parser.parse_args()
    certified = [name for name, case in cases.cases().items() if not case.departures]
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        found = pool.map(
            alarm,
            [(name, 1 + seed) for seed in range(args.seeds) for name in certified],
            chunksize=1,
        )
        seen = pool.map(
            power,
            [(name, 1 + seed) for seed in range(args.power_seeds) for name in POWER],
            chunksize=1,
        )
    report: dict[str, Any] = {"certified": {}, "too little noise": {}}
    for name in certified:
        audits = [one for one in found if one["audit"] == name]
        bounds = sorted(one["epsilon_lower"] / one["epsilon_claimed"] for one in audits)
        report["certified"][name] = {
            "audits": len(audits),
            "not kept": sum(one["verdict"] != "kept" for one in audits),
            "longest": max(one["sensitivity"] for one in audits),
            "most that is allowed": audits[0]["sensitivity_most"],
            "least noise": min(one["noise"] for one in audits),
            "least that is allowed": audits[0]["noise_least"],
            "epsilon_lower / epsilon": {
                "least": bounds[0],
                "median": statistics.median(bounds),
                "most": bounds[-1],
            },
            "largest excess": max(one["excess"] for one in audits),
            "detects": audits[0]["detects"],
            "detects_runs": audits[0]["detects_runs"],
            "CPU seconds": statistics.median(one["cpu"] for one in audits),
        }
    for name in POWER:
        single, whole = zip(
            *((one, runs) for other, one, runs in seen if other == name), strict=True
        )
        flagged = {"flagged by level 0": sum(single), "flagged by runs": sum(whole)}
        report["too little noise"][name] = {"audits": len(single), **flagged}
    text = json.dumps(report, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")
    fewest = binom.ppf(1e-3, args.power_seeds, 0.9)
    rarely = any(min(one.values()) < fewest for one in report["too little noise"].values())
    sys.exit(rarely or any(one["not kept"] for one in report["certified"].values()))


if __name__ == "__main__":
    main()
