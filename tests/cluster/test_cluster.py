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
from pflpipe.methods import registry
from pflpipe.pipeline.project import each
from pflpipe.simulation import runs
from pflpipe.study.load import load_study
from reliability import record
from slurm import PARTITION, Slurm, missing, until
from test_workflow import STUDY, environment, snakemake, write_project

pytestmark = pytest.mark.cluster
ROUNDS = 100
# What a user has, but for the patience, since here a job takes seconds: the plugin waits ten
# seconds more after every look at which no job was completed.
SNAKEMAKE = """
import asyncio
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake.cli import main

RemoteExecutor.sleep = lambda self: asyncio.sleep(1)
main()
"""
PATIENCE = ("--max-status-checks-per-second", "0.5", "--latency-wait", "10")
TABLE = "results/tables/tiny.csv"
ENDED = {"COMPLETED", "CANCELLED by 0"}


PREEMPTION = """
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""

FAIR_SHARE = f"""
PriorityType=priority/multifactor
PriorityWeightFairshare=1000000
PriorityCalcPeriod=1
{PARTITION}"""


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
    with started(tmp_path_factory, f"SlurmdTimeout=20\n{PREEMPTION}", nodes=3) as three:
        yield three


@pytest.fixture
def accounts(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Slurm]:
    """Two cores and a database of jobs. Two accounts have equal shares of them, which SLURM
    computes once a minute; for so many seconds, five minutes when left out, its controller knows
    jobs that have ended."""
    settings = f"{FAIR_SHARE}MinJobAge={getattr(request, 'param', 300)}\n"
    with started(tmp_path_factory, settings, database=True, cpus=2) as two:
        for name in ("lab", "others"):
            two.answer("sacctmgr", "--immediate", "add", "account", name)
            two.answer("sacctmgr", "--immediate", "add", "user", "root", f"account={name}")
        yield two


@pytest.fixture(autouse=True)
def _back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a Folder goes elsewhere


def start_again(cluster: Slurm) -> None:
    """Let jobs that SLURM put into the queue again start now, not in two minutes."""
    for number in cluster.jobs("", "--states=PENDING"):
        cluster.answer("scontrol", "update", f"jobid={number}", "starttime=now")


class Folder:
    """A copy of the repository with a study of so many runs, of which each does as it is told.

    The method of all is in ``studies/paced.py``, but that of the run ``other`` is in
    ``studies/other.py``. A round of each takes so many ``seconds``.
    """

    def __init__(
        self, path: Path, numbers: int, other: int | None = None, seconds: float = 0
    ) -> None:
        self.path = path
        write_project(path)
        fake_audits.write(path / "results/audits")
        method = Path(__file__).with_name("paced.py").read_text()
        lines = []
        for number in range(numbers):
            name = "other" if number == other else "paced"
            file = path / f"studies/{name}.py"
            file.write_text(method.replace("def paced(", f"def {name}("))
            line = {"name": f"{file.name}:{name}", "variant": f"number {number}"}
            lines.append(line | {"hyperparameters": {"number": number}})
        training = {**STUDY["training"], "rounds": ROUNDS}
        self.study = path / "studies/tiny.yaml"
        malformed.write(self.study, {**STUDY, "training": training, "methods": lines})
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

    def forget_gpus(self) -> None:
        for file in (self.path / "paced").glob("gpus*"):
            file.unlink()

    def checkpoint(self, number: int) -> Path:
        return self.path / f"results/checkpoints/{self.ids[number]}.pt"

    def have_checkpoints(self, *numbers: int) -> bool:
        """Return whether these runs have a checkpoint, all by default."""
        return all(self.checkpoint(n).exists() for n in numbers or range(len(self.ids)))

    def two_have_checkpoints(self) -> bool:
        return sum(self.checkpoint(number).exists() for number in range(len(self.ids))) == 2

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
        places = ("plans/{plan}.json", "partitions/{partition}.npz")
        patterns = (*(f"results/{place}" for place in places), "data/{dataset}.npz")
        inputs = runs.Inputs(*(Path(*each(pattern, [cell])) for pattern in patterns))
        settings = {"device": "cpu", "backend": "auto", "checkpoint_seconds": 1e9}
        runs.train(cell, inputs, base / self.ids[number], base / "checkpoints", **settings)
        return self.bits(number, base.name)

    def same_bits(self) -> None:
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
        command += ["-c", SNAKEMAKE, "--profile", "profiles/slurm", *PATIENCE]
        command += [*words, "--", *targets]
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                cluster.inside(*command), stdout=output, stderr=output, env=environment(**more)
            )

    def said(self) -> str:
        return self.output.read_text() + self.cluster.log()[-5000:]

    def until(self, reached: Callable[[], object]) -> None:
        """Wait until something is so, as long as Snakemake is there."""

        def reached_or_ended() -> object:
            return reached() or self.process.poll() is not None

        until(reached_or_ended, self.said)
        assert self.process.poll() is None, self.said()

    def end(self) -> int:
        until(lambda: self.process.poll() is not None, self.said)
        return self.process.returncode

    def ends_well(self) -> None:
        """Let all runs go on at once, and check that the command ends with 0."""
        self.folder.tell(seconds=0)
        assert self.end() == 0, self.said()

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        pid = self.process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(child), signal.SIGINT)


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
    folder.same_bits()
    same = "tried again, resumed, the same bits"
    for fault in ("cancelled", "over its memory", "over its time", "on a node that is lost"):
        record(f"SLURM: job {fault}", same)
    stops = "what it concerns stops with one line, other jobs go on"
    record("SLURM: the code is edited while jobs run", stops)


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
    command.interrupt()
    assert command.end() != 0
    until(lambda: not cluster.jobs(), command.said, seconds=60)
    record("SLURM: Ctrl-C", "no job is left; the same command goes on")

    folder.forget_gpus()
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
    command.interrupt()
    assert command.end() != 0
    until(lambda: not cluster.jobs(), command.said, seconds=60)
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
    folder.same_bits()
    record("SLURM: 20 jobs cancelled at random moments", "20 identical results")


def went_on(nodes: Slurm, command: Snakemake) -> None:
    """Check that every run is completed by its first job, with the bits that it has undisturbed."""
    command.ends_well()
    for id in command.folder.ids:
        assert nodes.history(id) == ["COMPLETED"]
    command.folder.same_bits()


@pytest.mark.night
def test_a_node_that_dies_costs_no_run(nodes, tmp_path):
    folder = Folder(tmp_path / "project", 3, seconds=2)
    command = Snakemake(nodes, folder)
    command.until(folder.have_checkpoints)
    (job,) = nodes.jobs(folder.ids[0])
    nodes.power_off(nodes.answer("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip())
    command.until(lambda: nodes.jobs(folder.ids[0]).get(job) == "PENDING")
    start_again(nodes)
    command.until(lambda: folder.resumed(0))
    went_on(nodes, command)
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
    start_again(nodes)
    command.until(lambda: all(map(folder.resumed, range(2))))
    went_on(nodes, command)
    record("SLURM: jobs are preempted and put into the queue again", "resumed, the same bits")


@pytest.mark.night
def test_a_study_in_one_job_goes_on_when_its_node_dies(nodes, tmp_path):
    folder = Folder(tmp_path / "project", 3)
    (folder.path / ".venv").symlink_to(sys.prefix)
    folder.tell(0, seconds=2)
    log = folder.path / "slurm-1.out"
    words = ("env", f"--chdir={folder.path}", "sbatch", "profiles/slurm/one_job.sh", TABLE)
    assert nodes.answer(*words) == "Submitted batch job 1\n"

    def said() -> str:
        return (log.read_text() if log.exists() else "") + nodes.log()[-5000:]

    until(lambda: folder.have_ended(1, 2) and folder.have_checkpoints(0), said)
    first = [folder.run(number).stat().st_mtime_ns for number in (1, 2)]
    nodes.power_off(nodes.answer("squeue", "--noheader", "--format=%N").strip())
    until(lambda: "PENDING" in nodes.jobs().values(), said)
    start_again(nodes)
    until(lambda: folder.resumed(0), said)
    folder.tell(0, seconds=0)
    until(lambda: not nodes.jobs(), said)
    assert nodes.history("") == ["COMPLETED"], said()
    assert len(pd.read_csv(folder.path / TABLE)) == 3
    assert [folder.run(number).stat().st_mtime_ns for number in (1, 2)] == first
    folder.same_bits()
    record("SLURM: the node of a study that is one job dies", "goes on on another, the same bits")


@pytest.mark.night
def test_a_job_for_each_method_goes_on_beside_the_others_when_its_node_dies(nodes, tmp_path):
    folder = Folder(tmp_path / "project", 3, other=2)
    (folder.path / ".venv").symlink_to(sys.prefix)
    folder.tell(0, 2, seconds=2)
    here = ("env", f"--chdir={folder.path}")
    words = (".venv/bin/snakemake", "--cores", "2", "--until", "plan", "partition", "--", TABLE)
    nodes.answer(*here, *words)
    for method in ("paced", "other"):
        scores = f"results/scores/tiny/{method}.csv"
        nodes.answer(*here, "sbatch", "profiles/slurm/one_job.sh", scores)

    def said() -> str:
        logs = sorted(folder.path.glob("slurm-*.out"))
        return "".join(log.read_text() for log in logs) + nodes.log()[-5000:]

    until(lambda: folder.have_ended(1) and folder.have_checkpoints(0, 2), said)
    first = folder.run(1).stat().st_mtime_ns
    nodes.power_off(nodes.answer("squeue", "--noheader", "--jobs=1", "--format=%N").strip())
    until(lambda: nodes.jobs() == {"1": "PENDING", "2": "RUNNING"}, said)
    start_again(nodes)
    until(lambda: folder.resumed(0), said)
    folder.tell(0, 2, seconds=0)
    until(lambda: not nodes.jobs(), said)
    assert nodes.history("") == ["COMPLETED", "COMPLETED"], said()
    assert folder.run(1).stat().st_mtime_ns == first
    assert not folder.resumed(2)
    nodes.answer(*here, ".venv/bin/snakemake", "--cores", "2", "--", TABLE)
    assert len(pd.read_csv(folder.path / TABLE)) == 3
    folder.same_bits()
    fault = "SLURM: one of the jobs of a study, a job a method, loses its node"
    record(fault, "goes on, same bits")


def of_the_lab(path: Path, seconds: float) -> Folder:
    """Return a study of four runs whose account is named in the profile, as its comment says."""
    folder, profile = Folder(path, 4, seconds=seconds), "profiles/slurm/config.yaml"
    malformed.put("default-resources.slurm_account", "lab", profile)(folder.path)
    return folder


def each_run_once(cluster: Slurm, folder: Folder) -> None:
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
    (waiting,) = (number for number, state in accounts.jobs().items() if state == "PENDING")
    words = ("--account=others", "--output=/dev/null", "--mem=100", "--wrap=sleep 1000")
    later = accounts.answer("sbatch", "--parsable", *words).strip()

    def states() -> list[str]:
        jobs = accounts.jobs()
        return [jobs[waiting], jobs[later]]

    assert states() == ["PENDING", "PENDING"]
    folder.tell(next(filter(folder.have_checkpoints, range(4))), seconds=0)
    command.until(lambda: states() != ["PENDING", "PENDING"])
    assert states() == ["PENDING", "RUNNING"]
    accounts.cancel(later)
    command.ends_well()
    each_run_once(accounts, folder)
    ours = [row for row in accounts.accounted() if row["Account"] == "lab"]
    assert max(sum(b["Submit"] <= a["Submit"] < b["End"] for b in ours) for a in ours) == 3
    record(
        "SLURM with fair share: a job of another account comes when jobs of a study wait",
        "it starts before them; the study's jobs are accounted, each run once",
    )


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
    each_run_once(accounts, folder)
    folder.same_bits()
    record(
        f"SLURM, whose states are asked of {asked}: its database of jobs is killed and comes back",
        "the same bits; each run is accounted once",
    )
