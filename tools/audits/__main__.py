"""``make audits``: run the audits of this folder, then write docs/audit_others.csv and the page.

    python -m audits [NAME ...]

runs ``NAME.py``, by default all of them. A program with ``requirements/NAME.txt``
gets an environment of its own in ``.venv-audits/NAME``: its packages come first, those of the
project's environment (torch, NumPy, dp-accounting) after them. Rows of files that are not run stay
as they are in the table. What cannot be installed, imported or finished in ten minutes of CPU time
is a row with the reason.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pflpipe
from audits import Entry
from pflpipe.errors import PflpipeError

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
ENVIRONMENTS = ROOT / ".venv-audits"
LONGEST = 600
"""Seconds of CPU time that one audit may take."""
MEASURED = ("sensitivity", "noise", "epsilon_true", "epsilon_lower", "detects", "detects_runs")


def names() -> list[str]:
    """Return the names of the files with audits."""
    return sorted(path.stem for path in FOLDER.glob("[!_]*.py"))


def requirements(name: str) -> Path:
    """Return the file that pins the packages of a program; missing if it needs none."""
    return FOLDER / "requirements" / f"{name}.txt"


def python_of(name: str) -> str:
    """Return the interpreter for a file's audits; make its environment first if it is not there or
    its requirements have changed.

    Raises:
        subprocess.CalledProcessError: its packages cannot be installed.
    """
    if not requirements(name).is_file():
        return sys.executable
    folder = ENVIRONMENTS / name
    python, stamp = str(folder / "bin" / "python"), folder / "installed.txt"
    wanted = requirements(name).read_text(encoding="utf-8")
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        print(f"installing {name} into {folder.relative_to(ROOT)}", flush=True)
        _called(sys.executable, "-m", "venv", "--clear", folder)
        (packages,) = folder.glob("lib/python*/site-packages")
        shared = sysconfig.get_path("purelib")
        (packages / "project.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
        _called(python, "-m", "pip", "install", "--quiet", "-r", requirements(name))
        stamp.write_text(wanted, encoding="utf-8")
    return python


def _called(*command: str | Path) -> None:
    path = os.pathsep.join(map(str, (ROOT / "src", FOLDER.parent)))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        list(map(str, command)),
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def claim_in_words(claim: pflpipe.Claim) -> str:
    """Return a claim for a reader, in one line."""
    noise = "an epsilon"
    if claim.noise_multiplier is not None:
        noise = f"multiplier {claim.noise_multiplier:g}"
    if claim.epsilon is not None:
        noise = f"{noise}, epsilon {claim.epsilon:.4g}".removeprefix("an epsilon, ")
    parts = [
        f"{claim.mechanism.capitalize()} noise, {noise}",
        "" if claim.delta is None else f"delta {claim.delta:g}",
        f"{claim.clients} clients",
        "one round" if claim.rounds == 1 else f"{claim.rounds} rounds",
        "" if claim.sample_rate == 1 else f"sampling rate {claim.sample_rate:g}",
        claim.adjacency,
        f"{claim.trust} trust",
    ]
    return ", ".join(part for part in parts if part)


def audited(name: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each audit of a file, in the environment of its program."""
    module = importlib.import_module(f"audits.{name}")
    signal.signal(signal.SIGVTALRM, _too_long)
    for one in module.AUDITS:
        row = {"file": name, "program": module.PROGRAM, "version": module.VERSION}
        row |= {"mechanism": one.title, "source": one.source}
        yield row | (_result(one) if isinstance(one, Entry) else _not_tried(one.reason))


def _result(one: Entry) -> dict[str, Any]:
    row = {"claim": claim_in_words(one.claim), "said": one.said, "remark": one.remark}
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST)
    try:
        found = pflpipe.audit(one.release, one.claim, seconds=one.seconds)
    except (PflpipeError, TimeoutError) as error:
        return row | _not_tried(str(error))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return (
        row
        | {
            "verdict": found.verdict,
            "epsilon_claimed": found.row["epsilon_claimed"],
            **{column: found.row[column] for column in MEASURED},
            "situation": found.situation,
            "sentence": found.sentence,
            "notes": "; ".join(found.notes),
        }
        | refutation(one, found.row)
    )


def refutation(one: Entry, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of a refuted claim and how: the epsilon that holds is exact where an
    entry has the arithmetic, where known noise is counted, or where none holds. Where sampling does
    not hide who takes part it is at most that without sampling. Otherwise it is the larger of two
    lower bounds, of the measured movement and of the attacker.

    Args:
        one: the entry.
        found: its row of ``pflpipe.audit``.

    Raises:
        ValueError: the measurement exceeds the arithmetic.
    """
    if found["verdict"] != "refuted":
        return {}
    claimed, true = found["epsilon_claimed"], float(found["epsilon_true"])
    counted = one.claim.epsilon_of(one.claim.plan.multiplier)
    row: dict[str, Any] = {"epsilon_is": "at most" if counted < true < math.inf else "exact"}
    if one.farther or (found["flagged_coupled"] and math.isfinite(true)):
        least = found["sensitivity"] / found["sensitivity_most"]
        if one.farther and least > one.farther:
            raise ValueError(f"{one.title}: farther {one.farther:g}, measured at least {least:g}")
        farther, at_least = one.farther or least, "" if one.farther else "at least "
        true = one.claim.epsilon_of(one.claim.plan.multiplier / farther)
        true = true if one.farther else max(true, found["epsilon_lower"])
        row = {
            "epsilon_is": at_least.strip() or "exact",
            "epsilon_true": true,
            "sensitivity": farther,
            "sentence": f"one client moves the result {at_least}{farther:.4g} times as far as the "
            f"claimed noise covers: epsilon {at_least}{true:.3g} and not {claimed:.3g}",
        }
    if true <= claimed:
        return {
            "epsilon_is": "at least",
            "epsilon_true": found["epsilon_lower"],
            "evidence": "attack",
        }
    return row | {"evidence": "both" if found["epsilon_lower"] > claimed else "arithmetic"}


def _not_tried(reason: str) -> dict[str, Any]:
    return {"verdict": "not tried", "sentence": reason}


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"it takes more than {LONGEST} s of CPU time")


def rows_of(name: str) -> list[dict[str, Any]]:
    """Return the rows of a file's audits, run in a process of its own. If that fails, the last row
    is the reason."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "rows.jsonl"
        target.touch()
        failure = []
        try:
            _called(python_of(name), "-m", "audits", "--into", target, name)
        except subprocess.CalledProcessError as error:
            lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
            pins = requirements(name)
            version = pins.read_text(encoding="utf-8").split()[-1] if pins.is_file() else ""
            row = {"file": name, "program": name.capitalize(), "version": version}
            failure = [row | _not_tried(lines[-1])]
        rows = target.read_text(encoding="utf-8").splitlines()
        return [*map(json.loads, rows), *failure]


def main() -> None:
    """Run the files that the command line names; with ``--into FILE``, here and into a file."""
    asked = sys.argv[1:]
    if asked[:1] == ["--into"]:
        with Path(asked[1]).open("w", encoding="utf-8", buffering=1) as file:
            for row in audited(asked[2]):
                file.write(json.dumps(row) + "\n")
        return
    if unknown := set(asked) - set(names()):
        sys.exit(f"error: no tools/audits/{min(unknown)}.py; known: {', '.join(names())}")
    from audits import _page

    for name in asked or names():
        rows = rows_of(name)
        _page.renew(name, rows)
        for row in rows:
            print(f"{row['verdict']:9} {name}: {row.get('mechanism', '')}: {row['sentence']}")


if __name__ == "__main__":
    main()
