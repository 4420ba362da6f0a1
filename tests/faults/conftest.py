"""What tests of faults share."""

import os
from collections.abc import Callable, Iterator

import pytest

import faulty
import tracked


@pytest.fixture(scope="session")
def ready(tmp_path_factory: pytest.TempPathFactory) -> faulty.Ready:
    """A project in which all but training and testing is done; to be copied."""
    return faulty.make(tmp_path_factory.mktemp("ready") / "project")


@pytest.fixture
def patient() -> Iterator[None]:
    """MLflow waits for answers as it does on a machine that has nothing else to do."""
    with tracked.environment():
        os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "60"  # instead of 5 s
        yield


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[[tracked.World, str], str]:
    """Return a function that syncs while MLflow does not take it, and returns the one line that
    says so."""

    def sync(world: tracked.World, uri: str) -> str:
        capsys.readouterr()
        assert world.sync(uri).startswith("pending: ")
        captured = capsys.readouterr()
        (line,) = captured.err.splitlines()
        assert line.startswith("warning: ")
        assert line.endswith("; nothing is lost, the next run tries again")
        assert "secret" not in captured.err + captured.out + world.marker.read_text()
        return line

    return sync
