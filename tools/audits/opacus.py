"""Opacus (PyPI): its optimizers, whose unit is a single example.

What Opacus claims: ``PrivacyEngine.make_private`` (privacy_engine.py:356-358) calls the noise
multiplier "the ratio of the standard deviation of the Gaussian noise to the L2-sensitivity of the
function to which the noise is added", and its accountants count epsilon for examples drawn by
Poisson sampling, whose neighbours add or remove an example. In federated learning Opacus runs
inside a client and claims nothing for the client as a whole; so the "clients" of a claim below are
examples.

Every call hands the messages to the optimizer as the examples' gradients and returns what its
``step`` moves the parameters by. File names below are those of the package opacus.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from opacus.accountants import PRVAccountant
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer, DPPerLayerOptimizer

from audits import Entry, finite
from pflpipe import Claim

PROGRAM, VERSION = "Opacus", version("opacus")
EXAMPLES, RATE, BATCH, MULTIPLIER, CLIP, DELTA = 20, 0.5, 10, 1.0, 1.0, 1e-5
COUNT_NOISE = 1.0
"""Standard deviation of the noise on AdaClip's count."""


class Steps:
    """Steps of an optimizer from parameters 0, in two layers. ``step`` releases the movement of the
    parameters and, if the clip bound adapts, the logarithm of the next bound.

    Attributes:
        kind: the class of the optimizer.
        finite: whether NaN and infinity are replaced by 0 before Opacus sees them.
        options: of the optimizer.
    """

    def __init__(
        self, kind: Callable[..., Any], batch: int, finite: bool = True, **options: Any
    ) -> None:
        self.kind, self.batch, self.finite, self.options = kind, batch, finite, options

    def start(self, clients: int, dimension: int) -> None:
        """Begin a run."""
        sizes = dimension // 2, dimension - dimension // 2
        self.layers = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
        self.optimizer = self.kind(
            torch.optim.SGD(self.layers, lr=1.0),
            noise_multiplier=MULTIPLIER,
            expected_batch_size=self.batch,
            **{"max_grad_norm": CLIP, **self.options},
        )

    def step(self, messages: np.ndarray, weights: np.ndarray, _: Any) -> np.ndarray:
        """Return what a step releases."""
        gradients = torch.from_numpy(finite(messages) if self.finite else messages.copy())
        before = torch.cat([layer.detach().clone() for layer in self.layers])
        self.optimizer.zero_grad()
        sizes = [len(layer) for layer in self.layers]
        for layer, gradient in zip(self.layers, gradients.split(sizes, dim=1), strict=True):
            layer.grad_sample = gradient
        self.optimizer.step()
        moved = (before - torch.cat([layer.detach() for layer in self.layers])).numpy()
        if not isinstance(self.optimizer, AdaClipDPOptimizer):
            return moved
        return np.append(moved, math.log(self.optimizer.max_grad_norm))


def epsilon_of_the_accountant() -> float:
    """Return the epsilon that Opacus's default accountant counts for one step."""
    accountant = PRVAccountant()
    accountant.step(noise_multiplier=MULTIPLIER, sample_rate=RATE)
    return float(accountant.get_epsilon(DELTA))


ADAPTIVE = {
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 100.0,
    "min_clipbound": 0.01,
    "unclipped_num_std": COUNT_NOISE,
}
STEP = Claim(
    clients=EXAMPLES,
    noise_multiplier=MULTIPLIER,
    epsilon=epsilon_of_the_accountant(),
    delta=DELTA,
    sample_rate=RATE,
    adjacency="add_remove",
)
ALL = Claim(clients=EXAMPLES, noise_multiplier=MULTIPLIER, delta=DELTA)
SHORT = Claim(clients=EXAMPLES, noise_multiplier=MULTIPLIER, delta=DELTA, dimension=6)
SAID = (
    "make_private (privacy_engine.py:356-358) defines the noise multiplier as noise over "
    "sensitivity, and the default accountant (accountants/prv.py) counts this epsilon for one step."
)
ADAPTS = (
    "The class (optimizers/adaclipoptimizer.py:34-39, 126-137) follows Andrew et al. (2021), "
    "Theorem 1, and preserves the noise multiplier for the accountant."
)
COUNTED = (
    "Theorem 1 takes the count's sensitivity as 1/2, for bits that are shifted to -1/2 and 1/2. "
    "The bits here are 0 and 1 (lines 108-110): one example that is added or zeroed changes the "
    "count by 1."
)

AUDITS = [
    Entry(
        title="DPOptimizer, Poisson sampling, finite gradients",
        seconds=0.5,
        release=Steps(DPOptimizer, BATCH),
        claim=STEP,
        source="optimizers/optimizer.py:432-504",
        said=SAID,
        remark="The unit is an example.",
    ),
    Entry(
        title="DPPerLayerOptimizer, Poisson sampling, finite gradients",
        seconds=0.5,
        release=Steps(DPPerLayerOptimizer, BATCH, max_grad_norm=[0.6, 0.8]),
        claim=STEP,
        source="optimizers/perlayeroptimizer.py:58-78",
        said=SAID,
        remark="The unit is an example. The bounds of the two layers are .6 and .8.",
    ),
    Entry(
        title="DPOptimizer, any gradients",
        seconds=0.5,
        release=Steps(DPOptimizer, EXAMPLES, finite=False),
        claim=ALL,
        source="optimizers/optimizer.py:444-468",
        said=SAID,
        remark=(
            "The unit is an example. The clip factor of a gradient with NaN is NaN, and that of an "
            "infinite one is 0, which times infinity is NaN."
        ),
    ),
    Entry(
        title="AdaClipDPOptimizer, all examples in every batch, an example is zeroed",
        seconds=2.0,
        release=Steps(AdaClipDPOptimizer, EXAMPLES, **ADAPTIVE),
        claim=SHORT,
        source="optimizers/adaclipoptimizer.py:91-183",
        said=ADAPTS,
        remark=f"The unit is an example; the count's noise is {COUNT_NOISE:g}. {COUNTED} By hand: "
        "the gradients' noise is 1 / sqrt(3 / 4) of C, so that both together are moved by "
        "sqrt(3 / 4 + 1) = 1.32 where the claim has 1.",
        farther=math.sqrt(1.75),
    ),
    Entry(
        title="AdaClipDPOptimizer, all examples in every batch, an example is replaced",
        seconds=0.5,
        release=Steps(AdaClipDPOptimizer, EXAMPLES, **ADAPTIVE),
        claim=Claim(
            clients=EXAMPLES, noise_multiplier=MULTIPLIER, delta=DELTA, adjacency="replace_one"
        ),
        source="optimizers/adaclipoptimizer.py:91-183",
        said=ADAPTS,
        remark=(
            f"The unit is an example; the count's noise is {COUNT_NOISE:g}. Two gradients are up "
            "to 2 C apart and two bits 1, so that the theorem's sensitivities are in proportion. "
            "The audit replaces a gradient by its opposite, which has the same bit, so that only "
            "the noise on gradients is tried."
        ),
    ),
]
