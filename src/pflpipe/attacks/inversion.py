"""Gradient inversion: the server reconstructs a client's image from the client's message.

The server (local trust) sees single messages. Here a client of the first round holds one image and
runs its method on it. ``mechanism.release`` makes its message, with a share of the noise in every
message (``noise_per_participant``): clipped to C, with noise of standard deviation C sigma / sqrt(q
M). The server knows only the method, the network, the solver, the number of local epochs and the
global model. One image is the papers' main setting and a client's worst case, because the update of
several images is a mixture. Dropout and training transforms are off, which helps the server.

The attack depends on the network:

- First layer linear (``mlp``): every step moves row i of its weights by ``a_i x`` and bias i by
  ``a_i``, so the first layer's message is the rank-one matrix ``a (x, 1)`` plus noise. Its first
  right singular vector is the best guess of ``(x, 1)`` up to a factor under Gaussian noise, and
  exact without. (Phong et al., "Privacy-Preserving Deep Learning via Additively Homomorphic
  Encryption", 2017, and Geiping et al., Proposition 3.1, divide one row by its bias.)
- Otherwise: the image whose update has the direction of the message, found by Adam on ``1 -
  cosine + total variation`` (Geiping, Bauermeister, Dröge, Moeller, "Inverting Gradients", NeurIPS
  2020, Eq. 4, after Zhu, Liu, Han, "Deep Leakage from Gradients", NeurIPS 2019), with the label
  from the sign of the head's bias (Zhao, Mopuri, Bilen, "iDLG", 2020). Differences from Geiping et
  al.: the image is the sigmoid of a sum of coarse and fine grids instead of clamped pixels, which
  saves most of their 24,000 steps; the gradient is used instead of its sign; there is one start,
  from grey. The compared update is that of local SGD through all its steps; other client work of a
  method is not imitated.

Neither attack uses the length of a message, so clipping alone hides nothing. Success is measured by
PSNR (dB, on the scale 0..1) and by two rates with chance level 1 / ``CANDIDATES``. ``identified``:
the reconstruction is nearer to its original than to any other candidate. ``matched``: without a
reconstruction, a server that holds the candidates with their labels picks the one whose update has
the largest cosine with the message. That server knows more and needs far less of a message.
Unrecognisable images are no evidence of privacy; the ledger's epsilon is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pflpipe.data import datasets
from pflpipe.errors import ConfigError, DataError
from pflpipe.learning.solvers import Batch
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import Method, Upload
from pflpipe.privacy.mechanism import Uploads
from pflpipe.seeds import derived_key, numpy_rng, release_rng
from pflpipe.simulation import rounds
from pflpipe.simulation.clients import Examples, Rows
from pflpipe.simulation.simulation import Simulation
from pflpipe.trees import Params, Tree

CANDIDATES = 100
"""Number of images drawn from all clients' training examples. The first ones are attacked; the rest
are the alternatives in ``identified`` and ``matched``."""

SEARCHED = 4
"""Number of attacked images if the first layer is not linear: each takes ``STEPS`` steps."""

STEPS = 4000
RATE = 0.3
"""Adam's largest learning rate on the grids, reached after a tenth of the steps; it then decays to
0."""
SMOOTHNESS = 0.01
"""Weight of the total variation (mean absolute difference of neighbouring network inputs) against
the cosine."""
GRIDS = (4, 8, 16, 32, 64)
"""Sides of the coarse grids; only those coarser than the image are used."""


@dataclass(frozen=True)
class Known:
    """Public knowledge of the server before a message arrives.

    Attributes:
        method, task: the hooks of every client, and their network, solver and number of local
            epochs.
        params: the global model of the first round.
        low, high: ``[C]``, the network inputs of a black and a white pixel.
        shape: (H, W, C) of an image.
    """

    method: Method
    task: Task
    params: Params
    low: Tensor
    high: Tensor
    shape: tuple[int, int, int]

    @property
    def steps(self) -> int:
        """Local steps of a client that holds one image."""
        return self.method.local_steps or self.task.local_epochs

    def upload(self, x: Tensor, label: Tensor) -> Upload:
        """Return the upload, before clipping, of a client that holds one image: ``x [1, H, W,
        C]``, ``label [1]``."""
        passes = (self.steps, self.method.head_epochs, 1)
        train, head, everything = (
            Examples(x, label).schedule(Rows.epochs(np.arange(1), times, 1)) for times in passes
        )
        batches = Batches(torch.tensor(1, device=x.device), train, head, everything)
        server = self.method.init_server(self.params, self.task)
        state = self.method.init_client(self.params, self.task)
        return self.method.local_update(self.params, server, state, batches, self.task)[0]

    def image(self, x: Tensor) -> Tensor:
        """Return network inputs ``[..., C]`` as pixels in 0..1."""
        return (x - self.low) / (self.high - self.low)


def attack(simulation: Simulation) -> dict[str, np.ndarray]:
    """Return reconstructions from the messages of n clients that hold one image each.

    All cells of a seed that share data set, partition and network attack the same images and the
    same global model, under multiples of the same noise.

    Returns:
        ``originals`` and ``rebuilt`` float32 ``[n, H, W, C]`` in 0..1; ``psnr`` float64 ``[n]``;
        ``psnr_without_message`` float64 ``[n]``, that of the candidates' mean image;
        ``label_found``, ``identified`` and ``matched`` bool ``[n]``; ``rows`` int64 ``[n]``, the
        indices of the images among the training examples.

    Raises:
        ConfigError: the clients do not send their whole model, or do not train with SGD.
        DataError: the data set has no images, or fewer than ``CANDIDATES`` training examples.
    """
    known = _public(simulation)
    rows = _candidates(simulation)
    x, y = simulation.train.x[rows], simulation.train.y[rows]
    count = CANDIDATES if _first_layer(known) else SEARCHED
    messages = [
        _message(simulation, known, x[i : i + 1], y[i : i + 1], place=i) for i in range(count)
    ]
    if messages[0].keys() != known.params.keys():
        raise ConfigError(
            "inversion attack: method",
            got=simulation.name,
            expected="one whose clients send their whole model",
        )
    guesses = [reconstruct(message, known) for message in messages]
    originals = known.image(x)
    rebuilt = known.image(torch.stack([image for image, _ in guesses]))
    errors = torch.stack(
        [(originals - image).square().flatten(1).double().mean(1) for image in rebuilt]
    )
    index = torch.arange(count, device=x.device)
    return {
        "originals": originals[:count].float().cpu().numpy(),
        "rebuilt": rebuilt.float().cpu().numpy(),
        "psnr": _psnr(errors[index, index]),
        "psnr_without_message": _psnr(
            (originals[:count] - originals.mean(0)).square().flatten(1).double().mean(1)
        ),
        "label_found": (torch.tensor([label for _, label in guesses], device=y.device) == y[:count])
        .cpu()
        .numpy(),
        "identified": (errors.argmin(1) == index).cpu().numpy(),
        "matched": (_matches(messages, known, x, y) == index).cpu().numpy(),
        "rows": rows[:count],
    }


def reconstruct(message: Tree, known: Known) -> tuple[Tensor, int]:
    """Return the server's guess of the image behind a message, ``[H, W, C]`` in the range of
    network inputs, and of its label.

    The label is the class whose bias in the head increased most: only there is the gradient of the
    cross-entropy negative.
    """
    label = int(message["head.bias"].argmax())
    layer = _first_layer(known)
    if layer is None:
        return _search(message, torch.tensor([label], device=known.low.device), known), label
    # The message of this layer is a (x, 1)' plus noise. The leading singular vector is the best
    # rank-one fit; its last entry belongs to the constant 1, so dividing by it gives x.
    first = torch.cat([message[f"{layer}.weight"], message[f"{layer}.bias"].unsqueeze(1)], dim=1)
    leading = torch.linalg.svd(first, full_matrices=False).Vh[0]
    return (leading[:-1] / leading[-1]).nan_to_num(0).reshape(known.shape).clamp(
        known.low, known.high
    ), label


def _search(message: Tree, label: Tensor, known: Known) -> Tensor:
    """Return the image ``[H, W, C]`` whose update has the direction of the message, found by
    Adam."""
    height, width, channels = known.shape
    sizes = [*((side, side) for side in GRIDS if side < min(height, width)), (height, width)]
    grids = [known.low.new_zeros(1, channels, *size).requires_grad_() for size in sizes]
    optimizer = torch.optim.Adam(grids, lr=RATE)
    # Warm-up: at the full rate the sigmoids may saturate in the first steps and stay there.
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, RATE, STEPS, pct_start=0.1, cycle_momentum=False
    )
    direction = _flat({name: message[name] for name in known.params})

    def drawn() -> Tensor:
        layers = [
            F.interpolate(grid, size=(height, width), mode="bilinear", align_corners=False)
            for grid in grids
        ]
        return (
            known.low
            + (known.high - known.low) * torch.stack(layers).sum(0).permute(0, 2, 3, 1).sigmoid()
        )

    for _ in range(STEPS):
        x = drawn()
        variation = x.diff(dim=1).abs().mean() + x.diff(dim=2).abs().mean()
        cosine = F.cosine_similarity(_imitated(x, label, known), direction, dim=0)
        loss = 1 - cosine + SMOOTHNESS * variation
        # Not ``backward``, which would also fill the gradients of the global model.
        gradients = torch.autograd.grad(loss, grids)
        for grid, gradient in zip(grids, gradients, strict=True):
            grid.grad = gradient
        optimizer.step()
        schedule.step()
    return drawn().detach()[0]


def _imitated(x: Tensor, label: Tensor, known: Known) -> Tensor:
    """Return the update ``[P]`` of local SGD on one image, differentiable with respect to the image
    (the solvers of solvers.py are not)."""
    solver = known.task.solver
    start = [value.detach().requires_grad_() for value in known.params.values()]
    weights, velocities = start, [torch.zeros_like(value) for value in start]
    for _ in range(known.steps):
        loss = known.task.loss(dict(zip(known.params, weights, strict=True)), Batch(x, label))
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        velocities = [
            solver.momentum * velocity + gradient + solver.weight_decay * weight
            for weight, velocity, gradient in zip(weights, velocities, gradients, strict=True)
        ]
        weights = [
            weight - solver.lr * velocity
            for weight, velocity in zip(weights, velocities, strict=True)
        ]
    return _flat(
        {name: end - begin for name, end, begin in zip(known.params, weights, start, strict=True)}
    )


def _public(simulation: Simulation) -> Known:
    shape = tuple(simulation.train.x.shape[1:])
    if len(shape) != 3:
        raise DataError(
            "inversion attack: data set",
            got=f"examples of shape {shape}",
            expected="images",
        )
    if (optimizer := simulation.training.optimizer) != "sgd":
        raise ConfigError("inversion attack: optimizer", got=optimizer, expected="sgd")
    black_and_white = np.array([[[[0] * shape[2]]], [[[255] * shape[2]]]], np.uint8)
    ends = datasets.normalise(black_and_white, *simulation.scale)
    low, high = torch.from_numpy(ends[:, 0, 0]).to(simulation.train.x)
    return Known(
        simulation.method, simulation.task, rounds.start(simulation).params, low, high, shape
    )


def _candidates(simulation: Simulation) -> np.ndarray:
    rows = np.concatenate(simulation.split.train)
    if len(rows) < CANDIDATES:
        raise DataError(
            "inversion attack",
            got=f"{len(rows)} training examples",
            expected=f"at least {CANDIDATES}",
        )
    return numpy_rng(simulation.seed, "inversion", "images").choice(rows, CANDIDATES, replace=False)


def _message(simulation: Simulation, known: Known, x: Tensor, label: Tensor, place: int) -> Tree:
    """Return the released message of a client with one image."""
    upload = known.upload(x, label)
    # Derived from the cell's key, so that the attack shares no noise with the run itself.
    noise = release_rng(derived_key(simulation.key, "inversion"), "noise", place)
    server = known.method.init_server(known.params, known.task)
    scale = known.method.scale(known.params, server, known.task)
    departures = simulation.departures | {"noise_per_participant"}
    one = Uploads(upload.update, upload.extras).mapped(lambda value: value.unsqueeze(0))
    present = torch.ones(1, dtype=torch.bool)
    released = simulation.release(noise, one, present, simulation.plan, scale, departures)
    return {name: value[0] for name, value in released.messages.items()}


def _psnr(errors: Tensor) -> np.ndarray:
    """Return the PSNR in dB of mean squared errors on the scale 0..1, at most 120."""
    decibels: np.ndarray = -10 * errors.clamp(min=1e-12).log10().cpu().numpy()
    return decibels


def _first_layer(known: Known) -> str | None:
    """Return the name of the first layer if it is a linear layer on the whole image, otherwise
    None."""
    name, shape = next(iter(known.task.network.shapes.items()))
    layer = name.removesuffix(".weight")
    return layer if len(shape) == 2 and shape[1] == math.prod(known.shape) else None


def _matches(messages: list[Tree], known: Known, x: Tensor, y: Tensor) -> Tensor:
    """Return for each message the index of the candidate whose update has the largest cosine with
    it, ``[n]``."""
    # Noised messages are compared with noiseless updates, which the server can compute.
    sent = torch.stack([_flat(message) for message in messages])
    # The length of a message does not change which candidate is best, so only updates are
    # normalised.
    products = [
        sent @ F.normalize(_flat(known.upload(x[i : i + 1], y[i : i + 1]).update), dim=0)
        for i in range(len(x))
    ]
    return torch.stack(products, dim=1).argmax(1)


def _flat(tree: Tree) -> Tensor:
    return torch.cat([value.flatten() for value in tree.values()])
