"""Users that the system does not know, as in a container, and files with the names of libraries in
the project's folder: the real programs, started as such a user starts them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import malformed
import test_workflow
from called import called, works
from reliability import record

pytestmark = [pytest.mark.faults, pytest.mark.pipeline]
ROOT, BIN = test_workflow.ROOT, Path(sys.executable).parent
UNKNOWN = 12345
# The tests' Python may lie where only root may read; what this user may write does not change.
READS = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
RECIPE = (ROOT / "envs/Containerfile").read_text()
IMAGE = dict(re.findall(r"^(?:ENV| {3}) (HOME|LOGNAME)=(\S+)", RECIPE, re.MULTILINE))
USER = ("setpriv", f"--reuid={UNKNOWN}", f"--regid={UNKNOWN}", "--clear-groups", *READS)
as_root = pytest.mark.skipif(
    not works(*USER, "true"), reason="root, with setpriv, runs programs as other users"
)


def as_unknown_user(folder: Path, *command: str, **environment: str) -> tuple[int, str]:
    """Return exit code and output of a program of a user without an entry in passwd, who owns the
    folder, in an environment of nothing else."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, UNKNOWN, UNKNOWN)
    words = {"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"} | environment
    how = {"cwd": folder, "env": words, "capture_output": True, "text": True}
    done = subprocess.run([*USER, *command], **how)
    return done.returncode, done.stdout + done.stderr


@as_root
@pytest.mark.parametrize("environment", [IMAGE, {"HOME": "/proc/nowhere"}], ids=["image", "home"])
def test_a_user_without_a_name_or_a_home_to_write_in_prepares_data(tmp_path, environment):
    test_workflow.write_project(tmp_path)
    command = [str(BIN / "snakemake"), "--cores", "1", "--", "data/digits.npz"]
    code, output = as_unknown_user(tmp_path, *command, **environment)
    assert (code, "Traceback" in output) == (0, False), output
    assert (tmp_path / "data/digits.npz").stat().st_uid == UNKNOWN
    words = " ".join(f"{name}={value}" for name, value in environment.items())
    record(f"a user without an entry in passwd, environment {words}", "snakemake works")


@as_root
def test_a_user_without_a_home_gets_one_from_every_program(tmp_path):
    program = "from pathlib import Path; import getpass; from pflpipe.program import run_script; "
    program += "run_script(lambda: print(getpass.getuser(), Path.home()))"
    source = {"PYTHONPATH": str(ROOT / "src")}
    code, output = as_unknown_user(tmp_path, sys.executable, "-c", program, **source)
    assert (code, output) == (0, f"{UNKNOWN} /tmp\n")
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "more.mk").write_text("include Makefile\nhome: ; @echo $$HOME\n")
    code, output = as_unknown_user(tmp_path, "make", "-s", "-f", "more.mk", "home")
    assert (code, output) == (0, "/tmp\n")


def test_files_with_the_names_of_libraries_are_not_imported(tmp_path):
    """In Snakemake's process, in scripts, and in the processes that share a run."""
    test_workflow.write_project(tmp_path)
    malformed.put("processes", 2, "config.yaml")(tmp_path)
    for name in ("torch", "packaging", "difflib"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name} of the user')\n")
    scores = "results/scores/tiny/local_only.csv"
    done = called(BIN / "snakemake", "--cores", "2", "--", scores, folder=tmp_path)
    assert (tmp_path / scores).is_file()
    assert "of the user" not in done.stdout + done.stderr
    record("torch.py, packaging.py, difflib.py beside config.yaml", "nothing imports them")
