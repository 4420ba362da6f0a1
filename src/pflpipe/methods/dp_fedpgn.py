"""DP-FedPGN (Liu, Tian, Shang, Liu, Liu, Zhou, Ding, "DP-FedPGN: Finding Global Flat Minima for
Differentially Private Federated Learning via Penalizing Gradient Norm", arXiv:2510.27504, 2025).

DP-FedAvg whose local steps mix a client's gradient with the direction of all clients, which the
last release has. With m, the server's last step, and the S local steps of a client from y = w^t,

    y <- y - gamma eta grad f(y + rho a) + (1 - gamma) m / S,    a = -m / |m|_2.

The drift along m is the same for all clients and public. A client takes it out of its message,
which the clip then spends on its own gradients, and the server adds it again:

    u = y - w^t - (1 - gamma) m,    w^(t+1) = w^t + (1 - gamma) m + released mean of clip(u)

    minimises: ``gamma f(y + rho a) - (1 - gamma) <m, y> / (S eta)``, E epochs from ``w^t``
    sends: u, the part of ``y - w^t`` that follows from its own gradients
    keeps: nothing
    tests: the released model after E plain local epochs
    code: junkangLiu0/DP-FedPGN 6203180: DP_new.py DataWorker.update_FedPGN, update_FedPGN2,
        update_FedPGN_LS, ParameterServer.apply_weights_avg, apply_weights_avg_LS, apply_ci,
        laplacian_smoothing, laplacian_smoothing_2d, laplacian_smoothing_4d, LaplacianSmoothing

    gamma: weight of the client's own gradient; 1 is DP-FedAvg [official code; its example command
        has 0.2]
    rho: length of the ascent along the last step, at whose end gradients are taken [official code:
        its function of this name takes none, another one that nothing calls takes 0.1]
    smoothing: sigma of the Laplacian smoothing of the server's step, DP-FedPGN-LS; 0 is none
        [paper; the code has 1 by default and 0 in its example command]

With smoothing, w moves by (I - sigma L)^-1 of the step, tensor by tensor, and m stays as it is. L
is the second difference of the tensor's numbers in a row, the last one beside the first (Osher et
al. 2018). It reads releases alone, so it costs no privacy. The code has this function
(``LaplacianSmoothing``, line 797), but its call is commented out (line 725). What is called in its
place is one explicit step: u + sigma L u for vectors without their ends (line 593), and u - sigma
L u with the neighbours in the last two dimensions for matrices and convolutions (lines 607, 627),
which roughens.

Read from the abstract and the official code. Its direction is -m / (S eta) here; with equal S both
are the same algorithm. Differences of the official code: it clips each tensor to the median length
of the client's own tensors, a private bound, and adds the noise on the clients; here the message is
clipped and noised as in DP-FedAvg. It sends the direction as a second message, which follows from
the first. Its further clip of gradients to length 10 and its weight decay are left out. With
momentum, weight decay or Adam as the local optimizer the drift of the steps is not the one that is
taken out, so plain SGD is meant. It defines no personal model.
"""

import torch
from torch import Tensor

from pflpipe import trees
from pflpipe.learning.task import Batch, Batches, Task
from pflpipe.methods.base import About, Fraction, Method, NonNegative, Upload
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ABOUT = About(title="DP-FedPGN", paper="Liu et al. 2025", cost=1.3)


def smoothed(value: Tensor, sigma: float) -> Tensor:
    """Return ``(I - sigma L)^-1 value``, of the tensor's numbers in a row that closes to a circle,
    whose second differences the Fourier transform makes diagonal."""
    count = value.numel()
    turns = torch.arange(count // 2 + 1, dtype=torch.float64, device=value.device) / count
    curved = 1 + 2 * sigma * (1 - (2 * torch.pi * turns).cos())
    spectrum = torch.fft.rfft(value.double().flatten()) / curved
    smooth: Tensor = torch.fft.irfft(spectrum, n=count).view(value.shape).to(value)
    return smooth


def dp_fedpgn(
    *, gamma: Fraction = 0.85, rho: NonNegative = 0.0, smoothing: NonNegative = 0.0
) -> Method:
    """Return the method."""

    def init_server(params: Params, task: Task) -> ServerState:
        return ServerState({name: value.new_zeros(value.shape) for name, value in params.items()})

    def drift(server: ServerState) -> Tree:
        return {name: (1 - gamma) * value for name, value in server.items()}

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        steps = (batches.train.count > 0).sum()
        common, length = drift(server), trees.norm(server)
        ascent = {name: -rho * value / length.clamp(min=1e-12) for name, value in server.items()}
        # A learning rate of 0 moves nothing, and neither do clients without steps drift.
        rate = task.solver.lr and 1 / task.solver.lr

        def loss(w: Tree, batch: Batch) -> Tensor:
            along = sum(((w[name] - params[name]) * common[name]).sum() for name in common)
            value = gamma * task.loss(trees.add(w, ascent), batch)
            return value - rate * along / steps.clamp(min=1).to(value)

        trained, mean_loss = task.minimize(params, batches.train, loss)
        moved = (steps > 0) & (task.solver.lr > 0)
        own = {
            name: value - common[name].where(moved, 0.0)
            for name, value in trees.sub(trained, params).items()
        }
        return Upload(Update(own), {}, mean_loss), state

    def aggregate(
        params: Params, released: Update, server: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        step = trees.add(released, drift(server))
        moved = {name: smoothed(v, smoothing) if smoothing else v for name, v in step.items()}
        return trees.add(params, moved), ServerState(step)

    return Method(local_update, aggregate, init_server=init_server)
