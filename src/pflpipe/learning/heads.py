"""Heads solved exactly: ridge regression, and logistic regression by Newton's method.

With the features z [F] that a frozen body has of a client's n rows, both minimise over the head (W
[K, F], b [K])

    mean of loss(W z + b, y) + penalty / 2 |W|_2^2

without a penalty on the bias. The loss of ``ridge`` (Hoerl, Kennard, "Ridge Regression: Biased
Estimation for Nonorthogonal Problems", 1970) is ``|logits - e_y|^2 / 2`` against one-hot targets
e_y; the minimum is the solution of one linear system. The loss of ``newton`` is the cross-entropy.

Methods that alternate between heads and body use the solver in every round. The logits of ridge lie
near 0 and 1, which the cross-entropy of the body does not expect. Measured, this does no harm: on
people_spi at epsilon 2 (seed 0, lr 5) FedRep's personal models had 75.7 % on own test rows with 10
epochs of SGD at 3, 76.5 % with ridge at penalty 0.01 and 76.6 % with newton at 0.003.

Both forget the head they are given, unlike a few epochs of SGD. That costs methods whose released
head is good: DP-FedAvg-fb had 68.5 % there with SGD, 66.9 % with ridge and 67.1 % with newton at
the same penalties.

LAPACK may round a matrix by how it is aligned in memory. A client's bits could then depend on its
place among others, so the design matrix gets columns of zeros up to a multiple of ``ALIGNED``,
with which all places are aligned alike. All is computed in float64, as the penalty may be small.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from pflpipe.errors import ConfigError
from pflpipe.learning.networks import HEAD
from pflpipe.trees import Tree

EXACT = ("ridge", "newton")
ALIGNED = 8
"""Number of float64 in 64 bytes, the alignment of memory that vector instructions ask for."""
LEAST_PENALTY = 1e-8
"""Smaller penalties are raised to it: without any, few rows have no single solution."""
STEPS = 10
"""Number of Newton steps."""
LENGTHS = (0.125, 0.25, 0.5, 1.0)
"""What a Newton step is multiplied by; the best one counts, the longest of those that are equal."""
LARGEST = 512
"""Most numbers of a head for ``newton``, whose matrix has the square of it for each client."""


def ridge(z: Tensor, y: Tensor, n: Tensor, classes: int, penalty: float) -> Tree:
    """Return the head of ridge regression.

    Args:
        z: features ``[rows, F]``; y: labels ``[rows]``. Rows from n on are padding.
        n: number of the client's rows, at least 1.
        classes: K.
        penalty: weight of ``|W|_2^2 / 2``.
    """
    rows, free = _design(z, n)
    targets = F.one_hot(y, classes).double()
    targets = F.pad(targets, (0, -classes % ALIGNED))
    system = rows.T @ rows / n + torch.diag(max(penalty, LEAST_PENALTY) * (1 - free))
    solution = torch.linalg.solve_ex(system, rows.T @ targets / n)[0]
    return _head(solution.T[:classes], z)


def newton(
    z: Tensor,
    y: Tensor,
    n: Tensor,
    classes: int,
    penalty: float | Tensor,
    offset: Tensor | float = 0.0,
) -> Tree:
    """Return the head of logistic regression, after ``STEPS`` steps from zero.

    A class that the client lacks has its minimum at a bias of minus infinity; each step takes its
    logits down by about 1.

    Args:
        z: features ``[rows, F]``; y: labels ``[rows]``. Rows from n on are padding.
        n: number of the client's rows, at least 1.
        classes: K.
        penalty: weight of ``|W|_2^2 / 2``, or one of each number's square / 2, ``[K, F + 1]`` with
            the biases last, of which none may be 0.
        offset: logits ``[rows, K]`` to which the head's are added.

    Raises:
        ConfigError: the head has more than ``LARGEST`` numbers.
    """
    size = classes * (z.shape[-1] + 1)
    if size > LARGEST:
        what, do = (
            f"newton for a head of {size} numbers",
            "take ridge, if the method has it, or sgd",
        )
        raise ConfigError(what, expected=f"at most {LARGEST}", do=do)
    rows, free = _design(z, n)
    width = rows.shape[-1]
    real = torch.arange(len(z), device=z.device) < n
    targets = F.one_hot(y, classes).double()
    if isinstance(penalty, Tensor):
        weights = F.pad(penalty.double(), (0, width - penalty.shape[1]), value=1.0)
        fixed = torch.diag(weights.flatten())
    else:
        weights = max(penalty, LEAST_PENALTY) * (1 - free)  # [width]
        # The same shift of all biases changes no probability. Its own curvature makes the matrix
        # regular and no step longer, because no gradient points there.
        fixed = torch.diag(weights.repeat(classes)) + torch.outer(*[free.repeat(classes)] * 2)
    own = torch.eye(classes, dtype=rows.dtype, device=z.device)

    def scores(head: Tensor) -> Tensor:
        return (rows @ head.T + offset).log_softmax(-1)

    def value(head: Tensor) -> Tensor:
        losses = -(scores(head) * targets).sum(-1)
        return losses.where(real, 0.0).sum() / n + 0.5 * (weights * head.square()).sum()

    head = rows.new_zeros(classes, width)
    least = value(head)
    for _ in range(STEPS):
        p = scores(head).exp()
        slope = (p - targets).T @ rows / n + weights * head
        each = (p.unsqueeze(-1) * rows.unsqueeze(-2)).flatten(-2)  # [rows, K width]
        same = (rows.T @ each).view(width, classes, width).transpose(0, 1).unsqueeze(2)
        curve = (same * own.view(classes, 1, classes, 1)).reshape(fixed.shape)
        curve = (curve - each.T @ each) / n + fixed
        step = torch.linalg.solve_ex(curve, slope.reshape(-1, 1))[0].view(classes, width)
        start = head
        for length in LENGTHS:
            there = start - length * step
            found = value(there)
            better = found < least + 1e-12 * least.abs()
            head, least = torch.where(better, there, head), torch.where(better, found, least)
    # Rows that are not finite have no least value, and no head.
    return _head(head + 0 * least, z)


def _design(z: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of features with a 1 behind ``[rows, width]``, zero after the first n, and
    the mask ``[width]`` of the 1."""
    real = torch.arange(len(z), device=z.device) < n
    width = z.shape[-1] + 1
    rows = F.pad(F.pad(z.double(), (0, 1), value=1.0), (0, -width % ALIGNED))
    free = torch.zeros(rows.shape[-1], dtype=rows.dtype, device=z.device)
    free[width - 1] = 1
    return rows.where(real.unsqueeze(-1), 0.0), free


def _head(matrix: Tensor, z: Tensor) -> Tree:
    """Return the parameters of the head from ``[K, width]``, in the dtype of the features."""
    features = z.shape[-1]
    weight, bias = HEAD
    return {weight: matrix[:, :features].to(z.dtype), bias: matrix[:, features].to(z.dtype)}
