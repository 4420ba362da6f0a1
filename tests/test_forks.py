"""A script in a fork of a warm process is, to whoever calls it, the script that Python runs."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pflpipe import program
from pflpipe.pipeline import forks
from pflpipe.pipeline.project import Project
from pflpipe.study.config import Config

pytestmark = pytest.mark.pipeline
# A module that is nowhere else, so that a script can tell where it runs.
START = (
    f"import sys; sys.path.insert(0, {str(Path(forks.__file__).parents[2])!r})\n"
    "from pflpipe.pipeline import forks\n"
    "print(forks.start({folder!r}, {modules!r}), flush=True)\n"
)
"""A program that starts the process and prints its name."""
GO = "import sys\nprint('begun', flush=True)\nsys.exit(len(open('go').read()))\n"
"""A script that waits for somebody to write to a pipe."""
KNOWN = f"import sys\nprint({'warmed'!r} in sys.modules)\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("warm")
    (path / "warmed.py").write_text("")
    return path


@pytest.fixture(scope="module")
def python(folder: Path) -> str:
    return forks.start(str(folder), ["warmed"])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


def run(
    python: str, script: Path, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [python, str(script), *words]
    clean = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return subprocess.run(
        command, capture_output=True, text=True, env=clean | environment, cwd=script.parent
    )


def test_a_script_finds_what_was_imported_for_it(python, script):
    script.write_text(KNOWN)
    assert run(python, script).stdout == "True\n"
    assert run(sys.executable, script).stdout == "False\n"


def test_words_folder_environment_output_and_path_are_those_of_python(python, script):
    (script.parent / "beside.py").write_text("VALUE = 7")
    script.write_text(
        "import beside, json, os, sys\n"
        "found = [sys.argv, os.getcwd(), os.environ['GIVEN'], __name__, beside.VALUE]\n"
        "print(json.dumps([*found, sys.stdin.read()]))\n"
        "print('to the log', file=sys.stderr)\n"
    )
    answers = [run(each, script, "a b", "--c", GIVEN="é") for each in (python, sys.executable)]
    assert [(answer.returncode, answer.stderr) for answer in answers] == [(0, "to the log\n")] * 2
    found, expected = (json.loads(answer.stdout) for answer in answers)
    assert found == expected
    assert found == [[str(script), "a b", "--c"], str(script.parent), "é", "__main__", 7, ""]


@pytest.mark.parametrize(
    ("line", "code"),
    [("", 0), ("sys.exit(2)", 2), ("sys.exit('no')", 1), ("1 / 0", 1), ("os._exit(9)", 9)],
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


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not (holds := condition()) and time.monotonic() < end:
        os.sched_yield()
    assert holds, what


@dataclass(frozen=True)
class Sleeping:
    """A caller whose script sleeps, the script's process and a hold on it, and the process that
    forked it."""

    caller: subprocess.Popen[str]
    script: int
    ended: int
    process: int

    def is_over(self) -> bool:
        return bool(select.select([self.ended], [], [], 60)[0])


@contextlib.contextmanager
def sleeping(python: str, script: Path) -> Iterator[Sleeping]:
    script.write_text(
        "import os, time\nprint(os.getpid(), os.getppid(), flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([python, str(script)], stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        found, process = map(int, caller.stdout.readline().split())
        yield Sleeping(caller, found, os.pidfd_open(found), process)


def test_a_caller_that_is_killed_takes_its_script_along(python, script):
    with sleeping(python, script) as asleep:
        asleep.caller.kill()
        assert asleep.is_over()


def test_a_script_and_its_caller_that_end_at_the_same_time_leave_the_process_at_work(
    python, script, tmp_path
):
    with sleeping(python, script) as asleep:
        os.kill(asleep.process, signal.SIGSTOP)  # so that it hears of both ends at once
        state = Path(f"/proc/{asleep.process}/stat")
        wait_until(lambda: state.read_text().rsplit(") ")[-1][0] == "T", "it has stopped")
        os.kill(asleep.script, signal.SIGKILL)
        asleep.caller.kill()
        assert asleep.is_over()
    os.kill(asleep.process, signal.SIGCONT)
    other = tmp_path / "other.py"
    other.write_text("import os\nprint(os.getppid())\n")
    assert run(python, other).stdout == f"{asleep.process}\n"


def test_a_process_that_is_killed_takes_its_scripts_along(folder, script):
    with sleeping(forks.start(str(folder), ["warmed"]), script) as asleep:
        os.kill(asleep.process, signal.SIGKILL)
        assert asleep.caller.wait(60) == 1
        assert asleep.is_over()


def test_a_script_outlives_the_parent_of_the_process_and_its_caller_hears_how_it_ended(
    folder, script, tmp_path
):
    os.mkfifo(tmp_path / "go")
    script.write_text(GO)
    code = f"{START.format(folder=str(folder), modules=['warmed'])}\nsys.stdin.read()\n"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        warm = Path(parent.stdout.readline().strip())
        with subprocess.Popen(
            [str(warm), str(script)], stdout=subprocess.PIPE, cwd=tmp_path, text=True
        ) as caller:
            assert caller.stdout is not None
            assert caller.stdout.readline() == "begun\n"
            parent.kill()
            wait_until(lambda: not warm.exists(), "it takes no more requests")
            (tmp_path / "go").write_text("seven..")
            assert caller.wait(60) == 7


def test_a_script_outlives_a_parent_that_ends_while_more_is_imported(folder, script, tmp_path):
    for name in ("go", "held"):
        os.mkfifo(tmp_path / name)
    script.write_text(GO)
    (folder / "held.py").write_text(f"open({str(tmp_path / 'held')!r}).read()\n")
    (folder / "killer.py").write_text(
        "import os, select, sys\nos.kill(os.getppid(), 9)\nselect.select([sys.stdin], [], [])\n"
    )
    code = START.format(folder=str(folder), modules=["held", "killer", "missing"])
    with (
        subprocess.Popen(
            [sys.executable, "-c", f"{code}\nsys.stdin.read()\n"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as parent,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller,
    ):
        assert parent.stdout is not None
        warm = Path(parent.stdout.readline().strip())
        caller.settimeout(60)
        caller.connect(str(warm.with_name("socket")))  # before anything is imported
        request = json.dumps([[str(script)], str(tmp_path), dict(os.environ)]).encode()
        socket.send_fds(caller, [request], [1, 2])
        (tmp_path / "held").write_text("")
        message, held, _, _ = socket.recv_fds(caller, 16, 1)
        assert (message, len(held)) == (b"begun", 1)
        wait_until(lambda: not warm.exists(), "it takes no more requests")
        (tmp_path / "go").write_text("seven..")
        assert caller.recv(16) == b"7"


def test_a_script_that_ended_before_its_caller_looked_ends_it_with_its_code(script, tmp_path):
    address = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        words = [sys.executable, "-IS", str(forks.CLIENT), sys.executable, address, str(script)]
        with subprocess.Popen(words) as caller, subprocess.Popen(["true"]) as ended:
            hold = os.pidfd_open(ended.pid)
            ended.wait()  # nothing has its number any more
            connection, _ = listener.accept()
            with connection:
                socket.send_fds(connection, [b"begun"], [hold])
                connection.sendall(b"7")
                assert caller.wait(60) == 7


@pytest.mark.parametrize("words", [("-c", KNOWN), ("-m", "json.tool", "--help")])
def test_what_is_no_script_is_left_to_python(python, words):
    answer = subprocess.run([python, *words], capture_output=True, text=True)
    assert answer.returncode == 0
    assert answer.stdout.startswith(("False", "usage"))


def test_a_script_that_has_several_threads_is_left_to_python(python, script):
    script.write_text(KNOWN)
    assert run(python, script, OMP_NUM_THREADS="2").stdout == "False\n"
    assert run(python, script, OMP_NUM_THREADS="1").stdout == "True\n"


@pytest.fixture
def ended(folder: Path) -> Iterator[str]:
    """The program of a process whose parent is gone."""
    code = START.format(folder=str(folder), modules=["warmed"])
    answer = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    return answer.stdout.strip()


def test_the_process_ends_with_its_parent_and_leaves_nothing(ended):
    # Its standard output, which is the pipe that was read to its end above, is closed by then.
    assert not Path(ended).parent.exists()


def test_after_its_end_scripts_are_left_to_python(python, script, tmp_path):
    script.write_text(KNOWN)
    words = [sys.executable, "-IS", str(forks.CLIENT), sys.executable, str(tmp_path / "nobody")]
    answer = subprocess.run([*words, str(script)], capture_output=True, text=True)
    assert answer.stdout == "False\n"


def test_a_system_without_what_is_needed_has_python_itself(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "pidfd_open")
    assert forks.start("") == sys.executable
    monkeypatch.undo()
    folder = tmp_path / ("long" * 40)  # a socket's name has at most 107 bytes
    folder.mkdir()
    monkeypatch.setattr(forks.tempfile, "tempdir", str(folder))
    assert forks.start("") == sys.executable
    assert not list(folder.iterdir())


def test_what_is_imported_for_scripts_can_be_imported():
    for name in forks.PRELOADED:
        assert importlib.util.find_spec(name), name


def test_where_one_of_these_is_missing_scripts_are_left_to_python(folder, script):
    script.write_text(KNOWN)
    assert run(forks.start(str(folder), ["missing"]), script).stdout == "False\n"


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
    for file, text in {
        shared: "VALUE = 1\n",
        shared.with_name("__init__.py"): "",
        script: "from pflpipe import shared\nprint(shared.VALUE)\n",
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    first, later = (Project(Config(studies=()), tmp_path, thorough=False) for _ in range(2))
    first.note([])
    shared.write_text("VALUE = 2\n")
    assert first.code("job") != later.code("job"), "so the next command does the job again"
