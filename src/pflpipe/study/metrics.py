"""Metrics: each is one declaration, from which the columns of scores, tables, figures and MLflow
follow.

A metric is a number of one client: it is computed from the probabilities that the client's personal
model, or the global model, assigns to the client's own rows, and from their labels. A run's value
is the average over its clients.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pflpipe import outside
from pflpipe.errors import ConfigError, Problems, located, nearest
from pflpipe.means import over_clients

Measure = Callable[[np.ndarray, np.ndarray], float]
_BINS = 15  # of confidence, as Guo et al. (ICML 2017) have them


@dataclass(frozen=True)
class Metric:
    """A metric of classification.

    Attributes:
        heading: name in tables and figures, such as ``macro F1``.
        of: computes the metric of one client, in ``unit``, from ``(probabilities [n, K], labels
            [n])`` of its rows, n >= 1: read-only arrays of float64 and int64. NaN means undefined.
        higher_is_better: whether larger values are better.
        unit: ``%`` or another unit; empty for a plain number.
        average: computes the value of a run from the values of its clients, without the undefined
            ones.
    """

    heading: str
    of: Measure
    higher_is_better: bool = True
    unit: str = ""
    average: Callable[[np.ndarray], float] = over_clients

    @property
    def sign(self) -> int:
        """1 where more is better, otherwise -1."""
        return 1 if self.higher_is_better else -1

    @property
    def described(self) -> str:
        """The metric in a caption: ``AUC in percent``, ``log loss (less is better)``."""
        unit = {"": "", "%": " in percent"}.get(self.unit, f" in {self.unit}")
        return f"{self.heading}{unit}{'' if self.higher_is_better else ' (less is better)'}"

    @property
    def digits(self) -> int:
        """Digits after the decimal point in tables and figures."""
        return 1 if self.unit == "%" else 3


def accuracy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of rows whose most probable class is the label, in percent.

    Evaluation counts right predictions on the device instead (``Task.correct``): the outputs of all
    personal models on the common test set do not fit in memory.
    """
    return 100 * float((probabilities.argmax(1) == labels).mean())


def balanced_accuracy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean recall over the classes in the labels, in percent."""
    size = np.bincount(labels)
    right = np.bincount(labels[probabilities.argmax(1) == labels], minlength=len(size))
    return 100 * float((right[size > 0] / size[size > 0]).mean())


def macro_f1(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean F1 over the classes in the labels or the predictions, in percent."""
    guess, classes = probabilities.argmax(1), probabilities.shape[1]
    right = np.bincount(labels[guess == labels], minlength=classes)
    size = np.bincount(labels, minlength=classes) + np.bincount(guess, minlength=classes)
    return 100 * float((2 * right[size > 0] / size[size > 0]).mean())


def auc(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the area under the ROC curve of one class against the rest, mean over the classes in
    the labels, in percent; NaN with a single class."""
    areas = []
    for label in np.unique(labels):
        positive, scores = labels == label, probabilities[:, label]
        _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
        # The Mann-Whitney statistic; equal scores have their mean rank.
        ranks = (np.cumsum(count) - (count - 1) / 2)[place]
        yes, no = positive.sum(), (~positive).sum()
        if no:
            areas.append((ranks[positive].sum() - yes * (yes + 1) / 2) / (yes * no))
    return 100 * float(np.mean(areas)) if areas else float("nan")


def log_loss(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean cross-entropy in nats.

    Probabilities are at least the machine epsilon of float64, as in scikit-learn: otherwise a
    single row with probability 0 makes the mean infinite.
    """
    given = probabilities[np.arange(len(labels)), labels]
    return float(-np.log(given.clip(min=np.finfo(np.float64).eps)).mean())


def calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the expected calibration error in percent: the mean distance between confidence and
    accuracy in 15 bins of equal width (Guo et al., ICML 2017)."""
    confidence = probabilities.max(1)
    gaps = (probabilities.argmax(1) == labels) - confidence
    bins = np.ceil(confidence * _BINS).astype(int)  # a bin includes its upper end
    return 100 * float(np.abs(np.bincount(bins, weights=gaps)).sum() / len(labels))


def mean_absolute_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean absolute difference between the probabilities of all classes and the one-hot
    labels."""
    return float(np.abs(probabilities - _one_hot(probabilities, labels)).mean())


def mean_squared_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean squared difference between the probabilities of all classes and the one-hot
    labels: the Brier score (1950) divided by the number of classes."""
    return float(((probabilities - _one_hot(probabilities, labels)) ** 2).mean())


def _one_hot(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    one_hot: np.ndarray = np.eye(probabilities.shape[1])[labels]
    return one_hot


ACCURACY = "accuracy"
BUILT_IN: Mapping[str, Metric] = {
    ACCURACY: Metric("accuracy", accuracy, unit="%"),
    "balanced_accuracy": Metric("balanced accuracy", balanced_accuracy, unit="%"),
    "macro_f1": Metric("macro F1", macro_f1, unit="%"),
    "auc": Metric("AUC", auc, unit="%"),
    "log_loss": Metric("log loss", log_loss, higher_is_better=False),
    "calibration_error": Metric(
        "expected calibration error", calibration_error, higher_is_better=False, unit="%"
    ),
    "mean_absolute_error": Metric(
        "mean absolute error", mean_absolute_error, higher_is_better=False
    ),
    "mean_squared_error": Metric("mean squared error", mean_squared_error, higher_is_better=False),
}
ALWAYS = {ACCURACY: BUILT_IN[ACCURACY]}
"""The metrics of a study that names none."""
_PLACES = {
    "personal_own": ("personal own", "own test, personal model"),
    "personal_own_worst_decile": (
        "personal worst decile",
        "own test, personal model, worst tenth of clients",
    ),
    "personal_common": ("personal common", "common test, personal model"),
    "global_own": ("global own", "own test, global model"),
    "global_common": ("global common", "common test, global model"),
    "personal_new": ("personal new", "own test of new clients, personal model"),
    "global_new": ("global new", "own test of new clients, global model"),
}
"""Model and rows of each column of accuracy: in a table's heading, and in a figure's heading."""
_OWN_ROWS = ("personal_own", "global_own", "personal_new", "global_new")
_TRIAL = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.5, 0.4, 0.1]]), np.array([0, 1, 2])


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
    """Return the columns of a table by name: those of accuracy, then those of other metrics."""
    columns = {}
    for name, metric in metrics.items():
        for place in _PLACES if name == ACCURACY else _OWN_ROWS:
            heading, words = _PLACES[place]
            if name != ACCURACY:
                heading = f"{metric.heading}, {heading}"
            columns[column(name, place)] = MetricColumn(heading, words, metric, column(name, place))
    worst = columns["personal_own_worst_decile"]
    tenth = dataclasses.replace(worst.metric, average=worst_tenth)
    columns["personal_own_worst_decile"] = dataclasses.replace(
        worst, metric=tenth, scores="personal_own"
    )
    return columns


def worst_tenth(values: np.ndarray) -> float:
    """Return the mean of the lowest ceil(n / 10) of n values."""
    return over_clients(np.sort(values)[: math.ceil(len(values) / 10)])


def read(document: Mapping[str, Any], file: str, problems: Problems) -> dict[str, Metric]:
    """Return the metrics of a schema-checked study by name, accuracy first; add an error to
    ``problems`` for each metric that cannot be computed."""
    metrics = dict(ALWAYS)
    for written in document.get("metrics", ()):
        with problems.at(), located(f"{file}: metrics"):
            if outside.is_reference(written):
                name, metric = _load(outside.beside(written, Path(file).parent))
                if name in metrics or name in BUILT_IN:
                    what = f"two metrics have the name {name!r}"
                    raise ConfigError(what, do="rename the one in the file")
                metrics[name] = metric
            elif written in BUILT_IN:
                metrics[written] = BUILT_IN[written]
            else:
                do = f"{nearest(written, BUILT_IN)} one of your own is written file.py:name"
                raise ConfigError("unknown metric", got=written, do=do)
    criterion = document.get("search", {}).get("metric", ACCURACY)
    if criterion not in metrics and not problems:
        expected = f"one of the study's `metrics`: {', '.join(metrics)}"
        problems.refuse(f"{file}: search.metric", got=criterion, expected=expected)
    return metrics


def files(document: Mapping[str, Any], folder: str | os.PathLike[str]) -> list[Path]:
    """Return the user's files that define metrics of a study in ``folder``."""
    written = filter(outside.is_reference, document.get("metrics", ()))
    return sorted({outside.file_of(outside.beside(name, folder)) for name in written})


def column(metric: str, accuracy: str) -> str:
    """Return the column of a metric that corresponds to a column of accuracy, such as
    ``personal_own``."""
    return accuracy if metric == ACCURACY else f"{metric}_{accuracy}"


def _load(reference: str) -> tuple[str, Metric]:
    """Return name and metric of ``file.py:name``.

    The function is called with three rows and with one: a mistake in it must not wait for the end
    of training.
    """
    file, name = outside.file_of(reference), reference.rpartition(":")[2]
    metric, location = outside.load(reference), f"metric {name} of {file}"
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise ConfigError(location, expected="a name of small letters, digits and _")
    if not isinstance(metric, Metric):
        do = f'write {name} = pflpipe.Metric("heading", function)'
        raise ConfigError(location, got=type(metric).__name__, expected="a Metric", do=do)
    of, average = (
        functools.partial(_number, location, str(file.resolve()), function)
        for function in (metric.of, metric.average)
    )
    for rows in (3, 1):
        of(*(array[:rows] for array in _TRIAL))
    average(np.array([1.0, 2.0]))
    return name, dataclasses.replace(metric, of=of, average=average)


def _number(location: str, path: str, function: Callable[..., Any], *given: np.ndarray) -> float:
    """Return the number that a user's function computes from arrays, which are read-only, since
    other metrics use them; raises ConfigError if it fails or returns anything else."""
    views = [array.view() for array in given]
    for view in views:
        view.flags.writeable = False
    with outside.in_one_line(location, path):
        value = function(*views)
    if not isinstance(value, numbers.Real):
        raise ConfigError(f"{location}: returns", got=type(value).__name__, expected="a number")
    return float(value)
