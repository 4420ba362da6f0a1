"""What the auditor of arrays finds: the cheats of tests/audit/cheats.py, and how often it refutes
the honest releases of tests/audit/honest.py.

    python tools/benchmarks/bench_auditor.py cheats [SECONDS [NAME ...]]
    python tools/benchmarks/bench_auditor.py honest [SECONDS [SEEDS [NAME ...]]]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "audit"))

from cheats import CHEATS
from honest import HONEST

import pflpipe


def cheats(seconds: str = "60", *names: str) -> None:
    """Print what is found of each cheat, and how many are refuted."""
    refuted = tried = 0
    for kind, releases in CHEATS.items():
        for name, (release, claim) in releases.items():
            if names and name not in names:
                continue
            began = time.process_time()
            found = pflpipe.audit(release, pflpipe.Claim(**claim), seconds=float(seconds))
            spent = time.process_time() - began
            tried, refuted = tried + 1, refuted + (found.verdict == "refuted")
            print(f"{found.verdict:8} {spent:5.1f} s  {kind}: {name}: {found.sentence}", flush=True)
            print(f"{'':18}{found.situation}", flush=True)
    print(f"{refuted} of {tried} refuted")


def honest(seconds: str = "20", seeds: str = "10", *names: str) -> None:
    """Print every verdict that is not ``kept``, and how many there are."""
    wrong = tried = 0
    for name, (release, claim) in HONEST.items():
        if names and name not in names:
            continue
        began = time.process_time()
        for seed in range(int(seeds)):
            audited = pflpipe.Claim(**claim)
            found = pflpipe.audit(release, audited, seconds=float(seconds), seed=seed)
            tried += 1
            if found.verdict != "kept":
                wrong += 1
                print(f"{name}, seed {seed}: {found.verdict}: {found.sentence}", flush=True)
                print(f"{'':18}{found.situation}", flush=True)
        print(f"{name}: {(time.process_time() - began) / int(seeds):.1f} s each", flush=True)
    print(f"{wrong} of {tried} not kept")


if __name__ == "__main__":
    {"cheats": cheats, "honest": honest}[sys.argv[1]](*sys.argv[2:])
