"""Losses: each is one declaration, from which the labels that it needs, the outputs of the network
and the metric that is reported first follow.

This module does not import torch, so that a study is checked without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pflpipe.code import guard, reference, user_files
from pflpipe.errors import ConfigError, check_known, counted, nearest
from pflpipe.learning.metrics import ACCURACY

if TYPE_CHECKING:
    from torch import Tensor

VECTOR = 16
"""Number of float32 values in the widest vector register of a CPU."""
_ROWS = 4


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each example ``[B]``, from ``logits [B, K]``.

    Under torch.func this is a fifth faster than F.cross_entropy, which uses a decomposition in
    Python there.
    """
    # If a row is shorter than a vector register, torch computes its softmax one number at a time.
    # With the classes as the first axis it is two to six times as fast, which is a quarter of a
    # step of a small network.
    axis = -2 if logits.shape[-1] < VECTOR else -1
    scores = logits.mT if axis == -2 else logits
    return -scores.log_softmax(axis).gather(axis, labels.unsqueeze(axis)).squeeze(axis)


def binary(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy ``[B]`` of the logits 0 and z, from ``outputs z [B, 1]``."""
    z = outputs.squeeze(-1)
    return z.logaddexp(z.new_zeros(())) - z * labels


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of each example ``[B]``, a mean over its K numbers, from ``outputs
    [B, K]`` and ``targets``, ``[B]`` or ``[B, K]``."""
    return (outputs - targets.view_as(outputs)).square().mean(-1)


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the absolute error of each example ``[B]``; see ``squared_error``."""
    return (outputs - targets.view_as(outputs)).abs().mean(-1)


ERRORS = {"mean_squared_error": squared_error, "mean_absolute_error": absolute_error}
"""Metric of labels that are numbers -> the error of each example."""


@dataclass(frozen=True)
class Loss:
    """A loss.

    Attributes:
        of: ``(outputs [B, K], labels) -> [B]``, the loss of each example, which may not depend on
            the others. Labels are whole numbers ``[B]`` in 0..K-1 (classes), or real numbers
            ``[B]`` or ``[B, K]``.
        metric: the metric that is reported first, on which the labels depend: ``accuracy`` for
            classes; ``mean_squared_error`` or ``mean_absolute_error`` for real numbers.
        one_logit: whether the network has one output for two classes.
    """

    of: Callable[[Tensor, Tensor], Tensor]
    metric: str = ACCURACY
    one_logit: bool = False

    @property
    def numbers(self) -> bool:
        """Whether labels are real numbers."""
        return self.metric != ACCURACY


CROSS_ENTROPY = Loss(cross_entropy)
BUILT_IN = {
    "cross_entropy": CROSS_ENTROPY,
    "binary": Loss(binary, one_logit=True),
    "squared_error": Loss(squared_error, "mean_squared_error"),
    "absolute_error": Loss(absolute_error, "mean_absolute_error"),
}


def find(name: str) -> Loss:
    """Return the loss of a name, or of ``file.py:name``, whose file is run.

    Raises:
        ConfigError: there is none, or the file has something else.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    if not reference.is_reference(name):
        do = f"{nearest(name, BUILT_IN)} one of your own is written file.py:name"
        raise ConfigError("training.loss", got=name, do=do)
    loss = user_files.load(name)
    if not isinstance(loss, Loss):
        do = f"write {name.rpartition(':')[2]} = pflpipe.Loss(function)"
        raise ConfigError(f"loss {name}", got=type(loss).__name__, expected="a Loss", do=do)
    check_known(loss.metric, [ACCURACY, *ERRORS], f"loss {name}: no metric of a loss is")
    return loss


def outputs(name: str, width: int, numbers: bool) -> int:
    """Return how many outputs a network has for a loss and the labels of a data set. A loss of the
    user is called on random outputs.

    Args:
        name: as for ``find``.
        width: number of classes, or how many numbers an example has.
        numbers: whether the labels are real numbers.

    Raises:
        ConfigError: the loss does not fit the labels, or does not return one number an example.
    """
    loss = find(name)
    if loss.numbers != numbers or (loss.one_logit and width != 2):
        wanted = "real numbers" if loss.numbers else "2 classes" if loss.one_logit else "classes"
        got = f"{counted(width, 'real number')} each" if numbers else f"{width} classes"
        kind = "floats" if loss.numbers else "integers"
        fitting = "squared_error" if numbers else "cross_entropy"
        do = f"write training.loss: {fitting} (docs/tasks.md), or store labels as {kind}"
        raise ConfigError(f"training.loss {name}: labels", got=got, expected=wanted, do=do)
    if name not in BUILT_IN:
        _try(loss, name, width)
    return 1 if loss.one_logit else width


def _try(loss: Loss, name: str, width: int) -> None:
    """Call a loss of the user on random outputs, alone and as part of a batch."""
    import torch  # late: a study with a loss of the package is checked without it

    generator = torch.Generator().manual_seed(0)
    given = torch.randn(_ROWS, width, generator=generator)
    labels = torch.randn(given.shape, generator=generator)
    if not loss.numbers:
        labels = torch.arange(_ROWS) % width
    file = user_files.file_of(name)
    with guard.in_one_line(f"loss {name}", str(file.resolve())):
        values, first = loss.of(given, labels), loss.of(given[:1], labels[:1])
    expected = "one number for each example [B]"
    if not isinstance(values, torch.Tensor) or values.shape != (_ROWS,):
        got = f"shape {tuple(getattr(values, 'shape', ()))} for {_ROWS} examples"
        raise ConfigError(f"loss {name}: returns", got=got, expected=expected)
    if not torch.allclose(values[:1], first, equal_nan=True):
        do = "take no mean over the batch: pflpipe takes it"
        got = "another value with other examples in the batch"
        raise ConfigError(f"loss {name}: returns", got=got, expected=expected, do=do)
