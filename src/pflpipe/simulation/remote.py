"""A run whose clients are on other machines: the server's half of a round, and a device's half.

Both halves are those of rounds.py. A device calls ``local_updates`` for clients of its own and
keeps their states. The server draws the cohort and calls ``one_round`` with the updates that came.

A client of the cohort without an answer counts as a message of zeros, and so does an answer of
another form. Neighbours differ by one message that is zero (mechanism.py), and the cohort and the
noise are drawn as in any other round. The claim therefore holds for absent clients, as long as
nobody's data decide whether another client answers.

**Secure aggregation** (a plan with ``bits``). A device hands out the ``share`` of a client and
nothing else of it (secure_sum.py); its randomness is its own, and no key draws it again. The server
sees the sum modulo 2^b alone. So it has no diagnostics of messages, and a round is opened only if
enough shares are in it.

Nothing here knows how messages travel (pipeline/flower.py, pipeline/secagg.py).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from pflpipe.cells import Cell
from pflpipe.data import datasets
from pflpipe.data.split import Split
from pflpipe.errors import ConfigError, DataError, PrivacyError
from pflpipe.files import atomic, read_json
from pflpipe.methods import registry
from pflpipe.privacy import secure_sum
from pflpipe.privacy.mechanism import Released, Uploads
from pflpipe.privacy.plan import read as read_plan
from pflpipe.privacy.secure_sum import Rule
from pflpipe.seeds import public_name, release_rng
from pflpipe.simulation import evaluation, rounds, runs
from pflpipe.simulation.isolation import Few
from pflpipe.simulation.progress import Progress
from pflpipe.simulation.rounds import Computed
from pflpipe.simulation.simulation import Simulation
from pflpipe.simulation.states import States
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

FILES = ("cell.json", "plan.json", "partition.npz", "examples.npz")
"""The settings, the plan and the rows that ``read`` reads."""
KEY = "key"
"""The file of the server that names the noise and the cohorts of one run."""


class Public(NamedTuple):
    """What the server sends before a round; all of it follows from earlier releases.

    ``run`` names the run, ``round`` counts from 0, ``bound`` is that of ``Progress``.
    """

    run: str
    round: int
    bound: float | None
    params: Params
    server: ServerState


def refused(simulation: Simulation) -> str:
    """Return why the clients of a run cannot be on other machines; empty if they can."""
    model = simulation.network.model
    if simulation.departures:
        names = ", ".join(sorted(simulation.departures))
        return f"its server needs more than the sum of the updates ({names})"
    if not simulation.method.upload(simulation.task):
        return "it sends nothing, so each device trains it alone"
    if not simulation.reviewed:
        return "no second process checks code from outside the package on a device"
    if model is not None and model.init:
        return "its initial weights are in a file of this machine"
    return ""


def read(folder: Path) -> tuple[Cell, Simulation]:
    """Return the cell and the simulation of a folder with ``FILES``, on the CPU, client by client.

    Raises:
        DataError: a file is missing or damaged.
    """
    for name in FILES:
        do = "pflpipe flower writes this folder"
        DataError.unless((folder / name).is_file(), f"{folder}: {name}", "no file", "a file", do)
    cell = Cell.from_dict(read_json(folder / "cell.json"))
    resolved, plan = registry.resolve(cell), read_plan(folder / "plan.json")
    arrays = datasets.load_arrays(folder / "examples.npz")
    split = Split.load(folder / "partition.npz")
    return cell, runs.of_data(resolved, arrays, split, plan, device="cpu", backend="loop")


class Device:
    """Some clients of a run, with their rows and their states, which stay here."""

    def __init__(self, simulation: Simulation, folder: Path) -> None:
        """Keep the states of the clients in a folder; only these clients have rows."""
        self.simulation, self.folder = simulation, folder
        self.clients = [i for i, rows in enumerate(simulation.split.train) if len(rows)]

    def update(self, client: int, public: Public) -> Tree:
        """Return a client's update of a round, ``[*shape]`` each, and keep its new state; under
        secure aggregation its share of the sum alone, int64 ``[D]``, without a name.

        Raises:
            PrivacyError: the client has answered this round or a later one of the run. Two messages
                under one noise would show their difference.
        """
        file = self._state(client, public)
        kept = torch.load(file, weights_only=True) if file.exists() else {"round": -1}
        if kept["round"] >= public.round:
            got, expected = public.round + 1, f"one after round {kept['round'] + 1}"
            raise PrivacyError(f"client {client}: round", got=got, expected=expected)
        computed = rounds.local_updates(self.simulation, self._progress(client, public), [client])
        with atomic(file) as path:
            state = {name: value[0].clone() for name, value in computed.states.items()}
            torch.save({"round": public.round, "state": state}, path)
        update = {name: value[0] for name, value in computed.update.items()}
        if not self.simulation.plan.bits:
            return update
        of, signs = _rotation(self.simulation, public.run, public.round)
        generator = np.random.default_rng()  # of the operating system
        clients = self.simulation.plan.clients
        return {"": secure_sum.share(generator, update, signs, of, clients)}

    def keep_model(self, client: int, public: Public) -> Path:
        """Write a client's personal model beside its state and return the file."""
        progress = self._progress(client, public)
        ((_, model),) = evaluation.personal_models(self.simulation, progress, [client])
        file = self._state(client, public).with_suffix(".model.pt")
        with atomic(file) as path:
            torch.save({name: value.clone() for name, value in model.items()}, path)
        return file

    def _state(self, client: int, public: Public) -> Path:
        return self.folder / public.run / f"{client}.pt"

    def _progress(self, client: int, public: Public) -> Progress:
        file = self._state(client, public)
        if file.exists():
            kept = torch.load(file, weights_only=True)["state"]
            state = {name: value.unsqueeze(0) for name, value in kept.items()}
        else:
            state = rounds.start(self.simulation).states.of([client])
        few = cast(States, Few([client], state))
        return Progress(public.round, public.params, public.server, few, bound=public.bound)


class Server:
    """The server of a run: cohorts, clip, noise, server optimizer and server state."""

    def __init__(self, simulation: Simulation) -> None:
        """Begin a run; the server's simulation needs no rows.

        Raises:
            ConfigError: the run is ``refused``.
        """
        if why := refused(simulation):
            raise ConfigError(f"method {simulation.name}: clients on other machines", got=why)
        self.simulation = dataclasses.replace(simulation, backend="devices")
        if simulation.plan.bits:
            self.simulation = dataclasses.replace(self.simulation, release=self._open)
        self.progress = rounds.start(simulation)
        self._seen = torch.zeros(0, dtype=torch.float64)
        self._stayed = 0

    @property
    def public(self) -> Public:
        """What the clients of the next round receive."""
        at, run = self.progress, public_name(self.simulation.key)
        return Public(run, at.round, at.bound, at.params, at.server)

    @property
    def cohort(self) -> list[int]:
        """The clients that are drawn for the next round; private."""
        drawn = rounds.cohort(self.simulation, self.progress.round)
        return [int(client) for client in drawn.nonzero()[0]]

    def see(self, sums: Tensor, stayed: int) -> None:
        """Take the sum of a round under secure aggregation, modulo 2^b, ``[D]``, and the number of
        clients whose shares are in it."""
        self._seen, self._stayed = sums.double(), stayed

    def step(self, updates: Mapping[int, Tree]) -> int:
        """Release a round from the updates that came, by client, and take the server's step; under
        secure aggregation from the sum that it saw. Return the number of clients in it.

        Raises:
            PrivacyError: too few clients share the noise of the sum.
        """
        plan = self.simulation.plan
        if plan.bits:
            what, expected = "clients in the secure sum", f"at least {plan.staying} (dropout)"
            do = "the round is not opened; write the app again for a new run"
            enough = self._stayed >= plan.staying
            at = f"round {self.progress.round + 1}"
            PrivacyError.unless(enough, f"{at}: {what}", self._stayed, expected, do)
        shapes, dtype = self.simulation.method.upload(self.simulation.task), self.simulation.dtype

        def form(update: Mapping[str, Any]) -> Any:
            return {name: (tuple(value.shape), value.dtype) for name, value in update.items()}

        def received(
            simulation: Simulation, progress: Progress, clients: Sequence[int]
        ) -> Computed:
            zeros = {name: torch.zeros(shape, dtype=dtype) for name, shape in shapes.items()}
            given = [updates.get(client, zeros) for client in clients]
            rows = [one if form(one) == form(zeros) else zeros for one in given]
            stacked = Update({name: torch.stack([row[name] for row in rows]) for name in zeros})
            nothing = ClientState({})
            return Computed(stacked, {}, torch.zeros(len(rows)), nothing, [0] * len(rows))

        rounds.one_round(self.simulation, self.progress, compute=received)
        if not plan.bits:
            return len(updates)
        self.progress.rows[-1] |= dict.fromkeys(rounds.OF_MESSAGES, math.nan)
        stayed, self._stayed = self._stayed, 0
        return stayed

    def _open(self, generator: object, uploads: Uploads, *_: object) -> Released:
        """Return the release of the sum that the server saw; nothing else is known of a round."""
        at = self.progress
        of, signs = _rotation(self.simulation, public_name(self.simulation.key), at.round)
        shapes = {name: rows.shape[1:] for name, rows in uploads.update.items()}
        everybody = self.simulation.plan.clients
        sums, wrapped = secure_sum.opened(self._seen, signs, of, everybody, shapes)
        clients = len(next(iter(uploads.update.values())))
        unknown, none = torch.tensor(math.nan), torch.zeros(clients, dtype=torch.bool)
        return Released(
            sum={name: value.to(uploads.update[name]) for name, value in sums.items()},
            messages={},
            clean={"": self._seen},
            wrapped=wrapped,
            noise_norm=unknown,
            signal_norm=unknown,
            norms=unknown.expand(clients),
            clipped=none,
            nonfinite=none,
        )


def _rotation(simulation: Simulation, run: str, round: int) -> tuple[Rule, Tensor]:
    """Return the rule of a plan with bits, and the public signs of a round of a run."""
    shapes = simulation.method.upload(simulation.task).values()
    of = secure_sum.rule(simulation.plan, sum(map(math.prod, shapes)))
    return of, secure_sum.signs(release_rng(run, "signs", round), of)


def begin(folder: Path) -> tuple[Cell, Server]:
    """Return the cell and the server of a folder, and take its ``KEY`` away: one key, one run.

    Raises:
        PrivacyError: there is no key. A second run with the same key has the same noise, and other
            messages; the two releases would show their difference.
        DataError, ConfigError: as ``read`` and ``Server``.
    """
    cell, simulation = read(folder)
    file = folder / KEY
    do = "write the app again with pflpipe flower; its run is a further release"
    PrivacyError.unless(file.is_file(), f"{file}", "no key", "that of a run to begin", do)
    key = file.read_text().strip()
    server = Server(dataclasses.replace(simulation, key=key))
    file.unlink()
    return cell, server
