"""What `pip install` of the wheel gives works in an empty folder, without a checkout beside it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import malformed

ROOT = Path(__file__).resolve().parents[1]
NOT_BUILT = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
STUDY = malformed.STUDY | {"seeds": [0], "methods": [{"name": "dp_fedavg"}]}
RUN = """
import dataclasses
from pathlib import Path
import pflpipe
from pflpipe.data.datasets import load_arrays, prepare
from pflpipe.data.partition import make
from pflpipe.files import write_json
from pflpipe.privacy import accounting
from pflpipe.simulation.runs import Inputs, train
from pflpipe.study.load import load_study

(cell,) = load_study("good").cells
plan, split, data = map(Path, ("plan.json", "split.npz", "data.npz"))
prepare("digits", None, Path("downloads"), data)
make(load_arrays(data), cell.partition, cell.seed).save(split)
made = accounting.make_plan(
    cell.privacy, rounds=cell.training.rounds, clients=cell.partition.clients, sample_rate=1.0
)
write_json(plan, {"plan": dataclasses.asdict(made)})
settings = {"device": "cpu", "backend": "loop", "checkpoint_seconds": 60}
train(cell, Inputs(plan, split, data), Path("run"), Path("checkpoints"), **settings)
print(pflpipe.__file__)
"""


def command(folder: Path, *words: str | Path, **environment: str) -> str:
    """Run a command in a folder; return what it printed."""
    result = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, so that nothing that other builds left here gets in."""
    found = {tool.metadata["Name"]: tool.version for tool in importlib.metadata.distributions()}
    if "pip" not in found or int(found.get("setuptools", "0").split(".")[0]) < 77:
        pytest.skip("this environment has no pip, or no setuptools that builds the project")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=NOT_BUILT)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    offline = ("--no-deps", "--no-build-isolation", "--no-index")
    command(folder, *pip, "wheel", *offline, "--wheel-dir", folder, source, **os.environ)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's files alone. What it depends on comes from the environment that
    runs the tests: an empty one would be a download of gigabytes."""
    target = tmp_path_factory.mktemp("site")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install")
    command(target, *pip, "--no-deps", "--no-index", "--target", target, wheel, **os.environ)
    return target


@pytest.fixture
def pflpipe(installed: Path, tmp_path: Path):
    """Return a function that runs the installed console script, or Python, in a folder that has
    nothing but a config.yaml and a study."""
    malformed.write(tmp_path / "config.yaml", {"studies": ["good"]})
    (tmp_path / "studies").mkdir()
    malformed.write(tmp_path / "studies/good.yaml", STUDY)
    script = installed / "bin" / "pflpipe"

    def run(*words: str) -> str:
        start = (script,) if words[0] != "-c" else (sys.executable,)
        settings = {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
        return command(tmp_path, *start, *words, **settings)

    return run


@pytest.mark.docs
def test_the_wheel_has_the_package_its_schema_and_its_types(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    code = {
        str(file.relative_to(ROOT / "src"))
        for file in (ROOT / "src/pflpipe").rglob("*")
        if file.suffix in (".py", ".bib", ".json", ".md", ".yaml", ".txt", ".typed", ".mplstyle")
    }
    assert code <= set(names)
    assert {name for name in names if ".dist-info/" not in name} == code


@pytest.mark.docs
def test_the_wheel_alone_validates_and_lists_in_an_empty_folder(pflpipe):
    assert pflpipe("validate") == "good: 1 cells, dp_fedavg on digits: ok\n"
    listed = pflpipe("studies").splitlines()
    assert listed[1:3] == [
        "good: A good study",
        "    1 runs, about 0 s; 1 cells, dp_fedavg on digits",
    ]
    assert "feddpa: FedDPA" in pflpipe("methods")


@pytest.mark.docs
def test_the_wheel_alone_trains_in_an_empty_folder(pflpipe, installed, tmp_path):
    assert pflpipe("-c", RUN) == f"{installed / 'pflpipe/__init__.py'}\n"
    rounds = (tmp_path / "run/rounds.csv").read_text().splitlines()
    assert len(rounds) == 1 + STUDY["training"]["rounds"]
