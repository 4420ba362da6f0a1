"""A forecast of a study before anything trains (``pflpipe plan``): the noise beside a message, and
the cost.

A message is at most C long, and the noise on the mean of a round about C r, with r = sigma sqrt(d)
/ (q M) for d numbers sent. In T rounds messages add up to C T at most and the noise to C r sqrt(T).

What the noise leaves of the accuracy is not predicted: a curve fitted to nine federations was
within 3 points in 25 of 27 cases that it had not seen, and "the noise costs nothing" in 24.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from pflpipe.cells import Cell, Privacy
from pflpipe.code import reference
from pflpipe.data import features, partition
from pflpipe.data.datasets import Header
from pflpipe.errors import ConfigError
from pflpipe.learning import architectures, losses
from pflpipe.methods import registry
from pflpipe.privacy.plan import Plan
from pflpipe.study import catalog, config, load, runtime_estimate
from pflpipe.study.study_spec import Outline

if TYPE_CHECKING:  # they import torch
    from pflpipe.learning.task import Task
    from pflpipe.methods.base import Method

HeaderOf = Callable[[str], Header | None]
MOST = 50.0
HOPELESS = 4.0
"""The noise of all rounds in lengths of all messages, from which on ``pflpipe validate`` warns."""
FOOT = (
    "noise/C: length of the noise on the mean of a round, in clip bounds. M for 1, ε for 1: the "
    "clients or the budget with which it is 1, all else equal. MB: sent by a client in all rounds. "
    "min: of one run on one CPU thread."
)


def forecast(study: str, *, settings: config.Config | None = None) -> list[dict[str, Any]]:
    """Return a forecast of a study, one dict per private entry and budget. Nothing is trained, and
    of the data only headers are read.

    Entries with departures, groups, a band or buffers are left out: their noise follows from other
    formulas. Of a search the first candidate of each entry is taken.

    Args:
        study: its name.
        settings: of config.yaml; by default that of this folder.

    Returns:
        ``entry``; ``epsilon``, None for a given multiplier; ``noise_multiplier``, sigma; ``sent``,
        d; ``noise_length``, r; ``clients_for_1``, the M with which r is 1 at the same epsilon,
        delta, q and T; ``epsilon_for_1``, the epsilon with which it is 1 at this M; ``megabytes``
        that a client sends if it takes part in all rounds; ``minutes`` of a run on one CPU thread.

    Raises:
        PflpipeError: the study has errors, or the size of its data is not known yet.
    """
    settings = settings or config.load()
    outline = load.load_outline(study)
    header, found = catalog.headers(settings), []
    for line in outline.lines:
        cell = line.candidates[0].rows[0].cell
        if cell.privacy.mechanism == "none" or cell.departures or cell.fixed:
            continue
        known = header(cell.dataset)
        if known is None:
            do = f"make it: snakemake --cores 1 {settings.data_dir}/{cell.dataset}.npz"
            raise ConfigError(f"data set {cell.dataset}: its size is not known yet", do=do)
        partition.check_users(cell.partition, known.users is not None)
        label, _, point = line.words.partition(" at ")
        others = [item for item in point.split(", ") if not item.startswith("privacy.epsilon=")]
        entry = " at ".join(filter(None, [label, ", ".join(others)]))
        row = {"entry": entry, "epsilon": cell.privacy.epsilon}
        row |= _forecast(cell, known, shape_of(cell, known, header))
        found.append(row | {"minutes": runtime_estimate.seconds(cell, known) / 60})
    return found


def lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a forecast as a table for a terminal."""
    table = [["entry", "ε", "σ", "numbers", "noise/C", "M for 1", "ε for 1", "MB", "min"]]
    for row in rows:
        budget = "-" if row["epsilon"] is None else f"{row['epsilon']:g}"
        sizes = f"{row['sent']:,}", f"{row['noise_length']:.3g}", f"{row['clients_for_1']:,}"
        costs = (f"{row[name]:.3g}" for name in ("epsilon_for_1", "megabytes", "minutes"))
        table.append([row["entry"], budget, f"{row['noise_multiplier']:.3g}", *sizes, *costs])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for texts in table:
        padded = (text.ljust(width) for text, width in zip(texts, widths, strict=True))
        yield "  ".join(padded).rstrip()
    yield FOOT


def hopeless(outline: Outline, header: HeaderOf) -> Iterator[str]:
    """Yield a warning if the noise of an entry is far longer than all that clients can say.

    It costs a command that reads declarations milliseconds, and therefore takes the multiplier from
    a formula, and only entries that send the whole of a network of this package.
    """
    worst, length = None, 0.0
    for cell, found in lengths(outline, header):
        if found > max(length, HOPELESS * math.sqrt(cell.training.rounds)):
            worst, length = cell, found
    if worst is not None:
        budget = f" at ε = {worst.privacy.epsilon:g}" if worst.privacy.epsilon else ""
        yield (
            f"warning: {outline.name}: {worst.method}{budget}: the noise is about {length:,.0f} "
            "times as long as a message may be: clients learn next to nothing from each other; "
            f"pflpipe plan {outline.name} has every entry"
        )


def lengths(outline: Outline, header: HeaderOf) -> Iterator[tuple[Cell, float]]:
    """Yield the entries that send the whole of a network of this package under Gaussian noise, and
    about the length of the noise on the mean of a round, in clip bounds."""
    for cell in (line.candidates[0].rows[0].cell for line in outline.lines):
        about, known = registry.of(cell).about, header(cell.dataset)
        is_noisy = cell.privacy.mechanism == "gaussian" and not (cell.departures or cell.fixed)
        sends_all = about.has_global_model and not reference.is_reference(cell.model.name)
        if is_noisy and sends_all and known is not None:
            yield cell, _rough_length(cell, known, shape_of(cell, known, header))


def noise_length(plan: Plan, sent: int) -> float:
    """Return r for a message of ``sent`` numbers: the length of the noise on the mean of a round,
    the root of its mean square, in clip bounds."""
    variance = plan.law.variance * plan.multiplier**2
    return math.sqrt(variance * sent) / plan.expected_cohort


@cache
def rough_multiplier(epsilon: float, delta: float, rate: float, rounds: int) -> float:
    """Return about the multiplier of ``accounting.calibrate``, without SciPy and in microseconds:
    exact at q = 1; otherwise mu = q sqrt(T (exp(1 / sigma^2) - 1)), the central limit of Bu, Dong,
    Long and Su, "Deep Learning with Gaussian Differential Privacy" (2020), which is lower by up to
    a quarter in the studies of this repository."""

    def tail(z: float) -> float:
        return math.erfc(z / math.sqrt(2)) / 2

    def spent(mu: float) -> float:
        least, most = epsilon / mu - mu / 2, epsilon / mu + mu / 2
        return tail(least) - math.exp(min(epsilon, 700.0)) * tail(most)

    low, high = 1e-6, 100.0
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) > delta else (middle, high)
    if rate == 1:
        return math.sqrt(rounds) / low
    return 1 / math.sqrt(math.log1p((low / rate) ** 2 / rounds))


def _forecast(cell: Cell, known: Header, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return what follows from a plan and the size of a message."""
    training = cell.training
    # The clip bound scales message and noise alike; entries that differ in it share a calibration.
    privacy = dataclasses.replace(cell.privacy, clip_norm=1.0)
    clients = clients_of(cell, known)
    planned = _plan(privacy, training.rounds, training.sample_rate, clients)
    outputs = outputs_of(cell, known)
    registry.check_model(cell.method, cell.model, cell.hyperparameters, cell.source, outputs)
    method, task = before_training(cell, shape, outputs, planned)
    sent = sum(map(math.prod, method.upload(task).values()))
    once = dataclasses.replace(planned, noise_multiplier=1.0)
    length = planned.multiplier * noise_length(once, sent)
    return {
        "noise_multiplier": planned.multiplier,
        "sent": sent,
        "noise_length": length,
        "clients_for_1": math.ceil(planned.clients * length),
        "epsilon_for_1": _epsilon(once, 1 / noise_length(once, sent)),
        "megabytes": 4e-6 * sent * training.rounds,
    }


def _rough_length(cell: Cell, known: Header, shape: tuple[int, ...]) -> float:
    """Return about r of a cell with Gaussian noise that sends its whole network."""
    privacy, training = cell.privacy, cell.training
    shapes = architectures.shapes(cell.model, shape, outputs_of(cell, known))
    sent = sum(map(math.prod, shapes.values()))
    multiplier = privacy.noise_multiplier
    if multiplier is None:
        assert privacy.epsilon is not None
        assert privacy.delta is not None
        of_rounds = training.sample_rate, training.rounds
        multiplier = rough_multiplier(privacy.epsilon, privacy.delta, *of_rounds)
    return multiplier * math.sqrt(sent) / (training.sample_rate * clients_of(cell, known))


def outputs_of(cell: Cell, known: Header) -> int:
    """Return how many outputs the network of a run has."""
    return losses.outputs(cell.training.loss, known.classes, known.numbers)


def clients_of(cell: Cell, known: Header) -> int:
    """Return how many clients train in a run."""
    return cell.partition.clients or (known.users or 0) - cell.partition.new_clients


def shape_of(cell: Cell, known: Header, header: HeaderOf) -> tuple[int, ...]:
    """Return the shape of an example that a network gets."""
    public = header(cell.features.public or cell.dataset) or known
    return features.shape(cell.features, known.image_shape, public.image_shape)


@cache
def _plan(privacy: Privacy, rounds: int, rate: float, clients: int) -> Plan:
    """Return a plan, with the multiplier of its updates if the clip bound adapts."""
    from pflpipe.privacy import accounting, adaptive

    made = accounting.make_plan(privacy, rounds=rounds, sample_rate=rate, clients=clients)
    return adaptive.of_updates(made, None)


@cache
def _epsilon(plan: Plan, multiplier: float) -> float:
    """Return the epsilon of a plan with another multiplier, up to a hundredth; infinite above
    ``MOST``, which takes minutes to count and promises nothing."""
    from pflpipe.privacy import accounting
    from pflpipe.privacy.mechanisms.base import SEARCH_INTERVAL
    from pflpipe.privacy.mechanisms.gaussian import gdp_delta

    assert plan.delta is not None
    # A single round is at most as revealing as all of them.
    if plan.mechanism == "gaussian":
        once = gdp_delta(1 / multiplier, MOST - math.log(plan.sample_rate))
        if plan.sample_rate * once > plan.delta:
            return math.inf
    tried = dataclasses.replace(plan, noise_multiplier=multiplier)
    spent = accounting.composed_epsilon([tried], plan.delta, SEARCH_INTERVAL)
    return spent if spent <= MOST else math.inf


def before_training(
    cell: Cell, shape: tuple[int, ...], outputs: int, plan: Plan
) -> tuple[Method, Task]:
    """Return the method of a run and its task without departures, which have seen no example."""
    from pflpipe.learning import networks, solvers
    from pflpipe.learning.task import Task

    training = cell.training
    task = Task(
        network=networks.build(cell.model, shape, outputs),
        plan=plan,
        solver=solvers.Solver(
            training.optimizer, training.lr, training.momentum, training.weight_decay
        ),
        local_epochs=training.local_epochs,
        departures=frozenset(),
        minimize_on=solvers.minimize_loop,
        precision=training.precision,
        loss_function=losses.find(training.loss),
    )
    return registry.of(cell).factory(**cell.hyperparameters), task
