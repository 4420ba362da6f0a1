"""A step of DP-SGD by Opacus, for programs that train with Opacus inside each client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from opacus.optimizers import DPOptimizer

from audits import finite


def dp_sgd(noise_multiplier: float, expected_batch_size: int) -> Callable[..., Any]:
    """Return the release of one step of ``torch.optim.SGD`` under ``opacus.optimizers.DPOptimizer``
    with max_grad_norm 1, as ``PrivacyEngine.make_private`` sets it up.

    The messages are gradients of single examples, so that the unit of privacy, a "client" of the
    claim, is an example of one client. The result is the model after the step.
    """

    def step(messages: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
        model = torch.nn.Parameter(torch.zeros(messages.shape[1]))
        optimizer = DPOptimizer(
            torch.optim.SGD([model], lr=1.0),
            noise_multiplier=noise_multiplier,
            max_grad_norm=1.0,
            expected_batch_size=expected_batch_size,
        )
        model.grad_sample = torch.from_numpy(finite(messages))
        optimizer.step()
        return model.detach()

    return step
