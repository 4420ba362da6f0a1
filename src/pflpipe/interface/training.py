"""The Python interface: train a method on your own tensors, or a cell of a study, and get
accuracies and ledger.

The pipeline calls the same functions. Nothing here writes a file, except that ``run`` prepares
missing data.
"""

import contextlib
import dataclasses
import inspect
import math
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pflpipe import options
from pflpipe.cells import Cell, Features, Model, Privacy, Server, Training
from pflpipe.code import dependencies
from pflpipe.code import objects as code_objects
from pflpipe.code.dependencies import Dependency
from pflpipe.code.objects import Known
from pflpipe.data import checks, datasets, extraction, features, partition, per_client
from pflpipe.errors import ConfigError, DataError, PflpipeError
from pflpipe.interface import shards
from pflpipe.interface.frames import Clients
from pflpipe.interface.shards import Shard
from pflpipe.interface.trained import Result, finished
from pflpipe.json_records import without_defaults
from pflpipe.learning import initial, losses, networks
from pflpipe.learning.losses import Loss
from pflpipe.learning.networks import HEAD, Network
from pflpipe.methods import registry, row_code
from pflpipe.methods.base import Method
from pflpipe.privacy.accounting import make_plan
from pflpipe.privacy.ledger import ledger
from pflpipe.privacy.plan import check_delta
from pflpipe.seeds import derived_key, run_key
from pflpipe.simulation import rounds, runs
from pflpipe.simulation.build import build
from pflpipe.simulation.clients import Examples, device_of, one_thread
from pflpipe.simulation.rounds import Progress
from pflpipe.simulation.simulation import Recipe, Simulation
from pflpipe.simulation.witness import pickled
from pflpipe.study import plans

INSTANCE = (
    "the initial weights are those of the given module: nobody checks whether a client's rows have "
    "made them, and no epsilon covers that"
)
"""Warning of a private run with an instance of a torch module."""


def federation(
    method: str | Method,
    clients: Sequence[Shard],
    *,
    model: str | Model | Network | nn.Module | Callable[..., nn.Module],
    training: Training,
    privacy: Privacy | None = None,
    server: Server | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
    tests: Sequence[Shard] | None = None,
    test_fraction: float = 0.2,
    classes: int | None = None,
    seed: int = 0,
    secret: str | None = None,
    method_name: str | None = None,
    model_name: str | None = None,
    allow_large_delta: bool = False,
    device: str = "auto",
    backend: str = "auto",
    dtype: torch.dtype = torch.float32,
) -> Simulation:
    """Return the federation of clients with these tensors.

    A run is private if its ``privacy`` has a mechanism. Then no error, no shape and no default
    depends on a client's values, because no epsilon would cover this. An example with a NaN, an
    infinity, or a label that is not one of the K classes becomes a row of NaN. Its client trains on
    it, and its message counts as zero if it is not finite (docs/numerics.md). A run without a
    mechanism refuses such values.

    Args:
        method: a name that ``pflpipe methods`` lists, or your own hooks.
        clients: the examples of each of the M clients, or what ``clients_of`` returns. They are
            not scaled: scale them first. M and
            the form of the examples are public and checked: one dtype, one shape of an example, as
            many labels as examples. A client without examples has ``x [0, ...]``.
        model: a name or ``Model``; a torch module, as a class, a function that makes it, or an
            instance, with whose values every run starts (docs/adding_a_network.md); or a
            ``Network``.
        training: rounds, local work, sampling.
        privacy: the request, such as ``Privacy(epsilon=8, delta=1e-4, clip_norm=0.5)``; its
            mechanism is then Gaussian. None: no privacy, for methods without a guarantee.
        server: the server optimizer, such as ``Server("adam", lr=0.03)``. None: the server adds the
            release.
        hyperparameters: hyper-parameters of a named method; others have their defaults.
        tests: test examples of each client, or ``clients_of`` a table of their test rows. None:
            ``test_fraction`` of its examples, drawn from a separate stream and left out of
            training.
        classes: the number of classes K, which a private run needs unless ``model`` is a
            ``Network`` or ``clients_of`` got it. None: K of these, or one more than the largest
            label, at least 2; every smaller label must then occur; 2 for the loss ``binary``.
            Labels that are real numbers have none.
        seed: seed of everything that runs share to be comparable: initial parameters, batches,
            held-out rows.
        secret: determines noise and cohorts, together with the settings. None: a fresh secret for
            every call. Give one only to repeat a run on the same data: two runs with the same noise
            on different data publish the difference of the data. The settings are all arguments
            except ``device``, ``backend`` and ``allow_large_delta``; of ``clients`` and ``tests``
            only M, the shape of an example, and whether there are tests. Calls with one secret and
            different settings share no noise. Calls that differ only in device or backend share
            their noise, and their releases differ by rounding: publish only one of them.
        method_name, model_name: a name for your own ``Method`` or network, whose code and values
            are settings too. Where they cannot be known, such as those of a closure, a ``secret``
            needs a name, one for each object.
        allow_large_delta: accept a delta of 1/M or more, which allows one client to be published in
            clear.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:<index>``.
        backend: ``auto``, ``loop`` or ``vmap``.
        dtype: of parameters and examples.

    Raises:
        DataError: no clients, or tensors of another form; without a mechanism also values that
            cannot be trained on.
        ConfigError, PrivacyError: a name is unknown, a setting is missing or impossible, or objects
            of a private run cannot be handed to a fresh process.
    """
    privacy, server = _request(method, privacy), server or Server()
    options.check(server, "server")
    target = device_of(device)
    model = Model(model) if isinstance(model, str) else model
    model = initial.with_digest(model) if isinstance(model, Model) else model
    _require("model", model, Model | Network | Callable, "a name, a Model or a torch module", "")
    for name, given in (("clients", clients), ("tests", tests or [])):
        expected = f"a list with {per_client.EXPECTED}"
        _require(name, given, Sequence, expected, per_client.DO, DataError)
    # Before anything calls the program's own objects, so that they have kept nothing.
    own: dict[str, Any] = {"method": method} if isinstance(method, Method) else {}
    own |= {} if isinstance(model, Model) else {"model": model}
    names = {"method": method_name, "model": model_name}
    known = {what: _known(what, value, names[what], secret) for what, value in own.items()}
    objects = pickled(**own) if own and privacy.mechanism != "none" else b""
    loss = losses.find(training.loss)
    got, expected = list(training.augment), "none: what is black is not known of your tensors"
    do = "transform the examples before, or run a study"
    ConfigError.unless(not training.augment, "training.augment", got, expected, do)
    if isinstance(clients, Clients):
        classes = _of_table(classes, len(clients.encoder.classes))
        tests = clients.tests_of(tests) if isinstance(tests, Clients) else tests
    x, y, split = shards.joined(clients, tests, loss, dtype, test_fraction, seed)
    if not allow_large_delta:
        check_delta(privacy.delta, len(clients))
    if loss.one_logit and classes is None:
        classes = 2
    width = _width(y, classes) if loss.numbers else _classes(classes, model, loss, privacy, x, y)
    outputs = losses.outputs(training.loss, width, loss.numbers)
    if privacy.mechanism == "none" and not bool(x.isfinite().all() and y.isfinite().all()):
        raise DataError("examples", got="NaN or infinity", expected="finite numbers")
    if not loss.numbers:
        # In place: these tensors are joined copies, so the caller's tensors do not change.
        invalid = (y < 0) | (y >= width)
        x[invalid], y[invalid] = math.nan, 0
    shape = tuple(x.shape[1:])
    if not isinstance(model, Network) and checks.is_channels_first(shape):
        warnings.warn(f"clients: the channels of {shape} come first, moved last", stacklevel=2)
        x = x.movedim(1, -1).contiguous()
        shape = tuple(x.shape[1:])
    if isinstance(model, Model):
        network = networks.build(model, shape, outputs)
    elif isinstance(model, Network):
        network = model
    else:
        network = model = networks.of_module(model, shape, outputs)
    what = f"outputs of training.loss {training.loss}"
    what = what if loss.numbers or loss.one_logit else "classes"
    has = network.shapes[HEAD[0]][0]
    ConfigError.unless(has == outputs, what, outputs, f"{has}, the outputs of the network")
    # Your own hooks have no departures: they run under the certified mechanism.
    name, values, has_global_model = method_name or "of your own", dict(hyperparameters or {}), True
    departures: tuple[str, ...] = ()
    if isinstance(method, Method):
        hooks = method
    else:
        entry, name = registry.info(method), method
        values = registry.check_hyperparameters(name, values)
        registry.check_loss(name, training.loss, values)
        departures = registry.departures(name, "strict", False)
        hooks, has_global_model = entry.factory(**values), entry.about.has_global_model
    if network.model is not None:
        registry.check_normalisation(name, network.model, has_global_model)
    built_in = model if isinstance(model, Model) else None
    code = row_code.of_settings(built_in, training)
    if "method" in known:
        code = (Dependency.of("method", name, known["method"].code), *code)
    if isinstance(model, Network):
        found, kind = known["model"], own["model"]
        called = model_name or str(getattr(kind, "__name__", type(kind).__name__))
        begins = derived_key(found.state, network.start_digest(seed))
        code += (
            Dependency.of("network", called, found.code),
            Dependency.of(dependencies.START, called, begins),
        )
    # Every setting that changes a message, so that different messages never share noise.
    settings: dict[str, Any] = {
        "method": method if isinstance(method, str) else method_name,
        "model": without_defaults(built_in) if built_in else [model_name, network.shapes],
        "hyperparameters": values,
        "training": without_defaults(training),
        "privacy": without_defaults(privacy),
        "server": without_defaults(server),
        "clients": len(clients),
        "example": shape,
        "tests": tests is not None,
        "test_fraction": test_fraction,
        "classes": classes,
        "seed": seed,
        "dtype": str(dtype),
    }
    if dependencies.unreviewed(code):
        settings["code"] = [vars(item) for item in code]
    named = name if isinstance(method, str) else ""
    of_rounds: Any = {key: getattr(training, key) for key in ("rounds", "sample_rate", "groups")}
    # One pair of tensors for training and test; the split has the rows of each.
    examples = Examples(x.to(target), y.to(target))
    simulation = Simulation(
        method=hooks,
        recipe=Recipe(server, named, hyperparameters=values, model=built_in, objects=objects),
        network=network,
        plan=make_plan(privacy, clients=len(clients), departures=departures, **of_rounds),
        training=training,
        departures=frozenset(departures),
        split=split,
        train=examples,
        test=examples,
        seed=seed,
        key=run_key(settings, secret or secrets.token_hex(32)),
        backend="loop",
        dtype=dtype,
        name=name,
        code=code,
        loss=loss,
        has_global_model=has_global_model,
    )
    return build(simulation, server, backend)


def train(
    method: str | Method,
    clients: Sequence[Shard],
    *,
    on_round: Callable[[Progress], object] = lambda progress: None,
    progress_bar: bool = False,
    **settings: Any,
) -> Result:
    """Return the result of training a method on your own tensors, with every client's personal
    model tested.

    ``settings`` are the other arguments of ``federation``, which explains them.

    Args:
        on_round: called with the progress after every round; False ends the run. The ledger keeps
            the epsilon of all planned rounds, and ``Result.resume`` goes on. That epsilon covers
            the decision to stop if it follows from ``progress.params``; ``progress.rows`` and
            ``progress.states`` are diagnostics.
        progress_bar: show the rounds with tqdm in a terminal, or in a notebook that has ipywidgets;
            a file gets nothing.

    Raises:
        ConfigError: as ``federation``; ``progress_bar`` without tqdm.
        PrivacyError: in a private run a message depended on other clients, or code of yours kept
            something between its calls, which a fresh process finds (docs/privacy.md).
    """
    simulation = federation(method, clients, **settings)
    bar = _bar(simulation.plan.rounds) if progress_bar else contextlib.nullcontext()
    privacy, model = _request(method, settings.get("privacy")), simulation.network.model
    sizes = np.array([len(rows) for rows in simulation.split.train])
    parameters = tuple(simulation.network.shapes)
    of_run = simulation.plan, privacy, simulation.departures, sizes, parameters
    entry, start = ledger(*of_run, simulation.code), ""
    if isinstance(settings["model"], nn.Module):
        start = INSTANCE
    elif model and model.init:
        start = plans.START.format(model.init, model.init_digest[:12])
    if start and simulation.plan.mechanism != "none":
        entry = dataclasses.replace(entry, warnings=(start, *entry.warnings))
    before = rounds.start(simulation)
    with bar as shown:

        def advance(progress: Progress) -> object:
            if shown is not None:
                shown.update()
            return on_round(progress)

        table = clients if isinstance(clients, Clients) else None
        return finished(simulation, before, entry, advance, table)


# For help and notebooks: the arguments of ``federation``, then those of ``train`` alone.
_given, _own = inspect.signature(federation), inspect.signature(train)
_alone = [_own.parameters[name] for name in ("on_round", "progress_bar")]
train.__dict__["__signature__"] = _own.replace(parameters=[*_given.parameters.values(), *_alone])


def _bar(total: int) -> Any:
    """Return a progress bar of rounds, which is not drawn into a file."""
    try:
        from tqdm.auto import tqdm  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise ConfigError("progress_bar", got="no tqdm here", do="pip install tqdm") from None
    return tqdm(total=total, unit="round", disable=None)


def run(
    cell: Cell,
    data: Path = Path("data"),
    *,
    device: str = "auto",
    backend: str = "auto",
    on_round: Callable[[Progress], object] = lambda progress: None,
) -> Result:
    """Return the result of one cell of a study (``load_study(name).cells``), with the same bits as
    in the pipeline.

    Args:
        cell: the cell to run.
        data: folder of the data sets ``<name>.npz`` and their features. A missing file is made as
            in the pipeline, which may download it.
        device, backend, on_round: see ``federation`` and ``train``.
    """
    cell = row_code.with_digests(cell)
    arrays = datasets.load_arrays(_examples(cell, data))
    split = partition.make(arrays, cell.partition, cell.seed)
    sizes = np.array([len(rows) for rows in split.train])
    planned = plans.plan_of(cell, sizes, **plans.told(arrays))
    resolved = registry.resolve(cell)
    simulation = runs.of_data(resolved, arrays, split, planned.plan, device=device, backend=backend)
    return finished(simulation, rounds.start(simulation), planned.ledger, on_round)


def _examples(cell: Cell, data: Path) -> Path:
    """Return the file of a cell's examples, which is made if it is missing."""
    file = data / f"{cell.data_id}.npz"
    if not file.exists() and cell.features.kind == "none":
        datasets.prepare(cell.dataset, None, data / "downloads", file)
    elif not file.exists():
        features.check(cell.features, cell.dataset)
        images = _examples(dataclasses.replace(cell, features=Features()), data)
        reference = None if cell.reference is None else _examples(cell.reference, data)
        with one_thread():
            extraction.make(cell.features, images, file, reference)
    return file


def _request(method: str | Method, privacy: Privacy | None) -> Privacy:
    """Return the request with the mechanism that it implies; raise ConfigError if the method cannot
    fulfil it, or if a private method has none."""
    do = "call a function that makes one"
    _require("method", method, str | Method, "a name, or a Method", do)
    is_named = isinstance(method, str)
    private = isinstance(method, str) and registry.info(method).about.private
    what = f"method {method if is_named else 'of your own'}: privacy"
    if privacy is None:
        expected = "such as Privacy(epsilon=8, delta=1e-4, clip_norm=0.5)"
        ConfigError.unless(not private, what, None, expected)
        return Privacy()
    fits = private or not is_named or privacy == Privacy()
    ConfigError.unless(fits, what, str(privacy), "none: it promises nothing")
    wants_noise = privacy.epsilon is not None or privacy.noise_multiplier is not None
    if privacy.mechanism == "none" and wants_noise:
        privacy = dataclasses.replace(privacy, mechanism="gaussian")
    for name in ("clip_norm", "delta"):
        fits = privacy.mechanism != "gaussian" or getattr(privacy, name) is not None
        ConfigError.unless(fits, f"privacy.{name} is missing", do=f"add {name}= to Privacy(...)")
    return privacy


_NAMES: dict[tuple[str, str], str] = {}
"""What each name of an object stands for in this process that cannot be known: digest of the rest
of its code."""


def _known(what: str, value: object, name: str | None, secret: str | None) -> Known:
    """Return what is known of a method or a model of the program's own.

    Raises:
        ConfigError: not everything, so that a secret needs a name, and none was given or it stands
            for another object.
    """
    found = code_objects.known(value)
    if not secret or found.complete:
        return found
    if not name:
        expected = (
            f"a name for this {what}, as runs with one secret and equal settings share their "
            "noise, and of a closure, a lambda or compiled code not everything can be known"
        )
        do = f'add {what}_name="...", another one for other code, or leave out secret'
        raise ConfigError(f"{what}_name is missing", expected=expected, do=do)
    is_same = _NAMES.setdefault((what, name), found.code) == found.code
    got = f"{name!r}, which stands for other code in this process"
    ConfigError.unless(is_same, f"{what}_name", got, "another name for other code")
    return found


def _of_table(classes: int | None, named: int) -> int | None:
    """Return the number of classes that a table has named, if it has; ``classes`` must fit."""
    fits = not named or classes in (None, named)
    ConfigError.unless(fits, "classes", classes, f"{named}, which clients_of got", "leave it out")
    return named or classes


def _width(y: Tensor, classes: int | None) -> int:
    """Return how many real numbers the label of an example has."""
    expected = "none for labels that are real numbers"
    ConfigError.unless(classes is None, "classes", classes, expected, "leave it out")
    return y.shape[1] if y.ndim > 1 else 1


def _classes(
    classes: int | None, model: object, loss: Loss, privacy: Privacy, x: Tensor, y: Tensor
) -> int:
    """Return the number of classes K. Only without a mechanism it may come from the examples; then
    values that cannot be trained on raise DataError."""
    if classes is not None:
        checks.check_class_count(classes)
    elif isinstance(model, Network) and not loss.one_logit:
        classes = model.shapes[HEAD[0]][0]
    if privacy.mechanism != "none":
        if classes is None:
            expected = (
                "the number of classes K of a private run: if it followed from the labels, one "
                "client's label could change the shape of the released head"
            )
            raise ConfigError("classes is missing", expected=expected, do="add classes=")
        return classes
    lowest, highest = (int(y.min()), int(y.max())) if len(y) else (0, 0)
    DataError.unless(lowest >= 0, "labels", lowest, "whole numbers 0 to K - 1")
    largest = highest + 1
    fits = classes is None or largest <= classes
    DataError.unless(fits, "classes", classes, f"at least {largest}, of the labels")
    if classes is None:
        checks.check_every_class(np.unique(y.cpu().numpy()), "labels")
    return classes or max(largest, 2)


def _require(
    name: str,
    value: object,
    types: Any,
    expected: str,
    do: str,
    error: type[PflpipeError] = ConfigError,
) -> None:
    """Raise the error unless an argument is of one of these types."""
    if not isinstance(value, types):
        got = getattr(value, "__name__", type(value).__name__)
        raise error(name, got=got, expected=expected, do=do)
