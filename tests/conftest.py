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
    parser.addoption(
        "--long", action="store_true", help="faults and clusters as often as a night has time for"
    )
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
