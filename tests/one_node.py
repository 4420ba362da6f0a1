"""A SLURM of one node, for the tests alone: its own controller, node, key, ports and folders.

The daemons live in namespaces of their own (unshare(1)): what is in ``/etc/slurm`` there is a
folder of the test's, and whatever a job leaves behind ends with the namespace's first process,
which ends with the process that started it, however that ends. Nothing outside of the folder is
written.

SLURM without systemd, cgroups and a database: processes are found and measured by /proc, memory
is looked at once a second, jobs are remembered by the controller, and the two GPUs are declared
with device files that every machine has.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

NODE = socket.gethostname().split(".")[0]
NEEDS = {
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "sacct": "slurm-wlm",
    "squeue": "slurm-wlm",
    "munged": "munge",
    "unshare": "util-linux",
    "setpriv": "util-linux",
}
"""Programs, and the packages of Debian and Ubuntu that have them."""

# The executor plugin takes SLURM_CONF out of a job's environment, so the file has to be where SLURM
# looks by itself. The shell stays the first process of the namespace: somebody has to wait for
# orphans.
FIRST = """
mount --bind "$0/etc" /etc/slurm
mount --bind "$0/sacct" "$(command -v sacct)"
"$@" &
wait
"""
# There is no database of jobs. What it would be asked, the controller knows.
SACCT = """#!/bin/sh
case "$*" in
  *--name*)
    for name; do :; done
    exec squeue --noheader --states=all --format='%i|%T' --name "$name"
    ;;
  *) exit 1 ;;
esac
"""
CONFIGURATION = f"""
ClusterName=pflpipe
SlurmctldHost={NODE}(127.0.0.1)
SlurmctldPort={{controller}}
SlurmdPort={{node}}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={{folder}}/munge.socket
CredType=cred/munge
SlurmctldPidFile={{folder}}/slurmctld.pid
SlurmdPidFile={{folder}}/slurmd.pid
StateSaveLocation={{folder}}/state
SlurmdSpoolDir={{folder}}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1,defer_batch
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill,UsePss
AccountingStorageType=accounting_storage/none
KillWait=2
MinJobAge=3600
GresTypes=gpu
NodeName={NODE} NodeAddr=127.0.0.1 CPUs=16 RealMemory=32000 Gres=gpu:2 State=UNKNOWN
PartitionName=all Nodes={NODE} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Return why no SLURM can be started here, empty when one can."""
    if os.getuid() != 0:
        return "a SLURM of one's own needs root"
    if packages := sorted({NEEDS[name] for name in NEEDS if shutil.which(name) is None}):
        return f"apt-get install {' '.join(packages)}"
    if not Path("/etc/slurm").is_dir():
        return "no folder /etc/slurm, where SLURM of Debian and Ubuntu has its configuration"
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False).returncode:
        return "no namespaces here: in a container they need --privileged"
    return ""


def _free_ports() -> list[int]:
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in (one, other)]


class OneNode:
    """A SLURM at work from ``start`` to ``stop``; ``folder`` is where its files are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self) -> None:
        """Start the daemons and wait until the node takes jobs."""
        for name in ("etc", "state", "spool"):
            (self.folder / name).mkdir(parents=True)
        controller, node = _free_ports()
        values = {"folder": self.folder, "controller": controller, "node": node}
        (self.folder / "etc/slurm.conf").write_text(CONFIGURATION.format(**values))
        (self.folder / "etc/gres.conf").write_text("Name=gpu File=/dev/null,/dev/zero\n")
        (self.folder / "sacct").write_text(SACCT)
        (self.folder / "sacct").chmod(0o755)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        files = {"key-file": key} | {
            word: self.folder / f"munge.{word.removesuffix('-file')}"
            for word in ("socket", "pid-file", "log-file", "seed-file")
        }
        munged = ["munged", "--force", "--foreground"]
        munged += [f"--{word}={file}" for word, file in files.items()]
        self._first = self._daemon(
            *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--mount-proc"),
            *("--ipc", "--fork", "--kill-child", "sh", "-c", FIRST, str(self.folder), *munged),
        )
        until((self.folder / "munge.socket").exists, self.log)
        self.start_controller()
        self.start_node()

    def start_controller(self) -> None:
        """Start slurmctld, the first time or after it was killed."""
        self._daemon(*self.inside("slurmctld", "-D"))

    def start_node(self) -> None:
        """Start slurmd, which knows nothing of jobs, and wait until the node takes some."""
        self._daemon(*self.inside("slurmd", "-D", "-c"))
        until(lambda: "idle" in self._asked("sinfo", "-h", "-o", "%t").stdout, self.log)

    def kill_controller(self) -> None:
        """End slurmctld without warning; jobs that run go on.

        Every five seconds it writes down what it knows, and of what happened since then it knows
        nothing when it comes back: jobs are lost, or started twice, which drains the node. So the
        last change to its jobs, which is made here, is waited for; there must be no other.
        """
        asked = time.time()
        for number in self.jobs():
            self.answer("scontrol", "update", f"jobid={number}", "nice=0")
        state = self.folder / "state/job_state"
        until(lambda: state.exists() and state.stat().st_mtime > asked, self.log)
        self._kill("slurmctld")

    def cancel(self, *numbers: str) -> None:
        """Cancel jobs; one that has just ended is none to cancel."""
        self._asked("scancel", *numbers)

    def let_time_run_out(self, words: str) -> None:
        """Let the jobs with these words in their comment, which run, reach their limit of time.

        SLURM's shortest limit is a minute, but a job's end may be moved. It looks at limits twice a
        minute.
        """
        for number in self.jobs(words):
            self.answer("scontrol", "update", f"jobid={number}", "endtime=now+1")

    def lose_node(self) -> None:
        """Drain the node, lose it with the jobs on it, and have it back when they have ended there.

        SLURM puts the jobs into the queue again, for two minutes later, which are not waited for.
        By then the node's daemon would have noticed that they have ended, for which it looks once a
        second; until it has, it refuses them, which drains the node. A new one knows no jobs. The
        node is down until that one has told the controller that it is there.
        """

        def be(*states: str) -> None:
            for state in states:
                words = (f"nodename={NODE}", f"state={state}", "reason=test")
                self.answer("scontrol", "update", *words)

        be("drain", "down")
        until(lambda: not self.processes("slurmstepd"), self.log)
        self._kill("slurmd")
        be("resume", "down")
        self.start_node()
        for number in self.jobs():
            self.answer("scontrol", "update", f"jobid={number}", "starttime=now")

    def stop(self) -> None:
        """End everything that runs in there."""
        self._first.kill()
        self._first.wait()

    def _daemon(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _kill(self, daemon: str) -> None:
        self.answer("kill", "-9", (self.folder / f"{daemon}.pid").read_text().strip())

    def log(self) -> str:
        """Return what the daemons said."""
        return (self.folder / "log").read_text(errors="replace")

    def inside(self, *command: str) -> list[str]:
        """Return the words that run a command where the daemons are."""
        return ["nsenter", f"--target={self._first_inside()}", "--all", "--", *command]

    def _first_inside(self) -> str:
        process = self._first.pid
        (first,) = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return first

    def _asked(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.inside(*command), capture_output=True, text=True, check=False)

    def answer(self, *command: str) -> str:
        """Run one of SLURM's commands, which must not fail, and return what it printed."""
        done = self._asked(*command)
        assert done.returncode == 0, (command, done.stderr, self.log()[-5000:])
        return done.stdout

    def processes(self, program: str) -> set[str]:
        """Return the numbers of a program's processes in there.

        Asked of the machine's /proc: it is asked often, and a command in there costs more.
        """
        space = Path(f"/proc/{self._first_inside()}/ns/pid").readlink()
        found = set()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                name = (process / "comm").read_text().strip()
                if name == program and (process / "ns/pid").readlink() == space:
                    found.add(process.name)
        return found

    def jobs(self, words: str = "", *which: str) -> dict[str, str]:
        """Return number and state of the jobs with these words in Snakemake's comment, oldest
        first.

        Args:
            words: such as the id of a run.
            which: a condition of squeue; those that wait or run when left out.
        """
        found = self.answer("squeue", *which, "--sort=i", "--noheader", "--format=%i|%T|%k")
        lines = [line.split("|", 2) for line in found.splitlines()]
        return {number: state for number, state, comment in lines if words in comment}

    def history(self, words: str) -> list[str]:
        """Return how the jobs with these words in their comment ended, oldest first."""
        return list(self.jobs(words, "--states=all").values())


def until(reached: Callable[[], object], said: Callable[[], str], seconds: float = 600) -> None:
    """Wait until something is so; when it takes so many seconds, fail with what was ``said``."""
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, said()
        time.sleep(0.5)
