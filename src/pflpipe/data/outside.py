"""``file.py:name``: objects in files of the user that a study or config.yaml names.

Such a file may import any installed package, but no file next to it: results that depend on it are
repeated if this one file changes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import operator
import os
import signal
import symtable
import sys
import tokenize
import traceback
import types
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from pflpipe.errors import ConfigError, PflpipeError, nearest
from pflpipe.parts import REFERENCE
from pflpipe.parts import is_reference as is_reference

_SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE
# Of torch: getters and setters, then attributes. The old interface of precision (matmul_precision,
# allow_tf32) also changes the new one that follows, and a backend's precision that of its layers.
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
    *(f"backends.cudnn.{kind}fp32_precision" for kind in ("", "conv.", "rnn.")),
    *(f"backends.mkldnn.{kind}fp32_precision" for kind in ("", "conv.", "rnn.", "matmul.")),
    *(f"backends.cudnn.{name}" for name in ("enabled", "benchmark", "deterministic")),
)


def file_of(reference: str) -> Path:
    """Return the file of ``file.py:name``."""
    return Path(_parts(reference)[0])


def beside(reference: str, folder: str | os.PathLike[str]) -> str:
    """Return a reference relative to ``folder`` as a reference relative to the working directory,
    where jobs run."""
    file, name = _parts(reference)
    return f"{file_beside(file, folder)}:{name}"


def file_beside(file: str, folder: str | os.PathLike[str]) -> str:
    """Return a path relative to ``folder`` as a path relative to the working directory."""
    return Path(os.path.relpath(Path(folder) / file)).as_posix()


def check(reference: str, error: type[PflpipeError] = ConfigError) -> None:
    """Check that the file exists and has the name, without running it.

    Raises:
        ConfigError, or the class ``error``: no such file, not Python, no such name.
    """
    file, name = _parts(reference)
    symbols = _symbols(file, _text(file, error), error)
    _check_has(file, name, [s.get_name() for s in symbols if _is_bound(s)], error)


def load(reference: str, error: type[PflpipeError] = ConfigError) -> Any:
    """Run the file and return the object with the name.

    Raises:
        ConfigError, or the class ``error``: as ``check``, or the file itself fails.
    """
    file, name = _parts(reference)
    values = vars(module(file, error))
    _check_has(file, name, values, error)
    return values[name]


def module(file: str, error: type[PflpipeError] = ConfigError) -> types.ModuleType:
    """Run a file, once in a process for each of its contents, and return it as a module.

    Raises:
        ConfigError, or the class ``error``: no such file, not Python, or it fails.
    """
    text = _text(file, error)
    _symbols(file, text, error)
    path = str(Path(file).resolve())
    if "torch" in text:
        importlib.import_module("torch")  # so that its switches can be restored
    with in_one_line(file, path, error):
        return _run(path, text)


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
def restored() -> Iterator[None]:
    """Restore what the user's code changes in this process: the working directory, the filters of
    warnings, the handlers of signals, and torch's defaults and switches.

    Otherwise files would be written elsewhere, and the file of a network would choose the precision
    of every run.
    """
    parts = [(read, write, read()) for read, write in _state("torch" in sys.modules)]
    try:
        yield
    finally:
        for read, write, before in parts:
            if before is not None and read() != before:
                write(before)


def switches() -> list[Any]:
    """Return torch's defaults and switches in this process, for ``switch`` in another one."""
    return [read() for read, _ in _of_torch()]


def switch(values: list[Any]) -> None:
    """Set torch's defaults and switches as ``switches`` returned them."""
    for (read, write), value in zip(_of_torch(), values, strict=True):
        if value is not None and read() != value:
            write(value)


@functools.cache
def _state(with_torch: bool) -> list[tuple[Callable[[], Any], Callable[[Any], object]]]:
    """Return how each part of the state of this process is read and written."""
    bind = functools.partial
    parts: list[tuple[Callable[[], Any], Callable[[Any], object]]] = [
        (os.getcwd, os.chdir),
        (lambda: list(warnings.filters), bind(setattr, warnings, "filters")),
        *((bind(signal.getsignal, number), bind(signal.signal, number)) for number in _SIGNALS),
    ]
    return [*parts, *_of_torch()] if with_torch else parts


@functools.cache
def _of_torch() -> list[tuple[Callable[[], Any], Callable[[Any], object]]]:
    """Return how each of torch's defaults and switches is read and written."""
    bind = functools.partial
    parts: list[tuple[Callable[[], Any], Callable[[Any], object]]] = []
    torch = importlib.import_module("torch")
    for name in _TORCH_VALUES:
        parts.append((bind(_read, getattr(torch, f"get_{name}")), getattr(torch, f"set_{name}")))
    for name in _TORCH_FLAGS:
        owner, _, flag = name.rpartition(".")
        holder = operator.attrgetter(owner)(torch)
        parts.append((bind(_read, getattr, holder, flag), bind(setattr, holder, flag)))

    def put_device(device: Any) -> None:
        torch.set_default_device(None if device.type == "cpu" else device)

    return [
        *parts,
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_default_device, put_device),
    ]


def _read(getter: Callable[..., Any], *given: Any) -> Any:
    """Return a value of torch, or None where its old and its new interface were mixed."""
    try:
        return getter(*given)
    except RuntimeError:
        return None


def described(problem: BaseException) -> str:
    """Return class and message of an exception of the user's code, as one line."""
    return " ".join(f"{type(problem).__name__}: {problem}".split())[:300]


@functools.cache
def _run(path: str, text: str) -> types.ModuleType:
    # Not importlib: it would write bytecode next to the user's file, and reuse it if the file
    # changes within a second.
    name = f"pflpipe_outside_{hashlib.sha256(path.encode()).hexdigest()[:10]}"
    made = types.ModuleType(name)
    made.__file__ = path
    sys.modules[name] = made  # dataclasses look up their module there
    try:
        code, names = compile(text, path, "exec", dont_inherit=True), vars(made)
        # The user's own program, which the study names as such (SECURITY.md).
        exec(code, names)  # noqa: S102
    except BaseException:
        del sys.modules[name]
        raise
    return made


def _parts(reference: str) -> tuple[str, str]:
    match = REFERENCE.fullmatch(reference)
    if match is None:
        raise ConfigError("a name from outside", got=reference, expected="file.py:name")
    return match["file"], match["name"]


def _text(file: str, error: type[PflpipeError]) -> str:
    try:
        with tokenize.open(file) as source:  # which reads a BOM and a line "coding:" as Python does
            return source.read()
    except (OSError, UnicodeDecodeError, SyntaxError) as problem:
        if isinstance(problem, FileNotFoundError):
            raise error(f"{file}: no such file", do="mend the path, or make it") from None
        raise error(f"{file} cannot be read", got=described(problem)) from None


def _symbols(file: str, text: str, error: type[PflpipeError]) -> list[symtable.Symbol]:
    """Return the module-level names of a file."""
    try:
        return symtable.symtable(text, file, "exec").get_symbols()
    except (SyntaxError, ValueError) as problem:
        line = f":{problem.lineno}" if isinstance(problem, SyntaxError) else ""
        message = problem.msg if isinstance(problem, SyntaxError) else problem
        raise error(f"{file}{line}: not valid Python: {message}") from None


def _is_bound(symbol: symtable.Symbol) -> bool:
    """Whether a definition, an assignment or an import gives the name a value."""
    return symbol.is_assigned() or symbol.is_imported()


def _check_has(file: str, name: str, names: Collection[str], error: type[PflpipeError]) -> None:
    if name not in names:
        public = [other for other in names if not other.startswith("_")]
        raise error(f"{file} has no {name!r}", do=nearest(name, public) if public else "define it")
