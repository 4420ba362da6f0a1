"""Names and shapes of the parameters of each network, and the examples that each network accepts.

networks.py computes with them. This module does not import torch, which takes seconds, so that a
study is checked without it. Only a network from a user's file (modules.py) needs torch.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pflpipe import cells, options
from pflpipe.code import reference
from pflpipe.errors import ConfigError, nearest

Shapes = dict[str, tuple[int, ...]]
"""Name -> shape of each parameter, in forward order. A layer is the part of a name before the last
dot; the last component of a normalisation layer starts with ``norm``."""
LEAVE = "leave the method out here"
"""What to do with a method that does not fit a network or its data."""


def shapes(model: cells.Model, image_shape: tuple[int, ...], classes: int) -> Shapes:
    """Return the parameters that are trained, all but those of ``model.freeze``; see ``whole``."""
    found = whole(model, image_shape, classes)
    for name in frozen(model, found):
        del found[name]
    return found


def frozen(model: cells.Model, names: Iterable[str]) -> tuple[str, ...]:
    """Return those of a network's parameters that stay as they are.

    Raises:
        ConfigError: ``model.freeze`` names no layer, or the head.
    """
    if not model.freeze:
        return ()
    found = layers_named(names, ",".join(model.freeze), "model.freeze")
    if "head.weight" in found:
        expected = "layers before the head, which every method trains"
        raise ConfigError("model.freeze", got="head", expected=expected)
    return found


def whole(
    model: cells.Model, image_shape: tuple[int, ...], classes: int, vocabulary: int | None = None
) -> Shapes:
    """Return all parameters of a network.

    Args:
        model: name and options.
        image_shape: shape of one example: ``(H, W, C)``, ``(T, C)`` or ``(D,)``.
        classes: number of outputs, which for cross-entropy is the number of classes K.
        vocabulary: number of tokens of the data set, if it has tokens.

    Raises:
        ConfigError: the model is unknown, has unknown options, or does not fit the examples or the
            number of classes. A network from a user's file is built and called on random examples.
    """
    check_options(model)
    if reference.is_reference(model.name):
        from pflpipe.learning import modules

        adapted = modules.adapt(model.name, model.options, tuple(image_shape), classes)
        return dict(adapted.shapes)
    check_tokens(model, vocabulary)
    _check_fit(model, image_shape, classes)
    if model.name in RESNETS:
        body = RESNETS[model.name].shapes(image_shape[2], model.shortcut)
    elif model.name == "embedding":
        body = {"embedding.weight": (*(model.hidden or ()), model.items or 0)}
    elif model.name in ("mlp", "linear"):
        body = _mlp([math.prod(image_shape), *(model.hidden or ())])
    elif model.name == "gru":
        *width, state = model.hidden or ()
        body = {"tokens.weight": (model.items or 0, *width)} if width else {}
        body |= _gru(width[0] if width else image_shape[1], state)
    else:
        body = _cnn(model.name, classes)
    # Without a last width, the last parameter has a row for each feature.
    rows = next(reversed(body.values()), (math.prod(image_shape),))[0]
    return body | _linear("head", model.hidden[-1] if model.hidden else rows, classes)


def check_tokens(model: cells.Model, vocabulary: int | None) -> None:
    """Raise ConfigError if a network of this package does not have the tokens of a data set."""
    if reference.is_reference(model.name):
        return
    if vocabulary is not None and vocabulary != model.items:
        what, expected = f"model {model.name}: items", f"{vocabulary}, the data set's vocabulary"
        do = f"write model: {{name: gru, items: {vocabulary}, hidden: [16, 32]}}"
        do += ", or name one of your own"
        raise ConfigError(what, got=model.items, expected=expected, do=do)


def check_options(model: cells.Model) -> None:
    """Raise ConfigError if the name is unknown or has no options."""
    own = reference.is_reference(model.name)
    if not own and model.name not in NAMES:
        do = f"{nearest(model.name, NAMES)} one of your own is written file.py:Net"
        raise ConfigError("model.name", got=model.name, do=do)
    if model.options and not own:
        what, do = "model.options are for networks of your own", "remove them for other models"
        raise ConfigError(f"{what}, file.py:Net", got=model.name, do=do)
    options.check(model, "model")


def _check_fit(model: cells.Model, image_shape: tuple[int, ...], classes: int) -> None:
    """Check that a network of this package fits the images and classes."""
    if model.name == "cnn_centaur" and classes not in _CENTAUR_WIDTHS:
        raise ConfigError(
            "model cnn_centaur", got=f"{classes} classes", expected="10 or 100, as in the paper"
        )
    shape = tuple(image_shape)
    of_tokens = model.name == "gru" and model.items is not None
    if model.name in ("embedding", "gru") and len(model.hidden or ()) != 1 + of_tokens:
        what = f"model.hidden of {model.name}" + " with items" * of_tokens
        expected = "two numbers" if of_tokens else "one number"
        raise ConfigError(what, got=model.hidden, expected=expected)
    if model.name == "embedding":
        if model.items is None:
            raise ConfigError("model.items of embedding", got=None, expected="a number of items")
        fits = shape in ((1,), (model.items,))
        wanted = f"the index of an item, shape (1,), or one-hot, ({model.items},)"
    elif model.name == "gru":
        fits = len(shape) == 1 if of_tokens else len(shape) == 2
        wanted = "tokens [T]" if of_tokens else "sequences [T, C]; of tokens with model.items"
    elif model.name in RESNETS:
        fits = len(shape) == 3 and min(shape[:2]) >= 8 and shape[2] in (1, 3)
        wanted = "images of at least 8 x 8 with 1 or 3 channels"
    else:
        fits = model.name in ("mlp", "linear") or shape == _IMAGE_SHAPES[model.name]
        wanted = f"shape {_IMAGE_SHAPES.get(model.name)}"
    if not fits:
        what = f"model {model.name} and the data set's examples"
        raise ConfigError(what, got=shape, expected=wanted, do="choose mlp")


def parameter_names(model: cells.Model) -> tuple[str, ...]:
    """Return the names of the trained parameters in forward order; they depend on neither the
    images nor the classes."""
    if reference.is_reference(model.name):
        from pflpipe.learning import modules

        names = modules.names(model.name, model.options)
        return tuple(name for name in names if name not in frozen(model, names))
    sequence = (1, 1) if model.items is None else (1,)
    usual = {"embedding": (1,), "gru": sequence, **_IMAGE_SHAPES}
    shape = usual.get(model.name, (32, 32, 3))
    return tuple(shapes(model, shape, classes=10))


def norm_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the parameters of normalisation layers: the last component of such a layer's name
    starts with ``norm``."""
    return tuple(
        name for name in names if name.rpartition(".")[0].rpartition(".")[2].startswith("norm")
    )


def layers_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the layers of a network's parameters, in their order."""
    return tuple(dict.fromkeys(name.rpartition(".")[0] for name in names))


def layers_named(names: Iterable[str], beginnings: str, location: str) -> tuple[str, ...]:
    """Return the parameters of some of a network's layers.

    Args:
        names: all parameters.
        beginnings: of the layers' names, separated by commas.
        location: starts messages.

    Raises:
        ConfigError: the network has no such layers, or no others.
    """
    names, words = tuple(names), [word for item in beginnings.split(",") if (word := item.strip())]
    layers = layers_of(names)
    for word in words:
        if not any(layer.startswith(word) for layer in layers):
            known = f"the beginning of one of {', '.join(layers)}"
            raise ConfigError(location, got=word, expected=known, do=nearest(word, layers))
    if all(layer.startswith(tuple(words)) for layer in layers):
        raise ConfigError(location, got=beginnings, expected="at least one layer left to share")
    return tuple(name for name in names if name.rpartition(".")[0].startswith(tuple(words)))


def check_table(model: cells.Model | None, outputs: int, location: str = "model") -> None:
    """Raise ConfigError if a network is not that of a table of people and items, ``embedding``,
    with all of its layers trained and room for an output of its own for every item.

    Args:
        model: the network's settings; None for one of your own.
        outputs: number of its outputs.
        location: starts messages.
    """
    if model is None or model.name != "embedding" or model.freeze:
        got = "a network of your own" if model is None else model.name
        got += " with frozen layers" if model is not None and model.freeze else ""
        expected = "embedding: the data must be answers of people to items"
        raise ConfigError(location, got=got, expected=expected, do=LEAVE)
    if model.hidden and model.hidden[0] < outputs:
        expected = f"at least {outputs}, the outputs of an item"
        raise ConfigError(f"{location}.hidden", got=model.hidden, expected=expected)


def _mlp(widths: Sequence[int]) -> Shapes:
    found: Shapes = {}
    for layer, (wide, narrow) in enumerate(itertools.pairwise(widths), start=1):
        found |= _linear(f"fc{layer}", wide, narrow)
    return found


def _gru(channels: int, width: int) -> Shapes:
    """Return the four tensors of ``nn.GRU``, in its order. Their names make them one layer with the
    weight of the hidden state, so that ``Network.init`` bounds all four by the width of that state,
    as torch does."""
    matrices: Shapes = {"gru.inputs": (3 * width, channels), "gru.weight": (3 * width, width)}
    return matrices | {"gru.bias_inputs": (3 * width,), "gru.bias": (3 * width,)}


def _cnn(name: str, classes: int) -> Shapes:
    """Return the layers below the head: with it 1,206,590 parameters for FEMNIST's 62 classes,
    1,626,442, 343,946 and 734,762 for the 10 classes of the others."""
    side, channels, widths = _CNNS[name]
    if name == "cnn_centaur":
        widths = (widths[0], _CENTAUR_WIDTHS[classes], *widths[1:])
    found: Shapes = {}
    for layer, (wide, narrow) in enumerate(itertools.pairwise(channels), start=1):
        found |= _conv(f"conv{layer}", wide, narrow, side)
    return found | _mlp(widths)


@dataclass(frozen=True)
class ResNet:
    """A ResNet for small images (He et al., CVPR 2016, section 4.2): a 3x3 stem without stride or
    pooling, then basic blocks.

    Stages after the first halve the image; where a block changes the width, its shortcut is a 1x1
    convolution (option B) or has no parameters (option A).

    Attributes:
        widths: channels of each stage.
        blocks: basic blocks of each stage.
        groups: groups of every GroupNorm.
    """

    widths: tuple[int, ...]
    blocks: int
    groups: int

    def strides(self) -> Iterator[tuple[str, int, int]]:
        """Yield name, width and stride of each block, in forward order."""
        for stage, width in enumerate(self.widths, start=1):
            for number in range(1, self.blocks + 1):
                yield f"stage{stage}.block{number}", width, 2 if stage > 1 and number == 1 else 1

    def shapes(self, colours: int, shortcut: str) -> Shapes:
        """Return the layers below the head, for images of so many channels."""
        channels = self.widths[0]
        found = _conv("conv1", colours, channels, bias=False) | _norm("norm1", channels)
        for block, width, _ in self.strides():
            found |= _conv(f"{block}.conv1", channels, width, bias=False)
            found |= _norm(f"{block}.norm1", width)
            found |= _conv(f"{block}.conv2", width, width, bias=False)
            found |= _norm(f"{block}.norm2", width)
            if channels != width and shortcut == "convolution":
                found |= _conv(f"{block}.shortcut", channels, width, 1, bias=False)
                found |= _norm(f"{block}.norm3", width)
            channels = width
        return found


def _linear(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _conv(name: str, inputs: int, outputs: int, side: int = 3, bias: bool = True) -> Shapes:
    weight: Shapes = {f"{name}.weight": (outputs, inputs, side, side)}
    return weight | {f"{name}.bias": (outputs,)} if bias else weight


def _norm(name: str, channels: int) -> Shapes:
    return {f"{name}.weight": (channels,), f"{name}.bias": (channels,)}


RESNETS = {
    "resnet20": ResNet((16, 32, 64), 3, groups=8),
    "resnet18": ResNet((64, 128, 256, 512), 2, groups=32),
}
_CENTAUR_WIDTHS = {10: 384, 100: 128}  # classes -> width of the first linear layer
# Side of the kernels, channels from the image's on, widths of the linear layers.
_CNNS = {
    "cnn_femnist": (3, (1, 32, 64), (9216, 128)),
    "cnn_svhn": (3, (3, 32, 64), (12544, 128)),
    "cnn_cifar": (3, (3, 16, 32, 32), (512, 512, 128)),
    "cnn_centaur": (5, (3, 64, 64), (1600, 32)),
}
_IMAGE_SHAPES = dict.fromkeys(_CNNS, (32, 32, 3)) | {"cnn_femnist": (28, 28, 1)}
NAMES = ("mlp", "linear", "embedding", "gru", *_IMAGE_SHAPES, *RESNETS)
