"""`make install` builds .venv once, takes up an interrupted installation again, and follows the
lock file.

So does `make bench-peers` with the environment of the other frameworks.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from called import called
from tabled import table

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def checkout(tmp_path):
    """A folder with the Makefile, old requirement files, and a python that installs nothing."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "tools/benchmarks/peers").mkdir(parents=True)
    for name in ("requirements.lock", "pyproject.toml", "tools/benchmarks/peers/requirements.lock"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1, 1))
    python = tmp_path / "python"
    python.write_text(table("test_setup")["PYTHON"])
    python.chmod(0o755)
    return tmp_path


def install(checkout: Path, *words: str) -> tuple[int, str]:
    """Exit code of `make install`, or with other words, and what it asked of python."""
    notes = checkout / "notes"
    notes.unlink(missing_ok=True)
    command = ["make", "CPU=", *(words or ["install"]), f"PYTHON={checkout / 'python'}"]
    # This may run under `make test`.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    ours["NOTES"] = str(notes)
    run = subprocess.run(command, cwd=checkout, env=ours, capture_output=True, check=False)
    return run.returncode, notes.read_text() if notes.exists() else ""


def installed(checkout: Path, *words: str) -> str:
    """What `make install`, or another target, asked of python, with success."""
    code, asked = install(checkout, *words)
    assert code == 0
    return asked


def failed(checkout: Path, *words: str) -> str:
    """What it asked of python, without a network and in vain."""
    (checkout / "no-network").touch()
    code, asked = install(checkout, *words)
    assert code != 0
    (checkout / "no-network").unlink()
    return asked


def are_in_order(asked: str, *words: str) -> bool:
    """Whether python was asked for all of these, in this order."""
    return sorted(words, key=asked.index) == [*words]


def test_install_happens_once(checkout):
    asked = installed(checkout)
    assert are_in_order(asked, "-m venv", "-r requirements.lock", "--no-deps", "pip check")
    assert asked.count("-r requirements.lock") == 1
    assert installed(checkout) == ""


def test_what_uv_does_not_find_pip_installs_with_its_own_configuration(checkout):
    (checkout / "no-uv").touch()
    asked = installed(checkout)
    assert are_in_order(asked, "uv pip install", "python -m pip install --quiet -r req")


def test_without_a_gpu_torch_comes_without_its_libraries_if_it_can_be_had_so(checkout):
    (checkout / "requirements.lock").write_text("numpy==2\nnvidia-cublas==13\ntriton==3\n")
    asked = installed(checkout, "install", "CPU=auto")
    assert "--torch-backend cpu -r .venv/requirements.lock" in asked
    assert "-r requirements.lock" not in asked
    assert (checkout / ".venv/requirements.lock").read_text() == "numpy==2\n"


@pytest.mark.parametrize(
    ("cpu", "then"),
    [("auto", "python -r requirements.lock"), ("1", "install --quiet -r .venv/requirements.lock")],
)
def test_without_cpu_wheels_the_libraries_come_too_unless_pip_is_to_find_others(
    checkout, cpu, then
):
    (checkout / "requirements.lock").write_text("numpy==2\n")
    (checkout / "no-cpu-wheels").touch()
    asked = installed(checkout, "install", f"CPU={cpu}")
    assert are_in_order(asked, "--torch-backend cpu", then, "--no-deps")


def test_what_is_locked_without_gpu_libraries_names_none(checkout):
    everything = (ROOT / "requirements.lock").read_text()
    (checkout / "requirements.lock").write_text(everything)
    installed(checkout, "install", "CPU=1")
    pins = (checkout / ".venv/requirements.lock").read_text()
    assert "\ntorch==" in pins
    assert not re.search(r"^[^#\n]*(nvidia|cuda|cudnn|triton)", pins, re.MULTILINE)
    left_out = re.findall(r"nvidia|cuda-b|cuda-p|cuda-t|triton", everything)
    assert len(everything.splitlines()) - len(pins.splitlines()) == len(left_out)


def test_interrupted_install_is_taken_up_again(checkout):
    assert "--no-deps" not in failed(checkout)
    assert "-r requirements.lock" in installed(checkout)


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml"])
def test_install_follows_its_files_and_a_failed_update_is_not_forgotten(checkout, name):
    installed(checkout)
    later = os.stat(checkout / ".venv" / ".installed").st_mtime + 10
    os.utime(checkout / name, (later, later))
    failed(checkout)
    os.utime(checkout / name, (1, 1))
    assert "-r requirements.lock" in installed(checkout)


def test_the_peers_have_an_environment_of_their_own_that_is_made_once(checkout):
    installed(checkout)
    assert "bench_peers.py" not in failed(checkout, "bench-peers")
    order = ("-m venv .venv-peers", "-r tools/benchmarks/peers/requirements.lock", "pip check")
    benchmark = "bench_peers.py --peers-python .venv-peers/bin/python"
    assert are_in_order(installed(checkout, "bench-peers"), *order, benchmark)
    again = installed(checkout, "bench-peers")
    assert len(again.splitlines()) == 1, "only the benchmark runs again"


def test_bench_leaves_the_peers_to_bench_peers(checkout):
    for name in ("bench_engine.py", "bench_peers.py"):
        (checkout / "tools/benchmarks" / name).touch()
    asked = installed(checkout, "bench")
    assert "bench_engine.py" in asked
    assert "bench_peers.py" not in asked


@pytest.mark.slow
def test_every_benchmark_finds_what_it_imports():
    folder = ROOT / "tools/benchmarks"
    programs = [file.stem for file in folder.glob("bench_*.py")]
    assert len(programs) >= 6
    path = os.pathsep.join([str(folder), str(ROOT / "src")])
    called(sys.executable, "-c", f"import {', '.join(programs)}", PYTHONPATH=path)


def test_the_peers_are_measured_with_the_same_torch():
    files = [ROOT / folder / "requirements.lock" for folder in ("", "tools/benchmarks/peers")]
    ours, theirs = (re.findall(r"^torch==[^;\s]+", one.read_text(), re.M) for one in files)
    assert ours == theirs
    assert len(ours) == 1


def test_ci_can_be_run_and_runs_the_first_two_commands_of_the_readme_in_their_order():
    """With results of its own in the folder, and with more time than a hanging test may take."""
    assert os.access(ROOT / ".ci/run", os.X_OK)
    called("bash", "-n", ROOT / ".ci/run")
    readme, script = ((ROOT / name).read_text() for name in ("README.md", ".ci/run"))
    first, second = re.findall(r"^make ([a-z]+) +# ", readme, re.MULTILINE)
    targets = [word for words in re.findall(r"\bmake ([a-z -]+)", script) for word in words.split()]
    assert targets.index(first) < targets.index(second)
    assert re.search(r"timeout --kill-after=30 (\d+)", script)[1] == str(60 * 60)
    assert "ended after 60 minutes" in (ROOT / ".github/CONTRIBUTING.md").read_text()
