"""The witness: a fresh process that computes again what code from outside the package computed.

Such code may keep values between its calls: in a variable of its module, in a cache, in an
attribute, in a scaling that it fits to the first batch. A message would then depend on other
clients, and a hook of the server on values without noise. In the process that trains, such a value
is already set when a client computes again. So a process that has never called the code does it:

- Clients of the first round with a cohort and of the last one, drawn by the run's key
  (isolation.py). For each, a fork of the fresh process gets only this client's rows, its state, and
  what was released before the round.
- For a method from outside, the hooks ``scale`` and ``aggregate`` of every round, in a fork that
  gets only public values.

All bits must agree. A run whose witness cannot answer ends.

A Python process starts its fresh process (second_process.py) once, for all of its runs. It computes
beside the training; a thread here talks to it. For code of the package alone tests do all this
(tests/test_isolation.py, tests/test_released.py).
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, ClassVar, NoReturn

import torch

from pflpipe import trees
from pflpipe.code import guard
from pflpipe.errors import ConfigError, PrivacyError
from pflpipe.json_records import to_json
from pflpipe.learning.networks import HEAD
from pflpipe.simulation.isolation import Sample
from pflpipe.simulation.simulation import Simulation
from pflpipe.trees import Params, ServerState, Tensors, Tree, Update

Message = dict[str, Any]
"""A request to the fresh process or its answer: plain values and trees of tensors by name."""
SECOND = "pflpipe.simulation.second_process"
SAME = ("seed", "name", "backend", "dtype")
"""Fields of a simulation that the fresh process gets as they are."""
PENDING = 16
"""Largest number of requests that wait while the training goes on."""


class Witness:
    """The witness of one run, a context in which its rounds run.

    Args:
        simulation: the run, with a ``recipe``.
    """

    def __init__(self, simulation: Simulation) -> None:
        assert simulation.recipe is not None
        self._simulation, self._objects = simulation, bool(simulation.recipe.objects)
        self._hooks = bool(simulation.recipe.source) or not simulation.recipe.method
        self._clients: list[Future[None]] = []
        self._pending: list[Future[None]] = []

    def __enter__(self) -> Witness:
        """Start the fresh process if this program has none; do not wait for it.

        Raises:
            PrivacyError: it cannot start.
        """
        if self._objects and _Process.kept_state:
            got = "a program in which the code of a run kept state between its calls"
            expected = "code that has kept nothing"
            do = "start Python again, as what it kept may be there still"
            raise PrivacyError("method or model of this program", got=got, expected=expected, do=do)
        self._process = _Process.running()
        self._ask(b"run", _described(self._simulation))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Leave the process to later runs, without requests; end it if this program shall end."""
        for future in self._pending:
            future.cancel()
        if kind is not None and not issubclass(kind, Exception):
            self._process.end()
        # One that is under way may still find that objects keep values, which the next run asks.
        wait(self._pending)

    @property
    def has_seen_clients(self) -> bool:
        """Whether no client that was given to ``clients`` is still to be computed."""
        return all(future.done() for future in self._clients)

    def clients(self, sample: Sample) -> None:
        """Have the clients of a sample computed again, each in a process of its own."""
        start, train = sample.start, self._simulation.train
        public = {"round": start.round, "bound": start.bound, **_public(start.params, start.server)}
        for place, client in enumerate(sample.clients):
            rows = train.of(self._simulation.split.train[client])
            own = {"client": client, "x": rows.x.cpu(), "y": rows.y.cpu()}
            own["state"] = _on_cpu(start.states.of([client]))

            def compare(answer: Message, place: int = place) -> None:
                sample.compare(place, answer["results"], "by itself in a fresh process")

            self._clients.append(self._ask(b"client", public | own, compare))

    def server(
        self,
        round: int,
        bound: float | None,
        inputs: tuple[Params, Update, ServerState],
        results: tuple[Tree, Params, ServerState],
    ) -> None:
        """Have the server's hooks of a round computed again, if the method is from outside.

        Args:
            round: counted from 0.
            bound: C_t of an adaptive plan.
            inputs: model before the round, release, server state before the round.
            results: scale, model after the round, server state after the round.
        """
        if not self._hooks:
            return
        params, released, server = inputs
        public = {"round": round, "bound": bound, **_public(params, server)}
        name = self._simulation.name

        def compare(answer: Message) -> None:
            hooks, parts = ("scale", "aggregate", "aggregate"), ("scale", "params", "server")
            for hook, part, tree in zip(hooks, parts, results, strict=True):
                if differing := trees.differing(trees.fingerprints(tree), answer[part]):
                    raise PrivacyError(
                        f"method {name}: hook {hook}: {differing[0]}",
                        got="another result than in a process without client data",
                        expected="a function of what was released",
                        do="keep nothing between calls but the server's state",
                    )

        self._ask(b"server", public | {"released": _on_cpu(released)}, compare)

    def settle(self, most: int = PENDING) -> None:
        """Wait until at most so many requests have no answer.

        Raises:
            PrivacyError: an answer differs from what was computed here, or there is none.
        """
        while self._pending and (len(self._pending) > most or self._pending[0].done()):
            self._pending.pop(0).result()

    def _ask(
        self, kind: bytes, request: Message, compare: Callable[[Message], None] | None = None
    ) -> Future[None]:
        def ask() -> None:
            answer = self._process.answer(kind, packed(request))
            if not answer:
                self._no_answer("it has ended")
            if compare is not None:
                content = json.loads(answer)
                if problem := content.get("problem"):
                    self._no_answer(problem)
                try:
                    compare(content)
                except PrivacyError:
                    _Process.kept_state |= self._objects
                    raise

        try:
            self._pending.append(self._process.thread.submit(ask))
        except RuntimeError:  # the process has ended since the last request, its thread with it
            self.settle(0)
            self._no_answer("it has ended")
        return self._pending[-1]

    def _no_answer(self, problem: str) -> NoReturn:
        raise PrivacyError(
            f"method {self._simulation.name}: messages that are computed again",
            got=f"no answer from the fresh process: {problem}",
            expected="code that runs wherever its file is imported",
            do="put objects of a notebook into a file that can be imported",
        )


@dataclass
class _Process:
    """The fresh process of this program.

    Attributes:
        connection, process: to it, and its handle.
        thread: the only one that uses the connection, so that a request follows an answer.
        owner: the process that started it; a fork of this program starts its own.
        latest: the one that runs now.
        kept_state: whether objects of this program were found to keep values. They would be handed
            to the next witness with these values.
    """

    latest: ClassVar[_Process | None] = None
    kept_state: ClassVar[bool] = False

    connection: Connection[bytes, bytes]
    process: subprocess.Popen[bytes]
    thread: ThreadPoolExecutor
    owner: int

    @classmethod
    def running(cls) -> _Process:
        """Return the process, which is started if there is none."""
        if cls.latest is not None and cls.latest.owner == os.getpid():
            return cls.latest
        # A connection of its own: the code may print to stdout.
        ours, theirs = Pipe()
        try:
            with theirs:  # closed here: with it open, the end of the other process is not noticed
                command, end = [sys.executable, "-m", SECOND], theirs.fileno()
                quiet = subprocess.DEVNULL
                process = subprocess.Popen([*command, str(end)], stdout=quiet, pass_fds=[end])
        except OSError as problem:
            what, got = "process that computes some messages again", guard.described(problem)
            expected = f"memory for a second Python with torch, {sys.executable!r}"
            raise PrivacyError(what, got=got, expected=expected) from None
        cls.latest = cls(ours, process, ThreadPoolExecutor(1, "witness"), os.getpid())
        return cls.latest

    def answer(self, kind: bytes, request: bytes) -> bytes:
        """Return the answer to a request; empty if the process has ended."""
        try:
            self.connection.send_bytes(kind)
            self.connection.send_bytes(request)
            return self.connection.recv_bytes()
        except (OSError, EOFError):
            self.end()
            return b""

    def end(self) -> None:
        """End the process; the next run starts another one."""
        self.process.kill()
        self.process.wait()
        self.thread.shutdown(wait=False)
        _Process.latest = None


def pickled(**objects: Any) -> bytes:
    """Return objects of the program that calls as bytes for the fresh process: by reference if
    they are in a module that can be imported, else by value, with what they refer to.

    Raises:
        ConfigError: they cannot be handed to another process.
    """
    what = " and ".join(objects) + " of this program"
    expected = "what a fresh process can be given, as it computes some messages again"
    try:
        import cloudpickle  # late: only objects of a program need it

        content: bytes = cloudpickle.dumps(objects)
    except ImportError:
        raise ConfigError("cloudpickle", got="none here", do="pip install cloudpickle") from None
    except Exception as problem:  # a reducer of the user's classes can raise anything
        got, do = guard.described(problem), "put them into a file that can be imported"
        raise ConfigError(what, got=got, expected=expected, do=do) from None
    return content


def _described(simulation: Simulation) -> Message:
    """Return all that the fresh process needs to know about a run; the run's key is not in it."""
    recipe, network, train = simulation.recipe, simulation.network, simulation.train
    assert recipe is not None
    return {
        "method": [recipe.method, recipe.source, dict(recipe.hyperparameters)],
        "model": recipe.model and to_json(recipe.model),
        "objects": recipe.objects or None,
        "server": to_json(recipe.server),
        "plan": to_json(simulation.plan),
        "training": to_json(simulation.training),
        "departures": sorted(simulation.departures),
        "fill": getattr(simulation.augment, "fill", None),
        "shape": list(train.x.shape[1:]),
        "labels": train.y[:0].cpu(),
        "outputs": network.shapes[HEAD[0]][0],
        **{name: getattr(simulation, name) for name in SAME},
        "device": train.x.device,
        "processes": simulation.processes.size,
        "code": to_json(simulation.code),
        "switches": guard.switches(),
        "folder": os.getcwd(),
        "path": list(sys.path),
        "environment": dict(os.environ),
    }


def _public(params: Params, server: ServerState) -> dict[str, Tree]:
    return {"params": _on_cpu(params), "server": _on_cpu(server)}


def _on_cpu(tree: Tensors) -> Tree:
    return {name: value.cpu() for name, value in tree.items()}


def packed(message: Message) -> bytes:
    """Return a message of plain values and trees of tensors as bytes."""
    buffer = io.BytesIO()
    torch.save(message, buffer)
    return buffer.getvalue()


def unpacked(message: bytes) -> Message:
    """Return the message from the bytes of ``packed``."""
    content: Message = torch.load(io.BytesIO(message), weights_only=True)
    return content
