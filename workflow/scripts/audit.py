"""Audit one release: is what it claims true? Writes results/audits/<id>.json (rule audit)."""

from __future__ import annotations

import argparse
from pathlib import Path

from pflpipe.audit import cases
from pflpipe.files import write_json
from pflpipe.program import run_script


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audit", required=True, help="name of a case, such as gaussian-central")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    write_json(args.out, cases.audit(cases.find(args.audit), args.seed))


run_script(main)
