"""DP-SCAFFOLD (Noble, Bellet, Dieuleveut, "Differentially Private Federated Learning on
Heterogeneous Data", AISTATS 2022, Algorithm 1) under user-level differential privacy: SCAFFOLD
(Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020) with noise.

The local steps of clients with different data lead to different points. Control variates correct
them: client k keeps c_k, the mean gradient of its last round, and the server has c, the mean of all
c_k. After S local steps of learning rate eta from y = w^t,

    y <- y - eta (grad f(y) + weight (c - c_k)),

it has u = y - w^t, a new ``c_k+ = weight (c_k - c) - u / (S eta)``, which is the mean of its
gradients, and the change ``o = c_k+ - c_k``.

    minimises: ``f(y) + weight <c - c_k, y>``, E epochs from ``w^t``
    sends: u, and the change o of its control variate
    keeps: c_k
    tests: the released model after E local epochs without correction
    code: maxencenoble/Differential-Privacy-for-Heterogeneous-Federated-Learning ecad8ac:
        flearn/users/user_scaffold.py UserSCAFFOLD.train_dp, UserSCAFFOLD.train_no_dp;
        flearn/servers/server_scaffold.py SCAFFOLD.add_parameters

    weight: of the correction; 1 is SCAFFOLD, 0 sends no control variates and is DP-FedAvg, to the
        bit [paper]
    control_scale: s, the unit of o in parts of 1 / (E eta), in which o and u are equally long in
        the first round of full batches; a larger s leaves more of the clip to u [ours]
    anchor: what o is measured from: ``own`` is c_k; ``server`` is the public c [paper: own]

The message has two parts under one clip and one budget: the public scale is s / (E eta) for o and 1
for u, so that |u|^2 + |o E eta|^2 / s^2 <= C^2. The two are certified as one Gaussian release. The
server adds the release to w and, times the share q of the clients drawn, to c, as the paper does.
Both follow from releases alone, and c_k never leaves its client.

A clip breaks what the paper relies on, that c is the mean of the c_k. With ``own``, what the clip
takes from the first long o is never sent again, and the noise of all rounds stays in c. Corrections
then have a common part that stops the model. With ``server``, c forgets noise and what was clipped,
as centroids do in fedpac.py. On the quickstart's digits, with the settings of dp_fedavg and one
seed, personal accuracy is 56 against 73 % at epsilon 8 (dp_fedavg: 82 %).

Differences from the paper: it protects single examples against the server, by noise in every local
gradient; here a client is protected whole. Its code clips these gradients, tensor by tensor, to the
median of their own lengths (user_scaffold.py:214), a private bound. c_k and c start at 0; the
paper's warm start, rounds in which clients send c_k alone, is left out. Weights are uniform. With
momentum, weight decay or Adam c_k is the mean step in units of eta instead of the mean gradient. A
client without steps sends zeros and keeps its c_k. The paper defines no personal model.
"""

from typing import Literal

import torch
from torch import Tensor

from pflpipe import trees
from pflpipe.learning.task import Batch, Batches, Task
from pflpipe.methods.base import About, Fraction, Method, NotTiny, Shapes, Upload
from pflpipe.methods.dp_fedavg import dp_fedavg
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ABOUT = About(title="DP-SCAFFOLD", paper="Noble et al., AISTATS 2022", cost=1.3, public_scale=True)

CONTROL = "control."


def dp_scaffold(
    *,
    weight: Fraction = 1.0,
    control_scale: NotTiny = 1.0,
    anchor: Literal["own", "server"] = "own",
) -> Method:
    """Return the method."""
    if not weight:
        return dp_fedavg()

    def zeros(params: Params, task: Task) -> Tree:
        return {CONTROL + name: value.new_zeros(value.shape) for name, value in params.items()}

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        gap = trees.within(CONTROL, trees.sub(server, state))  # c - c_k

        def loss(w: Tree, batch: Batch) -> Tensor:
            # A linear term with the gradient ``weight (c - c_k)``; it is 0 where the client starts.
            drift = sum(((w[name] - params[name]) * gap[name]).sum() for name in gap)
            return task.loss(w, batch) + weight * drift

        trained, mean_loss = task.minimize(params, batches.train, loss)
        change = trees.sub(trained, params)
        steps = (batches.train.count > 0).sum()
        # With a learning rate of 0 nothing is learned about the gradient.
        rate = task.solver.lr and 1 / task.solver.lr
        control, offset = {}, {}
        for name, value in change.items():
            own = state[CONTROL + name]
            mean = -rate * value / steps.clamp(min=1).to(value) - weight * gap[name]
            control[CONTROL + name] = torch.where(steps > 0, mean, own)
            begin = server[CONTROL + name] if anchor == "server" else own
            offset[CONTROL + name] = torch.where(steps > 0, mean - begin, 0.0)
        return Upload(Update(change | offset), {}, mean_loss), ClientState(control)

    def scale(params: Params, server: ServerState, task: Task) -> Tree:
        unit = control_scale / (task.local_epochs * task.solver.lr) if task.solver.lr else 1.0
        return {name: value.new_tensor(unit) for name, value in server.items()}

    def aggregate(
        params: Params, released: Update, server: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        # The released mean is over the clients drawn; the mean of all c_k moves by their share.
        share = {name: task.plan.sample_rate * released[name] for name in server}
        return trees.add(params, released), trees.add(server, share)

    def parts(task: Task) -> Shapes:
        return {CONTROL + name: shape for name, shape in task.network.shapes.items()}

    return Method(
        local_update,
        aggregate,
        init_server=lambda params, task: ServerState(zeros(params, task)),
        init_client=lambda params, task: ClientState(zeros(params, task)),
        scale=scale,
        parts=parts,
    )
