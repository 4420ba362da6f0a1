"""Whatever happens to an MLflow server, a study is done, nobody waits for long, one line says what
to do, and once the server is back every run is there exactly once."""

import base64
import itertools
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests
from mlflow.tracking import MlflowClient

from mlflow_server import Server, free_port
from tracked import World, small

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("patient")]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server")).start()
    MlflowClient(server.uri).search_experiments(max_results=1)  # which makes the database
    yield server
    server.kill()


@pytest.fixture
def server(shared: Server) -> Server:
    """A server that runs, also if the test before has killed it and failed."""
    return shared if shared.process.poll() is None else shared.start()


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    return World(tmp_path, small(request.node.name.replace("[", "_").rstrip("]")))


def assert_complete(world: World, uri: str) -> None:
    """Sync, and check that every run is there once, with all its numbers and files."""
    assert world.sync(uri).startswith("done: 2 runs")
    shown = world.entries(uri)
    assert len(shown) == 5, "two runs, their settings, the study"
    client = world.client(uri)
    assert {run.info.status for run in shown.values()} == {"FINISHED"}
    for run in world.runs(uri).values():
        steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "loss")]
        assert sorted(steps) == [1, 2, 3, 4]
        assert {"personal_own", "train_seconds"} <= run.data.metrics.keys()
        files = {item.path for item in client.list_artifacts(run.info.run_id)}
        assert files == {"run.json", "rounds.csv"}


@contextmanager
def at_request(number: int, answered: bool, happen: Any, kind: str = "") -> Iterator[list[str]]:
    """Let something happen before a request to a server is sent, or instead of its answer: the
    request with this number among those whose path contains ``kind``."""
    send, sent, count = requests.Session.send, list[str](), itertools.count(1)

    def counted(self: requests.Session, request: Any, **options: Any) -> requests.Response:
        sent.append(f"{request.method} {request.path_url}")
        is_it = kind in request.path_url and next(count) == number
        if is_it and not answered:
            happen()
        response = send(self, request, **options)
        if is_it and answered:
            happen()
            raise requests.ConnectionError("Connection aborted.")
        return response

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests.Session, "send", counted)
        yield sent


def test_a_server_that_is_killed_has_every_run_once_when_it_is_back(server, world, refused, long):
    with at_request(0, False, None) as sent:
        calm = World(world.folder / "calm", small("calm"))
        calm.sync(server.uri)
    # The first request and one while runs are written; at night each, with and without its answer.
    moments = [(n, answered) for n in range(1, len(sent) + 1) for answered in (False, True)]
    for number, answered in moments if long else [(1, True), (len(sent) // 2, True)]:
        again = World(world.folder / f"{number}{answered}", small(f"killed_{number}_{answered}"))
        with at_request(number, answered, server.kill):
            line = refused(again, server.uri)
        assert "start it, or correct its address" in line
        server.start()
        assert_complete(again, server.uri)


def test_a_request_whose_answer_was_lost_is_not_made_twice(server, world, refused):
    with at_request(0, False, None) as sent:
        World(world.folder / "calm", small("calm_again")).sync(server.uri)
    made = [what for what in sent if "runs/create" in what]
    with at_request(len(made), True, lambda: None, "runs/create") as asked:
        refused(world, server.uri)
    again = [what for what in asked if "runs/create" in what]
    assert again == made, "the last one has no answer, and is not asked for again"
    assert_complete(world, server.uri)


def test_a_refused_port_is_one_line_without_the_password(world, refused):
    port = free_port()
    line = refused(world, f"http://me:secret@127.0.0.1:{port}/?token=secret")
    assert line.startswith(f"warning: http://127.0.0.1:{port}/ did not take study")
    assert "start it, or correct its address" in line


def test_a_server_that_accepts_and_never_answers_is_given_up(world, refused):
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "1"
    with socket.create_server(("127.0.0.1", 0)) as hole:  # the system accepts, nobody answers
        line = refused(world, f"http://127.0.0.1:{hole.getsockname()[1]}")
        hole.setblocking(False)
        accepted = []
        with suppress(BlockingIOError):
            while True:
                accepted.append(hole.accept())
    assert "it accepts connections and does not answer" in line
    # The first look, one request and its one repetition.
    assert len(accepted) <= 3
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "1", "the user's own setting stays"


@contextmanager
def guarded(status: int) -> Iterator[None]:
    """Let servers take nothing but what has the right password."""
    right = "Basic " + base64.b64encode(b"me:secret").decode()
    send, refusal = requests.Session.send, requests.Response()
    refusal.status_code, refusal._content = status, b"no"

    def answer(self: requests.Session, request: Any, **options: Any) -> requests.Response:
        passes = request.headers.get("Authorization") == right
        return send(self, request, **options) if passes else refusal

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests.Session, "send", answer)
        yield


ADVICE = {
    401: "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
    403: "ask its administrator for the right to write there",
}


@pytest.mark.parametrize("status", ADVICE)
def test_wrong_credentials_are_named_and_right_ones_are_enough(
    status, server, world, refused, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    with guarded(status):
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "guessed")
        assert ADVICE[status] in refused(world, server.uri)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
        assert_complete(world, server.uri)


def test_a_read_only_database_behind_a_server_is_named(server, world, tmp_path, refused):
    folder = tmp_path / "read_only"
    folder.mkdir()
    database = f"sqlite:///file:{folder / 'mlflow.db'}?mode=ro&uri=true"
    other = Server(folder, database, copy=server.folder / "mlflow.db").start()
    try:
        line = refused(world, other.uri)
        assert "its log says why, such as a database that is read-only or full" in line
    finally:
        other.kill()
    assert_complete(world, server.uri)


def test_a_read_only_database_of_ones_own_is_named(server, world, tmp_path, refused):
    file = tmp_path / "own.db"
    file.write_bytes((server.folder / "mlflow.db").read_bytes())
    line = refused(world, f"sqlite:///file:{file}?mode=ro&uri=true")
    assert "make that file writable" in line


def killed_while_it_syncs(world: World, uri: str) -> None:
    """Let a process of its own sync, which is killed in the middle of the first run."""
    ended = os.fork()
    if not ended:
        with at_request(12, True, lambda: os.kill(os.getpid(), signal.SIGKILL)):
            world.sync(uri)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(ended, 0)[1]) == -signal.SIGKILL


def test_a_pipeline_that_was_killed_leaves_nothing_twice(server, world):
    killed_while_it_syncs(world, server.uri)
    assert_complete(world, server.uri)
