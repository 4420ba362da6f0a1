"""Promises about the whole repository: its rooms, their doors, and that what is written down is
true."""

import ast
import functools
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import pflpipe
import tabled
from called import called, works
from mutants import MUTANTS
from pflpipe.pipeline.project import ELSEWHERE

TABLES = tabled.table("test_house")

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "pflpipe"
MODULES = sorted(PACKAGE.rglob("*.py"))
PIPELINE_LIBRARIES = {"snakemake", "mlflow", "opacus", "pandas", "dp_accounting", "matplotlib"}
PIPELINE_LIBRARIES |= {"safetensors", "sklearn", "torchvision", "yaml", "jsonschema"}


def committed_files() -> list[Path]:
    """Files of the repository: what git knows when there is a checkout, else what lies in the known
    folders."""
    command = ("git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard")
    folders = ("src", "tests", "workflow", "studies", "profiles", "envs", "docs", "tools")
    if works(*command):
        found = [ROOT / name for name in called(*command).stdout.splitlines()]
    else:
        inside = (path for folder in folders for path in (ROOT / folder).rglob("*"))
        found = [*inside, *ROOT.iterdir()]
    return [path for path in found if path.is_file()]


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(path: Path) -> int:
    """How long a file is, however its lines are laid out."""
    return sum(isinstance(node, ast.stmt) for node in ast.walk(parsed(path)))


def locked() -> dict[str, str]:
    """Package names of requirements.lock (normalised) and one pinned version of each."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = (line.split(";")[0].strip() for line in lines if line and not line.startswith("#"))
    return {normalised(name): version for name, version in (pin.split("==") for pin in pins)}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements(*extras: str) -> list[str]:
    """What pyproject.toml asks for, with these extras, besides the package itself."""
    asked = project()
    named = [one for extra in extras for one in asked["optional-dependencies"][extra]]
    return [*asked["dependencies"], *(one for one in named if not one.startswith("pflpipe["))]


def test_workflow_scripts_are_short_and_leave_the_work_to_the_package():
    scripts = sorted((ROOT / "workflow" / "scripts").glob("*.py"))
    assert {path.name: statements(path) for path in scripts if statements(path) > 24} == {}
    calls = re.compile(r"^ *(?:from|import) pflpipe\b", re.MULTILINE)
    assert [path.name for path in scripts if not calls.search(path.read_text())] == []


def undocumented(path: Path) -> Iterator[str]:
    """Yield the public names of a module that have no docstring."""
    if not ast.get_docstring(parsed(path)):
        yield "module"
    classes = [node for node in parsed(path).body if isinstance(node, ast.ClassDef)]
    for owner in (parsed(path), *(one for one in classes if not one.name.startswith("_"))):
        for node in owner.body:
            is_named = isinstance(node, ast.FunctionDef | ast.ClassDef)
            if is_named and not node.name.startswith("_") and not ast.get_docstring(node):
                yield node.name


def test_modules_are_documented_and_of_readable_size():
    assert {path: found for path in MODULES if (found := list(undocumented(path)))} == {}
    assert {path: statements(path) for path in MODULES if statements(path) > 316} == {}


def test_no_file_names_a_path_or_a_host_of_the_machine_it_was_written_on():
    places = "|".join(("work", "root", "home/[a-z]+", "opt/(?:pypi|wheels)", "tmp/[a-z]"))
    place = re.compile(rf"(?<![\w.$}}~/])/(?:{places})/[\w./-]*")
    texts = {path: path.read_text(errors="replace") for path in committed_files()}
    assert {path: hits for path, text in texts.items() if (hits := place.findall(text))} == {}


def test_lock_file_pins_everything_that_pyproject_names_the_agreed_torch_and_no_package_index():
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    # Options such as --index-url belong to the user's own configuration.
    assert not re.search(r"^\s*-", text, re.MULTILINE)
    wanted = requirements(*project()["optional-dependencies"].keys() - {"flower"})
    names = {normalised(re.match(r"[\w.-]+", requirement)[0]) for requirement in wanted}
    assert names - set(locked()) == set()
    assert "setuptools" in locked(), "make install builds the package without fetching a build tool"
    assert (locked()["torch"], locked()["torchvision"]) == ("2.14.1", "0.29.2")


def test_conda_environment_asks_for_what_pyproject_names():
    text = (ROOT / "envs" / "pflpipe.yaml").read_text()
    asked = re.findall(r"^ +- ([\w-]+>=\S+)$", text, re.MULTILINE)
    assert sorted(asked) == sorted(requirements("engine", "all"))


def test_the_extras_stand_on_one_another_and_old_names_install_the_same():
    extras = project()["optional-dependencies"]
    named = {"engine", "all", "lab", "dev", "secure", "flower", "audit", "pipeline"}
    assert extras.keys() == named
    assert "pflpipe[engine]" in extras["all"]
    assert (extras["audit"], extras["pipeline"]) == (["pflpipe[engine]"], ["pflpipe[all]"])


@pytest.mark.slow
def test_imports_pull_in_no_pipeline_library():
    modules = ["pipeline.cli", "simulation.rounds", "simulation.runs", "simulation.scores"]
    program = "".join(f"import pflpipe.{module}\n" for module in modules)
    printed = called(sys.executable, "-c", f"import sys\n{program}print(*sys.modules)").stdout
    loaded = {name.split(".")[0] for name in printed.split()}
    assert loaded & PIPELINE_LIBRARIES == set()


def test_methods_draw_no_random_number():
    drawn = r"\brand\w*\(|(?<!counter_rng\.)\bnormal_?\(|\bmultinomial\(|manual_seed|Generator"
    texts = {path.name: path.read_text() for path in (PACKAGE / "methods").glob("[a-z]*.py")}
    assert "dp_fedavg.py" in texts
    assert [name for name, text in texts.items() if re.search(drawn, text)] == []


def test_files_of_tensors_and_arrays_are_read_without_running_what_they_hold():
    """ruff has no rule for this. NumPy refuses pickles unless it is told otherwise."""
    safe = {"torch.load": "weights_only=True", "np.load": "allow_pickle=False"}
    found = []
    for path in [*MODULES, *(ROOT / "tools").rglob("*.py"), *(ROOT / "workflow").rglob("*.py")]:
        calls = (node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call))
        for call in (node for node in calls if ast.unparse(node.func) in safe):
            name, words = ast.unparse(call.func), [ast.unparse(word) for word in call.keywords]
            is_default = name == "np.load" and "allow_pickle" not in str(words)
            found.append((name, is_default or safe[name] in words, f"{path}:{call.lineno}"))
    assert {name for name, *_ in found} == safe.keys()
    assert [place for _, is_safe, place in found if not is_safe] == []


def test_every_make_target_named_in_the_documents_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    files = [ROOT / name for name in ("README.md", ".github/CONTRIBUTING.md", ".ci/run")]
    text = "\n".join(path.read_text() for path in (*files, *(ROOT / "docs").rglob("*.md")))
    command = r"(?:^|`|exec timeout [^\n]*)make ((?:[a-z-]+ ?)+)"
    named = set(" ".join(re.findall(command, text, re.MULTILINE)).split())
    assert named - targets == set()
    assert {"install", "quickstart", "test", "lint", "format", "docs", "bench"} <= targets


def test_help_lists_every_target_with_a_sentence():
    shown = called("make", "--no-print-directory", folder=ROOT).stdout
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in phony.split():
        assert re.search(rf"^  {target}\s+\S+ \S+", shown, re.MULTILINE), target


def test_links_between_documents_lead_somewhere():
    link = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        targets = link.findall(path.read_text(encoding="utf-8"))
        assert [one for one in targets if not (path.parent / one).exists()] == [], path


def test_what_cites_and_describes_the_package_agrees():
    """CITATION.cff for people who cite, codemeta.json for catalogues, pyproject.toml for pip."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    meta = json.loads((ROOT / "codemeta.json").read_text())
    known = project()
    assert pflpipe.__version__ == cited["version"] == meta["version"]
    text = known["description"]
    assert meta["description"] == text
    assert cited["title"] == f"{known['name']}: {text[0].lower()}{text[1:]}"
    assert meta["license"].rpartition("/")[2] == cited["license"] == known["license"]
    assert [one["name"] for one in meta["author"]] == [one["name"] for one in cited["authors"]]
    assert meta["keywords"] == cited["keywords"]
    assert meta["runtimePlatform"] == f"Python {known['requires-python']}"
    assert meta["softwareRequirements"] == known["dependencies"]
    assert (ROOT / meta["readme"]).is_file()
    assert (ROOT / meta["softwareHelp"]).is_file()
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()


def test_every_study_file_in_the_documents_exists():
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        named = re.findall(r"\bstudies/(?!my_)[a-z0-9_]+\.yaml", path.read_text())
        assert [name for name in named if not (ROOT / name).exists()] == [], path


def test_every_mutant_can_still_be_planted():
    for name, mutant in MUTANTS.items():
        assert (PACKAGE / mutant.file).read_text().count(mutant.before) == 1, name
        assert all((ROOT / "tests" / test).is_file() for test in mutant.tests.split()), name


OF_SNAKEMAKE = set(TABLES["OF_SNAKEMAKE"])
"""What the workflow and the package take from Snakemake besides the words of its language."""


def test_only_these_names_of_snakemake_s_own_are_used():
    snakefiles = [ROOT / "Snakefile", *(ROOT / "workflow").rglob("*.smk")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in [*snakefiles, *MODULES])
    code = re.sub(r'"""(?s:.*?)"""|#.*', "", text)
    pattern = r"\bworkflow\.\w+|\blogger\.\w+|\bsnakemake[\w.]* import \w+"
    assert set(re.findall(pattern, code)) == OF_SNAKEMAKE


def test_jobs_that_may_run_on_a_cluster_are_given_what_they_were_planned_with():
    rules = "".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    bodies = re.split(r"^(?:rule|checkpoint) (\w+):", rules, flags=re.MULTILINE)[1:]
    names = zip(bodies[::2], bodies[1::2], strict=True)
    assert {name for name, body in names if "localrule: True" not in body} == set(ELSEWHERE)
