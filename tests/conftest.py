"""The order of the tests, how long the long ones are, what was learned of faults, and that no test
depends on what the user has made or set.

Tests begin in an empty folder. None may enter the folder of the project, where a user's results,
data and logs are; ``checkout`` is a folder with its files and without these.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import reliability
import warm

ROOT = Path(__file__).resolve().parent.parent
MADE = ("results", "data", "logs", ".snakemake", ".slurm", "mlflow.db", "mlruns")
"""What a user makes in the folder of the project (.gitignore)."""
OF_THE_USER = ("AWS_", "MLFLOW_", "PFLPIPE_", "SBATCH_", "SLURM_", "SNAKEMAKE_", "TORCHELASTIC_")
"""Beginnings of variables that change what programs do."""
ALSO_OF_THE_USER = ("COLUMNS", "LOCAL_RANK", "MAKEFLAGS", "MATPLOTLIBRC", "RANK", "WORLD_SIZE")

if "PYTEST_XDIST_WORKER" not in os.environ:  # a worker inherits what its parent has set
    for name in list(os.environ):
        if name.startswith(OF_THE_USER) or name in ALSO_OF_THE_USER:
            del os.environ[name]
# Before torch is imported, which reads it once. Test processes share the cores.
os.environ["OMP_NUM_THREADS"] = "1"


def _guard(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise AssertionError where a test enters the folder of the project or opens what a user has
    made there."""
    if not _guarded:
        return
    if event in ("open", "os.listdir", "os.scandir", "os.chdir", "sqlite3.connect"):
        given = arguments[0]
    elif event == "subprocess.Popen" and Path(os.fsdecode(arguments[0])).name not in _HARMLESS:
        given = arguments[2]
    else:
        return
    if not isinstance(given, (str, bytes, os.PathLike)):
        return
    path = Path(os.path.abspath(os.fsdecode(given)))
    enters = path == ROOT and event in ("os.chdir", "subprocess.Popen")
    if enters or (path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[:1] in _guarded):
        do = "tests read nothing that a user has made; go to the fixture `checkout`"
        raise AssertionError(f"{event} {path}: {do}")


_HARMLESS = ("git", "make")
_guarded = {(name,) for name in MADE}

# Images for containers tell Python to keep no bytecode. Hundreds of processes of one source would
# then compile it hundreds of times, half of what a dry run costs.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="faults and clusters as often as a night has time for"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Give all test processes one place for what they share, and one gatherer of the rows of
    docs/reliability.md: the first process makes both."""
    if hasattr(config, "workerinput"):
        return
    os.environ[warm.FOLDER] = tempfile.mkdtemp(prefix="pflpipe-")
    os.environ["XDG_CONFIG_HOME"] = os.environ[warm.FOLDER]  # no profile of the user's own
    config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(warm.FOLDER)))
    if not config.getoption("--long"):
        config.pluginmanager.register(Rows(), "rows-of-reliability")


@pytest.fixture(scope="session", autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Go to an empty folder, and stay out of that of the project."""
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    sys.addaudithook(_guard)  # which cannot be removed
    yield
    _guarded.clear()


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as it is checked out: its settings, studies and documents, and no results."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("config.yaml", "docs", "studies"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture(scope="session")
def long(request: pytest.FixtureRequest) -> bool:
    """Whether faults are tried as often as a night has time for (``make nightly``)."""
    return bool(request.config.getoption("--long"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put those first that take longest: at the end one worker alone would be left with them."""
    rooms = ("cluster", "faults", "docs", "pipeline", "slow")
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in rooms])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Give the rows that a test noted to its report, which also reaches another process."""
    report = yield
    if call.when == "call":
        rows = reliability.noted(item.nodeid)
        report.user_properties += [(reliability.PROPERTY, row) for row in rows]
    return report


class Rows:
    """Gathers the rows of the tests that ran, in the process that hears of all of them."""

    def __init__(self) -> None:
        self.found: dict[str, list[tuple[str, str]]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        rows = [tuple(row) for name, row in report.user_properties if name == reliability.PROPERTY]
        if report.failed or (report.when == "call" and rows):
            self.found[report.nodeid] = [] if report.failed else rows

    def pytest_sessionfinish(self) -> None:
        if self.found:
            reliability.write(self.found)
