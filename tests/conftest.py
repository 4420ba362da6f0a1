"""The order of the tests, and how long the long ones are."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile

import pytest

import warm

# Images for containers tell Python to keep no bytecode. Hundreds of processes of one source would
# then compile it hundreds of times, half of what a dry run costs.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="faults and clusters as often as a night has time for"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Give all test processes one place for what they share; the first process makes it."""
    if not hasattr(config, "workerinput"):
        os.environ[warm.FOLDER] = tempfile.mkdtemp(prefix="pflpipe-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(warm.FOLDER)))


@pytest.fixture(scope="session")
def long(request: pytest.FixtureRequest) -> bool:
    """Whether faults are tried as often as a night has time for (``make nightly``)."""
    return bool(request.config.getoption("--long"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put those first that take longest: at the end one worker alone would be left with them."""
    rooms = ("cluster", "faults", "docs", "pipeline", "slow")
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in rooms])
