"""The small networks of the papers, as pure functions of a parameter tree.

There is no ``nn.Module``: one network object serves every client, a client is only its tree. Pictures arrive channels last
(``[B, H, W, C]``), because that is the layout in which convolutions are fast on a CPU. Every network is a feature extractor
followed by one linear ``head``; split methods share the one and keep the other.

Initialisation is PyTorch's default for linear and convolutional layers, U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for weights and
biases, which the official codes of the papers use.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pflpipe import cells
from pflpipe.errors import ConfigError, nearest
from pflpipe.trees import Tree

HEAD = ("head.weight", "head.bias")


@dataclass(frozen=True)
class Network:
    """A network for pictures of one shape and one number of classes.

    Attributes:
        shapes: name -> shape of each parameter, in forward order; a layer is the part of a name before the last dot.
        body: ``(params, x [B, H, W, C] or [B, D]) -> z [B, F]``, the feature extractor.
    """

    shapes: dict[str, tuple[int, ...]]
    body: Callable[[Tree, Tensor], Tensor]

    def init(self, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tree:
        """Return freshly drawn parameters."""
        params = {}
        for name, shape in self.shapes.items():
            weight = self.shapes[f"{name.rpartition('.')[0]}.weight"]
            bound = 1 / math.sqrt(math.prod(weight[1:]))
            params[name] = torch.empty(shape, dtype=dtype).uniform_(-bound, bound, generator=generator)
        return params

    def apply(self, params: Tree, x: Tensor) -> Tensor:
        """Return the logits ``[B, K]`` of a batch."""
        return F.linear(self.body(params, x), params["head.weight"], params["head.bias"])

    @property
    def parameters(self) -> int:
        """Number of scalars."""
        return sum(math.prod(shape) for shape in self.shapes.values())


def build(model: cells.Model, image_shape: tuple[int, ...], classes: int) -> Network:
    """Return the network of a cell.

    Args:
        model: name and options.
        image_shape: shape of one example: ``(H, W, C)`` or ``(D,)``.
        classes: number of classes K.

    Raises:
        ConfigError: the model is unknown or does not fit the pictures.
    """
    check(model, image_shape, classes)
    return _BUILDERS[model.name](model, image_shape, classes)


def check(model: cells.Model, image_shape: tuple[int, ...], classes: int) -> None:
    """Raise ConfigError when the model is unknown, has options it does not know, or does not fit the pictures."""
    if model.name not in _BUILDERS:
        raise ConfigError("model.name", got=model.name, do=nearest(model.name, _BUILDERS))
    if classes < 2:
        raise ConfigError("data set", got=classes, expected="at least 2 classes")
    if (model.hidden is not None) != (model.name == "mlp"):
        raise ConfigError("model.hidden", got=model.hidden, expected="a list of layer widths for mlp, nothing for other models")
    wanted = _IMAGE_SHAPES.get(model.name)
    if wanted is not None and tuple(image_shape) != wanted:
        raise ConfigError(
            f"model {model.name} and the data set's examples",
            got=tuple(image_shape),
            expected=f"shape {wanted}",
            do="choose mlp",
        )


def _mlp(model: cells.Model, image_shape: tuple[int, ...], classes: int) -> Network:
    """Fully connected layers with ReLU; ``hidden=[32]`` on 8x8 digits has 2,410 parameters."""
    widths = [math.prod(image_shape), *(model.hidden or ())]
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, (wide, narrow) in enumerate(itertools.pairwise(widths), start=1):
        shapes |= _linear(f"fc{layer}", wide, narrow)
    depth = len(widths) - 1

    def body(params: Tree, x: Tensor) -> Tensor:
        z = x.flatten(1)
        for layer in range(1, depth + 1):
            z = F.relu(F.linear(z, params[f"fc{layer}.weight"], params[f"fc{layer}.bias"]))
        return z

    return Network(shapes | _linear("head", widths[-1], classes), body)


def _cnn_cifar(model: cells.Model, image_shape: tuple[int, ...], classes: int) -> Network:
    """Three 3x3 convolutions with 2x2 max pooling and three linear layers (FedDPA's official CIFAR-10 net, 343,946 parameters).

    Pooling comes before ReLU: the values and gradients are the same (ReLU is monotone) at a quarter of the work.
    """
    shapes = _conv("conv1", 3, 16) | _conv("conv2", 16, 32) | _conv("conv3", 32, 32)
    shapes |= _linear("fc1", 512, 512) | _linear("fc2", 512, 128) | _linear("head", 128, classes)

    def body(params: Tree, x: Tensor) -> Tensor:
        z = x.permute(0, 3, 1, 2)
        for layer in ("conv1", "conv2", "conv3"):
            z = F.relu(F.max_pool2d(F.conv2d(z, params[f"{layer}.weight"], params[f"{layer}.bias"], padding=1), 2))
        z = z.flatten(1)
        for layer in ("fc1", "fc2"):
            z = F.relu(F.linear(z, params[f"{layer}.weight"], params[f"{layer}.bias"]))
        return z

    return Network(shapes, body)


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _conv(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs, 3, 3), f"{name}.bias": (outputs,)}


_BUILDERS: dict[str, Callable[[cells.Model, tuple[int, ...], int], Network]] = {"mlp": _mlp, "cnn_cifar": _cnn_cifar}
_IMAGE_SHAPES = {"cnn_cifar": (32, 32, 3)}
NAMES = tuple(_BUILDERS)
