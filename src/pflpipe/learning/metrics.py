"""Metrics: each is one declaration, from which the columns of scores, tables, figures and MLflow
follow.

A metric is a number of one client: it is computed from the probabilities that the client's personal
model, or the global model, assigns to the client's own rows, and from their labels. A run's value
is the average over its clients.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

Measure = Callable[[np.ndarray, np.ndarray], float]
CURVES = ("personal_own", "personal_common", "global_common")
"""The columns of the metric of the loss that a run has after a round, where a study asks for it."""
_BINS = 15  # of confidence, as Guo et al. (ICML 2017) have them


def over_clients(values: Iterable[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    # NumPy warns about the mean of nothing, hence the check.
    numbers = np.array(list(values), dtype=np.float64)
    return float(np.nanmean(numbers)) if not np.isnan(numbers).all() else float("nan")


def worst_tenth(values: np.ndarray, sign: int = 1) -> float:
    """Return the mean of the worst ceil(n / 10) of n values; ``sign`` is -1 if less is better."""
    return sign * over_clients(np.sort(sign * values)[: math.ceil(len(values) / 10)])


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        heading: name in tables and figures, such as ``macro F1``.
        of: computes the metric of one client, in ``unit``, from ``(probabilities [n, K], labels
            [n])`` of its rows, n >= 1: read-only arrays of float64 and int64. Of labels that are
            real numbers it gets ``(outputs [n, K], targets [n, K])``. NaN means undefined.
        higher_is_better: whether larger values are better.
        unit: ``%`` or another unit; empty for a plain number.
        average: computes the value of a run from the values of its clients, without the undefined
            ones.
        source: ``file.py:name`` where a study found it; empty for those of the package.
    """

    heading: str
    of: Measure
    higher_is_better: bool = True
    unit: str = ""
    average: Callable[[np.ndarray], float] = over_clients
    source: str = ""

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
    labels, or between predicted and true numbers."""
    return float(np.abs(probabilities - _targets(probabilities, labels)).mean())


def mean_squared_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean squared difference between the probabilities of all classes and the one-hot
    labels: the Brier score (1950) divided by the number of classes. Of numbers, the mean squared
    error of the predictions."""
    return float(((probabilities - _targets(probabilities, labels)) ** 2).mean())


def error_of_means(targets: np.ndarray, error: Measure) -> float:
    """Return the error of a person's own mean: on each row of ``targets [n, K]`` that of the other
    rows. NaN for fewer than two rows."""
    if len(targets) < 2:
        return float("nan")
    return error((targets.sum(0) - targets) / (len(targets) - 1), targets)


def _targets(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return one-hot labels ``[n, K]``; numbers as they are."""
    if labels.dtype.kind == "f":
        return labels
    return np.asarray(np.eye(probabilities.shape[1])[labels])


ACCURACY = "accuracy"
BUILT_IN: Mapping[str, Metric] = {
    ACCURACY: Metric("accuracy", accuracy, unit="%"),
    "balanced_accuracy": Metric("balanced accuracy", balanced_accuracy, unit="%"),
    "macro_f1": Metric("macro F1", macro_f1, unit="%"),
    "auc": Metric("AUC", auc, unit="%"),
    "log_loss": Metric("log loss", log_loss, False),
    "calibration_error": Metric("expected calibration error", calibration_error, False, "%"),
    "mean_absolute_error": Metric("mean absolute error", mean_absolute_error, False),
    "mean_squared_error": Metric("mean squared error", mean_squared_error, False),
}
CONSTANT_ERROR = "constant_error"
"""Column of scores and tables where the first metric is an error: ``error_of_means`` on training
rows."""
ALWAYS = {ACCURACY: BUILT_IN[ACCURACY]}
"""The metrics of a study that names none."""
