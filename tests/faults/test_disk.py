"""A disk without room, or one that may not be written to, under every rule of the workflow."""

import contextlib
import io
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

import fake_audits
import faulty
import malformed
import test_workflow
import warm
from called import works
from reliability import record

MOUNTED = 'folder=$(mktemp -d) && mount -t tmpfs none "$folder" && umount "$folder"'
pytestmark = [
    pytest.mark.faults,
    pytest.mark.pipeline,
    pytest.mark.skipif(
        not works("sh", "-c", MOUNTED),
        reason="mounts a small tmpfs: run the tests as root, in a container with --privileged",
    ),
]
ROOT = test_workflow.ROOT
RULES = {
    rule
    for file in (ROOT / "workflow/rules").glob("*.smk")
    for rule in re.findall(r"^(?:rule|checkpoint) (\w+):", file.read_text(), re.MULTILINE)
}
OF_OTHERS = {"report", "track"}
"""Rules whose file Snakemake or MLflow writes, which say in their own words what is wrong."""
DISK = "disk"
MADE = (
    "tables/all.csv",
    "tables/audit.csv",
    "ledger.html",
    "report.html",
    "released/tiny",
    "figures/tiny/one_run.png",
)
TARGETS = [f"{DISK}/results/{name}" for name in MADE]
STUDY = (
    test_workflow.STUDY
    | test_workflow.SEARCH
    | {"figures": {"cost": {}}, "partition": {"kind": "iid", "clients": 3}}
    | {"features": {"kind": "scattering", "scales": 1}}
)


@dataclass(frozen=True)
class Job:
    """A rule's first job: the command that Snakemake would give to the shell, and its files."""

    rule: str
    command: str
    outputs: tuple[Path, ...]
    log: Path

    def run(self, folder: Path) -> tuple[int, str]:
        """Run it as Snakemake does; return its exit code and its log."""
        (folder / self.log).parent.mkdir(parents=True, exist_ok=True)
        more = {
            "PFLPIPE_PYTHON": warm.interpreter(),
            "PFLPIPE_PATH": str(folder / "src"),
            "PFLPIPE_ROOT": str(folder),
        }
        command = ["bash", "-c", f"set -euo pipefail; {self.command}"]
        found = subprocess.run(
            command, cwd=folder, env=test_workflow.environment(**more), capture_output=True
        )
        return found.returncode, (folder / self.log).read_text()

    def forget(self, folder: Path) -> None:
        """Remove its outputs, as Snakemake does before a job."""
        for output in self.outputs:
            if (folder / output).is_dir():
                shutil.rmtree(folder / output)
            (folder / output).unlink(missing_ok=True)

    def bits(self, folder: Path) -> dict[Path, bytes]:
        made = [folder / output for output in self.outputs]
        files = [file for output in made for file in (output, *sorted(output.rglob("*")))]
        return {file: file.read_bytes() for file in files if file.is_file()}


def jobs(folder: Path) -> dict[str, Job]:
    """The first job of each rule that the targets need."""
    result = test_workflow.snakemake(folder, "--detailed-summary", *TARGETS)
    lines = [line.split("\t") for line in result.stdout.splitlines()[1:]]
    found: dict[str, Job] = {}
    # What was not made by Snakemake, such as audits that are made up, has no command.
    for output, _, rule, log, _, command, *_ in (line for line in lines if line[5] != "-"):
        first = found.setdefault(rule, Job(rule, command, (), Path(log)))
        if first.log == Path(log):
            outputs = (*first.outputs, Path(output))
            found[rule] = Job(rule, command, outputs, first.log)
    return found


@contextlib.contextmanager
def mounted(folder: Path, size: str = "64m") -> Iterator[Path]:
    """A small disk in this folder, with what was in it."""
    kept = folder.with_name(f"{folder.name}-before")
    folder.rename(kept)
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        shutil.copytree(kept, folder, dirs_exist_ok=True, symlinks=True)
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """No room on the disk, not for a byte."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert shutil.disk_usage(disk).free == 0
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def read_only(disk: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which every rule has done its work, results and data in ``disk``."""
    folder = tmp_path_factory.mktemp("complete") / "project"
    folder.mkdir()
    test_workflow.write_project(folder)
    malformed.write(folder / "studies/tiny.yaml", STUDY)
    for name in ("results", "data"):
        malformed.put(f"{name}_dir", f"{DISK}/{name}", "config.yaml")(folder)
    fake_audits.write(folder / DISK / "results/audits", leave_out=["gaussian-central"])
    test_workflow.snakemake(folder, *TARGETS)
    return folder


def without_measures(bits: dict[Path, bytes]) -> dict[Path, bytes]:
    """Without what holds times or names of temporary files, and Snakemake's own."""
    kinds = (".html", ".done", ".tsv", ".pt")
    kept = {path: found for path, found in bits.items() if path.suffix not in kinds}
    kept = {path: found for path, found in kept.items() if path.parent.name != "audits"}
    return {
        path: _without_seconds(found) if path.name == "audit.csv" else found
        for path, found in kept.items()
        if path.name != "timing.csv" and not path.name.startswith(".")
    }


def _without_seconds(table: bytes) -> bytes:
    return pd.read_csv(io.BytesIO(table)).drop(columns="seconds").to_csv().encode()


def test_every_rule_says_that_the_disk_is_full_and_then_goes_on(complete):
    known = jobs(complete)
    assert set(known) == RULES - {"all"}, "a rule without a job here"
    wrong = {}
    with mounted(complete / DISK) as disk:
        for rule, job in known.items():
            before = job.bits(complete)
            job.forget(complete)
            with full(disk):
                code, log = job.run(complete)
            *_, last = log.splitlines() or [""]
            said = "cannot be written; got 'No space left on device'; make room" in last
            if code == 0 or (rule not in OF_OTHERS and ("Traceback" in log or not said)):
                wrong[rule] = (code, log[-600:])
            if rule == "report":  # nothing else needs it, and it takes as long as all others
                continue
            job.forget(complete)
            code, log = job.run(complete)
            again = without_measures(job.bits(complete))
            if code or again != without_measures(before):
                wrong[f"{rule}, with room again"] = (code, f"{log[-600:]}{again}{before}"[:9000])
        for rule in ("train", "table"):
            job = known[rule]
            before = job.bits(complete)
            with read_only(disk):
                code, log = job.run(complete)
            if "cannot be written; got 'Read-only file system'; make the disk" not in log:
                wrong[f"{rule}, read-only"] = (code, log[-600:])
            job.forget(complete)
            code, log = job.run(complete)
            if code or without_measures(job.bits(complete)) != without_measures(before):
                wrong[f"{rule}, writable again"] = (code, log[-600:])
    assert not wrong, "\n\n".join(f"{rule}: {code}\n{log}" for rule, (code, log) in wrong.items())
    for rule in sorted(known):
        said = "it fails" if rule in OF_OTHERS else "one line says so"
        again = "" if rule == "report" else "; with room the same command ends with the same"
        record(f"disk full, rule {rule}", said + again)
    record("results that are read-only", "one line says so; afterwards the same command goes on")


def test_snakemake_on_a_full_disk_ends_and_the_same_command_goes_on(ready, tmp_path):
    folder = tmp_path / "project"
    shutil.copytree(ready.folder, folder)
    with mounted(folder):
        with full(folder):
            words = ("--cores", "2", faulty.SCORES)
            failed = warm.snakemake(folder, words, test_workflow.environment())
        assert failed.returncode != 0
        shutil.rmtree(folder / ".snakemake/locks", ignore_errors=True)
        test_workflow.snakemake(folder, faulty.SCORES)
        assert faulty.bits(folder) == ready.bits
    record("disk full under snakemake itself", "it ends; with room the same command goes on")
