"""Calls of code that is not of this package: exceptions of a user's code, and of libraries that
read a user's files, become one line, and what a user's code changes in this process is restored."""

import contextlib
import functools
import importlib
import operator
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from pflpipe.errors import ConfigError, DataError, PflpipeError, PrivacyError

_Part = tuple[Callable[[], Any], Callable[[Any], object]]
"""How a part of the state of this process is read, and how it is written."""
_SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE
# Of torch: getters and setters, then attributes. The order matters: the old interface of precision
# (matmul_precision, allow_tf32) also changes the new one that follows, and a backend's precision
# that of its layers.
_TORCH_VALUES = (
    "float32_matmul_precision",
    "default_dtype",
    "deterministic_debug_mode",
    "num_threads",
)
_TORCH_FLAGS = (
    "backends.cuda.matmul.allow_tf32",
    "backends.cudnn.allow_tf32",
    "backends.fp32_precision",
    "backends.cuda.matmul.fp32_precision",
    "backends.cudnn.fp32_precision",
    "backends.cudnn.conv.fp32_precision",
    "backends.cudnn.rnn.fp32_precision",
    "backends.mkldnn.fp32_precision",
    "backends.mkldnn.conv.fp32_precision",
    "backends.mkldnn.rnn.fp32_precision",
    "backends.mkldnn.matmul.fp32_precision",
    "backends.cudnn.enabled",
    "backends.cudnn.benchmark",
    "backends.cudnn.deterministic",
)


def described(problem: BaseException) -> str:
    """Return class and message of an exception of such code, as one line."""
    return " ".join(f"{type(problem).__name__}: {problem}".split())[:300]


@contextlib.contextmanager
def in_one_line(
    location: str, path: str = "", error: type[PflpipeError] = ConfigError
) -> Iterator[None]:
    """Turn an exception of the user's code into one line, with the line number in ``path``, and
    restore the process as ``restored`` does."""
    with one_line(location, path, error), restored():
        yield


@contextlib.contextmanager
def one_line(location: str, path: str, error: type[PflpipeError]) -> Iterator[None]:
    """Turn an exception of the user's code into one line, with the line number in ``path``."""
    try:
        yield
    except PflpipeError:
        raise
    except (Exception, SystemExit) as problem:
        frames = traceback.extract_tb(problem.__traceback__)
        lines = [f":{frame.lineno}" for frame in frames if path and frame.filename == path]
        where = location + "".join(lines[-1:])
        raise error(f"{where}: {described(problem)}") from problem


@contextlib.contextmanager
def foreign(
    what: str,
    *,
    expected: str = "",
    do: str = "",
    told: Callable[[Exception], str] = described,
) -> Iterator[None]:
    """Turn an exception of the system or of a library into a DataError: libraries have a dozen for
    a damaged file, and no common base.

    Args:
        what, expected, do: parts of the message, as ``DataError`` takes them.
        told: what is said of the exception.
    """
    try:
        yield
    except PflpipeError:
        raise
    except Exception as problem:
        raise DataError(what, got=told(problem), expected=expected, do=do) from problem


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Restore what the user's code changes in this process: the working directory, the filters of
    warnings, the handlers of signals, and torch's defaults and switches.

    Otherwise files would be written elsewhere, and the file of a network would choose the precision
    of every run.
    """
    parts = _state("torch" in sys.modules)
    before = [read() for read, _ in parts]
    try:
        yield
    finally:
        _put(parts, before)


@contextlib.contextmanager
def without_kept_tensors(what: str) -> Iterator[None]:
    """Say in one line that code kept a tensor of an earlier call under vmap or grad, which torch
    refuses to use again."""
    try:
        yield
    except RuntimeError as problem:
        if "escaped from inside a function" not in str(problem):
            raise
        got = "code that uses a tensor of an earlier call"
        expected = "a function of its arguments that keeps nothing between calls"
        raise PrivacyError(what, got=got, expected=expected) from problem


def switches() -> list[Any]:
    """Return torch's defaults and switches in this process, for ``switch`` in another one."""
    return [read() for read, _ in _of_torch()]


def switch(values: list[Any]) -> None:
    """Set torch's defaults and switches as ``switches`` returned them."""
    _put(_of_torch(), values)


def _put(parts: list[_Part], values: list[Any]) -> None:
    for (read, write), value in zip(parts, values, strict=True):
        if value is not None and read() != value:
            write(value)


@functools.cache
def _state(with_torch: bool) -> list[_Part]:
    """Return how each part of the state of this process is read and written."""
    bind = functools.partial
    parts: list[_Part] = [
        (os.getcwd, os.chdir),
        (lambda: list(warnings.filters), bind(setattr, warnings, "filters")),
        *((bind(signal.getsignal, number), bind(signal.signal, number)) for number in _SIGNALS),
    ]
    return [*parts, *_of_torch()] if with_torch else parts


@functools.cache
def _of_torch() -> list[_Part]:
    """Return how each of torch's defaults and switches is read and written."""
    bind = functools.partial
    parts: list[_Part] = []
    torch = importlib.import_module("torch")
    for name in _TORCH_VALUES:
        parts.append((bind(_read, getattr(torch, f"get_{name}")), getattr(torch, f"set_{name}")))
    for name in _TORCH_FLAGS:
        owner, _, flag = name.rpartition(".")
        holder = operator.attrgetter(owner)(torch)
        parts.append((bind(_read, getattr, holder, flag), bind(setattr, holder, flag)))

    def put_device(device: Any) -> None:
        torch.set_default_device(None if device.type == "cpu" else device)

    parts.append((torch.is_grad_enabled, torch.set_grad_enabled))
    return [*parts, (torch.get_default_device, put_device)]


def _read(getter: Callable[..., Any], *given: Any) -> Any:
    """Return a value of torch, or None where its old and its new interface were mixed."""
    try:
        return getter(*given)
    except RuntimeError:
        return None
