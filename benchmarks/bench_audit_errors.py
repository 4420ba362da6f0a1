"""False alarms of the audit: how often a correct mechanism is flagged under fresh seeds, and how tight its lower bound is.

    python benchmarks/bench_audit_errors.py [--coupled 200] [--runs 200] [--processes 2]

Level 0 (20,000 draws for the noise's size) and level 1 (2,000 runs a world) audit the certified Gaussian release at the
reference plan once per seed. Prints the counts as JSON; exits with 1 when there is any false alarm at level 0 or more than 1 %
at level 1.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pflpipe.audit import cases
from pflpipe.audit.coupled import sensitivity
from pflpipe.audit.distinguish import distinguish

CASE = "gaussian-central"


def coupled(seed: int) -> tuple[bool, float]:
    """Return whether level 0 flags the certified release under this seed, and the length it finds."""
    worst = sensitivity(cases.find(CASE).mechanism_under_audit(), seed)
    return worst.flagged, worst.length


def whole_runs(seed: int) -> tuple[bool, float]:
    """Return whether level 1 flags the certified release under this seed, and its lower bound as a fraction of mu."""
    mechanism = cases.find(CASE).mechanism_under_audit()
    evidence = distinguish(mechanism, "dirac", 2_000, seed)
    assert evidence.mu_lower is not None
    assert mechanism.claimed.noise_multiplier is not None
    return evidence.flagged, evidence.mu_lower * mechanism.claimed.noise_multiplier / mechanism.claimed.rounds**0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coupled", type=int, default=200, help="seeds of level 0")
    parser.add_argument("--runs", type=int, default=200, help="seeds of level 1")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    args = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        level0 = pool.map(coupled, range(1, 1 + args.coupled), chunksize=1)
        level1 = pool.map(whole_runs, range(1, 1 + args.runs), chunksize=1)
    alarms = sum(flag for flag, _ in level0), sum(flag for flag, _ in level1)
    bounds = sorted(found for _, found in level1)
    tightness = {"least": bounds[0], "median": statistics.median(bounds), "most": bounds[-1]}
    report = {
        "level 0": {"seeds": len(level0), "flagged": alarms[0], "longest": max(length for _, length in level0)},
        "level 1": {"seeds": len(level1), "flagged": alarms[1], "mu_lower / mu": tightness},
    }
    text = json.dumps(report, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")
    sys.exit(alarms[0] > 0 or alarms[1] > 0.01 * len(level1))


if __name__ == "__main__":
    main()
