"""APPFL (Argonne; PyPI: appfl): output perturbation of its VanillaTrainer, which runs here.

``appfl/algorithm/trainer/vanilla_trainer.py``: with ``use_dp`` a client adds noise to its model
after each round of local training (lines 428-461). Laplace noise has scale 2 clip_value lr /
epsilon, Gaussian noise has standard deviation 2 clip_value lr sqrt(2 ln(1.25 / delta)) / epsilon
with delta 1e-5 (``appfl/privacy/dp.py``, lines 6-45). So the sensitivity is that of one step of SGD
whose gradient has a length of at most clip_value, in the norm clip_norm. The gradient of each step
is clipped only if ``clip_grad`` is set (line 618). The unit is all that a client sends in one
round, and the attacker sees its message (local trust).

The message of the auditor is the gradient: the local loss is its product with the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.metadata import version
from typing import Literal

import numpy as np
import torch
from appfl.algorithm.trainer.vanilla_trainer import VanillaTrainer
from omegaconf import DictConfig

from audits import Entry, Untried, finite
from pflpipe.auditing.claim import Claim

PROGRAM = "APPFL"
VERSION = version("appfl")

DIMENSION, CLIP, RATE, DELTA = 20, 1.0, 0.1, 1e-5


class Product(torch.nn.Module):
    """The product of the data and the model, so that the data is the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Parameter(torch.zeros(DIMENSION))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Return the product, ``[rows]``."""
        return data @ self.model


class Silent:
    """A logger of nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **options: None


def client(
    mechanism: str, norm: int, epsilon: float = 1, steps: int = 1, clip: bool = True
) -> Callable[..., np.ndarray]:
    """Return the release of a client that trains from the model 0 on one row: the message.

    Args:
        mechanism: dp_mechanism, laplace or gaussian.
        norm: clip_norm.
        epsilon: the budget of a round.
        steps: num_local_steps.
        clip: clip_grad.
    """
    settings = {
        "mode": "step",
        "num_local_steps": steps,
        "optim": "SGD",
        "optim_args": {"lr": RATE},
        "use_dp": True,
        "dp_mechanism": mechanism,
        "epsilon": epsilon,
        "clip_grad": clip,
        "clip_value": CLIP,
        "clip_norm": norm,
    }
    data = torch.zeros(1, DIMENSION)
    trainer = VanillaTrainer(
        model=Product(),
        loss_fn=lambda output, target: output.sum(),
        metric=lambda target, output: 0.0,
        train_dataset=torch.utils.data.TensorDataset(data, torch.zeros(1)),
        train_configs=DictConfig(settings),
        client_id="client",
        logger=Silent(),
    )

    def release(messages: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        data[0] = torch.from_numpy(finite(messages[0]))
        torch.nn.init.zeros_(trainer.model.model)
        with torch.enable_grad():
            trainer.train()
        sent: torch.Tensor = trainer.get_parameters()[0]["model"]
        return sent.numpy()[None]

    return release


def budget(
    mechanism: Literal["laplace", "gaussian"], epsilon: float = 1, multiplier: float | None = None
) -> Claim:
    """Return the claim of one message, whatever its gradient is: the factor 2 of the sensitivity
    is that of two gradients."""
    return Claim(
        clients=1,
        noise_multiplier=multiplier,
        epsilon=epsilon,
        delta=None if mechanism == "laplace" else DELTA,
        mechanism=mechanism,
        adjacency="replace_one",
        trust="local",
        dimension=DIMENSION,
        clip_norm=8 * CLIP,
    )


def classical(epsilon: float) -> float:
    """Return its Gaussian noise over clip_value lr."""
    return 2 * math.sqrt(2 * math.log(1.25 / DELTA)) / epsilon


TRAINER = "appfl/algorithm/trainer/vanilla_trainer.py"
LAPLACE, GAUSSIAN = f"{TRAINER}:445-461", f"{TRAINER}:428-444"
SAID = 'dp.py:16 and vanilla_trainer.py:452 call epsilon the "privacy budget"'
NAN = "Messages with NaN count as zeros here."
FEW = 0.2
AUDITS = [
    Entry(
        title="Laplace, gradient clipping on (clip_norm 1), one local step of SGD",
        release=client("laplace", 1),
        claim=budget("laplace"),
        source=LAPLACE,
        said=SAID,
        remark="By hand: two gradients of length 1 in the 1-norm move the model by at most "
        f"2 clip_value lr, which is the sensitivity in the code. {NAN} The epsilon is of one "
        "message; nothing counts rounds.",
        seconds=FEW,
    ),
    Entry(
        title="Laplace, use_dp alone, one local step of SGD",
        release=client("laplace", 1, clip=False),
        claim=budget("laplace"),
        source=f"{LAPLACE} and 618",
        said=SAID,
        remark="Until the change for issue 349 use_dp also clipped; now only clip_grad does, which "
        "is off in the documentation (docs/users/trainer.rst). Without it nothing bounds the "
        "gradient: the message that was tried is a million times longer than clip_value. "
        "The ADMM trainers still clip with use_dp (iiadmm_trainer.py:393).",
        seconds=FEW,
    ),
    Entry(
        title="Laplace, gradient clipping on (clip_norm 1), three local steps of SGD",
        release=client("laplace", 1, steps=3),
        claim=budget("laplace"),
        source=LAPLACE,
        said=SAID,
        remark="By hand: each step may move the model by clip_value lr, three by 3 clip_value lr, "
        "and the noise is that of one step: epsilon 3. The examples have 100 steps or whole "
        "epochs.",
        farther=3.0,
        seconds=FEW,
    ),
    Entry(
        title="Laplace, gradient clipping on with clip_norm 2, one local step of SGD",
        release=client("laplace", 2),
        claim=budget("laplace"),
        source=LAPLACE,
        said=SAID,
        remark="Laplace noise needs the 1-norm, as APPFL's documentation says; the trainer accepts "
        "any norm. By hand: a vector of 2-norm 1 with 20 coordinates is up to sqrt(20) = 4.5 long "
        "in the 1-norm.",
        farther=math.sqrt(20),
        seconds=FEW,
    ),
    Entry(
        title="Gaussian, gradient clipping on (clip_norm 2), one local step of SGD, epsilon 1",
        release=client("gaussian", 2),
        claim=budget("gaussian", multiplier=classical(1)),
        source=GAUSSIAN,
        said=f"{SAID}; delta 1e-5 in dp.py:30",
        remark=f"The classical formula, which gives more noise than needed at epsilon 1. {NAN}",
        seconds=FEW,
    ),
    Entry(
        title="Gaussian, gradient clipping on (clip_norm 2), one local step of SGD, epsilon 50",
        release=client("gaussian", 2, epsilon=50),
        claim=budget("gaussian", 50, classical(50)),
        source=GAUSSIAN,
        said=f"{SAID}; delta 1e-5 in dp.py:30",
        remark="The classical formula is proved for epsilon below 1. At 10 its noise gives 10.4, "
        "at 50 it gives 96.",
        seconds=FEW,
    ),
    Untried(
        title="secure aggregation together with use_dp",
        source=f"{TRAINER}:470-480",
        reason="With use_secure_agg the masked update is computed from the model before the noise "
        "(self.model, not self.model_state), so that the noise is in no message: nothing is left "
        "to try.",
    ),
]
