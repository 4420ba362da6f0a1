"""Networks from other files: a ``torch.nn.Module`` as pure functions of a parameter tree.

The module is called through ``torch.func.functional_call``, so one object serves every client, in
a loop and under vmap. Its last linear layer is the head. The module with an identity instead of the
head is the feature extractor. It receives images and sequences channels first and contiguous,
``[B, C, H, W]`` and ``[B, C, T]``, as modules expect (``view`` needs contiguous tensors).

The network is refused at construction if it would make a privacy claim or a comparison false: if
rows of a batch influence each other, if data change its state (BatchNorm does both), if its
randomness does not come from the key of a step, or if layers follow the head. ``nn.Dropout`` is
replaced by a layer whose masks come from the key, so that a step is the same in a loop, under vmap
and after a resume. torch's global generator cannot provide this. sequences.py replaces recurrent
layers and attention.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.parameter import UninitializedParameter

from pflpipe.code import guard, user_files
from pflpipe.errors import ConfigError
from pflpipe.files import canonical_json
from pflpipe.learning import counter_rng, sequences
from pflpipe.trees import Tree

HEAD = ("head.weight", "head.bias")
# Image shapes for reading the names of parameters, which must not depend on the shape: the module
# is built with one of them, and not called.
_USUAL_SHAPES = ((32, 32, 3), (28, 28, 1), (64,), (64, 3))
_NORMS = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.modules.instancenorm._InstanceNorm)
# Difference of features that counts as rounding, relative to the largest feature.
_ROUNDING = 1e-4
_GIVEN = (
    "it is given images [B, C, H, W], sequences [B, C, T] or features [B, D], and returns logits "
    "[B, K]"
)


@dataclass(frozen=True)
class Adapted:
    """The functions of a module, with parameter names as in networks.py: ``head.weight`` and
    ``head.bias`` come last, and the last component of a normalisation layer starts with ``norm``.

    Attributes:
        shapes: name -> shape of each parameter, in the module's order.
        body: ``(params, x [B, H, W, C], [B, T, C] or [B, D], key) -> z [B, F]``.
        start: seed -> the module's initial parameters, float32.
        paths: name -> the parameter's name in the module.
    """

    shapes: dict[str, tuple[int, ...]]
    body: Callable[[Tree, Tensor, Tensor | None], Tensor]
    start: Callable[[int], Tree]
    paths: Mapping[str, str]


def adapt(
    reference: str,
    options: Mapping[str, Any],
    image_shape: tuple[int, ...],
    classes: int,
    tried: bool = True,
) -> Adapted:
    """Return the module ``file.py:Net``, checked for private training.

    Args:
        reference: the file, relative to the working directory, and the name in it: a class, or a
            function that returns a module. It is called as ``Net(image_shape=(C, H, W), (C, T) or
            (D,), classes=K, **options)``.
        options: further arguments.
        image_shape: ``(H, W, C)``, ``(T, C)`` or ``(D,)``.
        classes: number of classes K.
        tried: whether the module is called on random images for the checks.

    Raises:
        ConfigError: the reason why the module is refused.
    """
    factory = user_files.load(reference)
    return _adapted(reference, factory, canonical_json(dict(options)), image_shape, classes, tried)


@functools.cache
def _adapted(
    reference: str,
    factory: Any,
    options: str,
    image_shape: tuple[int, ...],
    classes: int,
    tried: bool,
) -> Adapted:
    where = f"model {reference}"

    def build(seed: int) -> nn.Module:
        return _made(where, factory, json.loads(options), image_shape, classes, seed)

    module = build(0)
    paths, outputs = _paths(where, module), _head(where, module)[1].out_features
    if outputs != classes:
        got, do = f"a head with {outputs} outputs", "give the last layer `classes` outputs"
        _refuse(where, got, f"{classes}, the data set's classes", do)
    body = _Body.of(where, module)

    def start(seed: int) -> Tree:
        values = dict(build(seed).named_parameters())
        return {name: values[path].detach().clone() for name, path in paths.items()}

    # Twice from one seed: an initialisation that draws from NumPy, say, would differ.
    params, again = start(0), start(0)
    if any(not value.equal(again[name]) for name, value in params.items()):
        got = "other initial parameters for the same seed of torch"
        _refuse(where, got, "an initialisation that draws from torch alone")
    if tried:
        _check_calls(where, module, params, body, image_shape)
    shapes = {name: tuple(value.shape) for name, value in params.items()}
    return Adapted(shapes, body, start, paths)


def of_object(
    module: nn.Module | Callable[..., nn.Module],
    image_shape: tuple[int, ...],
    classes: int,
    tried: bool = True,
) -> Adapted:
    """Return a module of the program that calls, checked as in ``adapt``: a class or a function,
    called as there, or an instance, which starts for every seed as it is."""
    kind = type(module) if isinstance(module, nn.Module) else module
    name = getattr(kind, "__name__", type(kind).__name__)

    def copied(image_shape: tuple[int, ...], classes: int) -> nn.Module:
        return copy.deepcopy(cast(nn.Module, module))

    factory = copied if isinstance(module, nn.Module) else module
    # Not from the cache: the values of an instance may change between two calls.
    return _adapted.__wrapped__(name, factory, "{}", image_shape, classes, tried)


def names(reference: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a module's parameters, as in ``adapt``. They may not depend on the images
    or the classes.

    Raises:
        ConfigError: as ``adapt``, for the checks that need no call of the module.
    """
    where, factory = f"model {reference}", user_files.load(reference)
    problem: ConfigError | None = None
    for shape in _USUAL_SHAPES:
        try:
            return tuple(_paths(where, _made(where, factory, options, shape, 10, 0)))
        except ConfigError as error:
            problem = problem or error
    assert problem is not None  # for mypy: every shape failed
    raise problem


def _refuse(where: str, got: str, expected: str, do: str = "") -> NoReturn:
    raise ConfigError(where, got=got, expected=expected, do=do)


def _made(
    where: str,
    factory: Any,
    options: Mapping[str, Any],
    image_shape: tuple[int, ...],
    classes: int,
    seed: int,
) -> nn.Module:
    """Return the module with its own initialisation, drawn from ``seed``. The state of the global
    generator does not change."""
    shape = (image_shape[-1], *image_shape[:-1])  # (C, H, W), (C, T), and (D,) as it is
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        do = f"it is called with image_shape={shape}, classes={classes} and its options"
        with _called(where, "cannot be made", do):
            module = factory(image_shape=shape, classes=classes, **options)
    if not isinstance(module, nn.Module):
        _refuse(where, type(module).__name__, "a torch.nn.Module")
    for path, layer in module.named_modules():
        _check_layer(where, path, layer)
    for path, value in module.named_parameters():
        if isinstance(value, UninitializedParameter):
            _refuse(where, f"{path}, which waits for data to know its shape", "shapes from options")
        if not value.requires_grad or not value.is_floating_point():
            got, do = f"{path}, which is not to be trained", "make a constant a buffer"
            _refuse(where, got, "parameters that every client trains", do)
        if value.dtype != torch.float32 or value.device.type != "cpu":
            got = f"{path} in {value.dtype} on {value.device}"
            _refuse(where, got, "parameters in float32 on the CPU: config.yaml names the device")
    return module


def _check_layer(where: str, path: str, layer: nn.Module) -> None:
    """Raise ConfigError for layers of torch that cannot be private or reproducible."""
    batches = isinstance(layer, nn.modules.batchnorm._BatchNorm)
    got = f"{type(layer).__name__} {path}"
    if batches or getattr(layer, "track_running_stats", False):
        expected = "no layer that mixes examples or keeps statistics of them"
        _refuse(where, got, f"{expected}: they would be released without noise", "use GroupNorm")
    if isinstance(layer, nn.modules.dropout._DropoutNd) and type(layer) is not nn.Dropout:
        _refuse(where, got, "nn.Dropout, the only layer whose masks can follow from a step's key")


def _head(where: str, module: nn.Module) -> tuple[str, nn.Linear]:
    """Return the head and its path: the module's attribute (``head = "fc"``), or the last linear
    layer."""
    declared = getattr(module, "head", None)
    layers: dict[str, nn.Module] = {path: part for path, part in module.named_modules() if path}
    if isinstance(declared, str):
        if "head" in layers:  # torch then finds the text and not the layer
            _refuse(where, "a layer and an attribute named head", "one of them", "rename the layer")
        if declared not in layers:
            _refuse(where, f"head = {declared!r}", f"one of {', '.join(layers)}")
        path = str(declared)
    else:
        linear = [path for path, layer in layers.items() if isinstance(layer, nn.Linear)]
        if not linear:
            _refuse(where, "no nn.Linear layer", "one as its head", 'or say which: head = "fc"')
        path = linear[-1]
    head = layers[path]
    if not isinstance(head, nn.Linear) or head.bias is None:
        _refuse(where, f"the head {path!r}, {head}", "an nn.Linear with a bias")
    return path, head


def _paths(where: str, module: nn.Module) -> dict[str, str]:
    """Return our name -> the module's name of every parameter, the head's last."""
    head, layer = _head(where, module)
    all_paths = [path for path, _ in module.named_parameters()]
    head_paths = [f"{head}.weight", f"{head}.bias"]
    # Tied weights: a head that is used elsewhere could not be kept on the client.
    with_ties = [id(value) for _, value in module.named_parameters(remove_duplicate=False)]
    if with_ties.count(id(layer.weight)) + with_ties.count(id(layer.bias)) > 2:
        _refuse(where, f"a head {head!r} that shares its weights", "a head with weights of its own")
    paths: dict[str, str] = {}
    for path in all_paths:
        if path not in head_paths:
            layer_path, _, parameter = path.rpartition(".")
            parent, _, name = layer_path.rpartition(".")
            if isinstance(module.get_submodule(layer_path), _NORMS) and not name.startswith("norm"):
                name = f"norm_{name}"
            paths[".".join(filter(None, (parent, name, parameter)))] = path
    paths |= {"head.weight": head_paths[0], "head.bias": head_paths[1]}
    if len(paths) != len(all_paths):
        _refuse(where, "two layers of one name", "another name for the layer called 'head'")
    return paths


class _Dropout(nn.Module):
    """``nn.Dropout`` with a mask from ``key``, a buffer that every call replaces."""

    key: Tensor

    def __init__(self, rate: float, stream: int) -> None:
        super().__init__()
        self.rate, self.stream = rate, stream
        self.register_buffer("key", torch.zeros((), dtype=torch.int64))

    def forward(self, z: Tensor) -> Tensor:
        """Return ``z`` with entries dropped, in training only."""
        return counter_rng.dropout(z, self.rate, self.key if self.training else None, self.stream)


@dataclass(frozen=True)
class _Body:
    """The feature extractor ``(params, x, key) -> z``: the module with an identity instead of its
    head.

    Attributes:
        trained, tested: the module in training mode and in evaluation mode.
        paths: our name -> the module's name of every parameter except the head's.
        linear: the module's names of the weights of linear layers.
        keys: names of the buffers for the key of a step, one for each dropout layer.
        constants: the other buffers, which never change.
    """

    trained: nn.Module
    tested: nn.Module
    paths: Mapping[str, str]
    linear: Set[str]
    keys: tuple[str, ...]
    constants: Mapping[str, Tensor]

    @classmethod
    def of(cls, where: str, module: nn.Module) -> _Body:
        trained = copy.deepcopy(module).train()
        trained.set_submodule(_head(where, module)[0], nn.Identity())
        parts, streams = dict(trained.named_modules()), itertools.count(counter_rng.DROPOUT)
        for path, part in parts.items():
            if isinstance(part, nn.Dropout):
                trained.set_submodule(path, _Dropout(part.p, next(streams)))
        for part in parts.values():
            sequences.adapt(part, lambda rate: _Dropout(rate, next(streams)))
        keys = tuple(
            f"{path}.key" for path, part in trained.named_modules() if isinstance(part, _Dropout)
        )
        constants = {path: value for path, value in trained.named_buffers() if path not in keys}
        paths = {ours: path for ours, path in _paths(where, module).items() if ours not in HEAD}
        linear = {
            f"{path}.weight" for path, part in trained.named_modules() if type(part) is nn.Linear
        }
        return cls(trained, copy.deepcopy(trained).eval(), paths, linear, keys, constants)

    def __call__(self, params: Tree, x: Tensor, key: Tensor | None) -> Tensor:
        # In a solver's vector, kernels are channels last, and their outputs would be so too;
        # matrices have their axes exchanged, which linear layers read fast, but ``view`` does not
        # accept.
        values = {
            path: params[name] if path in self.linear else params[name].contiguous()
            for name, path in self.paths.items()
        }
        for path, value in self.constants.items():
            values[path] = value.to(x) if value.is_floating_point() else value.to(x.device)
        module = self.tested
        if key is not None:
            module = self.trained
            values |= dict.fromkeys(self.keys, key)
        z: Tensor = functional_call(module, values, (_channels_first(x),))
        return z


def _channels_first(x: Tensor) -> Tensor:
    return x.movedim(-1, 1).contiguous() if x.dim() > 2 else x


def _check_calls(
    where: str, module: nn.Module, params: Tree, body: _Body, image_shape: tuple[int, ...]
) -> None:
    """Call the module on random images; raise ConfigError if it cannot be private or cannot be
    computed for many clients at once."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(3, *image_shape, generator=generator) - 0.5
    # A head that is initialised to zero would hide the layers before and after it.
    params = {
        name: value + 0.05 * torch.randn(value.shape, generator=generator)
        for name, value in params.items()
    }
    weight, bias = (params[name] for name in HEAD)
    values = {path: params[name] for name, path in _paths(where, module).items()}
    with torch.no_grad(), _called(where, "cannot be called"):
        logits = functional_call(module.eval(), values, (_channels_first(x),))
    if not isinstance(logits, Tensor) or logits.shape != (3, len(bias)):
        shape = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        _refuse(where, f"{shape} for 3 images", f"logits [3, {len(bias)}]")
    _check_values(where, "logits", logits)
    with torch.no_grad(), _called(where, "cannot be called without its head"):
        z = body(params, x, None)
    if z.shape != (3, weight.shape[1]) or not _close(F.linear(z, weight, bias), logits):
        expected = "a head that comes last and once, as methods train it alone on its inputs"
        do = 'say which layer it is: head = "fc"'
        _refuse(where, "logits that are not the output of its head", expected, do)
    for key in (None, torch.tensor(7)):
        _check_rows(where, body, params, x, key)


def _check_values(where: str, what: str, values: Tensor) -> None:
    """Raise ConfigError unless values that the module computes are finite and in float32."""
    if values.dtype != torch.float32:
        _refuse(where, f"{what} in {values.dtype}", "float32, as its images and parameters are")
    if not values.isfinite().all():
        _refuse(where, f"{what} that are NaN or infinite", "finite ones for any small images")


def _check_rows(where: str, body: _Body, params: Tree, x: Tensor, key: Tensor | None) -> None:
    """Raise ConfigError unless the feature extractor, in evaluation (no ``key``) or in training,
    computes each row by itself, repeatably, and equally under vmap."""
    # Two clients with different parameters and inputs, which vmap must not mix.
    two = {name: torch.stack([value, 0.9 * value]) for name, value in params.items()}
    before = {path: value.clone() for path, value in body.constants.items()}
    mode = "evaluation" if key is None else "training"
    with torch.no_grad(), _called(where, f"cannot be called in {mode}"):
        with _counted(body.trained) as calls:
            z = body(params, x, key)
        # Other rows change, before and after, or are left out: a row's features must stay.
        others = body(params, torch.cat([x[:1], -x[1:]]), key)
        first = body(params, torch.cat([-x[:2], x[2:]]), key)
        again, fewer = body(params, x, key), body(params, x[:2], key)
    _check_values(where, f"features, in {mode},", z)
    with torch.no_grad(), guard.restored():
        try:
            vmapped = vmap(lambda params, x: body(params, x, key))(two, torch.stack([x, -x]))
        except RuntimeError as problem:
            if "random" in str(problem):
                got, do = "random numbers of torch's global generator", "use layers nn.Dropout"
                expected = (
                    "randomness that follows from a step's key, else no run could be repeated"
                )
                _refuse(where, got, expected, f"{do}, whose masks do")
            raise ConfigError(
                f"{where} cannot be computed for many clients at once",
                got=guard.described(problem),
                do="torch.func.vmap must be able to run it: no branch on values, no .item()",
            ) from problem
    changed = [path for path, value in body.constants.items() if not value.equal(before[path])]
    if changed or not _close(again, z):
        got = f"a call that changes {', '.join(changed) or 'what the next one returns'}"
        _refuse(where, got, "no state that data leave behind: it would be released without noise")
    if not all(map(_close, (others[:1], fewer, first[2:]), (z[:1], z[:2], z[2:]))):
        got = "features of an example that depend on the others of its batch"
        do = "normalise within an example, as GroupNorm does, and keep the batch the first axis"
        _refuse(where, got, "examples that do not see each other", do)
    if not _close(vmapped[0], z):
        _refuse(where, "other features for many clients at once (vmap)", "the same")
    if max(calls.values(), default=1) > 1:
        twice = ", ".join(path for path, number in calls.items() if number > 1)
        _refuse(where, f"{twice} called twice", "a dropout layer of its own for every call")


@contextlib.contextmanager
def _called(where: str, failure: str, do: str = _GIVEN) -> Iterator[None]:
    """Turn any exception of the user's module into a ConfigError of one line."""
    try:
        with guard.restored():
            yield
    except (Exception, SystemExit) as problem:
        raise ConfigError(f"{where} {failure}", got=guard.described(problem), do=do) from problem


@contextlib.contextmanager
def _counted(module: nn.Module) -> Iterator[Counter[str]]:
    """Yield a counter of the calls of every dropout layer."""
    # A layer that is called twice would use the same mask twice: its key is one buffer.
    calls: Counter[str] = Counter()
    hooks = [
        part.register_forward_pre_hook(lambda *_, path=path: calls.update([path]))
        for path, part in module.named_modules()
        if isinstance(part, _Dropout)
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _close(one: Tensor, other: Tensor) -> bool:
    largest = float(other.abs().max())
    return one.shape == other.shape and float((one - other).abs().max()) <= _ROUNDING * largest
