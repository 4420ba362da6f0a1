"""The networks of the papers as pure functions of a parameter tree, and networks from other files.

One network object serves every client; a client is only a parameter tree. The networks of this file
are not ``nn.Module``; a study may name a module in a file (modules.py). Images are channels last
(``[B, H, W, C]``), the layout in which convolutions are fast on a CPU. Every network is a feature
extractor followed by one linear ``head``; methods that split the model share the one and keep the
other. No network has buffers: ResNets normalise with GroupNorm, whose result depends on one example
only, so data influence only the weights of the model.

Pooling comes before ReLU: the values and gradients are the same (ReLU is monotone) at a quarter of
the work.

Initialisation is PyTorch's default, which the official codes of the papers use: U(-1/sqrt(fan_in),
1/sqrt(fan_in)) for the weights and biases of linear and convolutional layers, ones and zeros for
those of normalisation layers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from pflpipe import cells, options, outside
from pflpipe.errors import ConfigError, nearest
from pflpipe.learning import keyed, modules
from pflpipe.learning.modules import HEAD as HEAD
from pflpipe.trees import Tree

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Network:
    """A network for images of one shape and one number of classes.

    Attributes:
        shapes: name -> shape of each parameter, in forward order. A layer is the part of a name
            before the last dot; the last component of a normalisation layer starts with ``norm``.
        body: ``(params, x [B, H, W, C] or [B, D], key) -> z [B, F]``, the feature extractor.
            The int64 scalar ``key`` of a training step determines dropout; ``None`` means
            evaluation, without dropout.
        start: seed -> initial parameters, for a network with an initialisation of its own.
        known_layers: whether all layers are linear, convolutional or GroupNorm and called as here,
            so that fisher.py applies.
        keyed: whether ``body`` reads the key.
    """

    shapes: Shapes
    body: Callable[[Tree, Tensor, Tensor | None], Tensor]
    start: Callable[[int], Tree] | None = None
    known_layers: bool = True
    keyed: bool = False

    def init(self, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tree:
        """Return randomly initialised parameters."""
        if self.start is not None:
            seed = int(torch.randint(2**63 - 1, (), generator=generator))
            return {name: value.to(dtype) for name, value in self.start(seed).items()}
        params = {}
        for name, shape in self.shapes.items():
            layer, _, part = name.rpartition(".")
            if layer.rpartition(".")[2].startswith("norm"):
                params[name] = torch.full(shape, 1.0 if part == "weight" else 0.0, dtype=dtype)
            else:
                bound = 1 / math.sqrt(math.prod(self.shapes[f"{layer}.weight"][1:]))
                params[name] = torch.empty(shape, dtype=dtype).uniform_(
                    -bound, bound, generator=generator
                )
        return params

    def apply(self, params: Tree, x: Tensor, key: Tensor | None = None) -> Tensor:
        """Return the logits ``[B, K]`` of a batch, with dropout if there is the ``key`` of a
        training step."""
        return self.head(params, self.body(params, x, key))

    @staticmethod
    def head(params: Tree, z: Tensor) -> Tensor:
        """Return the logits ``[B, K]`` of features ``z [B, F]``."""
        return _dense(params, "head", z)

    @property
    def parameters(self) -> int:
        """Number of scalars."""
        return sum(math.prod(shape) for shape in self.shapes.values())


def build(model: cells.Model, image_shape: tuple[int, ...], classes: int) -> Network:
    """Return the network of a cell.

    Args:
        model: name and options.
        image_shape: shape of one example: ``(H, W, C)``, ``(T, C)`` or ``(D,)``.
        classes: number of classes K.

    Raises:
        ConfigError: the model is unknown or does not fit the images.
    """
    _check_options(model)
    if outside.is_reference(model.name):
        adapted = modules.adapt(model.name, model.options, tuple(image_shape), classes)
        # Always keyed: also a module without dropout may behave differently in training.
        return Network(adapted.shapes, adapted.body, adapted.start, known_layers=False, keyed=True)
    _check_fit(model, image_shape, classes)
    return _BUILDERS[model.name](model, image_shape, classes)


def check(model: cells.Model, image_shape: tuple[int, ...], classes: int) -> None:
    """Raise ConfigError if the model is unknown, has unknown options, or does not fit the images or
    classes. A module from another file is built and called on random images."""
    build(model, image_shape, classes)


def file_of(model: cells.Model) -> Path | None:
    """Return the user's file of a network, on which its runs depend; None for the networks of this
    package."""
    return outside.file_of(model.name) if outside.is_reference(model.name) else None


def _check_options(model: cells.Model) -> None:
    """Raise ConfigError if the name is unknown or has no options."""
    from_file = outside.is_reference(model.name)
    if not from_file and model.name not in _BUILDERS:
        raise ConfigError(
            "model.name",
            got=model.name,
            do=f"{nearest(model.name, _BUILDERS)} one of your own is written file.py:Net",
        )
    if model.options and not from_file:
        raise ConfigError(
            "model.options are for networks of your own, file.py:Net",
            got=model.name,
            do="remove them for other models",
        )
    options.check(model, "model")


def _check_fit(model: cells.Model, image_shape: tuple[int, ...], classes: int) -> None:
    """Raise ConfigError unless a network of this file fits the images and classes."""
    if classes < 2:
        raise ConfigError("data set", got=classes, expected="at least 2 classes")
    if model.name == "cnn_centaur" and classes not in _CENTAUR_WIDTHS:
        raise ConfigError(
            "model cnn_centaur", got=f"{classes} classes", expected="10 or 100, as in the paper"
        )
    shape = tuple(image_shape)
    if model.name in _RESNETS:
        fits = len(shape) == 3 and min(shape[:2]) >= 8 and shape[2] in (1, 3)
        wanted = "images of at least 8 x 8 with 1 or 3 channels"
    else:
        fits = model.name == "mlp" or shape == _IMAGE_SHAPES[model.name]
        wanted = f"shape {_IMAGE_SHAPES.get(model.name)}"
    if not fits:
        raise ConfigError(
            f"model {model.name} and the data set's examples",
            got=shape,
            expected=wanted,
            do="choose mlp",
        )


def parameter_names(model: cells.Model) -> tuple[str, ...]:
    """Return the names of a network's parameters in forward order. They do not depend on the images
    or the classes."""
    if outside.is_reference(model.name):
        return modules.names(model.name, model.options)
    return tuple(build(model, _IMAGE_SHAPES.get(model.name, (32, 32, 3)), classes=10).shapes)


def norm_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that belong to normalisation layers: the last component of the layer starts
    with ``norm``."""
    return tuple(
        name for name in names if name.rpartition(".")[0].rpartition(".")[2].startswith("norm")
    )


def _mlp(model: cells.Model, image_shape: tuple[int, ...], classes: int) -> Network:
    """Return fully connected layers with ReLU; ``hidden=[32]`` on 8x8 digits has 2,410
    parameters."""
    widths = [math.prod(image_shape), *(model.hidden or ())]
    shapes: Shapes = {}
    for layer, (wide, narrow) in enumerate(itertools.pairwise(widths), start=1):
        shapes |= _linear(f"fc{layer}", wide, narrow)
    depth = len(widths) - 1

    def body(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:
        z = x.flatten(1)
        for layer in range(1, depth + 1):
            z = F.relu(_dense(params, f"fc{layer}", z))
        return z

    return Network(shapes | _linear("head", widths[-1], classes), body)


def _cnn_femnist(model: cells.Model, image_shape: tuple[int, ...], classes: int) -> Network:
    """Return two 3x3 convolutions and two linear layers with dropout (FedDPA's official FEMNIST
    net, 1,206,590 parameters at K = 62).

    The official code has no ReLU after the first convolution and the first linear layer;
    ``relu_everywhere`` adds them.
    """
    shapes = (
        _conv("conv1", 1, 32)
        | _conv("conv2", 32, 64)
        | _linear("fc1", 9216, 128)
        | _linear("head", 128, classes)
    )
    activation = F.relu if model.relu_everywhere else lambda z: z

    def body(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:
        z = activation(_convolve(params, "conv1", x.permute(0, 3, 1, 2)))
        z = F.relu(F.max_pool2d(_convolve(params, "conv2", z), 2))
        z = keyed.dropout(z.flatten(1), 0.25, key, keyed.DROPOUT)
        z = activation(_dense(params, "fc1", z))
        return keyed.dropout(z, 0.5, key, keyed.DROPOUT + 1)

    return Network(shapes, body, keyed=True)


def _cnn_svhn(model: cells.Model, image_shape: tuple[int, ...], classes: int) -> Network:
    """Return two 3x3 convolutions and two linear layers with dropout (FedDPA's official SVHN net,
    1,626,442 parameters at K = 10)."""
    shapes = (
        _conv("conv1", 3, 32)
        | _conv("conv2", 32, 64)
        | _linear("fc1", 12544, 128)
        | _linear("head", 128, classes)
    )

    def body(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:
        z = F.relu(_convolve(params, "conv1", x.permute(0, 3, 1, 2)))
        z = F.relu(F.max_pool2d(_convolve(params, "conv2", z), 2))
        z = keyed.dropout(z.flatten(1), 0.25, key, keyed.DROPOUT)
        return keyed.dropout(F.relu(_dense(params, "fc1", z)), 0.5, key, keyed.DROPOUT + 1)

    return Network(shapes, body, keyed=True)


def _cnn_cifar(model: cells.Model, image_shape: tuple[int, ...], classes: int) -> Network:
    """Return three 3x3 convolutions with pooling and three linear layers (FedDPA's official
    CIFAR-10 net, 343,946 parameters)."""
    shapes = _conv("conv1", 3, 16) | _conv("conv2", 16, 32) | _conv("conv3", 32, 32)
    shapes |= _linear("fc1", 512, 512) | _linear("fc2", 512, 128) | _linear("head", 128, classes)

    def body(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:
        z = x.permute(0, 3, 1, 2)
        for layer in ("conv1", "conv2", "conv3"):
            z = F.relu(F.max_pool2d(_convolve(params, layer, z, padding=1), 2))
        z = F.relu(_dense(params, "fc1", z.flatten(1)))
        return F.relu(_dense(params, "fc2", z))

    return Network(shapes, body)


_CENTAUR_WIDTHS = {10: 384, 100: 128}  # classes -> width of the first linear layer


def _cnn_centaur(model: cells.Model, image_shape: tuple[int, ...], classes: int) -> Network:
    """Return two 5x5 convolutions with pooling and three linear layers (CENTAUR's official net,
    734,762 parameters at K = 10)."""
    width = _CENTAUR_WIDTHS[classes]
    shapes = _conv("conv1", 3, 64, 5) | _conv("conv2", 64, 64, 5)
    shapes |= _linear("fc1", 1600, width) | _linear("fc2", width, 32) | _linear("head", 32, classes)

    def body(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:
        z = x.permute(0, 3, 1, 2)
        for layer in ("conv1", "conv2"):
            z = F.relu(F.max_pool2d(_convolve(params, layer, z), 2))
        z = F.relu(_dense(params, "fc1", z.flatten(1)))
        return F.relu(_dense(params, "fc2", z))

    return Network(shapes, body)


@dataclass(frozen=True)
class _ResNet:
    """A ResNet for small images (He et al., CVPR 2016, section 4.2): a 3x3 stem without stride or
    pooling, then basic blocks.

    Stages after the first halve the image. The shortcut of a block that changes the width is a 1x1
    convolution (option B).

    Attributes:
        widths: channels of each stage.
        blocks: basic blocks of each stage.
        groups: groups of every GroupNorm.
    """

    widths: tuple[int, ...]
    blocks: int
    groups: int

    def __call__(self, model: cells.Model, image_shape: tuple[int, ...], classes: int) -> Network:
        """Return the network."""
        channels = self.widths[0]
        shapes = _conv("conv1", image_shape[2], channels, bias=False) | _norm("norm1", channels)
        strides: dict[str, int] = {}  # block -> stride; the order of the blocks
        for stage, width in enumerate(self.widths, start=1):
            for number in range(1, self.blocks + 1):
                block = f"stage{stage}.block{number}"
                strides[block] = 2 if stage > 1 and number == 1 else 1
                shapes |= _conv(f"{block}.conv1", channels, width, bias=False) | _norm(
                    f"{block}.norm1", width
                )
                shapes |= _conv(f"{block}.conv2", width, width, bias=False) | _norm(
                    f"{block}.norm2", width
                )
                if channels != width:
                    shapes |= _conv(f"{block}.shortcut", channels, width, 1, bias=False) | _norm(
                        f"{block}.norm3", width
                    )
                channels = width

        def body(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:
            z = F.relu(self._normed(params, "conv1", "norm1", x.permute(0, 3, 1, 2), 1))
            for block, stride in strides.items():
                inner = F.relu(self._normed(params, f"{block}.conv1", f"{block}.norm1", z, stride))
                inner = self._normed(params, f"{block}.conv2", f"{block}.norm2", inner, 1)
                if f"{block}.shortcut.weight" in params:
                    z = self._normed(params, f"{block}.shortcut", f"{block}.norm3", z, stride)
                z = F.relu(inner + z)
            return z.mean((2, 3))

        return Network(shapes | _linear("head", channels, classes), body)

    def _normed(self, params: Tree, conv: str, norm: str, z: Tensor, stride: int) -> Tensor:
        z = _convolve(params, conv, z, stride, padding=params[f"{conv}.weight"].shape[-1] // 2)
        return F.group_norm(z, self.groups, params[f"{norm}.weight"], params[f"{norm}.bias"])


def _linear(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _conv(name: str, inputs: int, outputs: int, side: int = 3, bias: bool = True) -> Shapes:
    weight: Shapes = {f"{name}.weight": (outputs, inputs, side, side)}
    return weight | {f"{name}.bias": (outputs,)} if bias else weight


def _norm(name: str, channels: int) -> Shapes:
    return {f"{name}.weight": (channels,), f"{name}.bias": (channels,)}


def _dense(params: Tree, layer: str, z: Tensor) -> Tensor:
    return F.linear(z, params[f"{layer}.weight"], params[f"{layer}.bias"])


def _convolve(params: Tree, layer: str, z: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    return F.conv2d(z, params[f"{layer}.weight"], params.get(f"{layer}.bias"), stride, padding)


_RESNETS = {
    "resnet20": _ResNet((16, 32, 64), 3, groups=8),
    "resnet18": _ResNet((64, 128, 256, 512), 2, groups=32),
}
_BUILDERS: dict[str, Callable[[cells.Model, tuple[int, ...], int], Network]] = {
    "mlp": _mlp,
    "cnn_femnist": _cnn_femnist,
    "cnn_svhn": _cnn_svhn,
    "cnn_cifar": _cnn_cifar,
    "cnn_centaur": _cnn_centaur,
    **_RESNETS,
}
_IMAGE_SHAPES = {
    "cnn_femnist": (28, 28, 1),
    "cnn_svhn": (32, 32, 3),
    "cnn_cifar": (32, 32, 3),
    "cnn_centaur": (32, 32, 3),
}
NAMES = tuple(_BUILDERS)
