"""Faults planted in a copy of the package, one at a time: do the tests notice?

    python tests/mutants.py [NAME ...] [--fast] [--list]

Every mutant of mutants.yaml is one small change that somebody might make by mistake, with the test
files that should notice it. A mutant that survives is a promise without a test. Faults of the
mechanism and of training that need more than a changed line are planted by
tests/audit/test_planted_faults.py and tests/audit/test_training_faults.py. ``--fast``: only the
tests of ``make test-fast`` may notice it.
The idea is mutation testing (DeMillo, Lipton and Sayward, "Hints on test data selection", 1978).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parent.parent
# Otherwise whatever is in a mutant's files may notice it, tests of other rooms among them.
FAST = "not docs and not faults and not cluster and not pipeline and not slow"


class Mutant(NamedTuple):
    """``before`` occurs once in ``src/pflpipe/<file>`` and becomes ``after``."""

    file: str
    before: str
    after: str
    tests: str


_GIVEN = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
MUTANTS = {name: Mutant(**given) for name, given in _GIVEN.items()}


def survives(mutant: Mutant, *, fast: bool) -> bool:
    """Whether the mutant's tests pass on a copy of the package with the fault in it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(shutil.copytree(ROOT / "src", Path(folder) / "src"))
        file = source / "pflpipe" / mutant.file
        text = file.read_text(encoding="utf-8")
        if text.count(mutant.before) != 1:
            sys.exit(f"{mutant.file}: found {text.count(mutant.before)} times: {mutant.before}")
        file.write_text(text.replace(mutant.before, mutant.after), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        command += ["-m", FAST] if fast else []
        command += [f"tests/{name}" for name in mutant.tests.split()]
        paths = os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, 1):  # no test ran to its end
            sys.exit(f"pytest ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.returncode == 0


def main() -> None:
    """Plant the named mutants, or all, and say which survive; exit code 1 if any does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--fast", action="store_true", help="only the tests of make test-fast")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    args = parser.parse_args()
    if args.list:
        print("\n".join(MUTANTS))
        return
    survivors = []
    for name in args.names or MUTANTS:
        began = time.monotonic()
        alive = survives(MUTANTS[name], fast=args.fast)
        survivors += [name] * alive
        print(f"{'SURVIVES' if alive else 'caught':8}  {time.monotonic() - began:5.1f} s  {name}")
    print(f"{len(survivors)} of {len(args.names or MUTANTS)} survive")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
