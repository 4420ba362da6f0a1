"""The fresh process of witness.py. It imports the package and nothing of a run; every request is
answered in a fork, in which the code from outside runs for the first time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import signal
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from pflpipe import cells, trees
from pflpipe.code import guard
from pflpipe.code.dependencies import Dependency
from pflpipe.data.split import Split
from pflpipe.json_records import from_json
from pflpipe.learning import networks
from pflpipe.learning.augment import Augment
from pflpipe.learning.networks import Network
from pflpipe.methods import registry
from pflpipe.privacy.plan import Plan
from pflpipe.simulation import rounds
from pflpipe.simulation.clients import Examples
from pflpipe.simulation.isolation import Few
from pflpipe.simulation.processes import Processes
from pflpipe.simulation.progress import Progress
from pflpipe.simulation.server import with_optimizer
from pflpipe.simulation.simulation import Simulation
from pflpipe.simulation.states import States
from pflpipe.simulation.witness import SAME, unpacked
from pflpipe.trees import Params, ServerState, Update


def main(descriptor: int) -> None:
    """Answer requests until there are no more.

    Args:
        descriptor: open file descriptor of the connection. A request is its kind and its content:
            ``run``, what is known of the run that begins; ``client``, answered by a new fork;
            ``server``, answered by one fork for all rounds of the run.
    """
    # Ctrl-C reaches this process too; the end of the connection ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks that have ended need no wait
    # No thread may exist where a process forks; the forks have as many as the run.
    torch.set_num_threads(1)
    connection: Connection[bytes, bytes] = Connection(descriptor)
    run, server = b"", None
    with contextlib.suppress(EOFError, OSError):  # the program that asks has ended
        while True:
            kind, content = connection.recv_bytes(), connection.recv_bytes()
            if kind == b"run":
                run, server = content, None  # closes the connection to the last run's fork
                connection.send_bytes(kind)
                continue
            try:
                fork = server if kind == b"server" and server else _forked(run, connection)
                if kind == b"server":
                    server = fork
                fork.send_bytes(content)
                answer = fork.recv_bytes()
            except EOFError:
                answer = _json({"problem": "it has ended"})
            except OSError as problem:  # no memory for a fork, or one that ended before it read
                answer = _json({"problem": guard.described(problem)})
            connection.send_bytes(answer)


def _forked(run: bytes, above: Connection[bytes, bytes]) -> Connection[bytes, bytes]:
    """Return the connection to a fork that answers requests until there are no more."""
    ours, theirs = Pipe()
    if os.fork():
        theirs.close()
        return ours
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        above.close()
        ours.close()
        simulation = None
        while True:
            request = unpacked(theirs.recv_bytes())
            try:
                simulation = simulation or _made(unpacked(run))
                answer = _answer(simulation, request)
            except (Exception, SystemExit) as problem:
                answer = {"problem": guard.described(problem)}
            theirs.send_bytes(_json(answer))
    except EOFError:
        pass
    finally:
        os._exit(0)


def _made(run: dict[str, Any]) -> Simulation:
    """Return the simulation of a run without data, of code that nobody has called before."""
    os.environ.clear()
    os.environ.update(run["environment"])
    os.chdir(run["folder"])
    sys.path[:] = run["path"]
    # The user's own objects, through a pipe that only the program that trains writes.
    objects = pickle.loads(run["objects"]) if run["objects"] else {}  # noqa: S301
    name, source, hyperparameters = run["method"]
    method = objects.get("method") or registry.info(name, source).factory(**hyperparameters)
    training = from_json(cells.Training, run["training"], "training")
    shape, device = tuple(run["shape"]), run["device"]
    model: Any = objects.get("model")
    # Not tried on made-up rows: a scaling that is fitted to the first batch would be fitted there.
    if run["model"] is not None:
        written = from_json(cells.Model, run["model"], "model")
        network = networks.build(written, shape, run["outputs"], tried=False)
    elif isinstance(model, Network):
        network = model
    else:
        network = networks.of_module(model, shape, run["outputs"], tried=False)
    none, fill = np.zeros(0, np.int64), run["fill"]
    no_rows = [none] * run["plan"]["clients"]
    nothing = Examples(torch.zeros(0, *shape, dtype=run["dtype"]), run["labels"])
    simulation = Simulation(
        method=with_optimizer(method, from_json(cells.Server, run["server"], "server")),
        network=network,
        plan=from_json(Plan, run["plan"], "plan"),
        training=training,
        departures=frozenset(run["departures"]),
        split=Split(no_rows, no_rows, no_rows, none),
        train=_on(device, nothing),
        test=_on(device, nothing),
        key="",  # names noise and cohorts, which are not drawn here
        augment=None if fill is None else Augment(training.augment, fill.to(device)),
        processes=_First(0, run["processes"]),
        code=tuple(from_json(Dependency, part, "code") for part in run["code"]),
        **{name: run[name] for name in SAME},
    )
    guard.switch(run["switches"])
    return simulation


class _First(Processes):
    """The first of several processes, which has the only client of a cohort. On a GPU shapes follow
    from their number."""

    def gather(self, own: Tensor, shares: Any) -> Tensor:
        """Return the rows of this process."""
        return own


def _answer(simulation: Simulation, request: dict[str, Any]) -> dict[str, Any]:
    """Return the fingerprints of what one client computes, or the server's hooks."""
    device, method = simulation.train.x.device, simulation.method
    on_device = {
        name: {key: value.to(device) for key, value in tree.items()}
        for name, tree in request.items()
        if isinstance(tree, dict)
    }
    params, server = Params(on_device["params"]), ServerState(on_device["server"])
    round, bound = request["round"], request["bound"]
    if "released" in request:
        task, released = simulation.task_in(round, bound), Update(on_device["released"])
        scale = method.scale(params, server, task)
        params, server = method.aggregate(params, released, server, task)
        results = {"scale": scale, "params": params, "server": server}
        return {name: trees.fingerprints(tree) for name, tree in results.items()}
    client, rows = request["client"], _on(device, Examples(request["x"], request["y"]))
    train = list(simulation.split.train)
    train[client] = np.arange(len(rows.y))
    split = dataclasses.replace(simulation.split, train=train)
    alone = dataclasses.replace(simulation, split=split, train=rows, test=rows)
    states = cast(States, Few([client], on_device["state"]))
    progress = Progress(round, params, server, states, bound=bound)
    computed = rounds.local_updates(alone, progress, [client])
    return {"results": trees.fingerprints(computed.tree())}


def _json(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode()


def _on(device: torch.device, examples: Examples) -> Examples:
    return Examples(examples.x.to(device), examples.y.to(device))


if __name__ == "__main__":
    main(int(sys.argv[1]))
