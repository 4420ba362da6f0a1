"""Methods from outside the package: found, loaded once, told apart, and refused in one line."""

import dataclasses
import importlib.metadata
import json
import re
from pathlib import Path
from unittest import mock

import pytest
import yaml

import tabled
import warm
from called import called
from pflpipe import cells
from pflpipe.data import datasets
from pflpipe.errors import ConfigError, PflpipeError
from pflpipe.methods import plugins, registry
from pflpipe.methods.base import Method
from pflpipe.methods.registry import NAMES
from pflpipe.study import trial
from pflpipe.study.check import validate
from pflpipe.study.config import Config
from pflpipe.study.load import load_study

TABLES = tabled.table("test_outside")

ROOT = Path(__file__).parents[2]
METHOD = TABLES["METHOD"]
STUDY = TABLES["STUDY"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a method beside its study, as the working directory."""
    folder = tmp_path / "project"
    (folder / "studies").mkdir(parents=True)
    monkeypatch.chdir(folder)
    write_method(METHOD)
    write_study(folder)
    return folder


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A function that installs packages: entry point ``name = value``, one file for each module."""
    points = []

    def entry_points(**wanted):
        return importlib.metadata.EntryPoints(points).select(**wanted)

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    monkeypatch.syspath_prepend(tmp_path / "site")
    (tmp_path / "site").mkdir()

    def install(name: str, value: str, text: str = METHOD) -> None:
        (tmp_path / "site" / f"{value.partition(':')[0]}.py").write_text(text)
        points.append(importlib.metadata.EntryPoint(name, value, plugins.GROUP))
        plugins._points.cache_clear()

    yield install
    plugins._points.cache_clear()


def write_study(folder: Path, *names: str, **changes) -> None:
    methods = {"methods": [{"name": name} for name in names]} if names else {}
    text = yaml.safe_dump(STUDY | methods | changes)
    (folder / "studies/ours.yaml").write_text(text)


def cell_of(folder: str = "studies") -> cells.Cell:
    return load_study("ours", folder).cells[-1]


def said_of(method: int) -> str:
    """What is said about a line of the study that names a method."""
    with pytest.raises(PflpipeError) as caught:
        load_study("ours")
    message, begin = str(caught.value), f"studies/ours.yaml: methods[{method}].name: "
    assert "\n" not in message
    assert message.startswith(begin), message
    return message.removeprefix(begin)


def write_method(text: str) -> None:
    Path("studies/my_method.py").write_text(text)


def test_a_study_names_a_function_in_a_file_beside_it(project):
    plain, cell = load_study("ours").cells
    assert (cell.method, cell.source) == ("mine", "studies/my_method.py")
    assert cell.hyperparameters == {"weight": 0.5}
    assert plain.source == ""
    assert registry.of(cell).about.title == "Mine"
    assert isinstance(registry.of(cell).factory(weight=1.0), Method)


def test_a_file_may_lie_anywhere_in_the_project(project):
    (project / "code").mkdir()
    (project / "studies/my_method.py").rename(project / "code/my_method.py")
    write_study(project, "../code/my_method.py:mine")
    assert cell_of().source == "code/my_method.py"
    assert registry.of(cell_of()).name == "mine"


def test_its_hyperparameters_are_checked_by_its_signature(project):
    entry = {"name": "my_method.py:mine", "hyperparameters": {"weight": -1}}
    axes = {"axes": {"hyperparameters.wieght": [1]}}
    for line, words in (
        (entry, r"mine.weight; got -1; expected a number >= 0"),
        (entry | axes, r"mine.wieght does not exist; did you mean 'weight'"),
    ):
        write_study(project, methods=[line])
        with pytest.raises(ConfigError, match=words):
            load_study("ours")


def test_the_ids_and_the_noise_are_the_same_wherever_the_project_is(project, tmp_path, monkeypatch):
    before = cell_of()
    moved = project.rename(tmp_path / "moved")
    monkeypatch.chdir(moved)
    after = cell_of()
    assert (after.id, registry.key(after)) == (before.id, registry.key(before))
    assert cell_of(str(moved / "studies")).id == before.id


def test_two_files_with_a_method_of_one_name_have_other_noise_and_other_runs(project):
    (project / "studies/other.py").write_text(METHOD)
    first = cell_of()
    write_study(project, "other.py:mine")
    second = cell_of()
    assert second.method == first.method
    assert second.source != first.source
    for name in (lambda cell: cell.id, registry.key, registry.run_id):
        assert name(first) != name(second)
    assert registry.of(first).factory is not registry.of(second).factory
    copy = registry.key(dataclasses.replace(second, source=first.source))
    assert copy == registry.key(first), "nothing else is in the key"


def test_in_one_study_a_name_is_that_of_one_method(project):
    twice = [{"name": "other.py:mine"}, {"name": "my_method.py:mine", "variant": "ours"}]
    for name, methods, other in (
        ("mine", twice, "'studies/other"),
        ("dp_fedavg", [{"name": "other.py:dp_fedavg"}], ".*pflpipe"),
    ):
        (project / "studies/other.py").write_text(METHOD.replace("mine", name))
        write_study(project, methods=methods)
        with pytest.raises(ConfigError, match=f"two methods have the name '{name}'; got {other}"):
            load_study("ours")


def test_a_file_runs_once_in_a_process(project):
    text = METHOD + METHOD.replace("mine", "ours") + "open('runs', 'a').write('.')\n"
    write_method(text)
    for name in ("mine", "ours", "mine"):
        write_study(project, f"my_method.py:{name}")
        assert registry.of(cell_of()).name == name
    assert (project / "runs").read_text() == "."


def test_where_a_file_is_can_be_asked_without_running_it(project):
    write_method("raise SystemExit\n")
    assert plugins.file_of("mine", "studies/my_method.py") == Path("studies/my_method.py")
    assert plugins.file_of("feddpa").name == "feddpa.py"
    with pytest.raises(ConfigError, match=r"there is no module not_installed\.methods"):
        plugins.file_of("mine", "not_installed.methods")


@pytest.mark.parametrize("name", TABLES["BROKEN"])
def test_what_is_wrong_with_a_method_file_is_said_in_one_line(name, project):
    case = TABLES["BROKEN"][name]
    text = case.get("text", METHOD.replace(*case.get("replace", ("", "")))) + case.get("after", "")
    assert text != METHOD
    write_method(text)
    assert re.search(case["words"], said_of(1))


@pytest.mark.parametrize("name", TABLES["HOOKS"])
def test_validation_tries_the_hooks_of_a_method_file_and_names_file_and_hook(name, project):
    hooks, message = TABLES["HOOKS"][name]
    write_method(METHOD.replace("local_update)", f"{hooks})"))
    with pytest.raises(ConfigError) as caught:
        validate(Config(("ours",)))
    assert str(caught.value) == f"studies/ours.yaml: studies/my_method.py: mine: {message}"


@pytest.mark.parametrize("name", NAMES)
def test_validation_accepts_the_hooks_of_every_method_of_the_package(name):
    about, budget = registry.info(name).about, cells.Privacy()
    if about.private:
        budget = cells.Privacy("gaussian", 8.0, delta=0.01, clip_norm=1.0)
    model, shape, classes = cells.Model("resnet20"), (8, 8, 1), 10
    if "items" in about.needs:
        model, shape, classes = cells.Model("embedding", (10,), items=5), (1,), 2
    if name == "private_prior":  # which takes heads of at most 512 numbers
        classes = 2
    training, departures = cells.Training(2, 1, 2, "sgd", 0.1), about.departures
    given = ("digits", cells.Partition("iid", 4), model, training, budget, name)
    cell = cells.Cell(*given, departures=departures)
    with mock.patch.object(trial, "_tree", side_effect=trial._tree) as looked_at:
        trial.check(cell, datasets.Header(shape, classes, 100, None))
    assert looked_at.call_args.args[1] == "a personal model", "all hooks before it are accepted"


def test_hooks_may_name_their_parameters_as_the_paper_does(project):
    write_method(METHOD.replace("local_update)", "lambda w, v, u, *rest: None)"))
    assert registry.of(cell_of()).name == "mine"


@pytest.mark.parametrize(("written", "message"), TABLES["what does not name a method is refused"])
def test_what_does_not_name_a_method_is_refused(written, message, project):
    write_study(project, written)
    assert message in said_of(0)


def test_a_method_of_an_installed_package_is_named_like_our_own(project, packages):
    packages("mine", "their_methods:mine")
    write_study(project, "mine")
    cell = cell_of()
    assert (cell.method, cell.source) == ("mine", "their_methods")
    assert registry.of(cell).about.title == "Mine"
    assert plugins.file_of(cell.method, cell.source).name == "their_methods.py"
    assert registry.listed()[len(NAMES) :] == [("mine", "their_methods")]


def test_the_list_of_methods_says_where_those_of_packages_come_from(packages, ran):
    packages("mine", "their_methods:mine")
    listed = ran("methods").out
    assert "\nmine: Mine (nobody 2025), from their_methods\n    profile strict: claim un" in listed
    assert "\n    weight = 0.5\n" in listed


def test_an_entry_point_that_is_not_a_method_is_refused(project, packages):
    for name, value in (
        ("feddpa", "their_feddpa:feddpa"),
        ("one", "two:three"),
        *(("twice", "first:twice"), ("twice", "second:twice")),
        ("mine", "taken:mine"),
    ):
        packages(name, value)
    for name, words in (
        ("feddpa", "two methods have the name 'feddpa'; got 'their_feddpa"),
        ("one", "entry point 'one' .* such as two:one"),
        ("twice", "two methods have the name 'twice'; got 'first:twice"),
        ("mien", "unknown method 'mien'; did you mean 'mine'"),
    ):
        with pytest.raises(ConfigError, match=words):
            registry.locate(name)
    with pytest.raises(ConfigError, match=r"two methods have the name 'mine'"):
        load_study("ours")


def test_a_package_that_is_no_longer_there_is_told(project):
    with pytest.raises(ConfigError, match=r"method mine: gone: ModuleNotFoundError: No module"):
        registry.info("mine", "gone")


def test_a_method_that_trains_as_one_of_ours_shares_its_run(project):
    write_method(METHOD.replace('"nobody 2025"', '"nobody 2025", trains="dp_fedavg"'))
    plain, cell = load_study("ours").cells
    assert registry.trained(cell) == registry.trained(plain)
    assert registry.run_id(cell) == registry.run_id(plain)


def test_our_own_methods_are_the_files_that_are_there():
    folder = Path(registry.__file__).parent
    files = {file.stem for file in folder.glob("*.py")}
    assert set(NAMES) == files - {"__init__", "about", "base", "plugins", "registry", "row_code"}
    assert list(NAMES) == sorted(NAMES)


@pytest.mark.pipeline
def test_another_process_finds_the_method_by_the_cell_alone(project):
    program = project / "program.py"
    program.write_text(TABLES["PROGRAM"])
    found = called(warm.with_torch(), program, json.dumps(cell_of().to_dict()), folder=project)
    assert found.stdout.split() == ["Mine", registry.key(cell_of())]
