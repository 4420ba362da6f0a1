"""The networks of the papers as pure functions of a parameter tree, and networks from other files.

One network object serves every client; a client is only a parameter tree. The networks of this file
are not ``nn.Module``; a study may name a module in a file (modules.py). Images are channels last
(``[B, H, W, C]``), the layout in which convolutions are fast on a CPU. Every network is a feature
extractor followed by one linear ``head``; methods that split the model share the one and keep the
other. No network has buffers, so data influence only the weights of the model. ResNets normalise
with GroupNorm, whose result depends on one example only, or with BatchNorm, whose averages each
client makes of its own rows and keeps.

Pooling comes before ReLU: the values and gradients are the same (ReLU is monotone) at a quarter of
the work.

Initialisation is PyTorch's default, which the official codes of the papers use: U(-1/sqrt(fan_in),
1/sqrt(fan_in)) for the weights and biases of linear and convolutional layers, ones and zeros for
those of normalisation layers, N(0, 1) for the vectors of tokens.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from pflpipe import cells
from pflpipe.code import reference
from pflpipe.learning import architectures, counter_rng, initial, modules, sequences
from pflpipe.learning.architectures import RESNETS, ResNet, Shapes
from pflpipe.learning.modules import HEAD as HEAD
from pflpipe.learning.solvers import Schedule
from pflpipe.seeds import seed_for
from pflpipe.trees import Tree

Body = Callable[[Tree, Tensor, Tensor | None], Tensor]
Normalise = Callable[[Tree, str, Tensor], Tensor]  # (params, layer, z [B, C, H, W]) -> z


@dataclass(frozen=True)
class Network:
    """A network for images of one shape and one number of classes.

    Attributes:
        shapes: name -> shape of each parameter (architectures.py).
        body: ``(params, x [B, H, W, C] or [B, D], key) -> z [B, F]``, the feature extractor;
            dropout follows from the int64 scalar ``key`` of a training step, and ``None`` means
            evaluation, without dropout.
        start: seed -> initial parameters, for a network with an initialisation of its own, or with
            weights from a file, which are the same for every seed.
        known_layers: whether all layers are linear, convolutional or GroupNorm and called as here,
            so that fisher.py applies.
        keyed: whether ``body`` reads the key.
        averages: ``(params, one pass over a client's rows) -> averages``, for a network with
            BatchNorm. With them among its ``params``, ``body`` normalises by them, and otherwise by
            the mean and variance of its batch.
        frozen: parameters that nobody trains or sends, on the CPU.
        model: the settings that ``build`` made it from; None for one of your own.
    """

    shapes: Shapes
    body: Body
    start: Callable[[int], Tree] | None = None
    known_layers: bool = True
    keyed: bool = False
    averages: Callable[[Tree, Schedule], Tree] | None = None
    frozen: Tree = field(default_factory=dict)
    model: cells.Model | None = None

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
            elif layer == "tokens":
                params[name] = torch.empty(shape, dtype=dtype).normal_(generator=generator)
            else:
                # fan_in: the number of inputs of one output. The bias has the bound of its weight.
                bound = 1 / math.sqrt(math.prod(self.shapes[f"{layer}.weight"][1:]))
                params[name] = torch.empty(shape, dtype=dtype).uniform_(
                    -bound, bound, generator=generator
                )
        return params

    def start_digest(self, seed: int) -> str:
        """Return the SHA-256 of the parameters, float32, with which the runs of a seed start."""
        total = hashlib.sha256()
        for name, value in self.init(torch.Generator().manual_seed(seed_for(seed, "init"))).items():
            total.update(f"{name} {[*value.shape]} ".encode())
            total.update(value.detach().cpu().numpy().tobytes())
        return total.hexdigest()

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


def build(
    model: cells.Model,
    image_shape: tuple[int, ...],
    classes: int,
    *,
    vocabulary: int | None = None,
    tried: bool = True,
) -> Network:
    """Return the network of a cell; arguments and errors as for ``initial.weights``.

    Args:
        vocabulary: number of tokens of the data set, if it has tokens.
        tried: whether a module of a file is called on random images for the checks.
    """
    drawn = _drawn(model, image_shape, classes, vocabulary, tried)
    network = dataclasses.replace(drawn, model=model)
    weights = initial.weights(model, image_shape, classes)
    if weights is None:
        return network
    shapes = architectures.shapes(model, image_shape, classes)
    network = dataclasses.replace(
        network, start=lambda seed: {name: torch.tensor(weights[name]) for name in shapes}
    )
    frozen = {name: torch.tensor(weights[name]) for name in weights if name not in shapes}
    if not frozen:
        return network

    def whole(params: Tree, like: Tensor) -> Tree:
        constants = {name: value.to(like.device, like.dtype) for name, value in frozen.items()}
        return params | constants

    def body(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:
        return network.body(whole(params, x), x, key)

    def averages(params: Tree, rows: Schedule) -> Tree:
        assert network.averages is not None  # for mypy
        return network.averages(whole(params, rows.x), rows)

    return dataclasses.replace(
        network,
        shapes=shapes,
        body=body,
        averages=network.averages and averages,
        known_layers=False,
        frozen=frozen,
    )


def of_module(
    module: torch.nn.Module | Callable[..., torch.nn.Module],
    image_shape: tuple[int, ...],
    classes: int,
    *,
    tried: bool = True,
) -> Network:
    """Return the network of a torch module that has no file; see ``modules.of_object``."""
    return _of(modules.of_object(module, tuple(image_shape), classes, tried))


def _of(found: modules.Adapted) -> Network:
    # With dropout or without, a module may ask whether it is trained.
    return Network(found.shapes, found.body, found.start, known_layers=False, keyed=True)


def _drawn(
    model: cells.Model,
    image_shape: tuple[int, ...],
    classes: int,
    vocabulary: int | None,
    tried: bool,
) -> Network:
    """Return the network with initial parameters that follow from the seed."""
    if reference.is_reference(model.name):
        architectures.check_options(model)
        return _of(modules.adapt(model.name, model.options, tuple(image_shape), classes, tried))
    shapes = architectures.whole(model, image_shape, classes, vocabulary)
    if model.name in RESNETS:
        architecture = RESNETS[model.name]
        if model.normalisation == "batch":
            body, averages = _resnet(architecture, _batch_norm), _averages(architecture)
            return Network(shapes, body, known_layers=False, averages=averages)
        return Network(shapes, _resnet(architecture, _group_norm(architecture.groups)))
    body = {
        "mlp": _mlp(model),
        "linear": _mlp(model),
        "gru": _gru if model.items is None else _gru_of_tokens,
        "embedding": _embedding,
        "cnn_femnist": _cnn_with_dropout(F.relu if model.relu_everywhere else lambda z: z),
        "cnn_svhn": _cnn_with_dropout(F.relu),
        "cnn_cifar": _cnn_with_pooling("conv1", "conv2", "conv3", padding=1),
        "cnn_centaur": _cnn_with_pooling("conv1", "conv2"),
    }[model.name]
    looks_up = model.name == "embedding" and tuple(image_shape) == (1,)
    known = model.name != "gru" and not looks_up
    keyed = model.name in ("cnn_femnist", "cnn_svhn")
    return Network(shapes, body, known_layers=known, keyed=keyed)


def _mlp(model: cells.Model) -> Body:
    """Fully connected layers with ReLU."""
    depth = len(model.hidden or ())

    def body(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:
        z = x.flatten(1)
        for layer in range(1, depth + 1):
            z = F.relu(_dense(params, f"fc{layer}", z))
        return z

    return body


def _embedding(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:
    """One vector for each item, without bias: the shared representation of people x items, on
    which a head per person is a factorisation of their answers."""
    weight = params["embedding.weight"]
    if x.shape[1] > 1:
        return F.linear(x, weight)
    # Contiguous: the layers after it then round as after a product with one-hot rows.
    return _looked_up(weight, x[:, 0]).mT.contiguous()


def _looked_up(vectors: Tensor, item: Tensor) -> Tensor:
    """Return the columns ``[F, n]`` of ``vectors [F, items]`` at the indices ``item [n]``. A number
    that is the index of none is a column of zeros."""
    known = (item >= 0) & (item < vectors.shape[1]) & (item == item.floor())
    columns = torch.where(known, item, 0.0).to(torch.int64).expand(len(vectors), -1)
    return vectors.gather(1, columns).where(known, 0.0)


def _gru_of_tokens(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:
    """A trained vector for each token ``[B, T]``, then ``_gru``."""
    vectors = params["tokens.weight"]
    found = _looked_up(vectors.mT, x.flatten())
    return _gru(params, found.mT.reshape(*x.shape, vectors.shape[1]), key)


def _gru(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:
    """The last hidden state of a gated recurrent unit (Cho et al., EMNLP 2014) as in torch."""
    names = ("gru.inputs", "gru.weight", "gru.bias_inputs", "gru.bias")
    weights = [*(params[name] for name in names), None]
    start = x.new_zeros(len(x), params["gru.weight"].shape[1])
    return sequences.steps("GRU", x, weights, start)[1]


def _cnn_with_dropout(activation: Callable[[Tensor], Tensor]) -> Body:
    """Two 3x3 convolutions and two linear layers with dropout (FedDPA's official nets for FEMNIST
    and SVHN).

    The official code for FEMNIST has no ReLU (``activation``) after the first convolution and the
    first linear layer; ``relu_everywhere`` adds them.
    """

    def body(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:
        z = activation(_convolve(params, "conv1", x.permute(0, 3, 1, 2)))
        z = F.relu(F.max_pool2d(_convolve(params, "conv2", z), 2))
        z = counter_rng.dropout(z.flatten(1), 0.25, key, counter_rng.DROPOUT)
        z = activation(_dense(params, "fc1", z))
        return counter_rng.dropout(z, 0.5, key, counter_rng.DROPOUT + 1)

    return body


def _cnn_with_pooling(*convolutions: str, padding: int = 0) -> Body:
    """Convolutions with pooling and three linear layers: three of 3x3 in FedDPA's official CIFAR-10
    net, two of 5x5 in CENTAUR's official net."""

    def body(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:
        z = x.permute(0, 3, 1, 2)
        for layer in convolutions:
            z = F.relu(F.max_pool2d(_convolve(params, layer, z, padding=padding), 2))
        z = F.relu(_dense(params, "fc1", z.flatten(1)))
        return F.relu(_dense(params, "fc2", z))

    return body


def _resnet(architecture: ResNet, normalise: Normalise) -> Body:
    """Basic blocks with normalisation, then the mean over the image."""

    def normed(params: Tree, conv: str, norm: str, z: Tensor, stride: int) -> Tensor:
        z = _convolve(params, conv, z, stride, padding=params[f"{conv}.weight"].shape[-1] // 2)
        return normalise(params, norm, z)

    def body(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:
        z = F.relu(normed(params, "conv1", "norm1", x.permute(0, 3, 1, 2), 1))
        for block, _, stride in architecture.strides():
            inner = F.relu(normed(params, f"{block}.conv1", f"{block}.norm1", z, stride))
            inner = normed(params, f"{block}.conv2", f"{block}.norm2", inner, 1)
            if f"{block}.shortcut.weight" in params:
                z = normed(params, f"{block}.shortcut", f"{block}.norm3", z, stride)
            elif z.shape != inner.shape:  # option A: as many new channels before as behind
                side = (inner.shape[1] - z.shape[1]) // 2
                z = F.pad(z[:, :, ::stride, ::stride], (0, 0, 0, 0, side, side))
            z = F.relu(inner + z)
        return z.mean((2, 3))

    return body


def _group_norm(groups: int) -> Normalise:
    def normalise(params: Tree, layer: str, z: Tensor) -> Tensor:
        return F.group_norm(z, groups, params[f"{layer}.weight"], params[f"{layer}.bias"])

    return normalise


def _batch_norm(params: Tree, layer: str, z: Tensor) -> Tensor:
    """BatchNorm (Ioffe and Szegedy, ICML 2015)."""
    mean, variance = (params.get(f"{layer}.{part}") for part in ("mean", "variance"))
    weight, bias = params[f"{layer}.weight"], params[f"{layer}.bias"]
    if mean is None and z[:, 0].numel() == 1:  # its own mean, which torch refuses
        return bias.view(-1, 1, 1).expand_as(z)
    return F.batch_norm(z, mean, variance, weight, bias, training=mean is None)


def _averages(architecture: ResNet) -> Callable[[Tree, Schedule], Tree]:
    """Return the function that makes the averages of every BatchNorm, as in Algorithm 2 of its
    paper: the means of its minibatches' means and variances, here weighted by their rows."""

    def averages(params: Tree, rows: Schedule) -> Tree:
        found: Tree = {}

        def normalise(params: Tree, layer: str, z: Tensor) -> Tensor:
            # A single number, such as one pixel of one row, has no variance.
            correction = int(z[:, 0].numel() > 1)
            variance, mean = torch.var_mean(z, (0, 2, 3), correction=correction)
            for part, value in (("mean", mean), ("variance", variance)):
                name, share = f"{layer}.{part}", len(z) / len(rows.x)
                found[name] = found.get(name, torch.zeros_like(value)) + share * value
            return _batch_norm(params, layer, z)

        body = _resnet(architecture, normalise)
        for batch in rows:
            body(params, batch.x, None)
        if not len(rows):  # nothing to average: only weight and bias act
            for layer in architectures.layers_of(architectures.norm_names(params)):
                bias = params[f"{layer}.bias"]
                found[f"{layer}.mean"] = torch.zeros_like(bias)
                found[f"{layer}.variance"] = torch.ones_like(bias)
        return found

    return averages


def _dense(params: Tree, layer: str, z: Tensor) -> Tensor:
    return F.linear(z, params[f"{layer}.weight"], params[f"{layer}.bias"])


def _convolve(params: Tree, layer: str, z: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    # Images are permuted views, so z is channels last in memory without a copy.
    return F.conv2d(z, params[f"{layer}.weight"], params.get(f"{layer}.bias"), stride, padding)
