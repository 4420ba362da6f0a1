"""Methods from outside the package: a file next to a study, or the entry point of an installed
package.

Both are modules with a function of the method's name and ``ABOUT``, like a method file of the
package. Mistakes are reported in one line before anything runs, because the package's tests and
type checks do not cover such a file.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import re
import typing
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pflpipe.code import guard, user_files
from pflpipe.errors import ConfigError, nearest
from pflpipe.methods.about import About

if TYPE_CHECKING:
    from pflpipe.methods.base import Method

GROUP = "pflpipe.methods"
"""Group of entry points by which packages offer methods: ``name = "package.module:name"``."""

HOOKS = {
    "local_update": ("params", "server", "state", "batches", "task"),
    "aggregate": ("params", "released", "server", "task"),
    "personalize": ("params", "server", "state", "batches", "task"),
    "init_server": ("params", "task"),
    "init_client": ("params", "task"),
    "scale": ("params", "server", "task"),
    "sends": ("task",),
    "absorb": ("state", "message", "task"),
}
"""The arguments of each hook, in this order."""


def in_file(written: str, folder: str | os.PathLike[str]) -> tuple[str, str]:
    """Return name and source of ``file.py:name`` in a study.

    Args:
        written: the reference; its path is relative to ``folder``.
        folder: folder of the study's file.

    Returns:
        The function's name, and the file's path relative to the working directory. That is the
        project's folder, in which every command and job runs, so the project may be moved.
    """
    path, _, name = written.rpartition(":")
    is_safe = path.endswith(".py") and _is_name(name) and not os.path.isabs(path)
    expected = "a method's name, or file.py:name with a path relative to the study's file"
    ConfigError.unless(is_safe, "method", written, expected)
    return name, os.path.relpath(os.path.join(folder, path))


@functools.cache  # takes 11 ms, and a study calls it for every method
def _points() -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points(group=GROUP)


def offered() -> tuple[str, ...]:
    """Return the names of all methods that installed packages offer, sorted."""
    return tuple(sorted(_points().names))


def module_of(name: str) -> str:
    """Return the module in which an installed package has the method; empty if none offers it.

    Raises:
        ConfigError: several packages offer it, or the entry point has another name than its
            function.
    """
    points = _points().select(name=name)
    modules = sorted({point.value for point in points})
    unless, what = ConfigError.unless, f"two methods have the name {name!r}"
    unless(len(modules) < 2, what, ", ".join(modules), do="uninstall one of the packages")
    for point in points:
        expected = f"a function of the method's name, such as {point.module}:{name}"
        fits = point.attr == name and _is_name(name)
        unless(fits, f"entry point {name!r} of group {GROUP}", point.value, expected)
        return point.module
    return ""


def file_of(name: str, source: str = "") -> Path:
    """Return the path of the file with a method's code, without running it.

    Raises:
        ConfigError: there is none.
    """
    if source.endswith(".py"):
        return Path(source)
    module = source or f"pflpipe.methods.{name}"
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # not even its package
        spec = None
    if spec is None or spec.origin is None:
        raise ConfigError(f"method {name}: there is no module {module}")
    return Path(spec.origin)


def load(name: str, source: str) -> tuple[Callable[..., Method], About]:
    """Return factory and ABOUT of a method, checked.

    Args:
        name: name of the function.
        source: path of a file, ending in ``.py``, or the dotted name of a module.

    Raises:
        ConfigError: there is no such file or module, it does not run, or it is not a method.
    """
    is_file = source.endswith(".py")
    location = os.path.relpath(source) if is_file else source
    module = user_files.module(location) if is_file else _of_package(name, source)
    functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
    do = nearest(name, functions) if functions else "it has none"
    unless, what = ConfigError.unless, f"{location}: there is no function {name!r}"
    unless(name in functions, what, do=do)
    about = getattr(module, "ABOUT", None)
    do = 'add ABOUT = About(title="...", paper="...") from pflpipe.methods.base'
    unless(isinstance(about, About), f"{location}: there is no ABOUT", do=do)
    assert isinstance(about, About)
    factory = getattr(module, name)
    _check_factory(factory, name, location)
    return factory, about


def _is_name(text: str) -> bool:
    """Return whether a text is safe as a column, a file name and a wildcard."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text) is not None


def _of_package(name: str, source: str) -> ModuleType:
    with guard.in_one_line(f"method {name}: {source}"):
        return importlib.import_module(source)


def _check_factory(factory: Any, name: str, file: str) -> None:
    """Raise ConfigError unless the hyper-parameters are typed and the method with its defaults has
    correct hooks."""
    location, unless = f"{file}: {name}", ConfigError.unless
    with guard.in_one_line(location):
        parameters = inspect.signature(factory, eval_str=True).parameters
    for parameter in parameters.values():
        fits = parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty
        expected = f"it by keyword and with a default: *, {parameter.name}: float = 0.1"
        unless(fits, f"{location}: hyper-parameter", str(parameter), expected)
        kind = parameter.annotation
        if typing.get_origin(kind) is typing.Annotated:
            kind = typing.get_args(kind)[0]
        fits = kind in (int, float, bool, str) or typing.get_origin(kind) is typing.Literal
        got = "none" if kind is parameter.empty else inspect.formatannotation(kind)
        expected = "int, float, bool, str or Literal, perhaps Annotated with an Option"
        unless(fits, f"{location}: type of hyper-parameter {parameter.name}", got, expected)
    from pflpipe.methods.base import Method

    with guard.in_one_line(file, factory.__code__.co_filename):
        method = factory()
    what, got = f"{location}: returns", type(method).__name__
    unless(isinstance(method, Method), what, got, "a Method")
    for hook, wanted in HOOKS.items():
        function = getattr(method, hook)
        if function is not None:
            _check_hook(function, wanted, f"{location}: hook {hook}")


def _check_hook(function: Any, wanted: tuple[str, ...], location: str) -> None:
    """Raise ConfigError unless a hook accepts its arguments. Parameters may have any names, but not
    the name of another argument, which would indicate a swap."""
    expected = f"({', '.join(wanted)})"
    ConfigError.unless(callable(function), location, function, f"a function {expected}")
    signature = inspect.signature(function)
    try:
        taken = list(signature.bind(*wanted).arguments)
    except TypeError:
        taken = []
    pairs = zip(taken, wanted, strict=False)
    swapped = any(name != argument and name in wanted for name, argument in pairs)
    got = f"({', '.join(signature.parameters)})"
    ConfigError.unless(bool(taken) and not swapped, f"{location}: parameters", got, expected)
