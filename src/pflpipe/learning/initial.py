"""Initial weights from a file of the user (``model.init``): a start that no client's rows have
made.

Nobody can check that, so the ledger says whose word it is. The digest of the file is part of every
cell: with other weights a run has another id and other noise. This module does not import torch, so
that a study is checked without it.
"""

import dataclasses
import functools
import hashlib
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pflpipe.cells import Model
from pflpipe.code import reference
from pflpipe.errors import ConfigError
from pflpipe.learning import architectures

_DTYPE = "F32"  # of safetensors: little-endian float32
_SETTLED = 2_000_000_000  # nanoseconds; no file system in use has a coarser clock


def with_digest(model: Model) -> Model:
    """Return the model with the digest of its file of initial weights, if it has one.

    Raises:
        ConfigError: the file cannot be read.
    """
    if model.init is None:
        return model
    try:
        changed = Path(model.init).stat().st_ctime_ns
    except OSError as error:
        raise _unreadable(model.init, error) from None
    # Two changes within a tick of the file system's clock have one time, so that a file that just
    # changed is read each time (git's index does the same).
    settled = time.time_ns() - changed > _SETTLED
    digest = _digest(model.init, changed) if settled else _digest.__wrapped__(model.init, changed)
    return dataclasses.replace(model, init_digest=digest)


def weights(
    model: Model, image_shape: tuple[int, ...], classes: int
) -> dict[str, np.ndarray] | None:
    """Return the initial weights, float32, by the names of ``architectures.whole``, which has the
    same arguments; None for a model without a file.

    The file has each parameter under its name, in a network of the user's under the name that it
    has there.

    Raises:
        ConfigError: the file changed since the cell was made, is no safetensors file, or its
            tensors are not the parameters of the network, float32 and finite.
    """
    if model.init is None:
        return None
    from safetensors import SafetensorError, deserialize

    shapes = architectures.whole(model, image_shape, classes)
    names = names_in_file(model, image_shape, classes)
    file, content = model.init, _content(model.init)
    if (found := hashlib.sha256(content).hexdigest()) != model.init_digest:
        do = "its digest is part of the run's id: start again with the file as it is"
        raise ConfigError(f"{file}: sha256", got=found, expected=model.init_digest, do=do)
    try:
        tensors = dict(deserialize(content))
    except SafetensorError as error:
        raise ConfigError(file, got=str(error), expected="a safetensors file") from None
    wanted = {names[name]: f"{_DTYPE} {list(shape)}" for name, shape in shapes.items()}
    for name in sorted(wanted.keys() | tensors):
        tensor = tensors.get(name)
        got = f"{tensor['dtype']} {list(tensor['shape'])}" if tensor else "no such tensor"
        if got != wanted.get(name):
            expected = wanted.get(name, f"only the parameters of model {model.name}")
            raise ConfigError(f"{file}: {name}", got=got, expected=expected)
    values = {}
    for name, shape in shapes.items():
        values[name] = np.frombuffer(tensors[names[name]]["data"], "<f4").reshape(shape)
        if not np.isfinite(values[name]).all():
            got = "NaN or infinity"
            raise ConfigError(f"{file}: {names[name]}", got=got, expected="finite numbers")
    return values


def names_in_file(model: Model, image_shape: tuple[int, ...], classes: int) -> Mapping[str, str]:
    """Return our name -> the name in a file of every parameter; see ``weights``."""
    if reference.is_reference(model.name):
        from pflpipe.learning import modules

        return modules.adapt(model.name, model.options, tuple(image_shape), classes).paths
    return {name: name for name in architectures.whole(model, image_shape, classes)}


@functools.lru_cache(maxsize=64)
def _digest(file: str, changed: int) -> str:
    """Return the SHA-256 of a file that was last changed at a time: the cells of a study share
    their file."""
    return hashlib.sha256(_content(file)).hexdigest()


def _content(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from None


def _unreadable(file: str, error: OSError) -> ConfigError:
    return ConfigError(
        "model.init", got=file, expected="a safetensors file", do=error.strerror or ""
    )
