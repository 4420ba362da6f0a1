"""A script in a fork of a warm process is, to whoever calls it, the script that Python runs."""

import contextlib
import errno
import fcntl
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import tabled
import warm
from called import called, works
from pflpipe import program
from pflpipe.pipeline import forks
from pflpipe.pipeline.project import Project
from pflpipe.study.config import Config

pytestmark = pytest.mark.pipeline
SOURCE = str(Path(forks.__file__).parents[2])
# A module that is nowhere else, so that a script can tell where it runs.
KNOWN = f"import sys\nprint({'warmed'!r} in sys.modules)\n"
TABLES = tabled.table("test_forks")


def parent(address: Path, folder: Path) -> str:
    """A program that starts the process and ends with its standard input."""
    words = {"source": SOURCE, "address": str(address), "path": str(folder)}
    return TABLES["PARENT"].format(modules=("warmed",), **words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("warm")
    (path / "warmed.py").write_text("")
    return path


def started(folder: Path, modules: tuple[str, ...] = ("warmed",)) -> str:
    """Start a process and return a program that runs scripts in its forks."""
    address = forks.new_address()
    forks.start(address, str(folder), modules)
    return warm.shim(folder / address.parent.name, address)


@pytest.fixture(scope="module")
def python(folder: Path) -> str:
    return started(folder)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


def run(python: str, script: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    how = {"capture_output": True, "text": True, "env": environment | more, "cwd": script.parent}
    return subprocess.run([python, str(script), *words], **how)


def test_a_script_finds_what_was_imported_for_it(python, script):
    script.write_text(KNOWN)
    assert run(python, script).stdout == "True\n"
    assert run(sys.executable, script).stdout == "False\n"


def test_words_folder_environment_output_and_path_are_those_of_python(python, script):
    (script.parent / "beside.py").write_text("VALUE = 7")
    script.write_text(TABLES["SURROUNDED"])
    answers = [run(each, script, "a b", "--c", GIVEN="é") for each in (python, sys.executable)]
    assert [(answer.returncode, answer.stderr) for answer in answers] == [(0, "to the log\n")] * 2
    found, expected = (json.loads(answer.stdout) for answer in answers)
    assert found == expected
    assert found == [[str(script), "a b", "--c"], str(script.parent), "é", "__main__", 7, ""]


@pytest.mark.parametrize(
    ("line", "code"), [("", 0), ("sys.exit(2)", 2), ("sys.exit('no')", 1), ("1 / 0", 1)]
)
def test_it_ends_as_the_script_ends(python, script, line, code):
    script.write_text(f"import os, sys\n{line}\n")
    found, expected = run(python, script), run(sys.executable, script)
    assert found.returncode == expected.returncode == code
    if line == "1 / 0":
        assert found.stderr.splitlines()[-1] == expected.stderr.splitlines()[-1]


def test_a_signal_that_ends_the_script_ends_its_caller(python, script):
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert run(python, script).returncode == -signal.SIGKILL


def test_nothing_of_a_script_is_open_once_its_caller_has_ended(python, script):
    held = script.with_name("held")
    # What a module keeps is there until the process ends, which lasts with so much memory.
    script.write_text("import sys\nsys.kept = open('held', 'w'), bytearray(b'1') * 2**30\n")
    subprocess.run([python, str(script)], cwd=script.parent, check=True)
    with held.open("r+") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)  # refused if anybody else has it open
        assert fcntl.fcntl(file, fcntl.F_GETLEASE) == fcntl.F_WRLCK


@dataclass(frozen=True)
class Sleeping:
    """A caller whose script waits for ``go``, a hold on the script's process, and the process that
    forked it."""

    caller: subprocess.Popen[str]
    ended: int
    process: int

    def is_over(self) -> bool:
        return bool(select.select([self.ended], [], [], 60)[0])


@contextlib.contextmanager
def sleeping(python: str, script: Path) -> Iterator[Sleeping]:
    os.mkfifo(script.with_name("go"))
    script.write_text(TABLES["WAITING"])
    command, pipe = [python, str(script)], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, text=True, cwd=script.parent) as caller:
        found, process = map(int, caller.stdout.readline().split())
        yield Sleeping(caller, os.pidfd_open(found), process)


def test_a_caller_that_is_killed_takes_its_script_along(python, script):
    with sleeping(python, script) as asleep:
        asleep.caller.kill()
        assert asleep.is_over()


def test_a_process_that_is_killed_disturbs_neither_a_script_nor_the_next_one(folder, script):
    python = started(folder)
    with sleeping(python, script) as asleep:
        process = os.pidfd_open(asleep.process)
        os.kill(asleep.process, signal.SIGKILL)
        assert select.select([process], [], [], 60)[0]
        script.with_name("go").write_text("seven..")
        assert asleep.caller.wait(60) == 7
    script.write_text(KNOWN)
    assert run(python, script).stdout == "False\n"


def test_ctrl_c_before_a_script_begins_leaves_no_traceback(tmp_path, script):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        command = [warm.shim(tmp_path / "python", tmp_path / "socket"), str(script)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as caller:
            with listener.accept()[0] as connection:
                assert connection.recv(forks.REQUEST_BYTES)  # without an answer
                caller.send_signal(signal.SIGINT)
                assert caller.wait(60) == -signal.SIGINT
            assert caller.stderr.read() == ""


def test_ctrl_c_before_a_script_has_imported_its_modules_leaves_no_traceback(python, script):
    script.write_text("raise KeyboardInterrupt\n")
    answer = run(python, script)
    assert (answer.returncode, answer.stderr) == (130, "")


def test_a_script_whose_caller_has_gone_says_nothing(tmp_path, script):
    (tmp_path / "slow.py").write_text("open('go').read()")
    os.mkfifo(tmp_path / "go")
    address = forks.new_address()
    with contextlib.chdir(tmp_path):
        forks.start(address, str(tmp_path), ("slow",))
    script.write_text("print('ran')\n")
    reading, writing = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        caller.connect(str(address))
        request = json.dumps([[str(script)], str(tmp_path), dict(os.environ)]).encode()
        socket.send_fds(caller, [request], [writing, writing])
    os.close(writing)
    (tmp_path / "go").write_text("")
    with open(reading) as printed:
        assert printed.read() in ("", "ran\n")


def test_a_script_outlives_the_parent_of_the_process_which_ends_and_leaves_nothing(folder, script):
    address = forks.new_address()
    command = [sys.executable, "-c", parent(address, folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as above:
        assert above.stdout.readline() == "started\n"
        with sleeping(warm.shim(folder / "outlived", address), script) as asleep:
            process = os.pidfd_open(asleep.process)
            above.kill()
            assert select.select([process], [], [], 60)[0]
            assert not address.parent.exists()
            script.with_name("go").write_text("seven..")
            assert asleep.caller.wait(60) == 7


@pytest.mark.parametrize("words", [("-c", KNOWN), ("-m", "json.tool", "--help")])
def test_what_is_no_script_is_left_to_python(python, words):
    assert called(python, *words).stdout.startswith(("False", "usage"))


def test_a_script_that_has_several_threads_is_left_to_python(python, script):
    script.write_text(KNOWN)
    assert run(python, script, OMP_NUM_THREADS="2").stdout == "False\n"
    assert run(python, script, OMP_NUM_THREADS="1").stdout == "True\n"


def test_where_the_process_cannot_listen_nothing_is_started(tmp_path):
    address = tmp_path / ("long" * 40) / "socket"  # a socket's name has at most 107 bytes
    forks.start(address, "")
    assert not address.parent.exists()


# Numbers of system calls that REFUSED answers with an error.
PIDFD_OPEN, SOCKET = 434, 41


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
@pytest.mark.parametrize("answer", [errno.ENOSYS, errno.EPERM])
@pytest.mark.parametrize(("call", "forked"), [(PIDFD_OPEN, "True\n"), (SOCKET, "False\n")])
def test_a_system_that_refuses_a_call_has_its_scripts_run(call, forked, answer, folder, script):
    script.write_text(KNOWN)
    address = forks.new_address()
    command = [warm.shim(folder / address.parent.name, address), str(script)]
    words = [str(call), str(answer), SOURCE, address, folder, *command]
    assert called(sys.executable, "-c", TABLES["REFUSED"], *words).stdout == forked


NOEXEC = 'mount -t tmpfs -o noexec none "$0" && TMPDIR="$0" exec "$@"'


@pytest.mark.skipif(
    not works("unshare", "--mount", "mount", "-t", "tmpfs", "-o", "noexec", "none", "/mnt"),
    reason="this user may not mount",
)
def test_a_temporary_folder_that_is_mounted_noexec_has_its_scripts_run(folder, script, tmp_path):
    script.write_text(KNOWN)
    (tmp_path / "tmp").mkdir()
    address = tmp_path / "tmp" / "pflpipe" / "socket"
    command = [warm.shim(folder / "noexec", address), str(script)]
    then = f"import subprocess; subprocess.run({command!r})"
    begin = parent(address, folder).replace("sys.stdin.read()", then)
    words = ["sh", "-c", NOEXEC, tmp_path / "tmp", sys.executable, "-c", begin]
    assert called("unshare", "--mount", *words).stdout == "started\nTrue\n"


def test_what_is_imported_for_scripts_can_be_imported():
    for name in forks.PRELOADED:
        module, _, function = name.partition(":")
        assert importlib.util.find_spec(module), name
        assert not function or callable(getattr(importlib.import_module(module), function))


def test_a_script_finds_what_was_computed_for_it(folder, script):
    (folder / "computed.py").write_text("found = []\ndef compute():\n    found.append(1)\n")
    script.write_text("import computed\nprint(computed.found)\n")
    assert run(started(folder, ("computed:compute",)), script).stdout == "[1]\n"


def test_where_one_of_these_is_missing_scripts_are_left_to_python(folder, script):
    script.write_text(KNOWN)
    assert run(started(folder, ("missing",)), script).stdout == "False\n"


def test_a_script_notes_what_it_took_where_somebody_asks(monkeypatch, tmp_path):
    file = tmp_path / "folder" / "took.tsv"

    def ends(main) -> object:
        with pytest.raises(SystemExit) as stopped:
            program.run_script(main)
        return stopped.value.code

    assert ends(lambda: None) == 0  # nobody asked
    monkeypatch.setenv(program.MEASURES, str(file))
    assert ends(lambda: sys.exit(1)) == 1
    assert not file.exists(), "of a script that failed"
    monkeypatch.setenv("RANK", "1")
    assert ends(lambda: None) == 0
    assert not file.exists(), "by the second of several processes"
    monkeypatch.setenv("RANK", "0")
    assert ends(lambda: None) == 0
    names, values = (line.split("\t") for line in file.read_text().splitlines())
    assert names == ["s", "max_rss", "cpu_time"]
    assert 10 < float(values[1]) < 1e5, "megabytes"


def test_an_edit_after_the_start_does_not_pass_for_what_was_imported(tmp_path):
    shared = tmp_path / "src" / "pflpipe" / "shared.py"
    script = tmp_path / "workflow" / "scripts" / "job.py"
    job = "from pflpipe import shared\nprint(shared.VALUE)\n"
    files = {shared: "VALUE = 1\n", shared.with_name("__init__.py"): "", script: job}
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    first, later = (Project(Config(studies=()), tmp_path, thorough=False) for _ in range(2))
    first.note([])
    shared.write_text("VALUE = 2\n")
    assert first.code("job") != later.code("job"), "so the next command does the job again"
