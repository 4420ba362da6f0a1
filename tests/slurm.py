"""A SLURM for the tests and a benchmark: its own controller, nodes, key, ports and folders.

All nodes are on this machine, each a slurmd with a name and a port of its own.

The daemons live in namespaces of their own (unshare(1)): what is in ``/etc/slurm`` there is a
folder of the test's, and whatever a job leaves behind ends with the namespace's first process,
which ends with the process that started it, however that ends. Nothing outside of the folder is
written.

SLURM without systemd and cgroups: processes are found and measured by /proc, memory is looked at
once a second, and the two GPUs of each node are declared with device files that every machine has.
Jobs are remembered by the controller, or, where a test asks for it, in a database.
"""

import contextlib
import csv
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from called import works

HOST = socket.gethostname().split(".")[0]
NEEDS = dict.fromkeys(("slurmctld", "slurmd", "sacct", "squeue"), "slurm-wlm")
NEEDS |= {"munged": "munge", "unshare": "util-linux", "setpriv": "util-linux"}
"""Programs, and the packages of Debian and Ubuntu that have them."""
NEEDS_OF_A_DATABASE = dict.fromkeys(("mariadbd", "mariadb-install-db"), "mariadb-server")
NEEDS_OF_A_DATABASE |= {"slurmdbd": "slurmdbd"}

# The executor plugin takes SLURM_CONF out of a job's environment, so the file has to be where SLURM
# looks by itself. The shell stays the first process of the namespace: somebody has to wait for
# orphans.
KEEP = '"$@" & wait'
FIRST = f"""
mount --bind "$0/etc" /etc/slurm
[ ! -e "$0/sacct" ] || mount --bind "$0/sacct" "$(command -v sacct)"
{KEEP}
"""
FILES = Path(__file__).with_name("slurm_files")
"""SLURM's configuration, whose words in braces a test fills in."""
MEMORY = "AccountingStorageType=accounting_storage/none\nMinJobAge=3600\n"
PARTITION = "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"


def missing(*, database: bool = False) -> str:
    """Return why no SLURM, or none with a database, can be started here, empty when one can."""
    if os.getuid() != 0:
        return "a SLURM of one's own needs root"
    needs = NEEDS | (NEEDS_OF_A_DATABASE if database else {})
    if packages := sorted({needs[name] for name in needs if shutil.which(name) is None}):
        return f"apt-get install {' '.join(packages)}"
    if not Path("/etc/slurm").is_dir():
        return "no folder /etc/slurm, where SLURM of Debian and Ubuntu has its configuration"
    bind = ("mount", "--bind", "/etc/slurm", "/etc/slurm")
    if not works("unshare", "--mount", "--pid", "--fork", *bind):
        return "no namespaces here: in a container they need --privileged"
    return ""


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", 0)
        sockets = [stack.enter_context(socket.create_server(address)) for _ in range(number)]
        return [each.getsockname()[1] for each in sockets]


def child(process: int) -> int:
    """Return the number of a process's only child."""
    (child,) = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return int(child)


class Slurm:
    """A SLURM of some nodes at work from ``start`` to ``stop``; ``folder`` has its files."""

    def __init__(
        self, folder: Path, nodes: int = 1, cpus: int = 16, *, database: bool = False
    ) -> None:
        self.folder, self.cpus, self.database = folder, cpus, database
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]

    def start(self, settings: str = PARTITION) -> None:
        """Start the daemons and wait until the nodes take jobs.

        Args:
            settings: further lines of slurm.conf: the partitions, and what a test changes.
        """
        for name in ("etc", "state", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        controller, slurmdbd, self._mariadb, *ports = _free_ports(3 + len(self.nodes))
        words = {"folder": self.folder, "host": HOST, "cpus": self.cpus, "port": slurmdbd}
        words |= {"controller": controller, "mariadb": self._mariadb}

        def filled(name: str) -> str:
            return (FILES / name).read_text().format(**words)

        lines = [filled("slurm.conf"), filled("accounting.conf") if self.database else MEMORY]
        for node, port in zip(self.nodes, ports, strict=True):
            lines += [f"NodeName={node} NodeHostname={HOST} NodeAddr=127.0.0.1 Port={port}\n"]
        if self.database:
            file = self.folder / "etc/slurmdbd.conf"
            file.touch(0o600)  # it refuses a file that others can read
            file.write_text(filled("slurmdbd.conf"))
        else:
            shutil.copy(FILES / "sacct", self.folder)
            (self.folder / "sacct").chmod(0o755)
        (self.folder / "etc/slurm.conf").write_text("".join(lines) + settings)
        (self.folder / "etc/gres.conf").write_text("Name=gpu File=/dev/null,/dev/zero\n")
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        munged = ["munged", "--force", "--foreground", f"--key-file={key}"]
        for word in ("socket", "pid-file", "log-file", "seed-file"):
            munged.append(f"--{word}={self.folder}/munge.{word.removesuffix('-file')}")
        self._first = self._daemon(
            *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--mount-proc"),
            *("--ipc", "--fork", "--kill-child", "sh", "-c", FIRST, str(self.folder), *munged),
        )
        until((self.folder / "munge.socket").exists, self.log)
        if self.database:
            words = ("--auth-root-authentication-method=normal", "--skip-test-db")
            self.answer("mariadb-install-db", *self._own_mariadb(), *words)
            self.start_database()
            self.answer("sacctmgr", "--immediate", "add", "cluster", "pflpipe")
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)

    def start_controller(self) -> None:
        """Start slurmctld, the first time or after it was killed."""
        self._daemon(*self.inside("slurmctld", "-D"))

    def _own_mariadb(self) -> list[str]:
        return ["--no-defaults", "--user=root", f"--datadir={self.folder}/mariadb"]

    def start_database(self) -> None:
        """Start MariaDB and slurmdbd, the first time or after they were killed."""
        own = self.folder / "mariadbd"
        files = (f"--socket={own}.socket", f"--pid-file={own}.pid")
        words = (f"--port={self._mariadb}", "--bind-address=127.0.0.1", *files)
        self._daemon(*self.inside("mariadbd", *self._own_mariadb(), *words))
        until((self.folder / "mariadbd.socket").exists, self.log)  # or slurmdbd waits five seconds
        self._daemon(*self.inside("slurmdbd", "-D"))
        asked = ("sacctmgr", "--noheader", "list", "cluster")
        until(lambda: self._asked(*asked).returncode == 0, self.log)

    def kill_database(self) -> None:
        """End slurmdbd and MariaDB without warning; the controller keeps what it has to tell."""
        self._kill("slurmdbd")
        self._kill("mariadbd")
        (self.folder / "mariadbd.socket").unlink()

    def start_node(self, node: str) -> None:
        """Start slurmd, which knows nothing of jobs, and wait until the node takes some."""
        own = ("unshare", "--pid", "--mount-proc", "--fork", "--kill-child", "sh", "-c", KEEP, "sh")
        words = self.inside(*own, "slurmd", "-D", "-c", "-N", node)
        self._nodes[node] = self._daemon(*words)
        asked = ("sinfo", "-h", "-n", node, "-o", "%t")
        until(lambda: "idle" in self._asked(*asked).stdout.split(), self.log)

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

    def power_off(self, node: str) -> None:
        """End a node and everything that runs on it, at once; the controller is told nothing."""
        os.kill(self._first_on(node), signal.SIGKILL)
        self._nodes[node].wait()

    def node_of(self, job: str) -> str:
        """Return on which node a job runs."""
        return self.answer("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip()

    def start_again(self) -> None:
        """Let jobs that SLURM put into the queue again start now, not in two minutes."""
        for number in self.jobs("", "--states=PENDING"):
            self.answer("scontrol", "update", f"jobid={number}", "starttime=now")

    def lose_node(self, node: str) -> None:
        """Drain a node, lose it with the jobs on it, and have it back when they have ended there.

        SLURM puts the jobs into the queue again, for two minutes later, which are not waited for.
        By then the node's daemon would have noticed that they have ended, for which it looks once a
        second; until it has, it refuses them, which drains the node. A new one knows no jobs. The
        node is down until that one has told the controller that it is there.
        """

        def be(*states: str) -> None:
            for state in states:
                words = (f"nodename={node}", f"state={state}", "reason=test")
                self.answer("scontrol", "update", *words)

        be("drain", "down")
        first = self._first_on(node)
        until(lambda: not self.processes("slurmstepd", first), self.log)
        self.power_off(node)
        be("resume", "down")
        self.start_node(node)
        self.start_again()

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
        return str(child(self._first.pid))

    def _first_on(self, node: str) -> int:
        return child(child(self._nodes[node].pid))  # of nsenter's child, unshare

    def _asked(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.inside(*command), capture_output=True, text=True, check=False)

    def answer(self, *command: str) -> str:
        """Run one of SLURM's commands, which must not fail, and return what it printed."""
        done = self._asked(*command)
        assert done.returncode == 0, (command, done.stderr, self.log()[-5000:])
        return done.stdout

    def processes(self, program: str, first: int | None = None) -> set[str]:
        """Return the numbers of a program's processes in there, or where a node's first one is.

        Asked of the machine's /proc: it is asked often, and a command in there costs more.
        """
        space = Path(f"/proc/{first or self._first_inside()}/ns/pid").readlink()
        found = set()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                name = (process / "comm").read_text().strip()
                if name == program and (process / "ns/pid").readlink() == space:
                    found.add(process.name)
        return found

    def cpu_seconds(self) -> float:
        """Return the CPU time of what has ended on the nodes: jobs, and SLURM's own processes."""
        ticks = 0
        for node in self.nodes:
            # The 16th and 17th field, cutime and cstime of proc(5), behind a name in parentheses.
            text = Path(f"/proc/{self._first_on(node)}/stat").read_text()
            ticks += sum(map(int, text.rpartition(")")[2].split()[13:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

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

    def accounted(self) -> list[dict[str, str]]:
        """Return what the database knows of all jobs, oldest first, by the names of sacct."""
        fields = "--format=JobIDRaw,Account,State,Submit,Start,End,Comment"
        words = ("--allocations", "--allusers", "--parsable2", "--starttime=now-1day", fields)
        return list(csv.DictReader(self.answer("sacct", *words).splitlines(), delimiter="|"))

    def history(self, words: str) -> list[str]:
        """Return how the jobs with these words in their comment ended, oldest first."""
        return list(self.jobs(words, "--states=all").values())


def until(reached: Callable[[], object], said: Callable[[], str], seconds: float = 600) -> None:
    """Wait until something is so; when it takes so many seconds, fail with what was ``said``."""
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, said()
        time.sleep(0.5)
