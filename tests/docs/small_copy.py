"""A small copy of the project, in which what README.md and docs/ say to type takes seconds."""

import atexit
import functools
import os
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import yaml
from blocks import ROOT

import warm
from pflpipe.pipeline import forks
from tabled import table

PARTS = ("workflow", "src", "profiles", "envs", "docs", "studies", "tools")
FILES = ("Snakefile", "config.yaml", "README.md", "Makefile", "pyproject.toml", "requirements.lock")
EXAMPLES = ("docs/examples/easgd.yaml", "docs/examples/public_start.yaml")
METHODS = ("local_only", "dp_fedavg", "pmtl_ft", "ppsgd", "feddpa")
TABLES = table("small_copy")


@functools.cache
def _warm(source: str) -> str:
    """A program that runs a script in a fork of a process that has imported what is dear, and the
    package of the small copy, which is that of all copies of it."""
    address, folder = forks.new_address(), Path(tempfile.mkdtemp(prefix="pflpipe-"))
    atexit.register(shutil.rmtree, folder)
    modules = (*forks.PRELOADED, "snakemake.cli", "mlflow", "sklearn.datasets")
    forks.start(address, source, modules)
    return warm.shim(folder / "python", address)


def environment(folder: Path) -> dict[str, str]:
    """What a reader's shell has, and the package of the copy."""
    mine = {k: v for k, v in os.environ.items() if k not in ("MLFLOW_TRACKING_URI", "MAKEFLAGS")}
    return {**mine, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}


def install(folder: Path, source: Path) -> None:
    """Put a .venv there whose programs are forks that have imported ``source``."""
    binaries = folder / ".venv/bin"
    shutil.rmtree(binaries.parent, ignore_errors=True)
    binaries.mkdir(parents=True)
    program = binaries.parent / "program.py"
    program.write_text(TABLES["PROGRAM"])
    warm = _warm(str(source))
    for name, command in TABLES["SHIMS"].items():
        shim = binaries / name
        shim.write_text(f"#!/bin/sh\n{command.format(warm=warm, program=program)}\n")
        shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
    (binaries.parent / ".installed").touch()


def bash(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run lines in a folder, up to the first that fails."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    how = {"cwd": folder, "env": environment(folder), "text": True, "timeout": 400}
    return subprocess.run(["bash", "-euo", "pipefail", "-c", text], **pipes, **how)


def write(folder: Path) -> None:
    unread = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, ignore=unread)
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    for name in ("quickstart", "quickstart_published"):
        file = folder / f"studies/{name}.yaml"
        study = yaml.safe_load(file.read_text())
        study["methods"] = [entry for entry in study["methods"] if entry["name"] in METHODS]
        study["training"]["rounds"] = 2
        study["partition"]["clients"] = 20
        study["seeds"] = [0]
        file.write_text(yaml.safe_dump(study, sort_keys=False))
    # Studies that a page begins or copies are small as well.
    for name in ("src/pflpipe/study/template.yaml", *EXAMPLES):
        text = (folder / name).read_text()
        text = re.sub(r"\brounds: \d+", "rounds: 2", text)
        text = re.sub(r"\bclients: 100\b", "clients: 20", text)
        (folder / name).write_text(re.sub(r"^seeds: .*$", "seeds: [0]", text, flags=re.MULTILINE))
