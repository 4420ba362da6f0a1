"""The metrics of a study: that of its loss, which is reported first, its ``metrics`` list, and the
columns of its table."""

import dataclasses
import functools
import numbers
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pflpipe.cells import Cell
from pflpipe.code import guard, reference, user_files
from pflpipe.code.dependencies import WITHOUT_DEPARTURES
from pflpipe.errors import ConfigError, Problems, located, nearest
from pflpipe.learning.losses import ERRORS, Loss
from pflpipe.learning.metrics import ACCURACY, BUILT_IN, CURVES, Metric, worst_tenth

WORST = "personal_own_worst_decile"
_PLACES = {
    "personal_own": ("personal own", "own test, personal model"),
    WORST: ("personal worst tenth", "own test, personal model, worst tenth of clients"),
    "personal_common": ("personal common", "common test, personal model"),
    "global_own": ("global own", "own test, global model"),
    "global_common": ("global common", "common test, global model"),
    "personal_new": ("personal new", "own test of new clients, personal model"),
    "global_new": ("global new", "own test of new clients, global model"),
}
"""Model and rows of each column of the first metric: in a table's heading, and in a figure's
heading."""
BEST_ROUND = "best_round_"
"""Beginning of the name of a column with the first metric after its best round."""
EVERYTHING = "all"
"""In place of names of columns."""
_OWN_ROWS = ("personal_own", "global_own", "personal_new", "global_new")
_TRIAL = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.5, 0.4, 0.1]]), np.array([0, 1, 2])
_TRIAL_OF_NUMBERS = np.array([[1.0], [2.0], [-1.0]]), np.array([[1.5], [2.0], [0.0]])


@dataclass(frozen=True)
class MetricColumn:
    """A column of a study's table: a metric averaged over the clients of a run.

    Attributes:
        heading: in tables.
        words: model and rows, in figures.
        metric: with the average of this column.
        scores: the column of the score files that is averaged.
    """

    heading: str
    words: str
    metric: Metric
    scores: str


def columns(metrics: Mapping[str, Metric]) -> dict[str, MetricColumn]:
    """Return the columns of a table by name: those of the first metric, then those of others."""
    columns = {}
    first = next(iter(metrics))
    for name, metric in metrics.items():
        for place in _PLACES if name == first else _OWN_ROWS:
            heading, words = _PLACES[place]
            if name != first:
                heading = f"{metric.heading}, {heading}"
            scores = column(metrics, name, place)
            columns[scores] = MetricColumn(heading, words, metric, scores)
    worst_first = functools.partial(worst_tenth, sign=metrics[first].sign)
    tenth = dataclasses.replace(metrics[first], average=worst_first)
    worst = MetricColumn(*_PLACES[WORST], tenth, "personal_own")
    return columns | {WORST: worst}


def read(
    document: Mapping[str, Any], file: str, losses: Iterable[Loss], problems: Problems
) -> dict[str, Metric]:
    """Return the metrics of a schema-checked study by name, that of its losses first; add an error
    to ``problems`` for each metric that cannot be computed, and for losses of several metrics."""
    firsts = list(dict.fromkeys(loss.metric for loss in losses)) or [ACCURACY]
    if len(firsts) > 1:
        expected = "losses with one metric, which ranks all rows of the study"
        problems.refuse(f"{file}: training.loss", got=", ".join(firsts), expected=expected)
    first = firsts[0]
    metrics = {first: BUILT_IN[first]}
    known = BUILT_IN if first == ACCURACY else {name: BUILT_IN[name] for name in ERRORS}
    for written in document.get("metrics", ()):
        with problems.at(), located(f"{file}: metrics"):
            if reference.is_reference(written):
                trial = _TRIAL if first == ACCURACY else _TRIAL_OF_NUMBERS
                name, metric = _load(user_files.beside(written, Path(file).parent), trial)
                if name in metrics or name in BUILT_IN:
                    what = f"two metrics have the name {name!r}"
                    raise ConfigError(what, do="rename the one in the file")
                metrics[name] = metric
            elif written in known:
                metrics[written] = BUILT_IN[written]
            elif written in BUILT_IN:
                expected = f"{', '.join(known)}, or file.py:name: the labels are real numbers"
                raise ConfigError("metric of classes", got=written, expected=expected)
            else:
                do = f"{nearest(written, known)} one of your own is written file.py:name"
                raise ConfigError("unknown metric", got=written, do=do)
    search = document.get("search", {})
    if "private" in search and first != ACCURACY:
        expected = f"a loss of classes: of {ACCURACY} a client moves the sum by at most 1"
        problems.refuse(f"{file}: training.loss of a private search", got=first, expected=expected)
    criterion = search.get("metric", first)
    if criterion not in metrics and not problems:
        expected = f"one of the study's `metrics`: {', '.join(metrics)}"
        problems.refuse(f"{file}: search.metric", got=criterion, expected=expected)
    return metrics


def of_a_paper(asked: Sequence[str], metrics: Mapping[str, Metric]) -> list[str]:
    """Return the columns of metrics of a table for a paper: those that are asked for, or of the
    first metric what people and the released model get, and of the others what people get."""
    names = columns(metrics)
    usual = {"personal_own", WORST, "global_own", *(f"{name}_personal_own" for name in metrics)}
    return list(names if [*asked] == [EVERYTHING] else asked or filter(usual.__contains__, names))


def check_table(document: Mapping[str, Any], known: Mapping[str, Metric], file: str) -> None:
    """Raise ConfigError if a study asks for a column that its table has not."""
    asked, what = document.get("table", {}).get("columns", []), f"{file}: table.columns"
    for name in [] if asked == [EVERYTHING] else asked:
        names = columns(known)
        ConfigError.unless(name in names, what, name, "a metric's column", nearest(name, names))


def check_best_round(metric: str, cells: Iterable[Cell], file: str) -> None:
    """Check that a study has the values of its first metric whose best round it reports.

    Raises:
        ConfigError: a run without a guarantee does not measure this metric of all clients by round.
    """
    what = f"{file}: report: best_round"
    fits = metric in CURVES
    ConfigError.unless(fits, f"{what}: the layout's metric", metric, ", ".join(CURVES))
    for training in (cell.training for cell in cells if cell.claim not in WITHOUT_DEPARTURES):
        fits = training.evaluate_every > 0
        ConfigError.unless(fits, f"{what}: training.evaluate_every", 0, "1")
        is_whole = training.evaluate_clients == 0 and training.evaluate_personal
        fits, own = metric == "global_common" or is_whole, f"{what}: {metric} of some clients only"
        ConfigError.unless(fits, own, do="remove evaluate_clients and evaluate_personal")


def files(document: Mapping[str, Any], folder: str | os.PathLike[str]) -> list[Path]:
    """Return the user's files that define metrics of a study in ``folder``."""
    written = filter(reference.is_reference, document.get("metrics", ()))
    return sorted({user_files.file_of(user_files.beside(name, folder)) for name in written})


def column(metrics: Mapping[str, Metric], metric: str, place: str) -> str:
    """Return the column of one of a study's metrics that corresponds to a column of the first one,
    such as ``personal_own``."""
    return place if metric == next(iter(metrics)) else f"{metric}_{place}"


def _load(reference: str, trial: tuple[np.ndarray, np.ndarray]) -> tuple[str, Metric]:
    """Return name and metric of ``file.py:name``.

    The function is called with the three rows of ``trial`` and with one: a mistake in it must not
    wait for the end of training.
    """
    file, name = user_files.file_of(reference), reference.rpartition(":")[2]
    metric, location = user_files.load(reference), f"metric {name} of {file}"
    is_name = re.fullmatch("[a-z][a-z0-9_]*", name) is not None
    ConfigError.unless(is_name, location, expected="a name of small letters, digits and _")
    do = f'write {name} = pflpipe.Metric("heading", function)'
    is_metric = isinstance(metric, Metric)
    ConfigError.unless(is_metric, location, type(metric).__name__, "a Metric", do)
    number = functools.partial(_number, location, str(file.resolve()))
    of, average = (functools.partial(number, given) for given in (metric.of, metric.average))
    # A single row has one class, for which some metrics are undefined or divide by zero.
    for rows in (3, 1):
        of(*(array[:rows] for array in trial))
    average(np.array([1.0, 2.0]))
    return name, dataclasses.replace(metric, of=of, average=average, source=reference)


def _number(location: str, path: str, function: Callable[..., Any], *given: np.ndarray) -> float:
    """Return the number that a user's function computes from arrays, which are read-only, since
    other metrics use them; raises ConfigError if it fails or returns anything else."""
    # A view has its own flag; the array itself stays writeable for its owner.
    views = [array.view() for array in given]
    for view in views:
        view.flags.writeable = False
    with guard.in_one_line(location, path):
        value = function(*views)
    if not isinstance(value, numbers.Real):
        raise ConfigError(f"{location}: returns", got=type(value).__name__, expected="a number")
    return float(value)
