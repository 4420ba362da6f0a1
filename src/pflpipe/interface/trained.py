"""A trained model: what it predicts, what is claimed of it, and its files.

A saved folder has two parts. ``model.safetensors`` and ``model.json`` hold what the ledger covers:
the released model and the claim. ``diagnostics.json`` and ``personal/`` hold accuracies and the
clients' own models, which no epsilon covers. ``load`` needs only the first part.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pflpipe import cells, json_records, trees
from pflpipe.data import contract, datasets
from pflpipe.data.contract import Contract
from pflpipe.errors import ConfigError, DataError, PrivacyError
from pflpipe.files import atomic, read_json, write_json
from pflpipe.interface import frames, shards
from pflpipe.interface.frames import Clients, Encoder
from pflpipe.learning import initial, networks
from pflpipe.learning.metrics import ACCURACY, BUILT_IN, CURVES, over_clients
from pflpipe.learning.networks import Network
from pflpipe.privacy import run_check
from pflpipe.privacy.ledger import Ledger
from pflpipe.simulation import evaluation, rounds
from pflpipe.simulation.clients import Examples
from pflpipe.simulation.rounds import Progress
from pflpipe.simulation.simulation import EXAMPLES_AT_ONCE, Simulation
from pflpipe.study.settings import round_up
from pflpipe.trees import Tree

if TYPE_CHECKING:
    import pandas as pd

_MODEL, _ABOUT, _DIAGNOSTICS = "model.safetensors", "model.json", "diagnostics.json"


@dataclass(frozen=True, kw_only=True, repr=False)
class Predictor:
    """A network with its parameters: a client's personal model.

    Attributes:
        network, params: logits are ``network.apply(params, x)``.
        example: shape of an example.
        scale: mean and standard deviation of uint8 images (``datasets.normalise``); empty for
            examples that are taken as they are.
        metric: name of the metric of its loss; it tells whether labels are classes.
        encoder: of tables with the columns on which it was trained; None for tensors.
    """

    network: Network
    params: Tree
    example: tuple[int, ...]
    scale: tuple[Sequence[float], Sequence[float]] = ((), ())
    metric: str = ACCURACY
    encoder: Encoder | None = None

    def predict(self, x: Any) -> Any:
        """Return the class of each example, int64 ``[n]`` on the CPU; -1 where the logits are not
        finite. Of labels that are real numbers, return the outputs ``[n, K]``. Of a table, return
        its labels as an array, None where the logits are not finite.

        Args:
            x: examples ``[n, ...]`` in the form in which the clients' were given, images also
                channels first. Images of a cell's data set are uint8. Or, of a model that was
                trained on ``clients_of``, a table with the same columns of features, in any order;
                it needs neither people nor labels.

        Raises:
            DataError: examples of another shape, or no numbers; or columns are missing.
        """
        if self.encoder is None or not frames.is_table(x):
            return self._answers(x)
        return self.encoder.labels(self._answers(self.encoder.examples(x)))

    @torch.no_grad()
    def _answers(self, x: Tensor | np.ndarray) -> Tensor:
        values = shards.as_tensor("x", x, "images")
        if values.dtype == torch.uint8 and len(self.scale[0]):
            values = torch.from_numpy(datasets.normalise(values.cpu().numpy(), *self.scale))
        shape = tuple(values.shape[1:])
        if shape != self.example and (*shape[1:], *shape[:1]) == self.example:
            values = values.movedim(1, -1)
        elif shape != self.example:
            raise DataError("x", got=list(values.shape), expected=f"[n, {self.example}]")
        like = next(iter(self.params.values()))
        answers = []
        for part in torch.split(values, EXAMPLES_AT_ONCE):
            logits = self.network.apply(self.params, part.to(like))
            if self.metric != ACCURACY:
                answers.append(logits.cpu())
                continue
            one_logit = logits.shape[-1] == 1
            guess = (logits.squeeze(-1) > 0).long() if one_logit else logits.argmax(-1)
            answers.append(torch.where(logits.isfinite().all(-1), guess, -1).cpu())
        return torch.cat(answers)

    def __repr__(self) -> str:
        """Return what the model is; tensors would fill pages."""
        return "personal model: a diagnostic, made from its client's data without noise"


@dataclass(frozen=True, kw_only=True, repr=False)
class Trained(Predictor):
    """A trained model with its claim, as ``pflpipe.load`` returns it.

    Attributes:
        params: the global model after the last round: name -> tensor.
        ledger: the claims of the run: ``claim``, ``epsilon_central`` at ``delta``, warnings ...
            (``pflpipe.ledger``). They cover the releases, not the accuracies.
        clients: one row per client: ``train_size`` and accuracies in percent, or errors for a loss
            of real numbers (``personal_own``,
            ``personal_common``, ``global_own``, ``global_common``; NaN over no examples). These are
            diagnostics, measured on the clients' data without noise: no epsilon covers them.
        new_clients: one row per client that took no part in training (``partition.new_clients`` of
            a cell): ``personal_new`` and ``global_new`` on its test examples. Diagnostics too.
        has_global_model: whether the method makes a model for everybody.
        names: the ids of the clients, if they came of ``clients_of``.
        folder: where it was loaded from.
    """

    ledger: Ledger
    clients: list[dict[str, Any]]
    new_clients: list[dict[str, Any]]
    has_global_model: bool
    names: tuple[str, ...] = ()
    folder: Path | None = None

    def predict(self, x: Any) -> Any:
        """Return the global model's class of each example; see ``Predictor.predict``.

        Raises:
            ConfigError: the method has no global model.
        """
        got, do = "a method without a global model", "use personal(client).predict(x)"
        ConfigError.unless(self.has_global_model, "predict", got, do=do)
        return super().predict(x)

    def personal(self, client: int | str) -> Predictor:
        """Return one client's personal model. It is a diagnostic: the client's data made it without
        noise, and no epsilon covers it or its predictions. Keep it on the client.

        Args:
            client: its id, if the clients came of ``clients_of``; otherwise its place, from 0.

        Raises:
            DataError: there is no such client, or its model was not saved or is not finite.
        """
        assert self.folder is not None
        digests = _diagnostics(self.folder)["personal"]
        place = self._place(client) if digests else client
        digest = digests.get(str(place))
        if digest is None:
            do = "result.save(folder, personal=True) writes those that are finite"
            raise DataError(f"{self.folder}: personal model", got=client, do=do)
        about = _about(self.folder)
        return _read(about, _personal(self.folder, place), digest)

    def _place(self, client: int | str) -> int:
        """Return the place of a client."""
        if not self.names:
            every = range(len(self.clients))
            DataError.unless(client in every, "personal: client", client, f"0 to {len(every) - 1}")
            return int(client)
        expected = f"one of {len(self.names)} ids, such as {self.names[0]!r}"
        DataError.unless(str(client) in self.names, "personal: client", client, expected)
        return self.names.index(str(client))

    @cached_property
    def accuracies(self) -> dict[str, float]:
        """Mean accuracies over the clients with training and test examples, in percent, or mean
        errors."""
        return {name: over_clients(row[name] for row in self.clients) for name in CURVES}

    def _over(self, name: str) -> str:
        """Return over how many clients a mean is, unless it is over all."""
        count = sum(row[name] == row[name] for row in self.clients)
        return f" of {count} of {len(self.clients)} clients" if count < len(self.clients) else ""

    def to_frame(self) -> pd.DataFrame:
        """Return the rows of ``clients`` and ``new_clients`` as a pandas DataFrame."""
        import pandas as pd  # late: whoever needs no table needs no pandas

        return pd.DataFrame([*self.clients, *self.new_clients])

    def __repr__(self) -> str:
        """Return accuracies, epsilon and claim in three lines; tensors would fill pages."""
        entry = self.ledger
        metric = BUILT_IN[self.metric]
        known = {name: value for name, value in self.accuracies.items() if value == value}
        means = [f"{n} {value:.{metric.digits}f}{self._over(n)}" for n, value in known.items()]
        epsilon = f"{round_up(entry.epsilon_central)} at delta {entry.delta}"
        stated = f", stated as {entry.epsilon_nominal}" if entry.epsilon_nominal else ""
        return (
            f"{metric.described}, no epsilon covers it: {', '.join(means) or 'unknown'}\n"
            f"epsilon: {epsilon if entry.trust else 'none'}{stated}\nclaim: {entry.claim}"
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class Result(Trained):
    """The result of a run: a trained model with the federation that trained it.

    Attributes:
        simulation, progress: the federation, and its state after the last round: the global model
            ``progress.params``, the clients' states, the diagnostics of every round
            ``progress.rows``.
    """

    simulation: Simulation
    progress: Progress

    @cached_property
    def contract(self) -> Contract:
        """What is known of the rows of both sides (docs/own_files.md). It is a diagnostic."""

        def side(name: str, rows: Sequence[np.ndarray]) -> contract.Side:
            found = self.simulation.examples(name).of(np.concatenate(rows))
            users = np.repeat(np.arange(len(rows)), list(map(len, rows)))
            return found.x.cpu().numpy(), found.y.cpu().numpy(), users

        split = self.simulation.split
        with np.errstate(invalid="ignore"):  # of infinite features
            return contract.of_rows(side("train", split.train), side("own", split.test))

    def __repr__(self) -> str:
        """Return accuracies, epsilon and claim in three lines, and what makes accuracies false."""
        return "\n".join([super().__repr__(), *(f"warning: {w}" for w in self.contract.warnings)])

    def personal(self, client: int | str) -> Predictor:
        """Return one client's personal model, as it was tested. It is a diagnostic: the client's
        data made it without noise, and no epsilon covers it or its predictions. Keep it on the
        client.

        Args:
            client: its id, if the clients came of ``clients_of``; otherwise its place, from 0.

        Raises:
            DataError: there is no such client.
        """
        place = [self._place(client)]
        ((_, params),) = evaluation.personal_models(self.simulation, self.progress, place)
        names = "network", "example", "scale", "metric", "encoder"
        return Predictor(params=params, **{name: getattr(self, name) for name in names})

    def scores_of(
        self, clients: Any, *, test_fraction: float = 0.2, seed: int = 0
    ) -> list[dict[str, Any]]:
        """Return the accuracies in percent, or errors, for people who took no part in training, one
        row each: ``personal_new`` of a model that is made of their own rows (docs/data.md), and
        ``global_new``. These are diagnostics.

        Args:
            clients: their examples, as in ``train``, or a table with the columns of ``clients_of``.
            test_fraction: part of each one's rows that is left out to test on.
            seed: of this draw.

        Raises:
            DataError: examples of another form, or labels that are no classes.

        Warns:
            RowsWarning: some of them took part, as their ids say.
        """
        simulation, loss = self.simulation, self.simulation.loss_function
        if self.encoder is not None and frames.is_table(clients):
            clients = self.encoder.clients(clients)
        names = clients.names if isinstance(clients, Clients) else ()
        if {*names} & {*self.names}:
            said = "some of these people took part in training: their scores are none of new people"
            warnings.warn(said, contract.RowsWarning, stacklevel=2)
        form = loss, simulation.dtype, test_fraction, seed
        x, y, split = shards.joined(clients, None, *form)
        shape, classes = tuple(x.shape[1:]), self.network.shapes["head.weight"][0] + loss.one_logit
        DataError.unless(shape == self.example, "examples", list(shape), f"{list(self.example)}")
        fits = loss.numbers or bool(((y >= 0) & (y < classes)).all())
        DataError.unless(fits, "labels", sorted(set(y.tolist())), f"0 to {classes - 1}")
        device = simulation.train.x.device
        rows = Examples(x.to(device), y.to(device))
        there = dataclasses.replace(simulation.split, new=split)
        simulation = dataclasses.replace(simulation, train=rows, test=rows, split=there)
        found = evaluation.accuracies_of_new(simulation, self.progress)
        for row, name in zip(found, names, strict=False):
            row["client"] = name
        return found

    def save(self, folder: str | Path, *, personal: bool = False) -> None:
        """Write the model for ``pflpipe.load``, without pickle.

        ``model.safetensors`` has the released parameters in float32 under their names, in a network
        of a file under those of its ``state_dict``; ``model.json`` has the claim, with the warnings
        of the contract. The ledger covers these two files. It does not cover ``diagnostics.json``
        (``clients``, ``new_clients``).

        Args:
            folder: made if it is missing; an earlier model in it is replaced.
            personal: also write every client's finite personal model into ``personal/``, which no
                epsilon covers.

        Raises:
            ConfigError: the network is an object of your own, which has no name; or personal
                models of a network with BatchNorm, of which the file could not hold the averages.
            DataError: the model is not finite, no folder can be made, or the disk is full.
        """
        folder, model = Path(folder), self.network.model
        if model is None:
            do = 'put the class in a file: model="my_net.py:Net"'
            raise ConfigError("save: network", got="one of your own without a name", do=do)
        fits, expected = not personal or self.network.averages is None, "a network without averages"
        ConfigError.unless(fits, "save: personal", "BatchNorm", expected, "personal=False")
        is_finite = trees.is_finite(self.params)
        DataError.unless(is_finite, "save: model", "NaN or infinity", "finite parameters")
        classes = self.network.shapes["head.weight"][0]
        names = initial.names_in_file(model, self.example, classes)
        # A folder holds one model: what is left of an earlier one would not be this one's.
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"save: {folder}", got=error.strerror, expected="a folder") from None
        of_people = folder.glob("personal/*.safetensors")
        for old in (folder / _ABOUT, folder / _DIAGNOSTICS, *of_people):
            old.unlink(missing_ok=True)
        with suppress(OSError):  # it is not there, or has files of somebody else
            (folder / "personal").rmdir()
        digests = {}
        if personal:
            every = range(self.simulation.plan.clients)
            for client, params in evaluation.personal_models(self.simulation, self.progress, every):
                if trees.is_finite(params):
                    file, whole = _personal(folder, client), self.network.frozen | params
                    digests[str(client)] = _write(file, whole, names)
        digest = _write(folder / _MODEL, self.network.frozen | self.params, names)
        diagnostics = {
            "clients": [_without_nan(row) for row in self.clients],
            "new_clients": [_without_nan(row) for row in self.new_clients],
            "personal": digests,
            "names": list(self.names),
        }
        write_json(folder / _DIAGNOSTICS, diagnostics)
        mean, deviation = (tuple(map(float, values)) for values in self.scale)
        found = (*self.contract.warnings, *self.ledger.warnings)
        entry = dataclasses.replace(self.ledger, warnings=found)
        about = _About(
            *(model, self.example, classes, mean, deviation, self.has_global_model),
            *(entry, digest, self.metric, self.encoder),
        )
        write_json(folder / _ABOUT, json_records.to_json(about))

    def resume(
        self,
        rounds: int | None = None,
        *,
        on_round: Callable[[Progress], object] = lambda progress: None,
    ) -> Result:
        """Return the result of further rounds of a run that ``on_round`` has stopped.

        Args:
            rounds: how many; None for all that the plan has left. Their noise was planned before
                the first round, so there are never more.
            on_round: as in ``train``.

        Raises:
            PrivacyError: the plan does not cover so many rounds.
        """
        planned, done = self.simulation.plan.rounds, self.progress.round
        left = planned - done
        rounds = left if rounds is None else rounds
        if not 1 <= rounds <= left:
            expected = f"1 or more, and no more than the {left} left of the plan's {planned}"
            do = "plan more rounds, Training(rounds=...), and train again"
            raise PrivacyError("resume: rounds", got=rounds, expected=expected, do=do)
        last = done + rounds

        def until_last(progress: Progress) -> bool:
            return on_round(progress) is not False and progress.round < last

        rows, timing = [*self.progress.rows], [*self.progress.timing]
        progress = dataclasses.replace(self.progress, rows=rows, timing=timing)
        return finished(self.simulation, progress, self.ledger, until_last, self)


@dataclass(frozen=True)
class _About:
    """The content of ``model.json``; ``digest`` is that of ``model.safetensors``."""

    model: cells.Model
    example: tuple[int, ...]
    classes: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    has_global_model: bool
    ledger: Ledger
    digest: str
    metric: str
    encoder: Encoder | None


def load(folder: str | Path) -> Trained:
    """Return the model that ``Result.save`` wrote, on the CPU.

    Of ``diagnostics.json`` and ``personal/``, which need not be there, come ``clients``,
    ``new_clients`` and ``personal``.

    Raises:
        DataError, ConfigError: a file is missing, damaged or of another model, or the file of a
            network of your own has changed its parameters.
    """
    folder = Path(folder)
    is_there, do = (folder / _ABOUT).exists(), "result.save(folder) writes one"
    DataError.unless(is_there, f"{folder}", f"no {_ABOUT}", "a saved model", do)
    about = _about(folder)
    found = _read(about, folder / _MODEL, about.digest)
    diagnostics, given = _diagnostics(folder), ("clients", "new_clients")
    rows: Any = {key: [_with_nan(row) for row in diagnostics[key]] for key in given}
    rows |= {"ledger": about.ledger, "has_global_model": about.has_global_model}
    rows |= {"names": tuple(diagnostics["names"])}
    return Trained(**vars(found), **rows, folder=folder)


def finished(
    simulation: Simulation,
    progress: Progress,
    entry: Ledger,
    on_round: Callable[[Progress], object],
    table: Clients | Result | None = None,
) -> Result:
    """Return the result of the rounds after ``progress``, until the last one or until ``on_round``
    returns False. ``table`` has ids and columns of the clients, if they came of one.

    Raises:
        DataError: the releases are not those of the plan.
    """
    done = rounds.run(simulation, progress, on_round)
    # A run whose releases are not those of its plan returns no result.
    if simulation.plan.mechanism != "none":
        run_check.check(
            simulation.plan,
            simulation.departures,
            "this run",
            releases=done.releases,
            uploaded=done.uploaded_bits / done.round / 32,
            residuals=done.residuals,
            stopped=done.round,
        )
    names = table.names if table else ()
    clients: list[dict[str, Any]] = evaluation.accuracies(simulation, done)
    for row, name in zip(clients, names, strict=False):
        row["client"] = name
    return Result(
        network=simulation.network,
        params=done.params,
        example=tuple(simulation.train.x.shape[1:]),
        scale=simulation.scale,
        metric=simulation.loss_function.metric,
        ledger=entry,
        encoder=table.encoder if table else None,
        clients=clients,
        new_clients=evaluation.accuracies_of_new(simulation, done),
        has_global_model=simulation.has_global_model,
        names=names,
        simulation=simulation,
        progress=done,
    )


def _personal(folder: Path, client: int | str) -> Path:
    return folder / "personal" / f"{client}.safetensors"


def _about(folder: Path) -> _About:
    # A model of an earlier version has no metric: it classifies tensors.
    file, earlier = folder / _ABOUT, {"metric": ACCURACY, "encoder": None}
    return json_records.from_json(_About, earlier | read_json(file), str(file))


def _diagnostics(folder: Path) -> dict[str, Any]:
    """Return what ``diagnostics.json`` says, or nothing of anybody where it was left out."""
    file = folder / _DIAGNOSTICS
    nothing: dict[str, Any] = {"clients": [], "new_clients": [], "personal": {}, "names": []}
    return nothing | read_json(file) if file.exists() else nothing


def _write(file: Path, params: Tree, names: Mapping[str, str]) -> str:
    """Write parameters under these names and return the digest of the file."""
    from safetensors.torch import save

    stored = {names[name]: value.float().cpu().contiguous() for name, value in params.items()}
    content = save(stored)
    with atomic(file) as path:
        path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def _read(about: _About, file: Path, digest: str) -> Predictor:
    """Return the network with the parameters of a file."""
    saved = dataclasses.replace(about.model, init=str(file), init_digest=digest)
    built = networks.build(saved, about.example, about.classes)
    params, scale = built.init(torch.Generator()), (about.mean, about.deviation)
    kept: Any = {"example": about.example, "scale": scale, "metric": about.metric}
    return Predictor(network=built, params=params, encoder=about.encoder, **kept)


def _without_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if value != value else value for name, value in row.items()}


def _with_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in row.items()}
