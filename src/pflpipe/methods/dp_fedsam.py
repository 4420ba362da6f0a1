"""DP-FedSAM (Shi, Liu, Wei, Shen, Wang, Tao, "Make Landscape Flatter in Differentially Private
Federated Learning", CVPR 2023), Algorithm 1.

DP-FedAvg with sharpness-aware local steps: the gradient is taken where the loss is worst within a
ball of radius rho around the weights, approximately. Flat minima make updates smaller and more
alike, so that clipping and noise harm less. The study's local optimizer, SGD or Adam, steps with
that gradient; its weight decay has no part in the ascent.

    minimises: ``max f(w + e)`` over ``|e|_2 <= rho``, to first order: E epochs from ``w^t`` along
        ``grad f(w + rho g / |g|_2)``, ``g = grad f(w)``
    sends: ``w - w^t``
    keeps: nothing
    tests: the released model after E such epochs

    rho: radius of the ascent ``rho g / |g|_2``, one norm over all parameters; 0 is DP-FedAvg
        [official code]

Differences of the official code, executed under ``official_code: true``: every tensor is clipped to
C by itself, messages have data-size weights, and the round's number seeds the cohort. Its learning
rate is 0.998 times as large in each round as in the one before: ``training.lr_decay``. Not
imitated: the code's default ``adaptive``, which scales the ascent by the weights (ASAM) where the
paper has plain SAM, and cohorts of fixed size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from torch import Tensor

from pflpipe import trees
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Method, Option, Upload
from pflpipe.trees import ClientState, Params, ServerState

ABOUT = About(
    title="DP-FedSAM",
    paper="Shi et al., CVPR 2023",
    official_departures=("per_tensor_clip", "data_size_weights", "public_sampling"),
    cost=2.0,
)


def dp_fedsam(*, rho: Annotated[float, Option(least=0)] = 0.5) -> Method:
    """Return the method."""

    def train(params: Params, batches: Batches, task: Task) -> tuple[Params, Tensor]:
        return task.minimize(params, batches.train, task.loss, solver=replace(task.solver, rho=rho))

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        trained, loss = train(params, batches, task)
        extras = {"size": batches.n} if "data_size_weights" in task.departures else {}
        return Upload(update=trees.sub(trained, params), extras=extras, loss=loss), state

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        return train(params, batches, task)[0]

    return Method(local_update, personalize=personalize)
