"""A study on a cluster where everything happens that happens on clusters: it is completed."""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pandas as pd
import pytest
import torch

import fake_audits
import malformed
import tabled
from pflpipe.methods import registry
from pflpipe.simulation import runs, scores
from pflpipe.study.load import load_study
from reliability import record
from slurm import PARTITION, Slurm, child, missing, until
from test_workflow import STUDY, environment, snakemake, write_project, write_study

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("here")]  # a Folder goes elsewhere
TABLES = tabled.table("test_cluster")
ROUNDS = 100
PATIENCE = ("--max-status-checks-per-second", "0.5", "--latency-wait", "10")
TABLE = "results/tables/tiny.csv"
ENDED = {"COMPLETED", "CANCELLED by 0"}


@contextlib.contextmanager
def started(
    factory: pytest.TempPathFactory, settings: str = PARTITION, *, database=False, **shape: int
) -> Iterator[Slurm]:
    if why := missing(database=database):
        pytest.skip(why)
    slurm = Slurm(factory.mktemp("slurm"), database=database, **shape)
    slurm.start(settings)
    yield slurm
    slurm.stop()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with started(tmp_path_factory) as node:
        yield node


@pytest.fixture
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Three nodes, which are given up after twenty seconds of silence, and preempt jobs."""
    with started(tmp_path_factory, TABLES["PREEMPTION"], nodes=3) as three:
        yield three


@pytest.fixture
def accounts(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Slurm]:
    """Two cores and a database of jobs. Two accounts have equal shares of them, which SLURM
    computes once a minute; for so many seconds, five minutes when left out, its controller knows
    jobs that have ended."""
    settings = f"{TABLES['FAIR_SHARE']}{PARTITION}MinJobAge={getattr(request, 'param', 300)}\n"
    with started(tmp_path_factory, settings, database=True, cpus=2) as two:
        for name in ("lab", "others"):
            two.answer("sacctmgr", "--immediate", "add", "account", name)
            two.answer("sacctmgr", "--immediate", "add", "user", "root", f"account={name}")
        yield two


class Folder:
    """A copy of the repository with a study of so many runs, of which each does as it is told.

    The method of all is in ``studies/paced.py``, but that of the run ``other`` is in
    ``studies/other.py``. A round of each takes so many ``seconds``.
    """

    def __init__(self, path: Path, numbers: int, other: int = -1, seconds: float = 0) -> None:
        self.path = path
        write_project(path)
        fake_audits.write(path / "results/audits")
        method = Path(__file__).with_name("paced.py").read_text()
        lines = []
        for number in range(numbers):
            name = "other" if number == other else "paced"
            (path / f"studies/{name}.py").write_text(method.replace("def paced(", f"def {name}("))
            line = {"name": f"{name}.py:{name}", "variant": f"number {number}"}
            lines.append(line | {"hyperparameters": {"number": number}})
        training = STUDY["training"] | {"rounds": ROUNDS}
        write_study(path, training=training, methods=lines)
        malformed.put("checkpoint_seconds", 1, "config.yaml")(path)
        (path / "paced").mkdir()
        os.chdir(path)
        self.cells = load_study("tiny").cells
        self.ids = [registry.run_id(cell) for cell in self.cells]
        self.tell(seconds=seconds)

    def tell(self, *numbers: int, **values: float) -> None:
        """Say how many ``seconds`` a round of these runs takes, all by default, or how many
        ``megabytes``."""
        for number in numbers or range(len(self.ids)):
            for name, value in values.items():
                (self.path / f"paced/{name}{number}").write_text(str(value))

    def run(self, number: int) -> Path:
        return self.path / "results/runs" / self.ids[number]

    def have_ended(self, *numbers: int) -> bool:
        return all((self.run(number) / "run.json").exists() for number in numbers)

    def gpus(self) -> list[str]:
        """Return which GPUs the runs were given that have done a round."""
        return [file.read_text() for file in (self.path / "paced").glob("gpus*")]

    def checkpoint(self, number: int) -> Path:
        return self.path / f"results/checkpoints/{self.ids[number]}.pt"

    def have_checkpoints(self, *numbers: int) -> bool:
        """Return whether these runs have a checkpoint, all by default."""
        return all(self.checkpoint(n).exists() for n in numbers or range(len(self.ids)))

    def two_have_checkpoints(self) -> bool:
        return sum(map(self.have_checkpoints, range(len(self.ids)))) == 2

    def resumed(self, number: int) -> int:
        """Return the round after which the present attempt goes on, 0 as long as it does not."""
        log = self.path / f"logs/train/{self.ids[number]}.log"
        found = re.search(r"resuming after round (\d+)", log.read_text() if log.exists() else "")
        return int(found[1]) if found else 0

    def checkpoint_round(self, number: int) -> int:
        """Return the last round of a run's checkpoint."""
        return torch.load(self.checkpoint(number), weights_only=True)["progress"]["round"]

    def told(self, number: int) -> str:
        """Return what SLURM kept of a run's attempts that failed."""
        logs = self.path / ".snakemake/slurm_logs/rule_train" / self.ids[number]
        return "".join(file.read_text() for file in logs.glob("*.log"))

    def bits(self, number: int, base: str = "results/runs") -> bytes:
        """Return what a run computed."""
        run = self.path / base / self.ids[number]
        return (run / "rounds.csv").read_bytes() + (run / "states.bin").read_bytes()

    def undisturbed(self, number: int) -> bytes:
        """Return what a run computes here, in one go."""
        cell, base = self.cells[number], self.path / "undisturbed"
        self.tell(number, seconds=0, megabytes=0)
        ((_, inputs, _),) = scores.places_of([cell], [cell.id], Path("results"), Path("data"))
        settings = {"device": "cpu", "backend": "auto", "checkpoint_seconds": 1e9}
        runs.train(cell, inputs, base / self.ids[number], base / "checkpoints", **settings)
        return self.bits(number, base.name)

    def assert_same_bits(self) -> None:
        """Check that every run computed what it does undisturbed."""
        for number in range(len(self.ids)):
            assert self.bits(number) == self.undisturbed(number)


class Snakemake:
    """The command of docs/slurm.md, on what would be the login node."""

    def __init__(
        self,
        cluster: Slurm,
        folder: Folder,
        *words: str,
        targets: Sequence[str] = (TABLE,),
        **more: str,
    ) -> None:
        self.cluster, self.folder = cluster, folder
        self.output = folder.path / "snakemake.out"
        # What a shell starts in its background ignores Ctrl-C, and hands that down.
        command = ["env", "--default-signal=INT", f"--chdir={folder.path}", sys.executable]
        command += ["-c", TABLES["SNAKEMAKE"], "--profile", "profiles/slurm", *PATIENCE]
        inside = cluster.inside(*command, *words, "--", *targets)
        with self.output.open("w") as output:
            how = {"stdout": output, "stderr": output, "env": environment(**more)}
            self.process = subprocess.Popen(inside, **how)

    def said(self) -> str:
        return self.output.read_text() + self.cluster.log()[-5000:]

    def until(self, reached: Callable[[], object]) -> None:
        """Wait until something is so, as long as Snakemake is there."""
        until(lambda: reached() or self.process.poll() is not None, self.said)
        assert self.process.poll() is None, self.said()

    def end(self) -> int:
        until(lambda: self.process.poll() is not None, self.said)
        return self.process.returncode

    def ends_well(self) -> None:
        """Let all runs go on at once, and check that the command ends with 0."""
        self.folder.tell(seconds=0)
        assert self.end() == 0, self.said()

    def is_interrupted(self) -> None:
        """Press Ctrl-C, and check that it ends and that no job is left."""
        os.kill(child(self.process.pid), signal.SIGINT)
        assert self.end() != 0
        until(lambda: not self.cluster.jobs(), self.said, seconds=60)


def test_every_run_is_completed_whatever_happens_to_its_job(cluster, tmp_path):
    slow, large, cancelled = range(3)
    folder = Folder(tmp_path / "project", 3, other=cancelled, seconds=4)
    # What train asks for at first, for longer than SLURM takes to look at it.
    folder.tell(large, seconds=1, megabytes=2000)
    command = Snakemake(cluster, folder)

    # A job's time runs out. Another is cancelled and its code edited, so that the next attempt is
    # not what was planned. Nor is what all of them need, but that is not for a job to make again
    # (snakemake#3234).
    command.until(lambda: folder.have_checkpoints(slow, cancelled))
    cluster.let_time_run_out(folder.ids[slow])
    (partition,) = folder.path.glob("results/partitions/*.npz")
    made = partition.stat().st_mtime_ns
    with (folder.path / "workflow/scripts/partition.py").open("a") as file:
        file.write("edited = True\n")
    method = folder.path / "studies/other.py"
    code = method.read_text()
    method.write_text(code + "\nedited = True\n")
    malformed.put("description", "Other words.", "studies/tiny.yaml")(folder.path)
    cluster.cancel(*cluster.jobs(folder.ids[cancelled]))
    command.until(lambda: "was edited after" in folder.told(cancelled))
    assert not folder.run(cancelled).exists()
    method.write_text(code)
    folder.tell(cancelled, seconds=0)

    # The second attempt of the slow run loses its node, where nothing else runs or is to run: both
    # others have ended, and the scores of the method of one of them are there.
    command.until(lambda: folder.have_ended(large, cancelled))
    command.until((folder.path / "results/scores/tiny/other.csv").exists)
    command.until(lambda: folder.resumed(slow))
    command.until(lambda: len(cluster.jobs()) == 1)
    first = folder.resumed(slow)
    command.until(lambda: folder.checkpoint_round(slow) > first)
    cluster.lose_node(*cluster.nodes)
    command.until(lambda: folder.resumed(slow) > first)
    command.ends_well()

    assert partition.stat().st_mtime_ns == made
    assert cluster.history(folder.ids[slow]) == ["TIMEOUT", "COMPLETED"]
    assert "exceeded memory limit" in folder.told(large)
    assert cluster.history(folder.ids[large])[1:] == ["COMPLETED"]
    assert cluster.history(folder.ids[cancelled])[:2] == ["CANCELLED", "FAILED"]
    assert len(pd.read_csv(folder.path / TABLE)) == 3
    folder.assert_same_bits()
    same = "tried again, resumed, the same bits"
    for fault in ("cancelled", "over its memory", "over its time", "on a node that is lost"):
        record(f"SLURM: job {fault}", same)
    edited = "SLURM: the code is edited while jobs run"
    record(edited, "what it concerns stops with one line, other jobs go on")


@pytest.mark.night
def test_ctrl_c_leaves_no_job_short_runs_share_one_and_a_controller_may_be_away(
    cluster, tmp_path, long
):
    folder = Folder(tmp_path / "project", 3, seconds=4)
    words = ("--set-resources", "train:gpu=1", "train:runtime=5")
    targets = [f"results/runs/{id}" for id in folder.ids]
    command = Snakemake(cluster, folder, *words, targets=targets)
    # A file of a GPU may be there before its text.
    command.until(lambda: folder.two_have_checkpoints() and all(folder.gpus()))
    assert sorted(folder.gpus()) == ["0", "1"], "the third waits for one"
    assert len(cluster.jobs()) == 3
    command.is_interrupted()
    record("SLURM: Ctrl-C", "no job is left; the same command goes on")

    for file in (folder.path / "paced").glob("gpus*"):
        file.unlink()
    before = cluster.history("")
    words = ("--groups", "train=runs", "--group-components", "runs=2", "--cores", "1", *words)
    command = Snakemake(cluster, folder, *words, targets=targets[:2])
    command.until(folder.gpus)
    (shared,) = cluster.jobs()

    # SLURM does not answer when Snakemake asks.
    cluster.kill_controller()
    questions: set[str] = set()

    def asked_in_vain() -> bool:
        """Whether the plugin asks again; by itself it gives up after five questions."""
        questions.update(cluster.processes("squeue"))
        return len(questions) > (7 if long else 1)

    command.until(asked_in_vain)
    cluster.start_controller()
    command.ends_well()
    assert cluster.history("")[len(before) :] == ["COMPLETED"]
    asked = cluster.answer("squeue", "--states=all", "--noheader", f"--jobs={shared}", "-o%C %l")
    assert asked.split() == ["1", "10:00"]
    assert folder.have_ended(0, 1)
    record("SLURM: the controller is killed and comes back", "waited for; nothing is repeated")


def test_runs_on_one_machine_have_gpus_of_their_own(tmp_path):
    folder = Folder(tmp_path / "project", 3, seconds=0.05)
    # There is no GPU: `auto` computes on the CPU whichever is declared, and has to be told to ask
    # for one.
    words = ("--profile", "profiles/gpu", "--cores", "4", "--set-resources", "train:gpu=1", "--")
    targets = [f"results/runs/{id}" for id in folder.ids]
    snakemake(folder.path, *words, *targets, CUDA_VISIBLE_DEVICES="50,51")
    assert len(folder.gpus()) == 3
    assert set(folder.gpus()) <= {"50", "51"}, "a third at the same time would find none"


@pytest.mark.night
def test_ctrl_c_leaves_no_job_that_is_being_submitted(cluster, tmp_path):
    folder = Folder(tmp_path / "project", 4)
    busy = folder.path / "bin/sbatch"  # the plugin submits two jobs at a time
    busy.parent.mkdir()
    busy.write_text(f'#!/bin/sh\nsleep 3\nexec {shutil.which("sbatch")} "$@"\n')
    busy.chmod(0o755)
    path = f"{busy.parent}{os.pathsep}{os.environ['PATH']}"
    command = Snakemake(cluster, folder, PATH=path)
    command.until(lambda: "has been submitted" in command.said())
    command.is_interrupted()
    assert len(cluster.jobs("", "--states=all")) == 4, "all were submitted nevertheless"


@pytest.mark.night
def test_jobs_cancelled_at_random_moments_change_no_bit(cluster, tmp_path):
    folder, moments = Folder(tmp_path / "project", 4, seconds=2), random.Random(0)
    command = Snakemake(cluster, folder, "--retries", "30")
    for _ in range(20):
        time.sleep(moments.uniform(0, 40))
        command.until(cluster.jobs)
        cluster.cancel(*moments.sample(sorted(cluster.jobs()), 1))
    command.ends_well()
    folder.assert_same_bits()
    record("SLURM: 20 jobs cancelled at random moments", "20 identical results")


def assert_went_on(nodes: Slurm, command: Snakemake) -> None:
    """Check that every run is completed by its first job, with the bits that it has undisturbed."""
    command.ends_well()
    for id in command.folder.ids:
        assert nodes.history(id) == ["COMPLETED"]
    command.folder.assert_same_bits()


@pytest.mark.night
def test_a_node_that_dies_costs_no_run(nodes, tmp_path):
    folder = Folder(tmp_path / "project", 3, seconds=2)
    command = Snakemake(nodes, folder)
    command.until(folder.have_checkpoints)
    (job,) = nodes.jobs(folder.ids[0])
    nodes.power_off(nodes.node_of(job))
    command.until(lambda: nodes.jobs(folder.ids[0]).get(job) == "PENDING")
    nodes.start_again()
    command.until(lambda: folder.resumed(0))
    assert_went_on(nodes, command)
    assert len(pd.read_csv(folder.path / TABLE)) == 3
    record("SLURM: a node dies, of three", "its jobs go on on another one, the same bits")


@pytest.mark.night
def test_a_job_that_is_preempted_goes_on_afterwards(nodes, tmp_path):
    folder = Folder(tmp_path / "project", 2, seconds=2)
    command = Snakemake(nodes, folder)
    command.until(folder.have_checkpoints)
    words = ("--partition=urgent", "--nodes=3", "--exclusive", "--wrap=sleep 1000")
    nodes.answer("sbatch", "--output=/dev/null", "--job-name=urgent", *words)
    command.until(lambda: set(nodes.jobs("rule_train").values()) == {"PENDING"})
    nodes.answer("scancel", "--name=urgent")
    nodes.start_again()
    command.until(lambda: all(map(folder.resumed, range(2))))
    assert_went_on(nodes, command)
    record("SLURM: jobs are preempted and put into the queue again", "resumed, the same bits")


def one_job_loses_its_node(
    nodes: Slurm, folder: Folder, ended: Sequence[int], working: Sequence[int], *targets: str
) -> None:
    """Submit a job for each target, and let the first lose its node when some runs have ended and
    others are at work; check that it repeats none of those that have ended."""

    def said() -> str:
        logs = sorted(folder.path.glob("slurm-*.out"))
        return "".join(log.read_text() for log in logs) + nodes.log()[-5000:]

    def times() -> list[int]:
        return [folder.run(number).stat().st_mtime_ns for number in ended]

    folder.tell(*working, seconds=2)
    for number, target in enumerate(targets, start=1):
        words = ("env", f"--chdir={folder.path}", "sbatch", "profiles/slurm/one_job.sh", target)
        assert nodes.answer(*words) == f"Submitted batch job {number}\n"
    until(lambda: folder.have_ended(*ended) and folder.have_checkpoints(*working), said)
    first = times()
    nodes.power_off(nodes.node_of("1"))
    others = dict.fromkeys(map(str, range(2, len(targets) + 1)), "RUNNING")
    until(lambda: nodes.jobs() == {"1": "PENDING"} | others, said)
    nodes.start_again()
    until(lambda: folder.resumed(0), said)
    folder.tell(*working, seconds=0)
    until(lambda: not nodes.jobs(), said)
    assert nodes.history("") == ["COMPLETED"] * len(targets), said()
    assert times() == first


@pytest.mark.night
def test_a_study_in_one_job_goes_on_when_its_node_dies(nodes, tmp_path):
    folder = Folder(tmp_path / "project", 3)
    (folder.path / ".venv").symlink_to(sys.prefix)
    one_job_loses_its_node(nodes, folder, (1, 2), (0,), TABLE)
    assert len(pd.read_csv(folder.path / TABLE)) == 3
    folder.assert_same_bits()
    record("SLURM: the node of a study that is one job dies", "goes on on another, the same bits")


@pytest.mark.night
def test_a_job_for_each_method_goes_on_beside_the_others_when_its_node_dies(nodes, tmp_path):
    folder = Folder(tmp_path / "project", 3, other=2)
    (folder.path / ".venv").symlink_to(sys.prefix)
    snakemake = ("env", f"--chdir={folder.path}", ".venv/bin/snakemake", "--cores", "2")
    nodes.answer(*snakemake, "--until", "plan", "partition", "--", TABLE)
    targets = [f"results/scores/tiny/{method}.csv" for method in ("paced", "other")]
    one_job_loses_its_node(nodes, folder, (1,), (0, 2), *targets)
    assert not folder.resumed(2)
    nodes.answer(*snakemake, "--", TABLE)
    assert len(pd.read_csv(folder.path / TABLE)) == 3
    folder.assert_same_bits()
    fault = "SLURM: one of the jobs of a study, a job a method, loses its node"
    record(fault, "goes on, same bits")


def of_the_lab(path: Path, seconds: float) -> Folder:
    """Return a study of four runs whose account is named in the profile, as its comment says."""
    folder, profile = Folder(path, 4, seconds=seconds), "profiles/slurm/config.yaml"
    malformed.put("default-resources.slurm_account", "lab", profile)(folder.path)
    return folder


def assert_each_run_once(cluster: Slurm, folder: Folder) -> None:
    """Check that the database has one job for each run, which was completed."""
    until(lambda: {row["State"] for row in cluster.accounted()} <= ENDED, cluster.log)
    jobs = [row for row in cluster.accounted() if "rule_train" in row["Comment"]]
    assert len(jobs) == len(folder.ids)
    for id in folder.ids:
        (job,) = (row for row in jobs if id in row["Comment"])
        assert (job["Account"], job["State"]) == ("lab", "COMPLETED")


@pytest.mark.night
def test_another_account_does_not_wait_for_the_jobs_of_a_study(accounts, tmp_path):
    folder = of_the_lab(tmp_path / "project", seconds=10)
    # A job beyond this limit would be refused.
    limit = ("user", "root", "account=lab", "set", "MaxSubmitJobs=3")
    accounts.answer("sacctmgr", "--immediate", "modify", *limit)
    command = Snakemake(accounts, folder, "--jobs", "3", "--slurm-status-command", "sacct")

    def share(name: str) -> float:
        words = ("--noheader", "--parsable2", "--users=root", "--format=FairShare")
        return float(accounts.answer("sshare", f"--accounts={name}", *words).split()[-1])

    command.until(folder.two_have_checkpoints)
    command.until(lambda: share("lab") < share("others"))
    (waiting,) = accounts.jobs("", "--states=PENDING")
    words = ("--account=others", "--output=/dev/null", "--mem=100", "--wrap=sleep 1000")
    later = accounts.answer("sbatch", "--parsable", *words).strip()

    def both_wait() -> bool:
        return {waiting, later} <= accounts.jobs("", "--states=PENDING").keys()

    assert both_wait()
    folder.tell(next(filter(folder.have_checkpoints, range(4))), seconds=0)
    command.until(lambda: not both_wait())
    states = accounts.jobs()
    assert [states[waiting], states[later]] == ["PENDING", "RUNNING"]
    accounts.cancel(later)
    command.ends_well()
    assert_each_run_once(accounts, folder)
    ours = [row for row in accounts.accounted() if row["Account"] == "lab"]
    assert max(sum(b["Submit"] <= a["Submit"] < b["End"] for b in ours) for a in ours) == 3
    fault = "SLURM with fair share: a job of another account comes when jobs of a study wait"
    record(fault, "it starts before them; the study's jobs are accounted, each run once")


@pytest.mark.night
@pytest.mark.parametrize("accounts", [300, 2], indirect=True, ids=["squeue", "sacct"])
def test_a_database_of_jobs_that_is_away_costs_no_run(accounts, tmp_path, request):
    asked = request.node.callspec.id
    folder = of_the_lab(tmp_path / "project", seconds=2)
    command = Snakemake(accounts, folder, "--jobs", "2")
    command.until(folder.two_have_checkpoints)
    accounts.kill_database()
    folder.tell(seconds=0)
    if asked == "squeue":  # the others are submitted meanwhile
        command.until(lambda: folder.have_ended(*range(4)))
    else:  # the controller forgets the first two, which the plugin cannot ask anybody about
        command.until(lambda: not accounts.jobs("", "--states=all"))
    accounts.start_database()
    command.ends_well()
    assert_each_run_once(accounts, folder)
    folder.assert_same_bits()
    record(
        f"SLURM, whose states are asked of {asked}: its database of jobs is killed and comes back",
        "the same bits; each run is accounted once",
    )
