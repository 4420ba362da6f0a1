"""The witness: what code from outside keeps between its calls is found by a process that has never
called it; code that keeps nothing has the same bits there."""

import dataclasses
import errno
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import pflpipe
import simulations
import tabled
import two_worlds
from pflpipe import cells, trees
from pflpipe.errors import ConfigError, PflpipeError, PrivacyError
from pflpipe.interface import training as api
from pflpipe.learning import networks
from pflpipe.methods import registry, row_code
from pflpipe.methods.base import Method, Upload
from pflpipe.simulation import rounds, runs, witness
from pflpipe.simulation.simulation import Recipe
from pflpipe.trees import ClientState, Update
from test_isolation import PRIVATE, SIZES, SUBJECT, assert_apart, uneven
from test_runs import make_place, train_here

TABLES = tabled.table("test_witness")

ROOT = Path(__file__).resolve().parent.parent
REFUSED = "other bits than the same client computes by itself in a fresh process"
ONCE = cells.Training(1, 2, 0, "sgd", 0.5)
MODEL = cells.Model("mlp", (4,))
PRIVACY = cells.Privacy(epsilon=8, delta=1e-3, clip_norm=0.5)


def clients_of(count: int = 6, rows: int = 12) -> list[Any]:
    draw = torch.Generator().manual_seed(0)
    found = []
    for i in range(count):
        x = torch.randn(rows, 5, generator=draw) * (1 + i)
        found.append((x, torch.randint(0, 3, (rows,), generator=draw).clamp(max=1 + i % 2)))
    return found


def train(method: Any = "dp_fedavg", **changes: Any) -> pflpipe.Trained:
    given = {"training": ONCE, "privacy": PRIVACY, "classes": 3, "model": MODEL}
    named = {"secret": "one", "method_name": "mine", "model_name": "mine"}
    how = {"clients": clients_of(), "backend": "loop", "allow_large_delta": True}
    return pflpipe.train(method, **(given | named | how | changes))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder for files, and a program in which no code was found to keep anything and no name
    stands for an object."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "_NAMES", {})
    monkeypatch.setattr(witness._Process, "kept_state", False)
    return tmp_path


def with_loss(name: str, more: str = "", **changes: Any) -> cells.Training:
    """Training with the loss that the table calls so."""
    Path("loss.py").write_text(TABLES["LOSS"] + TABLES[name] + more)
    return dataclasses.replace(ONCE, loss="loss.py:mine", **changes)


def cell_with_loss(folder: Path) -> cells.Cell:
    cell = make_place(folder, "dp_fedavg")
    training = dataclasses.replace(cell.training, loss="loss.py:mine")
    return dataclasses.replace(cell, training=training)


@contextmanager
def assert_refused(words: str, kind: type[Exception] = PrivacyError) -> Iterator[list[str]]:
    """The run ends in one line; it stands in the list afterwards."""
    said: list[str] = []
    with pytest.raises(kind, match=words) as error:
        yield said
    said.append(str(error.value))
    assert "\n" not in said[0]


def local_update(params, server, state, batches, task):
    end, loss = task.minimize(params, batches.train, task.loss)
    return Upload(trees.sub(end, params), {}, loss), state


# ------------------------------------------------------------------------- what is found


@pytest.mark.parametrize("loss", ["BALANCED", "CACHED", "ON_THE_OBJECT"])
def test_a_loss_that_keeps_something_of_an_earlier_client_ends_the_run(loss):
    with assert_refused(REFUSED) as said:
        train(training=with_loss(loss))
    assert said[0].startswith("round 1: a client's update ")


def test_a_tensor_that_a_loss_keeps_under_vmap_ends_the_run_in_one_line():
    """Before the witness has an answer, torch refuses to use it."""
    with assert_refused("a tensor of an earlier call"):
        train(training=with_loss("OF_THE_LAST_CALL"), backend="auto")


def scaled(by_class: bool) -> Any:
    """A network that fixes the scale of its input on its first batch, wherever that is seen."""

    class Scaled(nn.Module):
        kept: list[torch.Tensor] = []  # noqa: RUF012 - the slip

        def __init__(self, image_shape: tuple[int, ...], classes: int) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(*image_shape, 4), nn.Linear(4, classes)
            self.scale: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if by_class:
                self.kept.append(x.detach().abs().mean())
                scale = self.kept[0]
            else:
                self.scale = x.detach().abs().mean() if self.scale is None else self.scale
                scale = self.scale
            return self.head(self.body(x / scale).relu())

    return Scaled


@pytest.mark.parametrize("by_class", [False, True], ids=["attribute", "class"])
@pytest.mark.parametrize("made", [False, True], ids=["class given", "instance given"])
def test_a_network_that_fits_its_scale_to_the_first_batch_ends_the_run(by_class, made):
    network = scaled(by_class)
    with pytest.raises(PrivacyError, match=REFUSED):
        train(model=network((5,), 3) if made else network)


def test_nothing_is_found_any_more_when_a_refused_run_has_ended():
    with pytest.raises(PrivacyError, match=REFUSED):
        train(model=scaled(by_class=False))
    assert witness._Process.kept_state
    witness._Process.kept_state = False
    process = witness._Process.latest
    assert process is not None
    process.thread.submit(bool).result()  # whatever was asked before has its answer now
    assert not witness._Process.kept_state


def keeping(where: str) -> Method:
    """A method whose clients send a little of what an earlier one computed."""
    kept: dict[str, Any] = {}

    def keeps(params, server, state, batches, task):
        sent, state = local_update(params, server, state, batches, task)
        first = kept.setdefault("first", sent.update)
        if where == "message":
            sent = dataclasses.replace(sent, update=trees.add(sent.update, first))
        if where == "state":
            state = ClientState({"kept": first["head.bias"]})
        return sent, state

    def aggregate(params, released, server, task):
        kept_too = kept.get("first", released) if where == "server" else released
        return trees.add(params, kept_too), server

    def init_client(params, task):
        return ClientState({"kept": params["head.bias"] * 0} if where == "state" else {})

    return Method(keeps, aggregate, init_client=init_client)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("message", f"a client's update .*{REFUSED}"),
        ("state", f"a client's state kept.*{REFUSED}"),
        ("server", "hook aggregate: .*another result than in a process without client data"),
    ],
)
def test_a_method_that_keeps_what_a_client_computed_ends_the_run(where, said):
    with pytest.raises(PrivacyError, match=said):
        train(keeping(where))


@pytest.mark.parametrize(("late", "rounds", "found"), [(True, 2, 2), (False, 5, 1)])
def test_what_one_round_alone_uses_is_found_in_the_first_and_in_the_last(late, rounds, found):
    """The calls of the first round are six; ``late`` ones are those after them."""
    calls: list[Update] = []

    def keeps(params, server, state, batches, task):
        sent, state = local_update(params, server, state, batches, task)
        calls.append(sent.update)
        earlier = calls[-7:][0] if late else calls[0]
        is_used = late == (len(calls) > 6)
        return (dataclasses.replace(sent, update=earlier) if is_used else sent), state

    with pytest.raises(PrivacyError, match=f"round {found}: .*{REFUSED}"):
        train(Method(keeps), training=dataclasses.replace(ONCE, rounds=rounds))


def test_a_program_whose_objects_kept_something_is_started_again():
    """The next witness would get them with what they have kept, and agree."""
    method = keeping("message")
    with pytest.raises(PrivacyError, match=REFUSED):
        train(method)
    with assert_refused("start Python again"):
        train(method, method_name="with what it kept")
    train()  # code of the package alone is not concerned


@pytest.mark.slow
def test_a_cell_whose_loss_keeps_something_has_no_result(folder):
    """As the pipeline trains it."""
    own = cell_with_loss(folder)
    with_loss("HONEST_LOSS")
    train_here(folder, row_code.with_digests(own), backend="loop")
    (folder / "run/run.json").unlink()
    with_loss("BALANCED")
    with pytest.raises(PrivacyError, match=REFUSED):
        train_here(folder, row_code.with_digests(own), backend="loop")
    assert not (folder / "run/run.json").exists()


# ------------------------------------------------------------------- what is not concerned


class WithNorm(nn.Module):
    """A network of one's own that keeps nothing."""

    def __init__(self, image_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(*image_shape, 8), nn.GroupNorm(2, 8)
        self.head = nn.Linear(8, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(x)).relu())


def rounds_asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds whose clients are given to the witness, as they come."""
    asked: list[int] = []
    original = witness.Witness.clients

    def clients(self: witness.Witness, sample: Any) -> None:
        asked.append(sample.start.round)
        original(self, sample)

    monkeypatch.setattr(witness.Witness, "clients", clients)
    return asked


ALL = {"method": Method(local_update), "model": WithNorm, "server": cells.Server("adam", 0.1)}
MINIBATCHES = {"method": "feddpa", "loss": True, "batch_size": 4}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "backend"),
    [
        ({"loss": True}, "loop"),
        ({"model": WithNorm}, "loop"),
        ({"model": WithNorm((5,), 3)}, "loop"),
        ({"model": networks.build(MODEL, (5,), 3)}, "loop"),
        ({"method": Method(local_update)}, "loop"),
        *((MINIBATCHES, backend) for backend in ("loop", "vmap")),
        *((ALL, backend) for backend in ("loop", "vmap")),
    ],
)
def test_code_that_keeps_nothing_has_the_same_bits_with_a_witness_and_without(
    changes, backend, monkeypatch
):
    given, how = dict(changes), {"rounds": 3}
    how["batch_size"] = given.pop("batch_size", 0)
    own_loss = given.pop("loss", False)
    training = with_loss("HONEST_LOSS", **how) if own_loss else dataclasses.replace(ONCE, **how)
    given |= {"training": training, "backend": backend}
    asked = rounds_asked(monkeypatch)
    witnessed = train(**given)
    assert asked == [0, 2]
    make = api.Simulation
    monkeypatch.setattr(api, "Simulation", lambda **fields: make(**fields | {"recipe": None}))
    alone = train(**given)
    assert asked == [0, 2]
    assert trees.differing(*map(trees.fingerprints, (witnessed.params, alone.params))) == []


def network_of(method: str) -> cells.Model:
    """The network of ``uneven``."""
    if registry.ITEMS in registry.info(method).about.needs:
        return simulations.TABLE
    deep = registry.info(method).about.needs == ("norm",)
    return cells.Model("resnet20") if deep else cells.Model("mlp", (4,))


@pytest.mark.slow
@pytest.mark.parametrize("method", PRIVATE)
def test_every_method_of_the_package_computes_the_same_bits_in_a_fresh_process(method):
    """So no method keeps anything in its module, whatever computes its clients. Its runs compare in
    one process, which is cheaper."""
    world = uneven(method, "loop")
    values = registry.check_hyperparameters(method, {})
    recipe = Recipe(cells.Server(), method, "", values, network_of(method))
    watched = dataclasses.replace(world, recipe=recipe)
    rounds.run(watched, rounds.start(watched), lambda progress: progress.round < 2)


# ------------------------------------------------------------------------ what it receives


def test_it_receives_the_rows_and_the_state_of_one_client_and_what_was_released(monkeypatch):
    packed = mock.Mock(side_effect=witness.packed)
    monkeypatch.setattr(witness, "packed", packed)
    clients = clients_of()
    result = train(Method(local_update), clients=clients, tests=[c[:2] for c in clients_of(6, 2)])
    run, *requests = (call.args[0] for call in packed.call_args_list)
    assert not any(isinstance(v, torch.Tensor) and v.numel() for v in run.values())
    assert result.simulation.key not in str(run)
    assert {tuple(sorted(request)) for request in requests} == {
        ("bound", "params", "released", "round", "server"),
        ("bound", "client", "params", "round", "server", "state", "x", "y"),
    }
    of_clients = [request for request in requests if "client" in request]
    assert len(of_clients) == 2
    for request in of_clients:
        x, y = clients[request["client"]]
        assert torch.equal(request["x"], x)
        assert torch.equal(request["y"], y)


# ------------------------------------------------------------------ where it cannot answer


def test_what_cannot_be_handed_to_a_process_is_refused_in_one_line():
    lock = threading.Lock()

    def locked(params, server, state, batches, task):
        with lock:
            return Upload(trees.sub(params, params), {}, batches.n * 0.0), state

    with assert_refused(r"method of this program; got .TypeError.*lock", ConfigError):
        train(Method(locked))
    open_run = train(Method(locked), privacy=None)
    assert open_run.ledger.claim != "certified"


def no_memory(*_: object, **__: object) -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (lambda patch: patch.setattr(subprocess, "Popen", no_memory), "Cannot allocate memory"),
        (lambda patch: patch.setattr(sys, "executable", "/nowhere/python"), "No such file"),
        (lambda patch: patch.setattr(witness, "SECOND", "json.tool"), "no answer from the fresh"),
    ],
    ids=["memory", "python", "other program"],
)
def test_a_run_whose_witness_cannot_start_ends_in_one_line(monkeypatch, place, said):
    monkeypatch.setattr(witness._Process, "latest", None)
    place(monkeypatch)
    with assert_refused(said):
        train(training=with_loss("HONEST_LOSS"))


def test_a_run_whose_witness_ends_before_a_request_ends_in_one_line(monkeypatch):
    monkeypatch.setattr(witness._Process, "latest", None)
    ended = witness._Process.running()
    ended.end()
    monkeypatch.setattr(witness._Process, "latest", ended)
    with assert_refused("no answer from the fresh process: it has ended"):
        train(training=with_loss("HONEST_LOSS"))


def test_an_error_of_the_code_in_the_fresh_process_is_said_in_one_line():
    more = "\nimport sys\nif 'second_process' in str(sys.argv): raise OSError('no')\n"
    with assert_refused(r"no answer from the fresh process: .*OSError: no", PflpipeError):
        train(training=with_loss("HONEST_LOSS", more))


# ---------------------------------------------------------------------------- when it is asked


def test_no_checkpoint_is_written_before_the_first_answer(folder, monkeypatch):
    """A run that goes on from it would never be compared in the rounds before."""
    own = cell_with_loss(folder)
    with_loss("HONEST_LOSS")
    own = row_code.with_digests(own)
    saved, seen = [], []
    original = runs.Checkpoint.save_when_due

    def save(self: runs.Checkpoint, progress: rounds.Progress) -> None:
        original(self, progress)
        seen.append(progress.checked)
        saved.append(self.path.exists())

    monkeypatch.setattr(runs.Checkpoint, "save_when_due", save)
    held, calls = threading.Event(), []
    answer, settle = witness._Process.answer, witness.Witness.settle

    def late(self: witness._Process, kind: bytes, request: Any) -> Any:
        if kind == b"client":
            held.wait(60)
        return answer(self, kind, request)

    def settled(self: witness.Witness, *most: int) -> None:
        """The answers come after the second call."""
        calls.append(most)
        if len(calls) > 2:
            held.set()
        settle(self, *most)
        if held.is_set():
            for future in self._clients:
                future.result()

    monkeypatch.setattr(witness._Process, "answer", late)
    monkeypatch.setattr(witness.Witness, "settle", settled)
    train_here(folder, own, checkpoint_seconds=0)
    assert not any(saved[:2])
    assert saved == seen


def test_a_run_that_goes_on_is_compared_in_its_next_and_its_last_round(monkeypatch):
    asked = rounds_asked(monkeypatch)
    how = {"training": dataclasses.replace(ONCE, rounds=6), "on_round": lambda p: p.round < 3}
    stopped = train(Method(local_update), **how)
    assert asked == [0, 2]
    stopped.resume()
    assert asked == [0, 2, 3, 5]


# ------------------------------------------------------------------------------- two worlds


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("code", ["loss", "network"])
def test_nothing_of_the_others_follows_from_one_clients_rows_with_own_code(backend, code):
    """As tests/test_isolation.py has it for the package's losses and networks."""
    clients = [(x[:size], y[:size]) for size, (x, y) in zip(SIZES, clients_of(8, 30), strict=True)]
    training = dataclasses.replace(ONCE, rounds=two_worlds.ROUNDS)
    model = WithNorm
    if code == "loss":
        model, training = MODEL, with_loss("HONEST_LOSS", rounds=training.rounds)
    settings = {"model": model, "training": training, "privacy": PRIVACY, "backend": backend}
    more = {"classes": 3, "test_fraction": 0.0, "allow_large_delta": True}
    world = pflpipe.federation("fedrep", clients, **settings, **more)
    world = two_worlds.with_pool(world)
    others = ((100, False), (9, True))
    assert_apart(world, *(two_worlds.given(world, SUBJECT, n, nan=nan) for n, nan in others))
