"""What tests of faults share."""

import pytest

import faulty


@pytest.fixture(scope="session")
def ready(tmp_path_factory: pytest.TempPathFactory) -> faulty.Ready:
    """A project in which all but training and testing is done; to be copied."""
    return faulty.make(tmp_path_factory.mktemp("ready") / "project")
