"""Audit the claim of one release: results/audits/<id>.json."""

from pathlib import Path

from pflpipe.auditing import cases
from pflpipe.files import write_json
from pflpipe.program import run_step


def main(audit: str, out: Path, seed: int = 0) -> None:
    write_json(out, cases.audit(cases.find(audit), seed))


run_step(main)
