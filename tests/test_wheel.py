"""What `pip install` of the wheel gives works in an empty folder, without a checkout beside it."""

import importlib.metadata
import json
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

import certificates
import malformed
from called import called, works

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.docs
NOT_BUILT = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
STUDY = malformed.STUDY | {"seeds": [0], "methods": [{"name": "dp_fedavg"}]}
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
ALONE = [{"name": "local_only"}]  # sends nothing, so nothing is audited


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, so that nothing that other builds left here gets in."""
    found = {tool.metadata["Name"]: tool.version for tool in importlib.metadata.distributions()}
    if "pip" not in found or int(found.get("setuptools", "0").split(".")[0]) < 77:
        pytest.skip("this environment has no pip, or no setuptools that builds the project")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=NOT_BUILT)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    offline = ("--no-deps", "--no-build-isolation", "--no-index")
    called(*PIP, "wheel", *offline, "--wheel-dir", folder, source, folder=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's files alone. What it depends on comes from the environment that
    runs the tests: an empty one would be a download of gigabytes."""
    target = tmp_path_factory.mktemp("site")
    called(*PIP, "install", "--no-deps", "--no-index", "--target", target, wheel, folder=target)
    return target


@pytest.fixture
def printed(installed: Path, here: Path):
    """Return a function that runs the Python that has the wheel in a folder with an empty folder of
    studies, and returns what it prints."""
    (here / "studies").mkdir()
    settings = {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    return lambda *words: called(sys.executable, *words, **settings).stdout


def test_what_the_wheel_has_of_the_repository_is_no_copy():
    inside = ROOT / "src/pflpipe/pipeline/shipped"
    files = [file for file in inside.rglob("*") if file.is_symlink() or file.is_file()]
    assert len(files) >= 6
    for file in files:
        assert file.is_symlink(), f"{file}: a copy would be changed alone"
        assert file.resolve() == (ROOT / file.relative_to(inside)).resolve()


def test_the_wheel_has_the_package_its_schema_and_its_types(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    kinds = (".py", ".pyi", ".bib", ".json", ".md", ".yaml", ".txt", ".toml", ".typed", ".mplstyle")
    package = (ROOT / "src/pflpipe").rglob("*")
    code = {str(file.relative_to(ROOT / "src")) for file in package if file.suffix in kinds}
    more = ["config.yaml", "Snakefile", "studies/quickstart.yaml", "envs/pflpipe.yaml"]
    more += ["profiles/slurm/config.yaml", "profiles/slurm/one_job.sh"]
    for part in ("rules", "scripts", "report"):
        more += [f"workflow/{part}/{file.name}" for file in (ROOT / "workflow" / part).glob("*.*")]
    code |= {f"pflpipe/pipeline/shipped/{name}" for name in more}
    assert {name for name in names if ".dist-info/" not in name} == code


def test_the_wheel_alone_validates_and_lists_in_an_empty_folder(printed, installed):
    malformed.write(Path("config.yaml"), {"studies": ["good"]})
    malformed.write(Path("studies/good.yaml"), STUDY)
    where = printed("-c", "import pflpipe; print(pflpipe.__file__)")
    assert where == f"{installed / 'pflpipe/__init__.py'}\n"
    script = installed / "bin/pflpipe"
    assert printed(script, "validate") == "good: 1 cell, dp_fedavg on digits: ok\n"
    listed = printed(script, "studies").splitlines()
    assert listed[1] == "good: A good study"
    assert listed[2] == "    1 run, about 0 s; 1 cell, dp_fedavg on digits"
    assert "feddpa: FedDPA" in printed(script, "methods")


def test_the_wheel_alone_makes_a_study_by_the_workflow_in_an_empty_folder(printed, installed):
    """The study is a short one of the same name; the other is read, and its jobs are planned."""
    malformed.write(Path("studies/quickstart.yaml"), STUDY | {"methods": ALONE})
    assert printed("-m", "pflpipe", "quickstart").startswith("config.yaml: written\n")
    results = Path("results")
    for name in ("tables/quickstart.tex", "verdicts/quickstart.html"):
        assert (results / name).stat().st_size > 0
    (record,) = results.glob("runs/*/run.json")
    assert json.loads(record.read_text())["program"]["commit"] == ""
    inside = installed / "pflpipe/pipeline/shipped"
    for name in ("config.yaml", "studies/quickstart.yaml"):
        shutil.copy(inside / name, name)
    words = ("--snakefile", str(inside / "Snakefile"), "--dry-run", "--quiet", "all", "--")
    printed("-m", "snakemake", *words, "results/tables/all.csv")


def test_the_notebook_is_executed_and_its_cells_run_from_the_wheel_to_a_verdict(printed):
    """With fewer rounds and one budget; its cell that installs the wheel is left out."""
    cells = json.loads((ROOT / "docs/notebook.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not any(output["output_type"] == "error" for cell in code for output in cell["outputs"])
    install, *others = ["".join(cell["source"]) for cell in code]
    assert install.startswith("%pip install")
    program = "\n".join(["import subprocess", *others, "assert result.ledger.claim == 'certified'"])
    command = r"subprocess.run(f'\1', shell=True, check=True)"
    program = re.sub("^!(.*)$", command, program, flags=re.MULTILINE)
    for long, short in (("rounds=20", "rounds=2"), ("--minutes 1", "--minutes 0.1 --epsilon 8")):
        assert long in program
        program = program.replace(long, short)
    said = printed("-c", program)
    assert "\nε = 8: learning together " in said
    verdict_page, mlflow = said.splitlines()[-2:]
    assert verdict_page == "the verdict page: results/verdicts/patients.html"
    assert mlflow.startswith("MLflow: ")
    assert Path("results/verdicts/patients.html").is_file()


# An environment of its own, with what the base install brings


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory):
    """Return a function that runs a program of a new environment, which has the wheel and its
    dependencies alone."""
    folder = tmp_path_factory.mktemp("base")
    called(sys.executable, "-m", "venv", folder)
    pip = (folder / "bin/python", "-m", "pip", "--disable-pip-version-check", "--retries", "0")
    if not works(*pip, "download", "--no-deps", "--dest", folder / "tried", "dp-accounting"):
        pytest.skip("pip reaches no index that has dp-accounting")
    called(*pip, "install", wheel)
    absent = {"torch", "pandas", "snakemake", "opacus", "jinja2"}
    listed = called(*pip, "list", "--format", "freeze").stdout.lower().splitlines()
    assert absent.isdisjoint(line.split("==")[0] for line in listed)
    settings = {"PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    return lambda name, *words, **how: called(folder / "bin" / name, *words, **how, **settings)


def test_counting_is_imported_within_half_a_second_of_cpu(base, tmp_path):
    program = "import pflpipe.privacy.accounting, time; print(time.process_time())"
    seconds = [float(base("python", "-c", program).stdout) for _ in range(3)]
    assert min(seconds) < 0.5
    program = "import pflpipe as p; print(p.epsilon(p.make_plan(p.Privacy('gaussian', epsilon=2.0, "
    program += "delta=1e-5, clip_norm=1.0), rounds=3, sample_rate=0.5, clients=100), 1e-5))"
    assert 1.99 < float(base("python", "-c", program).stdout) <= 2


def test_a_release_is_audited_with_the_base_alone(base, tmp_path):
    base("pflpipe", "init", "--audit", "mine", folder=tmp_path)
    words = "--clients 2 --noise-multiplier 1 --delta 1e-5 --dimension 4 --seconds 0.01"
    audit = ("pflpipe", "audit", "--fields", "mine.py:release")
    printed = base(*audit, *words.split(), folder=tmp_path).stdout
    assert "verdict              kept" in printed.splitlines()
    words = words.replace("multiplier 1", "multiplier 4")
    refuted = base(*audit, *words.split(), folder=tmp_path, code=1).stdout
    assert "verdict              refuted" in refuted.splitlines()


def test_a_certificate_is_verified_with_the_base_alone(base, tmp_path):
    file = certificates.written(tmp_path)
    printed = base("pflpipe", "verify", file, folder=tmp_path).stdout
    assert ": verified" in printed
    edited = tmp_path / "edited.json"
    edited.write_text(file.read_text().replace('"claim": "certified"', '"claim": "nominal"', 1))
    assert ": refuted" in base("pflpipe", "verify", edited, code=1).stdout


@pytest.mark.parametrize("words", ["methods feddpa", "compare a b", "completion bash"])
def test_a_command_that_needs_more_says_what_to_install(base, tmp_path, words):
    (tmp_path / "config.yaml").write_text("studies: [a.yaml]\n")
    said = base("pflpipe", *words.split(), folder=tmp_path, code=2).stderr
    assert said.endswith("pip install 'pflpipe[all]'\n")
    assert len(said.splitlines()) == 1
