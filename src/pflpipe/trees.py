"""Arithmetic on trees. A tree is a ``dict[str, Tensor]``, such as a model's parameters, an update
or a mask.

Type checkers distinguish ``Params``, ``Update``, ``ServerState`` and ``ClientState``, so that
swapping two of them is an error; at run time all are plain dicts. Parameters minus parameters are
an update, and parameters plus an update are parameters.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NewType, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

Tree = dict[str, Tensor]
Tensors = Mapping[str, Tensor]
"""A tree that is only read."""
Params = NewType("Params", Tree)
"""Parameters of a model: the released global model, or a client's model."""
Update = NewType("Update", Tree)
"""A change of parameters: a client's upload, or the noised mean that is released."""
ServerState = NewType("ServerState", Tree)
"""The server's state between rounds besides the model; public."""
ClientState = NewType("ClientState", Tree)
"""One client's state between rounds; private, it never leaves the client."""

AnyTree = TypeVar("AnyTree", bound=Tree)


def add(a: AnyTree, b: Tree) -> AnyTree:
    """Return ``a + b``. Names that only ``a`` has keep their values: ``b`` may cover a part of the
    model. Names that only ``b`` has are left out."""
    both = {name: value + b[name] if name in b else value for name, value in a.items()}
    return cast(AnyTree, both)


def sub(a: Tree, b: Tree) -> Update:
    """Return ``a - b``, the change from ``b`` to ``a``, for trees with the same names."""
    return Update({name: value - b[name] for name, value in a.items()})


def mul(a: AnyTree, b: Tree) -> AnyTree:
    """Return the element-wise product of trees with the same names."""
    return cast(AnyTree, {name: value * b[name] for name, value in a.items()})


def where(mask: Tree, a: Tree, b: AnyTree) -> AnyTree:
    """Return the values of ``a`` where the boolean ``mask`` is true, those of ``b`` elsewhere."""
    return cast(AnyTree, {name: torch.where(mask[name], a[name], b[name]) for name in mask})


def norm(tree: Tree) -> Tensor:
    """Return the joint L2 norm over all tensors, a scalar. Its gradient at the zero tree is zero
    (not NaN)."""
    # The square root of a sum of squares would have the gradient 0 / 0 there; vector_norm has 0.
    norms = [torch.linalg.vector_norm(value) for value in tree.values()]
    length: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return length


def flat(tree: Tensors) -> Tensor:
    """Return all numbers of a tree in one vector."""
    return torch.cat([value.reshape(-1) for value in tree.values()])


def parted(rows: Tensor, shapes: Mapping[str, Sequence[int]]) -> Tree:
    """Return ``rows [..., d]`` as tensors ``[..., *shape]`` of these shapes, in their order."""
    parts = torch.split(rows, [math.prod(shape) for shape in shapes.values()], dim=-1)
    named = zip(shapes, parts, strict=True)
    return {name: part.reshape(*rows.shape[:-1], *shapes[name]) for name, part in named}


def shapes(tree: Tensors) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of each tensor."""
    return {name: tuple(value.shape) for name, value in tree.items()}


def largest(scores: Tree, groups: Iterable[tuple[str, ...]], ratio: float) -> Tree:
    """Return a bool mask of the ``ceil(ratio d)`` largest of the d scores in each group of names,
    ratio in [0, 1]."""
    masks: Tree = {}
    for names in groups:
        group = {name: scores[name] for name in names}
        vector = flat(group)
        count = math.ceil(round(ratio * vector.numel(), 6))  # 0.07 * 100 is a little more than 7
        # By index and not by a threshold: of equal scores exactly ``count`` are taken.
        chosen = vector.topk(count, sorted=False).indices
        mask = torch.zeros_like(vector, dtype=torch.bool).scatter(0, chosen, True)
        masks |= parted(mask, shapes(group))
    return {name: masks[name] for name in scores}


def prefixed(prefix: str, tree: Tree) -> Tree:
    """Return the tree with ``prefix`` in front of every name."""
    return {prefix + name: value for name, value in tree.items()}


def within(prefix: str, tree: Tree) -> Tree:
    """Return the part of the tree whose names start with ``prefix``, with the prefix removed."""
    part = ((name, value) for name, value in tree.items() if name.startswith(prefix))
    return {name.removeprefix(prefix): value for name, value in part}


def layers(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return layer -> names of its parameters, in the order of ``names``. The layer is the part of
    a name before the last dot."""
    grouped: dict[str, tuple[str, ...]] = {}
    for name in names:
        layer = name.rpartition(".")[0]
        grouped[layer] = (*grouped.get(layer, ()), name)
    return grouped


def by_layer(tree: Tree) -> dict[str, Tree]:
    """Return layer -> its part of the tree."""
    return {layer: {name: tree[name] for name in names} for layer, names in layers(tree).items()}


def size(tree: Tree) -> int:
    """Return the number of scalars in the tree."""
    return sum(value.numel() for value in tree.values())


def is_finite(tree: Tree) -> bool:
    """Return whether every entry is a finite number."""
    return all(bool(torch.isfinite(value).all()) for value in tree.values())


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors of equal shape and dtype have the same bits, NaN included."""
    if a.is_floating_point():  # as integers, because NaN is not equal to itself
        integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.itemsize]
        a, b = a.view(integer), b.view(integer)
    if a.device.type == "cpu":  # four times as fast as torch.equal
        return np.array_equal(a.numpy(), b.numpy())
    return torch.equal(a, b)


def fingerprints(tree: Tree) -> dict[str, str]:
    """Return name -> dtype, shape and SHA-256 of the bits of each tensor."""
    found = {}
    for name, value in tree.items():
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        digest = hashlib.sha256(content).hexdigest()
        found[name] = f"{value.dtype} {tuple(value.shape)} {digest}"
    return found


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return the names, sorted, of tensors of which two trees have other ``fingerprints``."""
    return [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
