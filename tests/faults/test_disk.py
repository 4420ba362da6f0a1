"""A disk without room, or one that may not be written to, under every rule of the workflow."""

import contextlib
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
from called import called, works
from reliability import record

MOUNTED = 'folder=$(mktemp -d) && mount -t tmpfs none "$folder" && umount "$folder"'
WHY = "mounts a small tmpfs: run the tests as root, in a container with --privileged"
pytestmark = [pytest.mark.faults, pytest.mark.pipeline]
pytestmark += [pytest.mark.skipif(not works("sh", "-c", MOUNTED), reason=WHY)]
ROOT = test_workflow.ROOT
WORKFLOW = "".join(file.read_text() for file in (ROOT / "workflow/rules").glob("*.smk"))
RULES = set(re.findall(r"^(?:rule|checkpoint) (\w+):", WORKFLOW, re.MULTILINE))
OF_OTHERS = {"report", "track"}
"""Rules whose file Snakemake or MLflow writes, which say in their own words what is wrong."""
DISK = "disk"
MADE = "tables/all.csv tables/audit.csv ledger.html report.html released/tiny"
TARGETS = [f"{DISK}/results/{name}" for name in (*MADE.split(), "figures/tiny/one_run.png")]
STUDY = test_workflow.STUDY | test_workflow.SEARCH
STUDY |= {"figures": {"cost": {}}, "partition": {"kind": "iid", "clients": 3}}
STUDY |= {"features": {"kind": "scattering", "scales": 1}}


@dataclass(frozen=True)
class Job:
    """A rule's first job: the command that Snakemake would give to the shell, and its files."""

    command: str
    outputs: list[Path]
    log: Path

    def run(self, folder: Path) -> tuple[int, str]:
        """Run it as Snakemake does; return its exit code and its log."""
        (folder / self.log).parent.mkdir(parents=True, exist_ok=True)
        more = {"PFLPIPE_PATH": str(folder / "src"), "PFLPIPE_ROOT": str(folder)}
        variables = test_workflow.environment(PFLPIPE_PYTHON=warm.interpreter(), **more)
        command = ["bash", "-c", f"set -euo pipefail; {self.command}"]
        found = subprocess.run(command, cwd=folder, env=variables, capture_output=True)
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
        first = found.setdefault(rule, Job(command, [], Path(log)))
        if first.log == Path(log):
            first.outputs.append(Path(output))
    return found


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """A small disk in this folder, with what was in it."""
    kept = folder.with_name(f"{folder.name}-before")
    folder.rename(kept)
    folder.mkdir()
    called("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder)
    try:
        shutil.copytree(kept, folder, dirs_exist_ok=True, symlinks=True)
        yield folder
    finally:
        called("umount", "--lazy", folder)


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """No room on the disk, not for a byte."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert shutil.disk_usage(disk).free == 0
    yield
    filler.unlink()


@contextlib.contextmanager
def read_only(disk: Path) -> Iterator[None]:
    called("mount", "-o", "remount,ro", disk)
    yield
    called("mount", "-o", "remount,rw", disk)


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
    kept = {}
    for path, found in bits.items():
        is_measured = path.suffix in (".html", ".done", ".tsv", ".pt") or path.name == "timing.csv"
        if path.name == "audit.csv":
            kept[path] = pd.read_csv(path).drop(columns="seconds").to_csv().encode()
        elif not (is_measured or path.parent.name == "audits" or path.name.startswith(".")):
            kept[path] = found
    return kept


def test_every_rule_says_that_the_disk_is_full_and_then_goes_on(complete):
    known = jobs(complete)
    assert set(known) == RULES - {"all"}, "a rule without a job here"
    wrong = {}
    with mounted(complete / DISK) as disk:
        for rule, job in known.items():
            before = without_measures(job.bits(complete))
            if rule in ("train", "table"):
                with read_only(disk):
                    _, log = job.run(complete)
                if "cannot be written; got 'Read-only file system'; make the disk" not in log:
                    wrong[f"{rule}, read-only"] = log[-600:]
            job.forget(complete)
            with full(disk):
                code, log = job.run(complete)
            *_, last = log.splitlines() or [""]
            said = "cannot be written; got 'No space left on device'; make room" in last
            if code == 0 or (rule not in OF_OTHERS and ("Traceback" in log or not said)):
                wrong[rule] = log[-600:]
            if rule == "report":  # nothing else needs it, and it takes as long as all others
                continue
            job.forget(complete)
            code, log = job.run(complete)
            again = without_measures(job.bits(complete))
            if code or again != before:
                wrong[f"{rule}, with room again"] = f"{code} {log[-600:]}{again}{before}"[:9000]
    assert not wrong, "\n\n".join(f"{rule}: {said}" for rule, said in wrong.items())
    for rule in sorted(known):
        said = "it fails" if rule in OF_OTHERS else "one line says so"
        again = "" if rule == "report" else "; with room the same command ends with the same"
        record(f"disk full, rule {rule}", said + again)
    record("results that are read-only", "one line says so; afterwards the same command goes on")


def test_snakemake_on_a_full_disk_ends_and_the_same_command_goes_on(ready, tmp_path):
    folder = Path(shutil.copytree(ready.folder, tmp_path / "project"))
    with mounted(folder):
        with full(folder):
            words = ("--cores", "2", faulty.SCORES)
            failed = warm.snakemake(folder, words, test_workflow.environment())
        assert failed.returncode != 0
        shutil.rmtree(folder / ".snakemake/locks", ignore_errors=True)
        test_workflow.snakemake(folder, faulty.SCORES)
        assert faulty.bits(folder) == ready.bits
    record("disk full under snakemake itself", "it ends; with room the same command goes on")
