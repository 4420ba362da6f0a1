"""Digests of meaning: what changes them, what does not, and what they are of."""

import ast
import sys
from pathlib import Path

import pytest

import pflpipe
import tabled
import warm
from called import called
from pflpipe.code import meaning
from pflpipe.errors import ConfigError

TABLES = tabled.table("test_code_version")

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "pflpipe"
SCRIPTS = sorted((ROOT / "workflow" / "scripts").glob("*.py"))


# ---------------------------------------------------------------- what a file means

CODE = TABLES["CODE"]

SAME = TABLES["SAME"]
# The name TYPE_CHECKING has to come from somewhere; what stands under it does not count.
WITH_NAME = "import math\n", "import math\nfrom typing import TYPE_CHECKING\n"
OTHER = TABLES["OTHER"]


def edited(code: str, change: tuple[str, str]) -> str:
    assert change[0] in code
    return code.replace(*change)


def digest_of(code: str, folder: Path) -> str:
    (folder / "code.py").write_bytes(code.encode())
    return meaning.digest(folder / "code.py", PACKAGE)


@pytest.mark.parametrize("name", SAME)
def test_what_is_written_otherwise_and_means_the_same_has_the_same_digest(name, tmp_path):
    code = edited(CODE, WITH_NAME) if name == "an import for type checkers" else CODE
    same = edited(CODE, SAME[name])
    assert same != code
    assert digest_of(same, tmp_path) == digest_of(code, tmp_path)


@pytest.mark.parametrize("name", OTHER)
def test_what_means_something_else_has_another_digest(name, tmp_path):
    assert digest_of(edited(CODE, OTHER[name]), tmp_path) != digest_of(CODE, tmp_path)


def test_a_digest_depends_neither_on_where_a_file_lies_nor_on_the_version_of_python(tmp_path):
    """The number was found with Python 3.11; continuous integration runs this with newer ones."""
    assert digest_of(CODE, tmp_path) == "35544689bf"


def test_fields_that_newer_versions_of_python_add_do_not_count(tmp_path, monkeypatch):
    """Python 3.12 added ``type_params`` to functions and classes, 3.13 spells empty fields
    otherwise, and an f-string has been cut into other pieces."""
    before = digest_of(CODE, tmp_path)
    tree = ast.parse(CODE)
    for node in ast.walk(tree):
        node.future, node.another = None, []
        is_text = isinstance(node, ast.JoinedStr) and len(node.values) == 3
        if is_text and isinstance(node.values[1], ast.Constant):
            node.values[1:2] = [ast.Constant(text) for text in ("", " o", "f ", "")]
    meaning._parsed.cache_clear()
    with monkeypatch.context() as patch:
        for kind in (ast.FunctionDef, ast.ClassDef, ast.Call, ast.Constant, ast.arg):
            patch.setattr(kind, "_fields", ("future", *kind._fields, "another"))
        patch.setattr(ast, "parse", lambda source: tree)
        after = meaning.digest(tmp_path / "code.py", PACKAGE)
    meaning._parsed.cache_clear()
    assert after == before


def test_all_of_a_file_that_is_not_python_counts(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<!-- a comment -->")
    before = meaning.digest(page, PACKAGE)
    page.write_text("<!-- another -->")
    assert meaning.digest(page, PACKAGE) != before


def test_a_file_that_python_cannot_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"code\.py is not a Python file; got .*line 1"):
        digest_of("def f(:\n", tmp_path)


# ---------------------------------------------------------------- what a job can reach


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package whose module a imports b, which imports c late; d is imported by nobody that
    runs."""
    package = tmp_path / "pflpipe"
    (package / "methods").mkdir(parents=True)
    for name, text in TABLES["PACKAGE"].items():
        (package / f"{name}.py").write_text(text)
    return package


def names(files: list[Path], package: Path) -> set[str]:
    return {str(file.relative_to(package).with_suffix("")) for file in files}


def changed(package: Path, name: str, code: str = "edited = True\n") -> str:
    """Add code to a module of a package, and return the digest of its module a."""
    with (package / f"{name}.py").open("a") as file:
        file.write(code)
    return meaning.digest(package / "a.py", package)


def test_imports_are_followed_through_modules_functions_and_packages(package):
    found = names(meaning.closure(package / "a.py", package), package)
    assert found == {"a", "b", "c", "e", "f", "methods/__init__"}


def test_a_script_is_part_of_its_closure_with_its_neighbours(package, tmp_path):
    (tmp_path / "script.py").write_text("import os, helper\nfrom pflpipe.b import late\n")
    (tmp_path / "helper.py").write_text("")
    found = meaning.closure(tmp_path / "script.py", package)
    assert {tmp_path / "script.py", tmp_path / "helper.py", package / "b.py"} <= set(found)
    assert package / "a.py" not in found


def test_a_digest_follows_every_file_of_the_closure_and_no_other(package):
    before = meaning.digest(package / "a.py", package)
    for nobodys in ("d", "methods/x", "methods/new", "__init__", "_version"):
        assert changed(package, nobodys) == before, nobodys
    seen = {before, *(changed(package, name) for name in ("a", "c", "e", "methods/__init__"))}
    assert len(seen) == 5
    assert all(len(found) == 10 for found in seen)


def test_a_file_of_data_that_a_module_names_is_part_of_its_digest(package):
    (package / "words.yaml").write_text("a: 1\n")
    before = changed(package, "b", "WORDS = read('words.yaml')\n")
    assert package / "words.yaml" in meaning.closure(package / "a.py", package)
    (package / "words.yaml").write_text("a: 2\n")
    assert meaning.digest(package / "a.py", package) != before


def test_the_door_of_the_package_computes_nothing_and_does_not_even_load_torch():
    """It is no part of any digest, so nothing that decides a result may be in it."""
    loaded = called(sys.executable, "-c", "import sys, pflpipe; print(*sys.modules)").stdout.split()
    own = {name for name in loaded if name.startswith("pflpipe")}
    assert own <= {"pflpipe", "pflpipe._version"}
    assert "torch" not in loaded
    assert Path(pflpipe.__file__) not in meaning.closure(SCRIPTS[0], PACKAGE)


def closure_inside(script: str) -> set[str]:
    found = meaning.closure(ROOT / "workflow" / "scripts" / f"{script}.py", PACKAGE)
    return names([path for path in found if path.is_relative_to(PACKAGE)], PACKAGE)


def test_no_script_depends_on_a_method_or_on_the_workflow():
    rooms = ("__init__", "about", "base", "plugins", "registry", "row_code")
    shared = {f"methods/{name}" for name in rooms}
    # What a script sends or publishes lies beside the workflow, and knows nothing of it.
    sent = ("__init__", "mlflow", "mlflow_export", "mlflow_runs", "released")
    own = {f"pipeline/{name}" for name in sent}
    for script in SCRIPTS:
        found = closure_inside(script.stem)
        assert {name for name in found if name.startswith("methods/")} <= shared, script
        assert {name for name in found if name.startswith("pipeline/")} <= own, script


@pytest.mark.pipeline
def test_everything_that_a_script_loads_is_in_its_closure():
    """What Python really imports when the script starts is found, so that no edit of it goes
    unnoticed."""
    text = called(warm.interpreter(), "-c", TABLES["LOADED"], *SCRIPTS).stdout
    doors, scripts = {PACKAGE / name for name in meaning.WITHOUT_MEANING}, []
    for part in text.split("script\n")[1:]:
        script, *files = (Path(line) for line in part.splitlines() if line.endswith(".py"))
        loaded = {file for file in files if file.is_absolute()}
        assert loaded
        assert loaded - doors <= set(meaning.closure(script, PACKAGE)), script
        scripts.append(script)
    assert sorted(scripts) == SCRIPTS


def test_training_does_not_depend_on_what_comes_after_it():
    rooms = {name.split("/")[0] for name in closure_inside("train")}
    assert not {"report", "study", "auditing", "attacks", "pipeline"} & rooms
    assert not {"simulation/scores", "privacy/accounting"} & closure_inside("train")
