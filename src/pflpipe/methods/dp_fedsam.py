"""DP-FedSAM (Shi, Liu, Wei, Shen, Wang, Tao, "Make Landscape Flatter in Differentially Private
Federated Learning", CVPR 2023), Algorithm 1.

DP-FedAvg with sharpness-aware local steps: each step uses the gradient at the point that has, to
first order, the largest loss within radius rho of the weights. Flat minima make updates shorter and
more similar, so clipping and noise harm less. The study's local optimizer, SGD or Adam, steps along
this gradient. Its weight decay plays no part in the ascent.

    minimises: ``max f(w + e)`` over ``|e|_2 <= rho``, to first order: E epochs from ``w^t`` along
        ``grad f(w + rho g / |g|_2)``, ``g = grad f(w)``
    sends: ``w - w^t``
    keeps: nothing
    tests: the released model after E more such epochs
    code: YMJS-Irfan/DP-FedSAM 016bd7f (fedml_api/dpfedsam/dpfedsam_api.py:71-77, 138-163):
        fedml_api/dpfedsam/dpfedsam_api.py DPFedSAMAPI.train, DPFedSAMAPI._client_sampling,
        DPFedSAMAPI._aggregate; fedml_api/dpfedsam/my_model_trainer.py MyModelTrainer.train;
        fedml_api/dpfedsam/sam.py SAM

    rho: radius of the ascent ``rho g / |g|_2``, one norm over all parameters; 0 is DP-FedAvg. The
        paper prints none [SAM: Foret et al., ICLR 2021]
    adaptive: scales the ascent by the weights, ``rho w^2 g / | |w| g |_2`` (ASAM: Kwon et al., ICML
        2021). Weights are small, so its rho is larger: the official code has 0.5 [paper]

Differences of the official code, executed under ``official_code: true``: every tensor is clipped to
C separately, messages have data-size weights, the number of the round seeds the cohort, and the
defaults are ``adaptive: true`` and ``rho: 0.5``. Its learning rate shrinks by the factor 0.998 in
each round; set ``training.lr_decay``. Not imitated: cohorts of fixed size.
"""

from dataclasses import replace

from torch import Tensor

from pflpipe import trees
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Method, NonNegative, Upload, tested
from pflpipe.trees import ClientState, Params, ServerState

ABOUT = About(
    title="DP-FedSAM",
    paper="Shi et al., CVPR 2023",
    official_departures=("per_tensor_clip", "data_size_weights", "public_sampling"),
    official_defaults={"rho": 0.5, "adaptive": True},
    cost=2.0,
)


def dp_fedsam(*, rho: NonNegative = 0.05, adaptive: bool = False) -> Method:
    """Return the method."""

    def train(
        params: Params, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Params, Tensor]:
        # The ascent is a setting of the solver, because it takes two gradients in every step.
        solver = replace(task.solver, rho=rho, adaptive=adaptive)
        return task.minimize(params, batches.train, task.loss, solver=solver)

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        trained, loss = train(params, state, batches, task)
        extras = {"size": batches.n} if "data_size_weights" in task.departures else {}
        return Upload(update=trees.sub(trained, params), extras=extras, loss=loss), state

    return Method(local_update, personalize=tested(train))
