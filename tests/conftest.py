"""The order of the tests, how long the long ones are, what was learned of faults, and where tests
begin."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import reliability
import surroundings
import warm

surroundings.forget()
# Images for containers tell Python to keep no bytecode. Hundreds of processes of one source would
# then compile it hundreds of times, half of what a dry run costs.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    often = "faults and clusters as often as a night has time for"
    parser.addoption("--long", action="store_true", help=often)
    parser.addoption("--renew", action="store_true", help="write docs/reliability.csv")


def pytest_configure(config: pytest.Config) -> None:
    """Give all test processes one place for what they share, made by the first process, which also
    gathers the rows of docs/reliability.csv if it is asked to."""
    if hasattr(config, "workerinput"):
        return
    os.environ[warm.FOLDER] = tempfile.mkdtemp(prefix="pflpipe-")
    os.environ["XDG_CONFIG_HOME"] = os.environ[warm.FOLDER]  # no profile of the user's own
    config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(warm.FOLDER)))
    reliability.gather(config)


@pytest.fixture(scope="session", autouse=True)
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which tests begin."""
    with surroundings.checkout(tmp_path_factory.mktemp("checkout")) as folder:
        yield folder


@pytest.fixture(scope="session")
def long(request: pytest.FixtureRequest) -> bool:
    """Whether faults are tried as often as a night has time for (``make nightly``)."""
    return bool(request.config.getoption("--long"))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return a function that runs a command, which ends with a code, and returns its output."""
    from pflpipe.pipeline import cli

    def ran(*words: object, code: int = 0):
        monkeypatch.setattr(sys, "argv", ["pflpipe", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert (stopped.value.code or 0) == code
        return capsys.readouterr()

    return ran


@pytest.fixture(scope="module")
def study():
    """A made-up study (fake_results.py), where a module has none of its own."""
    import fake_results

    return fake_results.study()


@pytest.fixture(scope="module")
def results(study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The made-up results of that study."""
    import fake_results

    return fake_results.write(study, tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def frame(study, results: Path):
    """Their tidy table."""
    from pflpipe.report import tidy

    return tidy.tidy(study, results)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the test goes on."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def good(here: Path) -> Path:
    """The folder of a good project (malformed.py), in which the test goes on."""
    import malformed

    malformed.write_good(here)
    return here


@pytest.fixture
def load(good: Path):
    """Return a function that writes the good study with some words changed and loads it."""
    import malformed
    from pflpipe.study.load import load_outline, load_study

    def load(**words: object):
        malformed.write(good / "studies/good.yaml", malformed.STUDY | words)
        outline = load_outline("good")
        return outline.everything if outline.search else load_study("good")

    return load


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files first that take longest: at the end one worker alone would be left with them.
    The tests of a file stay together, as they share what is made for them."""
    rooms = ("cluster", "faults", "docs", "pipeline", "slow")
    first = dict.fromkeys((item.path for item in items), len(rooms))
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        ranks = [rank for rank, name in enumerate(rooms) if name in marks]
        first[item.path] = min([first[item.path], *ranks])
    items.sort(key=lambda item: first[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Give the rows that a test noted to its report, which also reaches another process."""
    report = yield
    if call.when == "call":
        rows = reliability.noted(item.nodeid)
        report.user_properties += [(reliability.PROPERTY, row) for row in rows]
    return report
